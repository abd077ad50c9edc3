"""Tier 2: packed objects, the directory, crashes half-way, lost claims, outages, back-pressure, log truncation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from segment_writes import WRITER, write
from store_world import World

from headrace import wire
from headrace.model.chunks import chunk_run
from headrace.model.errors import FencedError, UnavailableError

pytestmark = pytest.mark.anyio

SEGMENTS = [f"scope/stream/{number}.#epoch.0" for number in range(12)]
TRANSACTION = SEGMENTS[0] + "#transaction." + "0" * 31 + "1"


def runs_of(world: World, segment):
    page = world.metadata.query(f"chunks/{segment}", limit=1000)
    return [chunk_run(record.key.sort, record.body) for record in page.records]


def stored_bytes(world: World, segment):
    """The segment as the directory and the objects have it; asserts that the runs are contiguous from 0."""
    data = b""
    for run in runs_of(world, segment):
        assert run.offset == len(data)
        data += world.chunks.read_now(run.object_name, run.position, run.length)
    return data


async def objects(world: World):
    """What holds data; snapshots of containers lie beside them."""
    return await world.chunks.list("container-")


async def test_many_segments_share_few_objects(world: World):
    async with world.running() as running:
        client = await running.connect()
        for segment in SEGMENTS:
            await client.create(segment)
            await write(client, segment, [segment.encode() * 10] * 3)
        await running.flush()
    for segment in SEGMENTS:
        assert stored_bytes(world, segment) == segment.encode() * 30
    assert len(await objects(world)) <= world.container_count


async def test_data_flushed_before_and_after_a_crash_is_contiguous(world: World):
    expected = b""
    for life in range(4):
        async with world.running(graceful=False) as running:
            client = await running.connect()
            if life == 0:
                await client.create(SEGMENTS[0])
            assert await client.read_all(SEGMENTS[0]) == expected
            blocks = [bytes([life]) * 100, bytes([life + 100]) * 70_000]
            await write(client, SEGMENTS[0], blocks, first=10 * life)
            expected += b"".join(blocks)
            await running.flush()
            await write(client, SEGMENTS[0], [b"not flushed"], first=10 * life + 5)
            expected += b"not flushed"
        world.disk = world.disk.cut_power(life)
    async with world.running() as running:
        await running.flush()
    assert stored_bytes(world, SEGMENTS[0]) == expected


async def test_runs_that_a_crashed_attempt_left_are_taken_as_they_are(world: World):
    """The directory write arrived, its answer did not, and then the process died."""

    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], [b"one", b"two"])
        honest = world.metadata.write

        def answers_get_lost(*writes):
            honest(*writes)
            raise UnavailableError("the answer was lost")

        world.metadata.write = answers_get_lost
        world.clock.advance(2e6)
        await running.until(lambda: bool(runs_of(world, SEGMENTS[0])))
    world.metadata.write = honest
    world.disk = world.disk.cut_power(1)
    async with world.running() as running:
        client = await running.connect()
        await write(client, SEGMENTS[0], [b"three"], first=10)
        await running.flush()
        assert await client.read_all(SEGMENTS[0]) == b"onetwothree"
    assert stored_bytes(world, SEGMENTS[0]) == b"onetwothree"
    assert len(runs_of(world, SEGMENTS[0])) == 2


async def test_a_deposed_owner_writes_nothing_and_stops(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], [b"mine"])
        owned = running.store.owner_of(SEGMENTS[0])
        world.claim(owned.container.container)  # another store takes the container over
        world.clock.advance(2e6)
        await running.until(lambda: owned.container.failure is not None)
        assert isinstance(owned.container.failure, FencedError)
        assert runs_of(world, SEGMENTS[0]) == []
        client.send(wire.AppendBlockEnd(WRITER, 4, b"late", 1, 9, 9))
        assert await client.receive() == wire.WrongHost(9, SEGMENTS[0])
        assert await client.closed()
        other = await running.connect()
        reply = await other.call(wire.ReadSegment(SEGMENTS[0], 0, 10, "", 3))
        assert reply == wire.WrongHost(3, SEGMENTS[0])


@pytest.mark.parametrize("flushed", ["nothing", "source", "target", "both", "part of the source"])
@pytest.mark.parametrize("crash", [False, True])
async def test_a_merge_is_whole_wherever_its_bytes_were(world: World, flushed, crash):
    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await client.create(TRANSACTION)
        source = await running.connect()
        if flushed in ("target", "both"):
            await write(client, SEGMENTS[0], [b"target,"])
            await running.flush()
        if flushed in ("source", "both", "part of the source"):
            await write(source, TRANSACTION, [b"one,", b"two,"])
            await running.flush()
        if flushed not in ("target", "both"):
            await write(client, SEGMENTS[0], [b"target,"])
        if flushed not in ("source", "both", "part of the source"):
            await write(source, TRANSACTION, [b"one,", b"two,"])
        if flushed == "part of the source":
            await write(source, TRANSACTION, [b"three,"], first=10)
        merged = await client.call(wire.MergeSegments(3, SEGMENTS[0], TRANSACTION))
        assert isinstance(merged, wire.SegmentsMerged)
        expected = b"target,one,two," + (b"three," if flushed == "part of the source" else b"")
        assert merged.new_target_write_offset == len(expected)
        if not crash:
            await write(client, SEGMENTS[0], [b"after"], first=20)
            assert await client.read_all(SEGMENTS[0]) == expected + b"after"
            await running.flush()
    world.disk = world.disk.cut_power(1)
    async with world.running() as running:
        client = await running.connect()
        if crash:
            assert await client.read_all(SEGMENTS[0]) == expected
            await write(client, SEGMENTS[0], [b"after"], first=20)
        await running.flush()
        await running.until(lambda: not runs_of(world, TRANSACTION))
        assert await client.read_all(SEGMENTS[0]) == expected + b"after"
    assert stored_bytes(world, SEGMENTS[0]) == expected + b"after"


class Outage:
    """Chunk storage that can be away."""

    def __init__(self, chunks):
        self.away = False
        self._chunks = chunks

    def __getattr__(self, name):
        return getattr(self._chunks, name)

    async def put(self, name, parts):
        if self.away:
            raise UnavailableError("S3 is away")
        await self._chunks.put(name, parts)


async def test_appends_wait_for_tier_2_only_when_the_cache_is_full(make_world: type[World]):
    world = make_world(cache_bytes=1 << 20, block_bytes=64 << 10)
    world.limits = replace(world.limits, flush_bytes=1)
    world.chunks = outage = Outage(world.chunks)
    outage.away = True
    blocks = [bytes([number % 251]) * 30_000 for number in range(120)]  # 3.6 MB through 1 MB of memory

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await client.set_up(SEGMENTS[0], WRITER)
        client.send(*(wire.AppendBlockEnd(WRITER, len(data), data, 1, n, n) for n, data in enumerate(blocks)))
        await running.until(lambda: bool(running.store.pool._waiters))
        pool = running.store.pool
        assert pool.untiered_bytes <= pool.capacity_bytes
        asking = await running.connect()  # everybody else is served as before
        info = await asking.call(wire.GetStreamSegmentInfo(3, SEGMENTS[0]))
        assert 0 < info.write_offset <= pool.capacity_bytes
        assert await asking.read_all(SEGMENTS[0]) == b"".join(blocks)[: info.write_offset]
        outage.away = False
        acknowledged = -1
        while acknowledged < len(blocks) - 1:
            acknowledged = (await client.receive()).event_number
        assert pool._made <= pool._blocks_max
        assert await asking.read_all(SEGMENTS[0]) == b"".join(blocks)
        await running.flush()
    assert stored_bytes(world, SEGMENTS[0]) == b"".join(blocks)


async def test_recovery_needs_no_log_entries_that_are_in_tier_2(make_world: type[World]):
    world = make_world(file_bytes=256 << 10)
    world.limits = replace(world.limits, flush_bytes=100_000, checkpoint_every_bytes=200_000)
    blocks = [bytes([number % 251]) * 20_000 for number in range(200)]  # 4 MB through files of 256 KiB

    async with world.running(graceful=False) as running:
        client = await running.connect()
        idle = await running.connect()
        await client.create(SEGMENTS[0])
        for segment in SEGMENTS[1:]:  # containers that are idle from now on hold nothing back either
            await idle.create(segment)
        for first in range(0, len(blocks), 10):
            await write(client, SEGMENTS[0], blocks[first : first + 10], first=first)
            await running.until(
                lambda: sum(owned.container.log.ledger.held_bytes for owned in running.store.owned.values()) < 1_500_000
            )
        # Files without entries are kept for the next ones: as many as the backlog has needed.
        await running.until(lambda: sum(name.startswith("journal-0") for name in world.disk.names()) <= 2)
    world.disk = world.disk.cut_power(3)
    async with world.running() as running:
        client = await running.connect()
        assert await client.set_up(SEGMENTS[0], WRITER) == len(blocks) - 1
        assert await client.read_all(SEGMENTS[0]) == b"".join(blocks)
        for segment in SEGMENTS[1:]:
            assert (await client.call(wire.GetStreamSegmentInfo(3, segment))).exists


async def test_state_that_only_a_checkpoint_has_survives(world: World):
    async with world.running() as running:  # ends with a checkpoint and nothing behind it
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], [b"0123456789"])
        await client.call(wire.TruncateSegment(3, SEGMENTS[0], 4))
        await client.call(wire.UpdateSegmentAttribute(4, SEGMENTS[0], 9, 5, wire.NO_ATTRIBUTE_VALUE))
        await client.call(wire.SealSegment(5, SEGMENTS[0]))
    for _ in range(2):
        async with world.running() as running:
            client = await running.connect()
            info = await client.call(wire.GetStreamSegmentInfo(6, SEGMENTS[0]))
            assert (info.is_sealed, info.start_offset, info.write_offset) == (True, 4, 10)
            assert await client.call(wire.GetSegmentAttribute(7, SEGMENTS[0], 9)) == wire.SegmentAttribute(7, 5)
            assert await client.set_up(SEGMENTS[0], WRITER) == 0
            assert await client.read_all(SEGMENTS[0], start=4) == b"456789"
