"""What tier 2 costs follows bytes, not segments; and what somebody else wrote into it is never taken for ours."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from object_counts import assert_counts_agree
from store_world import World

from headrace import wire
from headrace.model.chunks import ChunkRun, LogPlace, chunk_body, chunk_partition, chunk_sort
from headrace.model.errors import CorruptError
from headrace.model.segment_attributes import NO_VALUE
from headrace.ports.metadata_store import Create, Key
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedger
from headrace.segmentstore.tiering.chunk_directory import RUNS_PER_WRITE_MAX

pytestmark = pytest.mark.anyio

BYTES = 2_500_000
OBJECT_BYTES = 1 << 20
WRITER = 5
SEGMENT = "scope/stream/0.#epoch.0"


async def requests_of_a_flush(make_world: type[World], segment_count):
    """PUTs of data and transactions of the directory for the same bytes in so many segments."""
    world = make_world(container_count=1, cache_bytes=16 << 20, file_bytes=16 << 20)
    world.limits = replace(world.limits, object_bytes_max=OBJECT_BYTES, compaction_bytes_per_s=0)
    async with world.running() as running:
        container, pool = running.store.owned[0].container, running.store.pool
        names = [f"scope/stream/{number}.#epoch.0" for number in range(segment_count)]
        await asyncio.gather(*(container.create(name, ()) for name in names))
        for name in names:
            data = pool.reserve(BYTES // segment_count)
            container.append(container.metadata.segments[name], WRITER, NO_VALUE, 0, 1, data, lambda _error: None)
        await container.log.durable()
        puts, transactions = [], []
        honest_put, honest_write = world.chunks.put, world.metadata.write

        async def put(name, parts):
            puts.extend([name] if "/packed/" in name else [])
            await honest_put(name, parts)

        def write(*writes):
            transactions.extend([len(writes)] if any(each.key.sort.startswith("run/") for each in writes) else [])
            honest_write(*writes)

        world.chunks.put, world.metadata.write = put, write
        await running.flush()
        assert_counts_agree(world.metadata)
        return len(puts), len(transactions)


async def test_puts_grow_with_bytes_and_transactions_with_runs(make_world: type[World]):
    few = await requests_of_a_flush(make_world, 10)
    many = await requests_of_a_flush(make_world, 10_000)
    assert few[0] == many[0] == -(-BYTES // OBJECT_BYTES)
    assert few[1] == few[0] - 1  # the first two objects are full, and enter together
    assert many[1] <= 10_000 // RUNS_PER_WRITE_MAX + 1 + many[0]


@pytest.mark.parametrize("length", [5, 11], ids=["inside an append", "beyond the log"])
async def test_a_run_that_somebody_else_entered_stops_the_container(make_world: type[World], caplog, length):
    world = make_world(container_count=1)

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 0, b"0123456789")
        foreign = ChunkRun(0, length, "container-0000/packed/foreign", 0)
        world.metadata.write(Create(Key(chunk_partition(SEGMENT), chunk_sort(0)), chunk_body(foreign)))
        container = running.store.owned[0].container
        world.clock.advance(2e9)
        await running.until(lambda: container.failure is not None)
        assert isinstance(container.failure, CorruptError)
        assert "event=foreign_change" in caplog.text


async def test_run_from_a_lost_entry_stops_the_container(make_world: type[World], monkeypatch: pytest.MonkeyPatch):
    """It fits as an earlier attempt of this owner would, but other bytes were acknowledged at these offsets."""
    monkeypatch.setattr(OneCopyLedger, "knows", lambda _self, epoch, entry: (epoch, entry) != (0, 999))
    world = make_world(container_count=1)
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 0, b"0123456789")
        lost = ChunkRun(0, 10, "container-0000/packed/lost", 0, logged=LogPlace(0, 999))
        world.metadata.write(Create(Key(chunk_partition(SEGMENT), chunk_sort(0)), chunk_body(lost)))
        container = running.store.owned[0].container
        world.clock.advance(2e9)
        await running.until(lambda: container.failure is not None)
        assert "entry 999 of epoch 0, which this log has lost" in str(container.failure)


async def test_runs_name_the_newest_log_entry_in_them(make_world: type[World]):
    world = make_world(container_count=1)
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 0, b"0123456789")
        await client.append(WRITER, 1, b"0123456789")
        container = running.store.owned[0].container
        newest = container.log.durable_entry
        await running.flush()
        (record,) = world.metadata.query(chunk_partition(SEGMENT), limit=2).records
        assert record.body["log"] == [container.epoch, newest]


async def test_truncated_segments_are_trimmed_after_the_first_put(make_world: type[World]):
    world = make_world(container_count=1)
    segment_count = 150
    names = [f"scope/stream/{number}.#epoch.0" for number in range(segment_count)]
    calls = []

    async with world.running(graceful=False) as running:
        client = await running.connect()
        for name in names:
            await client.create(name)
            await client.set_up(name, WRITER)
            await client.append(WRITER, 0, b"0123456789")
        await running.flush()
        for name in names:
            await client.call(wire.TruncateSegment(3, name, 5))
        await client.set_up(names[0], WRITER)
        await client.append(WRITER, 1, b"more")
        await running.store.owned[0].writer.stop()  # a store that ends would still bring it to tier 2
    honest_query, honest_put = world.metadata.query, world.chunks.put

    def query(partition, **fields):
        calls.append(partition)
        return honest_query(partition, **fields)

    async def put(name, parts):
        calls.append(name)
        await honest_put(name, parts)

    world.limits = replace(world.limits, flush_age_s=0.0)
    world.metadata.query, world.chunks.put = query, put
    async with world.running(graceful=False) as running:
        container = running.store.owned[0].container
        await running.until(lambda: not container.dirty)
        assert all(each.tiered.trimmed_offset == 5 for each in container.metadata.segments.values())

    first_put = next(index for index, call in enumerate(calls) if "/packed/" in call)
    assert calls[:first_put] == []
    looked_at = [call for call in calls[first_put:] if call.startswith("chunks/")]
    assert sorted(looked_at) == sorted(chunk_partition(name) for name in names)
