"""What a store counts about itself agrees with what was done to it."""

from __future__ import annotations

import pytest
from store_world import World

from headrace import wire
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.model.errors import NotFoundError
from headrace.ports.metadata_store import Create, Key, WriteConflictError
from headrace.segmentstore.metrics import Histogram, MeasuredChunkStorage, MeasuredJournalDisk, MeasuredMetadataStore

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = 77


def test_a_value_falls_into_the_first_bucket_that_holds_it():
    histogram = Histogram((1, 10))
    for value in (0, 1, 2, 10, 11, 1000):
        histogram.record(value)
    assert histogram.counts == [2, 2, 2]
    assert histogram.total == 1024


async def test_appends_reads_and_connections_are_counted(world: World):
    async with world.running() as running:
        store = running.store
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 3, b"x" * 100, count=3)
        await client.append(WRITER, 4, b"y" * 50)
        counted = store.owner_of(SEGMENT).container.metrics
        assert (counted.appends, counted.append_bytes, counted.append_events) == (2, 150, 4)
        assert sum(store.metrics.append_seconds.counts) == 2
        assert store.metrics.connections == 1
        await client.read_all(SEGMENT)
        assert (store.metrics.reads, store.metrics.read_bytes, store.metrics.storage_reads) == (1, 150, 0)
        client.send(wire.ReadSegment(SEGMENT, 150, 100, "", 5))
        await running.until(lambda: running.listener.held_reads == 1)
        await running.flush()
        assert (counted.flushes, counted.flushed_bytes) == (1, 150)
        client.send_raw(b"\xff" * 64)
        await running.until(lambda: store.metrics.connections == 0)
        assert (store.metrics.protocol_errors, running.listener.held_reads) == (1, 0)


async def test_reads_from_tier_2_are_told_apart(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 1, b"x" * 100)
    async with world.running() as running:
        assert await (await running.connect()).read_all(SEGMENT) == b"x" * 100
        counted = running.store.metrics
        assert (counted.reads, counted.storage_reads) == (1, 1)
        assert (counted.read_bytes, counted.storage_read_bytes) == (100, 100)


async def test_append_latency_is_that_of_the_oldest_acknowledged_one(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        container = running.store.owner_of(SEGMENT).container
        done, append = [], container.log.ledger.append

        def hold(parts, told, released):
            done.append(told)
            return append(parts, lambda _: None, released)

        container.log.ledger.append = hold
        client.send(wire.AppendBlockEnd(WRITER, 1, b"a", 1, 1, 9))
        await running.until(lambda: len(done) == 1)
        world.clock.advance(3)
        client.send(wire.AppendBlockEnd(WRITER, 1, b"b", 1, 2, 9))
        await running.until(lambda: len(done) == 2)
        world.clock.advance(0.25)
        container.log.ledger.append = append
        for told in done:
            told(None)
        assert (await client.receive()).event_number == 2
        latency = running.store.metrics.append_seconds
        assert (sum(latency.counts), latency.total) == (1, 3.25)


def test_a_commit_is_measured_from_its_write_to_its_sync():
    clock, disk = ManualClock(), MemoryJournalDisk()
    measured = MeasuredJournalDisk(disk, clock)
    measured.create("journal-1", 1 << 20)
    file = measured.open("journal-1")
    for seconds in (2, 1):
        file.write(0, [b"12", memoryview(b"345")])
        clock.advance(1000 * seconds)
        file.sync()
    assert file.read(0, 5) == b"12345"
    assert (measured.metrics.commit_seconds.total, sum(measured.metrics.commit_seconds.counts)) == (3, 2)
    assert measured.metrics.commit_bytes.total == 10


async def test_requests_to_tier_2_are_measured():
    measured = MeasuredChunkStorage(MemoryChunkStorage(), ManualClock())
    await measured.put("a", [b"12", b"3"])
    assert await measured.read("a", 1, 2) == b"23"
    assert [found.name for found in await measured.list("")] == ["a"]
    await measured.delete(["a"])
    with pytest.raises(NotFoundError):
        await measured.read("a", 0, 1)
    assert {name: sum(made.seconds.counts) for name, made in measured.requests.items()} == {
        "put": 1,
        "read": 2,
        "list": 1,
        "delete": 1,
    }
    assert measured.requests["read"].errors == {"not_found": 1}
    assert (measured.put_bytes, measured.read_bytes) == (3, 2)


def test_requests_to_the_metadata_store_are_measured():
    measured = MeasuredMetadataStore(MemoryMetadataStore(), ManualClock())
    measured.write(Create(Key("p", "s"), {"a": 1}))
    assert measured.get(Key("p", "s")).body == {"a": 1}
    assert measured.get_many([Key("p", "s"), Key("p", "t")])[1] is None
    assert len(measured.query("p", limit=5).records) == 1
    with pytest.raises(WriteConflictError):
        measured.write(Create(Key("p", "s"), {}))
    assert {name: sum(made.seconds.counts) for name, made in measured.requests.items()} == {
        "get": 2,
        "query": 1,
        "write": 2,
    }
    assert measured.requests["write"].errors == {"conflict": 1}
