"""Counts the requests of a piece of work, the items that it writes, and how many requests follow each other.

    trips = RoundTrips(world)
    with trips.counting() as counted:
        service_with(trips.workers).commit_all(...)
    assert (counted.requests, counted.path) == ({"read": 1}, 1)

The path is the number of requests on the longest chain of those that wait for one another, with as many workers as
the functions have. Requests that workers make at the same time are one step of it. It is counted and not measured: each
request takes one unit of a simulated clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from simulated_workers import SimulatedClock, SimulatedWorkers
from stream_world import StreamWorld

from headrace.ports.metadata_store import Write

WORKERS = 32


@dataclass(slots=True)
class Counted:
    """What was done inside a block; complete at its end."""

    requests: dict[str, int] = field(default_factory=dict)
    items_written: int = 0
    path: int = 0


class RoundTrips:
    """Watches all calls of a world from now on. Only work whose `workers` these are is counted as parallel."""

    def __init__(self, world: StreamWorld) -> None:
        self._world = world
        self._clock = SimulatedClock()
        self._items = 0
        self.workers = SimulatedWorkers(self._clock, WORKERS)
        world.calls.after = self._passed
        self._write = world.bare_store.write
        world.bare_store.write = self._counted_write  # type: ignore[method-assign]

    @contextmanager
    def counting(self) -> Iterator[Counted]:
        before, items, start_ms = Counter(self._world.calls.counts), self._items, self._clock.now_ms()
        counted = Counted()
        yield counted
        counted.requests.update(Counter(self._world.calls.counts) - before)
        counted.items_written = self._items - items
        counted.path = self._clock.now_ms() - start_ms

    def _passed(self, _kind: str) -> None:
        self._clock.set_ms(self._clock.now_ms() + 1)

    def _counted_write(self, *writes: Write) -> None:
        self._items += len(writes)
        self._write(*writes)
