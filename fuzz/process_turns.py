"""Processes that run one at a time, call by call, in an order that a seed decides, with faults at the calls.

Each process has a thread of its own, because the controller's code is synchronous. A thread only runs while it has the
turn, and gives it back at each call of a port. So a seed does the same in each run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.program_trace import Trace
from fuzz.randomness import Random
from fuzz.watched_ports import Calls, Crash
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.model.errors import UnavailableError

CALLS_MAX: Final = 60_000
"""The number of calls after which processes that run together count as stuck. They make a few thousand."""

TURN: Final = "turn"
"""The kind of a call that only gives the turn back."""

_KEEPS_TURN: Final = (0.0, 0.5, 0.8, 0.95)
_SLEEPS_TURNS: Final = (20, 100, 500)
_SLOW_SHARE: Final = 0.4
_SLOW_PERCENT: Final = 60
_SLOW_AT: Final = (
    *(
        ("before segment store", "after segment store"),
        ("before segment store delete",),
        ("after segment store create",),
    ),
    *(("after segment store incomplete",), ("before segment store merge",), ("after segment store merge",)),
    *(("before read",), ("after read",), ("before write", "after write"), ("before transaction", "after transaction")),
    *(("before send",), ("before segment store create", "before segment store seal")),
)

_JUMPS_MS: Final = (500, 4_000, 30_000, 70_000, 200_000, 3_700_000)


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each fault happens, in percent of the calls.

    The process dies; a call has its effect and its answer is lost; a call is refused without an effect; the process
    sleeps for many turns of the others; the clock jumps forward.
    """

    deaths: float = 0.0
    lost_answers: float = 0.0
    refusals: float = 0.0
    sleeps: float = 0.0
    jumps: float = 0.0


@dataclass(eq=False, slots=True)
class Process:
    """What a process does, and how it ended: `error` is None if its work is done, and a Crash if it died.

    It often sleeps before or after calls of some kinds, as `slow_at` says: "before write". So others do much meanwhile.
    """

    name: str
    work: Callable[[], object]
    error: BaseException | None = None
    is_dead: bool = False
    wakes_at: int = 0
    slow_at: tuple[str, ...] = ()
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class _RunOver(BaseException):
    """Ends a process of a run that is over. Not an Exception, so that no retry suppresses it."""


class Turns:
    """Runs processes together. Only the thread of `_current` runs at any time."""

    def __init__(
        self,
        calls: Calls,
        clock: ManualClock,
        random: Random,
        faults: Faults,
        trace: Trace,
        check: Callable[[str], None],
    ) -> None:
        """`check` is called after each call, with its kind, and raises WrongStateError."""
        self._calls, self._clock = calls, clock
        self._random, self._faults, self._trace, self._check = random, faults, trace, check
        self._keeps_turn = random.choice(_KEEPS_TURN)
        self._running: list[Process] = []
        self._current: Process | None = None
        self._failure: BaseException | None = None
        self._is_over = False
        self._all_ended = threading.Semaphore(0)
        self._turns = 0
        self._made = 0

    def run(self, processes: Sequence[Process]) -> int:
        """Run the processes to their ends; how many died.

        If one fails, the others end at their next calls. Its error is raised when all threads have ended. If the
        processes keep each other from ending, the error is WrongStateError.
        """
        self._running = list(processes)
        for process in processes:
            if not process.slow_at and self._random.random() < _SLOW_SHARE:
                process.slow_at = self._random.choice(_SLOW_AT)
        threads = [threading.Thread(target=self._run_process, args=(process,), daemon=True) for process in processes]
        self._calls.before, self._calls.after = self._before, self._after
        for thread in threads:
            thread.start()
        self._wake_next()
        try:
            self._all_ended.acquire()
        except BaseException:  # The search is interrupted.
            self._is_over = True
            self._all_ended.acquire()
            raise
        finally:
            for thread in threads:
                thread.join()
            self._calls.calm()
        if self._failure is not None:
            raise self._failure
        return sum(process.is_dead for process in processes)

    def _wake_next(self) -> None:
        """Give the turn to a process, or end the run if none is left."""
        if not self._running:
            self._all_ended.release()
            return
        self._current = self._choose()
        self._current.turn.release()

    def _choose(self) -> Process:
        self._turns += 1
        awake = [each for each in self._running if each.wakes_at <= self._turns]
        if not awake:
            first = min(self._running, key=lambda process: process.wakes_at)
            self._turns = first.wakes_at
            awake = [first]
        if self._current in awake and self._random.random() < self._keeps_turn:
            return self._current
        return self._random.choice(awake)

    def _run_process(self, process: Process) -> None:
        process.turn.acquire()
        try:
            if not self._is_over:
                process.work()
        except (Crash, _RunOver) as error:
            process.error = error
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            process.error = error
            self._fail(error)
        if not self._is_over:
            self._trace.note(f"{process.name}: ended" + (f" with {process.error!r}" if process.error else ""))
        self._running.remove(process)
        self._wake_next()

    def _fail(self, error: BaseException) -> None:
        """End the run: each process ends at its next call."""
        if self._failure is None:
            self._trace.note(f"failed with {error!r}")
            self._failure = error
        self._is_over = True

    def _before(self, kind: str) -> None:
        process = self._give_turn("before", kind)
        if kind not in (TURN, "between reads") and self._happens(self._faults.refusals):
            self._trace.note(f"{process.name}: {kind} is refused")
            raise UnavailableError(f"{kind} is refused")
        self._trace.note(f"{process.name}: {kind}")

    def _after(self, kind: str) -> None:
        try:
            self._check(kind)
        except WrongStateError as error:
            self._fail(error)  # also if the process that made the call suppresses the error
            raise
        is_change = kind in ("write", "transaction", "send") or kind.startswith("segment store")
        if is_change and self._happens(self._faults.lost_answers):
            self._trace.note(f"the answer to {kind} is lost")
            raise UnavailableError(f"the answer to {kind} is lost")
        self._give_turn("after", kind)

    def _give_turn(self, moment: str, kind: str) -> Process:
        """Let others run, and return the process when it has the turn again. Raises Crash if it dies here."""
        process = self._current
        if self._is_over or process is None:
            raise _RunOver(kind)
        is_slow = f"{moment} {kind}".startswith(process.slow_at)
        if self._happens(_SLOW_PERCENT if is_slow else self._faults.sleeps):
            process.wakes_at = self._turns + self._random.choice(_SLEEPS_TURNS)
        if self._happens(self._faults.jumps):
            jump_ms = self._random.choice(_JUMPS_MS)
            self._trace.note(f"{jump_ms} ms pass")
            self._clock.advance(jump_ms)
        following = self._choose()
        if following is not process:
            self._current = following
            following.turn.release()
            process.turn.acquire()
        self._made += 1
        if self._made > CALLS_MAX:
            self._fail(WrongStateError(f"after {CALLS_MAX} calls the processes have not ended"))
        if self._is_over:
            raise _RunOver(kind)
        if process.is_dead or self._happens(self._faults.deaths):
            process.is_dead = True
            raise Crash(kind)
        return process

    def _happens(self, percent: float) -> bool:
        return percent > 0 and self._random.random() * 100 < percent
