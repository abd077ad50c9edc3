"""Several processes on one world, call by call, in an order that a seed decides; some die, some lose an answer.

Each process stops before and after every call of a port, so also between the single reads of a batch read. Then the
seed says who goes on. A run with one seed is always the same.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from stream_world import StreamWorld

from fuzz.watched_ports import Crash
from headrace.model.errors import UnavailableError

CALLS_MAX = 20_000
"""More calls than any processes here make together: what has not come to its end by then never does."""


@dataclass(frozen=True)
class Trouble:
    """How often, of a hundred calls, a process dies at one, and a write takes effect but its answer is lost."""

    deaths: float = 0.0
    lost_answers: float = 0.0


@dataclass(eq=False)
class _Process:
    work: Callable[[], object]
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: BaseException | None = None
    is_dead: bool = False


class Interleaving:
    """Processes that are run together. `watch` is called after each call of any of them."""

    def __init__(
        self, world: StreamWorld, seed: int, trouble: Trouble, watch: Callable[[], object] = lambda: None
    ) -> None:
        self._world = world
        self._random = random.Random(seed)
        self._trouble = trouble
        self._watch = watch
        self._patience = self._random.choice((0.0, 0.5, 0.8, 0.95))
        """How probable it is that the process which made a call makes the next one too."""
        self._calls = 0
        self._running: list[_Process] = []
        self._of_thread: dict[int, _Process] = {}
        self._scheduler = threading.Semaphore(0)

    def run(self, *works: Callable[[], object]) -> list[BaseException | None]:
        """Run all to their ends; what each raised. A process that died has raised Crash."""
        processes = [_Process(work) for work in works]
        self._running = list(processes)
        threads = [threading.Thread(target=self._body, args=(process,), daemon=True) for process in processes]
        calls = self._world.calls
        calls.before, calls.after = self._stop, self._after
        for thread in threads:
            thread.start()
        current = processes[0]
        while self._running:
            if current not in self._running or self._random.random() >= self._patience:
                current = self._random.choice(self._running)
            current.turn.release()
            self._scheduler.acquire()
        for thread in threads:
            thread.join()
        calls.calm()
        return [process.ended for process in processes]

    def _body(self, process: _Process) -> None:
        self._of_thread[threading.get_ident()] = process
        process.turn.acquire()
        try:
            process.work()
        except BaseException as error:  # noqa: BLE001 - the test judges it
            process.ended = error
        self._running.remove(process)
        self._scheduler.release()

    def _after(self, kind: str) -> None:
        self._watch()
        process = self._of_thread[threading.get_ident()]
        is_write = kind in ("write", "transaction")
        if is_write and not process.is_dead and self._random.random() * 100 < self._trouble.lost_answers:
            raise UnavailableError("the answer to a write is lost")
        self._stop(kind)

    def _stop(self, kind: str) -> None:
        process = self._of_thread[threading.get_ident()]
        self._scheduler.release()
        process.turn.acquire()
        self._calls += 1
        assert self._calls < CALLS_MAX, "the processes keep each other from ending"
        if process.is_dead or self._random.random() * 100 < self._trouble.deaths:
            process.is_dead = True  # what it tries on its way out has no effect either
            raise Crash(kind)
