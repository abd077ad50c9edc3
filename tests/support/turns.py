"""Two processors work on one thing, call by call, in an order that a list of choices decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from fuzz.watched_ports import Calls, Crash

TURNS_MAX = 400


def run_in_turns(calls: Calls, work: Callable[[], object], order: Sequence[int]) -> list[BaseException]:
    """Two threads do `work`; each choice in `order`, which is gone through again and again, says who makes a call.

    What they raised, which is the test's to judge.
    """
    turns = _Turns(order)
    workers: dict[int, int] = {}

    def run(worker: int) -> None:
        workers[threading.get_ident()] = worker
        try:
            work()
        finally:
            turns.leave(worker)

    calls.before = lambda _kind: turns.wait(workers[threading.get_ident()])
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(run, worker) for worker in (0, 1)]
    calls.calm()
    assert not turns.are_over, "the processors keep each other from ending"
    return [error for error in (end.exception() for end in ends) if error is not None]


class _Turns:
    """Lets two threads make their calls one at a time."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order
        self._condition = threading.Condition()
        self._waiting: set[int] = set()
        self._running = {0, 1}
        self._turn: int | None = None
        self._made = 0
        self.are_over = False

    def wait(self, worker: int) -> None:
        with self._condition:
            self._waiting.add(worker)
            self._choose()
            self._condition.wait_for(lambda: self._turn == worker or self.are_over)
            self._waiting.discard(worker)
            if self.are_over:
                raise Crash
            self._turn = None

    def leave(self, worker: int) -> None:
        with self._condition:
            self._running.discard(worker)
            self._choose()

    def _choose(self) -> None:
        """Once everybody who still runs waits, the next choice decides who goes on."""
        if self._turn is None and self._waiting and self._waiting == self._running:
            wish = self._order[self._made % len(self._order)]
            self._made += 1
            self.are_over = self._made >= TURNS_MAX
            self._turn = wish if wish in self._waiting else next(iter(self._waiting))
            self._condition.notify_all()
