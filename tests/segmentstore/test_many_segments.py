"""20,000 segments exist, 1,000 are in use: what that costs in memory, in requests, and in log."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from dataclasses import replace

import pytest
from store_world import World

from headrace import wire
from headrace.codec.container_snapshots import ContainerSnapshot, SegmentSnapshot, encode_snapshot
from headrace.metadata.evicted_segment import SEGMENT_SORT
from headrace.model.segment_attributes import CREATION_TIME, EVENT_COUNT, SCALE_POLICY_TYPE
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tiering.segment_records import RECORDS_PER_READ_MAX, RECORDS_PER_WRITE_MAX
from headrace.segmentstore.tiering.snapshot_store import SnapshotStore

pytestmark = pytest.mark.anyio

EXISTING = 20_000
ACTIVE = 1_000
KEPT = 200
IDLE_S = 1e6
NAMES = [f"scope/stream/0.#epoch.{number}" for number in range(EXISTING)]
USED = NAMES[:: EXISTING // ACTIVE]
CREATED = (
    (CREATION_TIME, 1),
    (EVENT_COUNT, 0),
    (SCALE_POLICY_TYPE, 0),
)
MEASURED = 2_000
BYTES_PER_SEGMENT_MAX = 2_000
SNAPSHOT_BYTES_PER_SEGMENT_MAX = 300


def segments_in_memory():
    gc.collect()
    return sum(type(each) is Segment for each in gc.get_objects())


class CountedRecords:
    """Requests that read or write records of segments."""

    def __init__(self, world: World):
        self.requests = Counter()
        honest_get_many, honest_write = world.metadata.get_many, world.metadata.write

        def get_many(keys):
            self.requests.update({"reads"} if keys[0].sort == SEGMENT_SORT else ())
            return honest_get_many(keys)

        def write(*writes):
            self.requests.update({"writes"} if writes[-1].key.sort == SEGMENT_SORT else ())
            return honest_write(*writes)

        world.metadata.get_many, world.metadata.write = get_many, write


async def end_in_good_order(world: World):
    """What a store leaves that had all of the segments in memory."""
    segments = [SegmentSnapshot(number, name, 0, 0, False, 1, dict(CREATED)) for number, name in enumerate(NAMES, 1)]
    parts = list(encode_snapshot(ContainerSnapshot(EXISTING + 1, {}, segments)))
    await SnapshotStore(world.metadata, world.chunks, 0, world.claim(0)).replace(parts, clean=True)


async def use_some(client):
    """Append to each of the segments in use, all at the same time."""
    client.send(*(wire.SetupAppend(number, number + 1, name) for number, name in enumerate(USED)))
    for _ in USED:
        assert isinstance(await client.receive(), wire.AppendSetup)
    client.send(*(wire.AppendBlockEnd(number + 1, 4, b"data", 1, 1, 9) for number in range(ACTIVE)))
    for _ in USED:
        assert isinstance(await client.receive(), wire.DataAppended)


@pytest.mark.nightly
async def test_memory_and_requests_follow_the_segments_in_use(make_world: type[World]):
    world = make_world(container_count=1, file_bytes=32 << 20)
    world.limits = replace(world.limits, idle_segment_s=IDLE_S, idle_segments_kept=KEPT)
    counted, before = CountedRecords(world), segments_in_memory()

    await end_in_good_order(world)
    async with world.running() as running:
        owned = running.store.owned[0]
        await owned.maintenance.stop()
        segments = owned.container.metadata.segments
        assert len(segments) == EXISTING
        world.clock.advance(2 * IDLE_S)
        assert await owned.evictor.sweep() == EXISTING - KEPT
        assert len(segments) == KEPT
        assert counted.requests == {"writes": (EXISTING - KEPT) / RECORDS_PER_WRITE_MAX}

        counted.requests.clear()
        absent = sum(name not in segments for name in USED)
        await use_some(await running.connect())
        assert counted.requests.keys() == {"reads"}
        assert absent / RECORDS_PER_READ_MAX <= counted.requests["reads"] <= absent
        assert len(segments) == KEPT + absent == segments_in_memory() - before
        parts = list(encode_snapshot(owned.container.metadata.snapshot()))
        assert sum(map(len, parts)) < SNAPSHOT_BYTES_PER_SEGMENT_MAX * len(segments)
    async with world.running() as running:
        assert len(running.store.owned[0].container.metadata.segments) == KEPT + absent
        client = await running.connect()
        for name in NAMES[5 :: EXISTING // 20]:
            assert isinstance(await client.call(wire.CreateSegment(1, name, 0, 0)), wire.SegmentAlreadyExists)


async def test_a_quiet_segment_takes_little_memory(make_world: type[World]):
    world = make_world(container_count=1)

    async with world.running() as running:
        container = running.store.owned[0].container
        await container.create(NAMES[0], CREATED)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            await asyncio.gather(*(container.create(name, CREATED) for name in NAMES[1 : MEASURED + 1]))
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert taken < BYTES_PER_SEGMENT_MAX * MEASURED
