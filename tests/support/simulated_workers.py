"""Workers of a simulation: one after another in fact, and the same with each run."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

from stream_world import Crash

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.ports.deadlines import is_time_short

T = TypeVar("T")
_is_piece: ContextVar[bool] = ContextVar("is_piece", default=False)
"""Whether a piece of work of the present process is done; another process has another context."""


class SimulatedClock(ManualClock):
    """A clock that a simulation sets to the time of the worker whose turn it is."""

    def set_ms(self, now_ms: int) -> None:
        self._now_ms = now_ms


class SimulatedWorkers:
    """`ports.workers.Workers`: the worker that is free first takes the next item; work moves the clock."""

    def __init__(self, clock: SimulatedClock, count: int) -> None:
        self._clock = clock
        self._count = count

    def each(self, work: Callable[[T], None], items: Iterator[T]) -> None:
        free_ms = [self._clock.now_ms()] * self._count
        while True:
            self._clock.set_ms(free_ms[0])
            if is_time_short():
                break
            try:
                item = next(items)
            except StopIteration:
                break
            work(item)
            heapq.heapreplace(free_ms, self._clock.now_ms())
        self._clock.set_ms(max(free_ms))


class ShuffledWorkers:
    """`ports.workers.Workers`: the items in an order that a seed decides.

    If one fails, the others are still done, unless the process dies. Work must not call for workers itself: with
    threads, each of 32 would start 32, more than a function may have.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def each(self, work: Callable[[T], None], items: Iterator[T]) -> None:
        assert not _is_piece.get(), "a piece of work calls for workers"
        token = _is_piece.set(True)
        try:
            self._each(work, items)
        finally:
            _is_piece.reset(token)

    def _each(self, work: Callable[[T], None], items: Iterator[T]) -> None:
        shuffled, failures = list(items), list[Exception]()
        self._random.shuffle(shuffled)
        for item in shuffled:
            if is_time_short():
                break
            try:
                work(item)
            except Crash:
                raise
            except Exception as error:  # noqa: BLE001 - raised when all have ended
                failures.append(error)
        if failures:
            raise failures[0]
