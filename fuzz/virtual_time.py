"""An event loop without threads whose time passes at once, so that a seed does the same in each run.

Everything that a program does in it must come from its seed, too. It has no sockets.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from fuzz.randomness import Random
from simulation.world.loop import SimulatedFuture, SimulatedTask

TURNS_MAX: Final = 500_000
"""So many turns of the loop may be at the same time."""

_THREAD_DELAYS_S: Final = (0.0, 0.0, 0.0005, 0.004)

_Result = TypeVar("_Result")


class StuckError(AssertionError):
    """All tasks wait for each other, or they run on and on without a wait for time."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time passes only when no task can run. Calls for other threads run between two turns, after a random time."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._now_s = 0.0
        self._turns = 0
        super().__init__(_NoWaiting(self._pass_time))
        self._numbers = count()
        self.set_task_factory(lambda loop, work, **kinds: SimulatedTask(next(self._numbers), work, loop=loop, **kinds))

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(next(self._numbers), self)

    def time(self) -> float:
        return self._now_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """As in a thread, the call runs even if its caller is cancelled meanwhile."""
        outcome: asyncio.Future[Any] = self.create_future()
        self._later(partial(self._call, outcome, partial(func, *args)))
        return outcome

    def _call(self, outcome: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self._later(partial(_fail, outcome, error))
        else:
            self._later(partial(_settle, outcome, result))

    def _later(self, call: Callable[[], None]) -> None:
        self.call_later(self._random.choice(_THREAD_DELAYS_S), call)

    def _pass_time(self, seconds: float) -> None:
        self._turns = 0 if seconds else self._turns + 1
        if self._turns > TURNS_MAX:
            self._turns = 0  # the tasks still have to be cancelled
            raise StuckError(f"the tasks run on and on at {self._now_s} s")
        self._now_s += seconds


class _NoWaiting(selectors.SelectSelector):
    """Has no events: it lets time pass instead."""

    def __init__(self, pass_time: Callable[[float], None]) -> None:
        super().__init__()
        self._pass_time = pass_time

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError("no task can run, and none waits for a time")
        self._pass_time(timeout)
        return []


def run_in_virtual_time(work: Coroutine[Any, Any, _Result], random: Random) -> _Result:
    """As `asyncio.run`.

    Raises:
        StuckError: the work waits for something that cannot happen.
    """
    with asyncio.Runner(loop_factory=partial(VirtualTimeLoop, random)) as runner:
        return runner.run(work)


def _settle(outcome: asyncio.Future[Any], result: object) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: asyncio.Future[Any], error: Exception) -> None:
    if not outcome.done():
        outcome.set_exception(error)
