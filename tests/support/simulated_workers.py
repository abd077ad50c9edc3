"""Workers of a simulation: one after another in fact, and the same with each run."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.ports.clock import is_time_short

T = TypeVar("T")


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
