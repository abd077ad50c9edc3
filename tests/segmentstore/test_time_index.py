"""The time index: numbers of reads and infos, the same over flushes, crashes, restarts and merges, or no newer."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from lost_volumes import gone
from store_world import World

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec.time_blocks import decode_time_block
from headrace.model.chunks import chunk_run
from headrace.model.names import container_of_segment
from headrace.segmentstore.tiering.storage_reader import encode_read_token

pytestmark = pytest.mark.anyio

SEGMENTS = [f"scope/stream/{number}.#epoch.0" for number in range(4)]
SEGMENT = SEGMENTS[0]
TRANSACTION = SEGMENT + "#transaction." + "0" * 31 + "1"
WRITER = 5
EVENT_BYTES = 300


def event(number):
    return bytes([number]) * EVENT_BYTES


async def write(client, segment, count, *, first=0, time=None):
    """Append events one by one, each in a frame of its own."""
    await client.set_up(segment, WRITER)
    for number in range(first, first + count):
        await client.append(WRITER, number, event(number))
        if time is not None:
            time.advance(1)


async def read(client, segment, offset, *, token=b"", length=EVENT_BYTES):
    reply = await client.call(wire.ReadSegment(segment, offset, length, "", 11, token))
    assert isinstance(reply, wire.SegmentRead), reply
    return reply


async def numbers(client, segment, count):
    """The ordering numbers of the first `count` events, read one by one."""
    replies = [await read(client, segment, EVENT_BYTES * each) for each in range(count)]
    assert [reply.data[0] for reply in replies] == list(range(count))
    return [reply.ordering_number for reply in replies]


async def now(client, segment):
    return (await client.call(wire.GetStreamSegmentInfo(10, segment))).ordering_number


def runs_of(world: World, segment):
    page = world.metadata.query(f"chunks/{segment}", first="run/", last="run/~", limit=1000)
    return [chunk_run(record.key.sort, record.body) for record in page.records]


def is_rising(values):
    return all(before < after for before, after in itertools.pairwise(values))


async def test_ordering_numbers_agree_with_time_across_containers(world: World):
    async with world.running() as running:
        client = await running.connect()
        assert len({container_of_segment(name, world.container_count) for name in SEGMENTS}) == 2
        for segment in SEGMENTS:
            await client.create(segment)
            await client.set_up(segment, WRITER)
        told, order = [], []
        for number in range(12):
            segment = SEGMENTS[number % 4]
            writer = 100 + number
            await client.set_up(segment, writer)
            told.append(await now(client, SEGMENTS[(number + 1) % 4]))
            await client.append(writer, 1, event(number))
            order.append((segment, number // 4 * EVENT_BYTES))
            world.clock.advance(number % 3)
        found = [(await read(client, *place)).ordering_number for place in order]
        assert is_rising(found)
        assert all(before <= number for before, number in zip(told, found, strict=True))
        assert all(number < after for number, after in zip(found, [*told[1:], await now(client, SEGMENT)], strict=True))


async def test_a_read_without_data_tells_the_number_of_what_would_come(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await write(client, SEGMENT, 2)
        await client.call(wire.SealSegment(3, SEGMENT))
        last, end = (await numbers(client, SEGMENT, 2))[-1], await read(client, SEGMENT, 2 * EVENT_BYTES)
        assert (end.end_of_segment, len(end.data)) == (True, 0)
        assert last < end.ordering_number <= await now(client, SEGMENT)


async def test_a_recovery_tells_the_same_numbers(world: World):
    world.clock.ms += 3_600_000
    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await write(client, SEGMENT, 5, time=world.clock)
        before = await numbers(client, SEGMENT, 5)
    world.clock.ms -= 3_600_000  # the new machine's clock is an hour behind
    async with world.running(graceful=False) as running:
        client = await running.connect()
        assert await numbers(client, SEGMENT, 5) == before
        await write(client, SEGMENT, 1, first=5)
        after = await numbers(client, SEGMENT, 6)
        assert after[:5] == before
        assert after[5] > before[4]


async def test_evicted_appends_get_times_from_their_run_and_block(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await write(client, SEGMENT, 5, time=world.clock)
        before = await numbers(client, SEGMENT, 5)
        await running.flush()
        assert await numbers(client, SEGMENT, 5) == before  # memory still has it
    async with world.running() as running:
        client = await running.connect()
        assert await numbers(client, SEGMENT, 5) == [before[0]] * 5
        assert await now(client, SEGMENT) > before[-1]
    before = before
    (run,) = runs_of(world, SEGMENT)
    assert run.times[:2] == (before[0], before[-1])
    assert run.times.block_position == run.position + run.length
    block = world.chunks.read_now(run.object_name, run.times.block_position, run.times.block_length)
    points = decode_time_block(block, run.offset, run.length, run.times.first)
    assert [tuple(point) for point in points] == [
        (EVENT_BYTES * index, number, number) for index, number in enumerate(before)
    ]


@pytest.mark.parametrize("flushed", ["source", "nothing", "snapshot", "moved"])
@pytest.mark.parametrize("restart", ["kill", "graceful"])
async def test_a_transaction_came_when_it_was_merged(world: World, flushed, restart):
    if flushed == "nothing":
        world.limits = replace(world.limits, snapshot_soon_s=1e9, snapshot_every_s=1e9)
    async with world.running(graceful=restart == "graceful") as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.create(TRANSACTION)
        await write(client, TRANSACTION, 2, time=world.clock)
        own = await numbers(client, TRANSACTION, 2)
        if flushed == "snapshot":
            await a_snapshot(running, TRANSACTION)
        elif flushed != "nothing":
            await running.flush()
        await write(client, SEGMENT, 1)
        told = await now(client, SEGMENT)
        assert (await client.call(wire.MergeSegments(3, SEGMENT, TRANSACTION))).new_target_write_offset == 900
        await write(client, SEGMENT, 1, first=1)
        before = await numbers_at(client, 0, 300, 600, 900)
        assert before[0] < before[1] == before[2] < before[3]
        assert own[-1] < told <= before[1]
        if flushed == "moved":
            await running.flush()
            assert await numbers_at(client, 0, 300, 600, 900) == before
    async with world.running() as running:
        client = await running.connect()
        after = await numbers_at(client, 0, 300, 600, 900)
    if restart == "kill" and flushed != "moved":
        assert after == before
    elif flushed == "nothing":
        assert after == [before[0]] * 4  # one run: bytes get the number of the first ones of their run
    elif flushed == "snapshot":
        # Two runs: tier 2 gets nothing of the merge before a snapshot without the source.
        assert after == [before[0], *[before[1]] * 3]
    else:
        assert after == before  # the moved run has its merge's number


async def a_snapshot(running, segment):
    """Let tier 2 get a snapshot with everything that the container of the segment has accepted."""
    owned = running.store.owner_of(segment)
    sequence, snapshots = owned.container.log.last_sequence, owned.writer._snapshots

    def is_written():
        running.world.clock.advance(1)
        return snapshots._sequence is not None and snapshots._sequence >= sequence

    await running.until(is_written)


async def numbers_at(client, *offsets):
    return [(await read(client, SEGMENT, offset)).ordering_number for offset in offsets]


async def test_missing_and_wrong_tokens_get_the_same_answer(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        for round_number in range(3):
            await write(client, SEGMENT, 2, first=2 * round_number)
            await running.flush()
    async with world.running() as running:
        client = await running.connect()
        first = await read(client, SEGMENT, 0)
        assert first.token == encode_read_token(EVENT_BYTES, 0)
        asked = world.metadata.query
        queries = []

        def counted(*args, **fields):
            queries.append(args)
            return asked(*args, **fields)

        world.metadata.query = counted
        tokens = [first.token, b"", b"x", encode_read_token(EVENT_BYTES, 2 * EVENT_BYTES), b"\xff" * 17]
        lies = [encode_read_token(EVENT_BYTES, EVENT_BYTES), encode_read_token(7, 0), bytes([2]) + first.token[1:]]
        for token in tokens + lies:
            reply = await read(client, SEGMENT, EVENT_BYTES, token=token)
            assert reply.data == event(1)
            assert reply.ordering_number == first.ordering_number
        assert not queries  # the first read has looked it up
    for token, look_ups in [(first.token, 1), (encode_read_token(EVENT_BYTES, EVENT_BYTES), 3), (b"", 2)]:
        world.metadata.query = asked
        async with world.running() as running:
            client = await running.connect()
            world.metadata.query = counted
            queries.clear()
            assert (await read(client, SEGMENT, EVENT_BYTES, token=token)).data == event(1)
            assert len(queries) == look_ups


async def located(client, segment, ordering, *, offset=0):
    reply = await client.call(wire.LocateOffset(12, segment, offset, "", ordering))
    assert isinstance(reply, wire.OffsetLocated), reply
    return reply


async def locate(client, segment, ordering, *, offset=0):
    return (await located(client, segment, ordering, offset=offset)).offset


async def test_a_time_is_found_in_every_segment_wherever_its_bytes_are(world: World):
    """A number that one segment's append got divides every other segment of the store at the same moment."""

    async def check(client, moments, at_end):
        for number, moment in enumerate(moments):
            for segment in SEGMENTS:
                place = await located(client, segment, moment)
                assert place.offset == EVENT_BYTES * (number + (segment != SEGMENT))
                if segment == SEGMENT:
                    assert place.ordering_number == moment
                elif number < 8:
                    assert moment < place.ordering_number < moments[number + 1]
        for segment in SEGMENTS:
            end = await located(client, segment, at_end)
            assert (end.offset, end.ordering_number > moments[-1]) == (9 * EVENT_BYTES, True)
            assert await locate(client, segment, 1) == 0
            assert await located(client, segment, 0) == wire.OffsetLocated(12, segment, 0, 0)
            assert await locate(client, segment, -5, offset=10) == EVENT_BYTES

    moments = []
    async with world.running(graceful=False) as running:
        client = await running.connect()
        for segment in SEGMENTS:
            await client.create(segment)
        for number in range(9):
            for segment in [*SEGMENTS[1:], SEGMENT]:  # the first one is the last to get each event
                await write(client, segment, 1, first=number, time=world.clock)
            moments.append((await read(client, SEGMENT, EVENT_BYTES * number)).ordering_number)
            if number in (2, 5):
                await running.flush()
        at_end = await now(client, SEGMENT)
        await check(client, moments, at_end)
    async with world.running() as running:  # six events from tier 2, three from the log
        await check(await running.connect(), moments, at_end)
    async with world.running() as running:
        await check(await running.connect(), moments, at_end)
    world.disk = MemoryJournalDisk()  # the volume is lost
    async with world.running() as running:
        client = await running.connect()
        await check(client, moments, at_end)
        await client.call(wire.TruncateSegment(3, SEGMENT, 4 * EVENT_BYTES))
        assert await locate(client, SEGMENT, moments[2]) == 4 * EVENT_BYTES
        assert await locate(client, SEGMENT, moments[5], offset=7 * EVENT_BYTES) == 7 * EVENT_BYTES


@pytest.mark.parametrize("stopped", ["gracefully", "killed after a snapshot", "killed after a flush"])
async def test_time_never_goes_back_after_a_lost_volume(make_world: type[World], stopped):
    world = make_world(container_count=1)

    def writer_of(running):
        return running.store.owned[0].writer._snapshots

    world.clock.ms += 7_200_000
    async with world.running(graceful=stopped == "gracefully") as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await write(client, SEGMENT, 3, time=world.clock)
        await running.flush()
        await write(client, SEGMENT, 2, first=3, time=world.clock)
        if stopped == "killed after a snapshot":
            sequence = running.store.owned[0].container.log.last_sequence

            world.clock.advance(60)

            def snapshot_written():
                return writer_of(running)._sequence is not None and writer_of(running)._sequence >= sequence

            await running.until(snapshot_written)
        else:
            await running.flush()
        newest = (await numbers(client, SEGMENT, 5))[-1]
        honest = world.metadata.write
        if stopped != "gracefully":
            world.metadata.write = gone
    world.metadata.write = honest
    world.disk = MemoryJournalDisk()
    world.clock.ms = 1_000_000
    async with world.running() as running:
        client = await running.connect()
        kept = 3 if stopped == "killed after a snapshot" else 5
        assert (await client.call(wire.GetStreamSegmentInfo(10, SEGMENT))).write_offset == kept * EVENT_BYTES
        await write(client, SEGMENT, 1, first=kept)
        assert (await read(client, SEGMENT, kept * EVENT_BYTES)).ordering_number > newest


@pytest.mark.parametrize("cached", [True, False])
async def test_a_compaction_keeps_the_times_of_what_it_merges(make_world: type[World], cached):
    world = make_world(container_count=1)
    world.limits = replace(world.limits, compacted_runs_min=4)

    async def compacted(running, client):
        owned = running.store.owned[0]
        await owned.maintenance.stop()
        for number in range(9, 13):
            await write(client, SEGMENT, 1, first=number)
            await running.flush()
        assert len(runs_of(world, SEGMENT)) == 7
        await owned.container.log.durable()  # else a recovery might enter the last run again, so none is merged yet
        await owned.maintenance.run_pass()
        assert len(runs_of(world, SEGMENT)) == 1

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        for number in range(0, 9, 3):
            await write(client, SEGMENT, 3, first=number, time=world.clock)
            await running.flush()
        before = await numbers(client, SEGMENT, 9)
        if cached:
            await compacted(running, client)
    async with world.running() as running:
        client = await running.connect()
        if not cached:  # memory knows nothing of the first three runs now, but their records do
            await compacted(running, client)
        assert [await locate(client, SEGMENT, number) // EVENT_BYTES for number in before] == (
            list(range(9)) if cached else [0, 0, 0, 3, 3, 3, 6, 6, 6]
        )
        assert await locate(client, SEGMENT, before[-1] + 1) == 9 * EVENT_BYTES
