"""100,000 streams with watermarks: none waits longer than two periods, also while one store of three is away.

Buckets share neither workers nor what they learn, so a part of them is simulated, each with all of its streams.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from simulated_workers import SimulatedClock, SimulatedWorkers

from functions.wiring import WORKERS_PER_TICK
from headrace import topology
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.tcp.store_calls import UnreachableContainers
from headrace.controller.ticks.advance_watermarks import ScheduleEntry, watermark_ticks
from headrace.metadata.due_index import bucket_of
from headrace.metadata.watermark_schedule import ScheduledStream, watermark_schedule_body, watermark_schedule_key
from headrace.model.errors import UnavailableError
from headrace.model.names import container_of_segment, mark_segment_name
from headrace.ports.clock import time_left_s
from headrace.ports.metadata_store import Create

STREAMS = 100_000
STORES = 3
LOOK_MS = 20
PERIOD_MS = 10_000
PERIODS = 4
BUCKETS_SIMULATED = 2
(TICK,) = (tick for tick in topology.TICKS if tick.kind == "watermarks")


class Looks:
    """Looks at streams: each takes its time, and as long as it may where the store does not answer."""

    def __init__(self, clock: SimulatedClock, stores_away: int) -> None:
        self._clock = clock
        self._stores_away = stores_away
        self._unreachable = UnreachableContainers(clock.monotonic_s)
        self.turns_ms: defaultdict[str, list[int]] = defaultdict(list)
        self.served: set[str] = set()

    def look(self, entry: ScheduleEntry) -> None:
        scheduled = entry.scheduled
        self.turns_ms[scheduled.stream].append(self._clock.now_ms())
        self._clock.advance(LOOK_MS)
        container = container_of_segment(mark_segment_name(scheduled.scope, scheduled.stream), topology.CONTAINER_COUNT)
        if self._unreachable.is_unreachable(container):
            raise UnavailableError("its store is known to be away")
        if container % STORES < self._stores_away:
            self._clock.advance(int(time_left_s() * 1000))
            self._unreachable.note_failure([container])
            raise UnavailableError("its store does not answer")
        self.served.add(scheduled.stream)


@pytest.fixture(scope="module")
def streams() -> list[str]:
    """Those of the simulated buckets."""
    names = [f"stream-{number:06d}" for number in range(STREAMS)]
    return [name for name in names if bucket_of("s", name) < BUCKETS_SIMULATED]


@pytest.fixture
def schedule(streams: list[str]) -> MemoryMetadataStore:
    store = MemoryMetadataStore()
    for stream in streams:
        store.write(
            Create(watermark_schedule_key("s", stream), watermark_schedule_body(ScheduledStream("s", stream, 0, 1)))
        )
    return store


@pytest.mark.parametrize("stores_away", [0, 1])
def test_every_stream_has_its_turn_within_two_periods(
    schedule: MemoryMetadataStore, streams: list[str], stores_away: int
):
    assert len(streams) > BUCKETS_SIMULATED * STREAMS / TICK.buckets * 0.9
    turns_ms: dict[str, list[int]] = {}
    served: set[str] = set()
    start_ms = SimulatedClock().now_ms()
    end_ms = start_ms + PERIODS * PERIOD_MS
    for bucket in range(BUCKETS_SIMULATED):
        clock = SimulatedClock()
        looks = Looks(clock, stores_away)
        ticks = watermark_ticks(schedule, clock, looks.look, SimulatedWorkers(clock, WORKERS_PER_TICK))
        for due_ms in range(start_ms, end_ms, TICK.every_s * 1000):
            if clock.now_ms() > due_ms:
                continue  # It finds the lease taken by the one before.
            clock.set_ms(due_ms)
            while ticks.run(bucket):
                continue
        turns_ms |= looks.turns_ms
        served |= looks.served
    assert set(turns_ms) == set(streams)
    for stream, turns in turns_ms.items():
        assert turns[0] - start_ms <= 2 * PERIOD_MS, stream
        if stream in served:
            assert max(after - before for before, after in pairwise([*turns, end_ms])) <= 2 * PERIOD_MS, stream
    healthy = {stream for stream in turns_ms if _store(stream) >= stores_away}
    assert served == healthy


def _store(stream: str) -> int:
    return container_of_segment(mark_segment_name("s", stream), topology.CONTAINER_COUNT) % STORES
