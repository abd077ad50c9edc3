"""Segments that leave memory and come back: nobody notices, whatever is asked and whenever the process dies."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from headrace.adapters.dynamodb.items import TRANSACTION_BYTES_MAX
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec import wire_commands as wire
from headrace.codec.container_snapshots import SegmentSnapshot
from headrace.codec.records.segment_record import (
    SEGMENT_SORT,
    SegmentRecord,
    segment_record_body,
    segment_record_of_body,
)
from headrace.model.errors import CorruptError, UnavailableError
from headrace.ports.metadata_store import BODY_BYTES_MAX, Replace
from headrace.segmentstore.containers.attributes import EVENT_COUNT
from headrace.segmentstore.storage.evictor import ATTRIBUTES_PER_BATCH_MAX, EVICTABLE_ATTRIBUTES_MAX
from headrace.segmentstore.storage.segment_records import RECORDS_PER_WRITE_MAX, record_key

SEGMENTS = [f"scope/stream/0.#epoch.{number}" for number in range(6)]
FIRST = SEGMENTS[0]
WRITER, OTHER = 5, 6
IDLE_S = 10_000.0
NEVER_S = 1e15


@pytest.fixture
def world(make_world):
    world = make_world(container_count=1)
    world.limits = replace(world.limits, idle_segment_s=IDLE_S, idle_segments_kept=0)
    return world


@pytest.fixture
def calls(world):
    """Counts queries of the metadata store, reads and writes of segments' records, and the records looked up."""
    counted = Counter()
    honest_get, honest_write, honest_query = world.metadata.get_many, world.metadata.write, world.metadata.query

    def get_many(keys):
        if all(key.sort == SEGMENT_SORT for key in keys):
            counted["reads"] += 1
            counted["records"] += len(keys)
        return honest_get(keys)

    def write(*writes):
        if any(one.key.sort == SEGMENT_SORT for one in writes):  # snapshots are written when they are due
            counted["writes"] += 1
        return honest_write(*writes)

    def query(*args, **fields):
        counted["queries"] += 1
        return honest_query(*args, **fields)

    world.metadata.get_many, world.metadata.write, world.metadata.query = get_many, write, query
    return counted


def names_in_memory(running):
    return set(running.store.owned[0].container.metadata.segments)


async def rest(running):
    """Everything is in tier 2, which has a snapshot too; then nothing happens for long."""
    await running.flush()
    owned = running.store.owned[0]

    def told():
        running.world.clock.advance(2)
        return owned.evictor._snapshots.has_pointer

    await running.until(told)
    running.world.clock.advance(2 * IDLE_S)


async def snapshot(running):
    """Have all that was logged in a snapshot in tier 2."""
    owned = running.store.owned[0]

    def told():
        running.world.clock.advance(2)
        return owned.writer._snapshots._sequence == owned.container.log.last_sequence

    await running.until(told)


async def evict(running):
    """Let all go that may; how many have gone."""
    await rest(running)
    return await running.store.owned[0].evictor.sweep()


async def write(client, segment, events, *, writer=WRITER, first=0):
    await client.set_up(segment, writer)
    for number, data in enumerate(events, first):
        await client.append(writer, number, data)


@asynccontextmanager
async def running_store(world, **fields):
    """A store from which segments leave only when the test says so."""
    async with world.running(**fields) as running:
        await running.store.owned[0].chores.stop()
        yield running


@asynccontextmanager
async def with_evicted(world, *names):
    """A running store, a client, and segments that hold their own name and are not in memory."""
    async with running_store(world) as running:
        client = await running.connect()
        for name in names:
            await client.create(name)
            await write(client, name, [name.encode()])
        assert await evict(running) == len(names)
        assert not names_in_memory(running)
        yield running, client


def segment_is(name, *, sealed=False, start=0, end=None):
    async def check(client):
        info = await client.call(wire.GetStreamSegmentInfo(1, name))
        assert (info.exists, info.is_sealed, info.start_offset) == (True, sealed, start)
        assert info.write_offset == (len(name) if end is None else end)

    return check


SIZE = len(FIRST)
REQUESTS = [
    (wire.SetupAppend(1, WRITER, FIRST), wire.AppendSetup(1, FIRST, WRITER, 0)),
    (wire.SetupAppend(1, OTHER, FIRST), wire.AppendSetup(1, FIRST, OTHER, wire.NO_EVENT_NUMBER)),
    (wire.ReadSegment(FIRST, 3, 100, "", 1), FIRST.encode()[3:]),
    (wire.ReadSegment(SEGMENTS[5], 0, 100, "", 1), wire.NoSuchSegment),
    (wire.LocateOffset(1, FIRST, 3, ""), wire.OffsetLocated),
    (wire.GetStreamSegmentInfo(1, FIRST), wire.StreamSegmentInfo),
    (wire.GetSegmentAttribute(1, FIRST, WRITER), wire.SegmentAttribute(1, 0)),
    (wire.UpdateSegmentAttribute(1, FIRST, 77, 5, wire.NO_ATTRIBUTE_VALUE), wire.SegmentAttributeUpdated(1, True)),
    (wire.UpdateSegmentPolicy(1, FIRST, 9, 0), wire.SegmentPolicyUpdated(1, FIRST)),
    (wire.SealSegment(1, FIRST), wire.SegmentSealed(1, FIRST)),
    (wire.TruncateSegment(1, FIRST, 4), wire.SegmentTruncated(1, FIRST)),
    (wire.TruncateSegment(1, FIRST, 400), wire.SegmentIsTruncated),
    (wire.DeleteSegment(1, FIRST), wire.SegmentDeleted(1, FIRST)),
    (wire.CreateSegment(1, FIRST, 0, 0), wire.SegmentAlreadyExists(1, FIRST)),
    (wire.CreateSegment(1, SEGMENTS[5], 0, 0), wire.SegmentCreated(1, SEGMENTS[5])),
    (wire.MergeSegments(1, FIRST, SEGMENTS[1]), wire.SegmentsMerged(1, FIRST, SEGMENTS[1], 2 * SIZE)),
    (wire.MergeSegments(1, FIRST, SEGMENTS[5]), wire.NoSuchSegment(1, SEGMENTS[5])),
]


@pytest.mark.parametrize(("request_", "reply"), REQUESTS, ids=lambda value: type(value).__name__)
def test_every_request_finds_a_segment_that_has_left_memory(world, run, request_, reply):
    async def scenario():
        async with with_evicted(world, *SEGMENTS[:3]) as (_, client):
            answer = await client.call(request_)
            if isinstance(reply, type):
                assert isinstance(answer, reply)
            elif isinstance(reply, bytes):
                assert bytes(answer.data) == reply
            else:
                assert answer == reply

    run(scenario())


def test_everything_is_as_it_was(world, run):
    async def scenario():
        async with running_store(world) as running:
            client = await running.connect()
            for name in SEGMENTS[:3]:
                await client.create(name)
                await write(client, name, [name.encode()])
                await write(client, name, [b"x"], writer=OTHER, first=70)
            await client.call(wire.SealSegment(1, SEGMENTS[1]))
            await client.call(wire.TruncateSegment(1, SEGMENTS[2], 5))
            metadata = running.store.owned[0].container.metadata
            before = {name: segment.snapshot() for name, segment in metadata.segments.items()}
            for _ in range(3):
                assert await evict(running) == 3
                assert metadata.segments == {}
                assert await client.set_up(SEGMENTS[0], OTHER) == 70
                assert await client.read_all(SEGMENTS[0]) == SEGMENTS[0].encode() + b"x"
                await segment_is(SEGMENTS[1], sealed=True, end=SIZE + 1)(client)
                await segment_is(SEGMENTS[2], start=5, end=SIZE + 1)(client)
                for name, segment in metadata.segments.items():
                    assert replace(segment.snapshot(), number=before[name].number) == before[name]
        assert before[SEGMENTS[0]].attributes[EVENT_COUNT] == 2

    run(scenario())


def test_a_writer_that_was_set_up_before_goes_on_in_order(world, run, calls):
    async def scenario():
        async with running_store(world) as running:
            client, other = await running.connect(), await running.connect()
            await client.create(FIRST)
            await write(client, FIRST, [b"0"])
            assert await evict(running) == 1
            calls.clear()
            for number in range(1, 20):
                data = b"%d " % number
                client.send(wire.AppendBlockEnd(WRITER, len(data), data, 1, number, number))
            acknowledged = 0
            while acknowledged < 19:
                reply = await client.receive()
                assert isinstance(reply, wire.DataAppended)
                assert reply.previous_event_number == acknowledged
                acknowledged = reply.event_number
            assert calls["records"] == 1
            expected = b"0" + b"".join(b"%d " % number for number in range(1, 20))
            assert await other.read_all(FIRST) == expected
            assert running.store.pool.unstored_bytes == len(expected) - 1

    run(scenario())


def test_appends_that_wait_for_their_segment_are_let_go_with_their_connection(world, run):
    held, asked = threading.Event(), threading.Event()

    async def scenario():
        async with with_evicted(world, FIRST) as (running, _):
            client, other = await running.connect(), await running.connect()
            assert await client.set_up(FIRST, OTHER) == wire.NO_EVENT_NUMBER
            assert await evict(running) == 1
            honest = world.metadata.get_many

            def slow(keys):
                asked.set()
                held.wait(20)
                return honest(keys)

            world.metadata.get_many = slow
            client.send(*(wire.AppendBlockEnd(OTHER, 4, b"data", 1, number, 9) for number in range(3)))
            await asyncio.to_thread(asked.wait, 20)
            await running.until(lambda: running.store.pool.unstored_bytes == 12)
            client.close()
            await running.until(lambda: running.store.pool.unstored_bytes == 0)
            held.set()
            assert await other.read_all(FIRST) == FIRST.encode()

    run(scenario())


@pytest.mark.parametrize("gone", ["deleted", "sealed"])
def test_a_writer_whose_segment_changed_while_it_was_away_is_told(world, run, gone):
    async def scenario():
        async with running_store(world) as running:
            client, other = await running.connect(), await running.connect()
            await client.create(FIRST)
            await write(client, FIRST, [b"0"])
            await evict(running)
            await other.call((wire.DeleteSegment if gone == "deleted" else wire.SealSegment)(1, FIRST))
            if gone == "sealed":
                await evict(running)
            reply = await client.call(wire.AppendBlockEnd(WRITER, 1, b"1", 1, 1, 9))
            assert isinstance(reply, wire.NoSuchSegment if gone == "deleted" else wire.SegmentIsSealed)

    run(scenario())


def test_numbers_of_a_waiting_writer_are_checked_as_always(world, run):
    async def scenario():
        async with running_store(world) as running:
            client, other = await running.connect(), await running.connect()
            await client.create(FIRST)
            await write(client, FIRST, [b"0"])
            await evict(running)
            for number in (1, 2, 2, 3):
                client.send(wire.AppendBlockEnd(WRITER, 1, b"%d" % number, 1, number, 9))
            assert await client.closed()
            assert await other.read_all(FIRST) == b"012"
            assert running.store.pool.unstored_bytes == 2

    run(scenario())


def test_what_is_in_use_stays(world, run):
    async def scenario():
        async with running_store(world) as running:
            client, tail = await running.connect(), await running.connect()
            for name in SEGMENTS[:4]:
                await client.create(name)
            reply = await client.call(wire.CreateTransientSegment(1, 9, SEGMENTS[3]))
            transient = reply.segment
            await rest(running)
            await write(client, SEGMENTS[0], [b"not stored"])
            tail.send(wire.ReadSegment(SEGMENTS[1], 0, 100, "", 1))
            await client.call(wire.UpdateSegmentAttribute(1, SEGMENTS[2], 77, 1, wire.NO_ATTRIBUTE_VALUE))
            metadata = running.store.owned[0].container.metadata
            await running.until(lambda: bool(metadata.segments[SEGMENTS[1]].waiters))
            assert await running.store.owned[0].evictor.sweep() == 1
            assert names_in_memory(running) == {*SEGMENTS[:3], transient}
            world.clock.advance(2 * IDLE_S)
            many = metadata.segments[SEGMENTS[2]].attributes
            many.update((1 << 80 | number, 1) for number in range(EVICTABLE_ATTRIBUTES_MAX))
            assert await running.store.owned[0].evictor.sweep() == 0

    run(scenario())


def test_as_many_stay_as_shall(world, run, calls):
    world.limits = replace(world.limits, idle_segments_kept=2)

    async def scenario():
        async with running_store(world) as running:
            client = await running.connect()
            for name in SEGMENTS[:2]:
                await client.create(name)
            assert await evict(running) == 0
            calls.clear()
            assert isinstance(await client.call(wire.SetupAppend(1, WRITER, "scope/none/0")), wire.NoSuchSegment)
            await client.create(SEGMENTS[2])
            assert calls["reads"] == 0  # nothing has ever left
            assert await evict(running) == 1
            assert len(names_in_memory(running)) == 2

    run(scenario())


def test_look_ups_are_shared(world, run, calls):
    async def scenario():
        async with with_evicted(world, *SEGMENTS) as (running, _):
            clients = [await running.connect() for _ in range(3)]
            calls.clear()
            for client in clients:
                client.send(*(wire.GetStreamSegmentInfo(1, name) for name in SEGMENTS))
            for client in clients:
                for _ in SEGMENTS:
                    assert isinstance(await client.receive(), wire.StreamSegmentInfo)
            assert calls["records"] == len(SEGMENTS)
            assert calls["reads"] <= 3
            assert calls["queries"] == 0

    run(scenario())


def test_a_segment_that_was_only_read_is_not_recorded_again(world, run, calls):
    async def scenario():
        async with with_evicted(world, *SEGMENTS) as (running, client):
            for name in SEGMENTS:
                assert await client.read_all(name) == name.encode()
            await rest(running)
            calls.clear()
            assert await running.store.owned[0].evictor.sweep() == len(SEGMENTS)
            assert calls["writes"] == 0
            await client.call(wire.SealSegment(1, FIRST))
            await rest(running)
            calls.clear()
            assert await running.store.owned[0].evictor.sweep() == 1
            assert calls["writes"] == 1
            await segment_is(FIRST, sealed=True)(client)

    run(scenario())


def test_what_changes_while_its_record_is_written_stays(world, run):
    held, reached = threading.Event(), threading.Event()

    async def scenario():
        async with running_store(world) as running:
            client = await running.connect()
            for name in SEGMENTS[:3]:
                await client.create(name)
                await write(client, name, [b"0"])
            await rest(running)
            honest = world.metadata.write

            def slow(*writes):
                honest(*writes)
                reached.set()
                held.wait(20)

            world.metadata.write = slow
            sweep = asyncio.ensure_future(running.store.owned[0].evictor.sweep())
            await asyncio.to_thread(reached.wait, 20)
            await client.append(WRITER, 1, b"")  # nothing but a number
            client.send(wire.DeleteSegment(1, SEGMENTS[1]))
            await asyncio.sleep(0.01)
            assert SEGMENTS[1] in names_in_memory(running)  # its removal waits for the record
            world.metadata.write = honest
            held.set()
            assert isinstance(await client.receive(), wire.SegmentDeleted)
            await sweep
            assert names_in_memory(running) == {SEGMENTS[2]}
            assert await client.set_up(SEGMENTS[2], WRITER) == 1
            await running.until(lambda: not running.store.owned[0].container.metadata.deletions)
            assert world.metadata.get(record_key(SEGMENTS[1])) is None
            assert isinstance(await client.call(wire.SetupAppend(1, WRITER, SEGMENTS[1])), wire.NoSuchSegment)
            await client.create(SEGMENTS[1])
            await segment_is(SEGMENTS[1], end=0)(client)

    run(scenario())


def test_a_metadata_store_that_does_not_answer_is_got_over(world, run):
    async def scenario():
        async with with_evicted(world, FIRST) as (running, client):
            honest = world.metadata.get_many

            def refused(keys):
                raise UnavailableError("not now")

            world.metadata.get_many = refused
            assert await client.call(wire.SetupAppend(1, WRITER, FIRST)) == wire.WrongHost(1, FIRST)
            assert await client.call(wire.SealSegment(2, FIRST)) == wire.WrongHost(2, FIRST)
            assert await client.call(wire.CreateSegment(3, FIRST, 0, 0)) == wire.WrongHost(3, FIRST)
            reader = await running.connect()
            assert isinstance(await reader.call(wire.ReadSegment(FIRST, 0, 9, "", 1)), wire.ErrorMessage)
            assert await reader.closed()
            world.metadata.get_many = honest
            assert await client.set_up(FIRST, WRITER) == 0

    run(scenario())


# Crashes


def test_a_crash_between_the_record_and_the_log_leaves_the_segment_in_memory(world, run):
    async def scenario():
        async with running_store(world, graceful=False) as running:
            client = await running.connect()
            await client.create(FIRST)
            await write(client, FIRST, [b"0"])
            await rest(running)
            running.store.owned[0].container.idle.evict = lambda segment, state: False
            assert await running.store.owned[0].evictor.sweep() == 0
            await client.append(WRITER, 1, b"1")
            assert segment_record_of_body(world.metadata.get(record_key(FIRST)).body).state.length == 1
        async with running_store(world) as running:
            client = await running.connect()
            assert names_in_memory(running) == {FIRST}
            assert await client.set_up(FIRST, WRITER) == 1
            assert await evict(running) == 1  # over the record that is there
            assert await client.read_all(FIRST) == b"01"

    run(scenario())


def test_recoveries_know_what_has_left_and_what_is_back(world, run):
    async def scenario():
        async with running_store(world, graceful=False) as running:
            client = await running.connect()
            for name in SEGMENTS[:3]:
                await client.create(name)
                await write(client, name, [name.encode()])
            assert await evict(running) == 3
            await client.set_up(SEGMENTS[1], WRITER)
            await client.append(WRITER, 1, b"more")
        for graceful in (False, True, True):
            async with running_store(world, graceful=graceful) as running:
                assert names_in_memory(running) == {SEGMENTS[1]}
                client = await running.connect()
                assert isinstance(await client.call(wire.SetupAppend(1, WRITER, "scope/none/0")), wire.NoSuchSegment)
                assert await client.set_up(SEGMENTS[1], WRITER) == 1
                assert await client.read_all(SEGMENTS[1]) == SEGMENTS[1].encode() + b"more"
        async with running_store(world) as running:
            client = await running.connect()
            assert await client.read_all(SEGMENTS[2]) == SEGMENTS[2].encode()
            assert isinstance(await client.call(wire.CreateSegment(1, FIRST, 0, 0)), wire.SegmentAlreadyExists)

    run(scenario())


def test_a_crash_before_the_return_is_durable_undoes_it_with_all_that_rests_on_it(world, run):
    held = threading.Event()

    async def scenario():
        async with running_store(world, graceful=False) as running:
            client = await running.connect()
            await client.create(FIRST)
            await write(client, FIRST, [b"0"])
            assert await evict(running) == 1
            await running.store.owned[0].container.log.durable()
            world.disk.before = lambda step: held.wait(20) if step == "sync" else None
            client.send(wire.SetupAppend(1, OTHER, FIRST))
            await running.until(lambda: FIRST in names_in_memory(running))
            client.send(wire.SealSegment(1, FIRST))
            await running.until(lambda: running.store.owned[0].container.metadata.segments[FIRST].sealed)
            survivor = world.disk.cut_power(3)
            held.set()
        world.disk = survivor
        async with running_store(world) as running:
            client = await running.connect()
            assert await client.set_up(FIRST, WRITER) == 0
            assert await client.read_all(FIRST) == b"0"

    run(scenario())


# Lost volumes


@asynccontextmanager
async def killed(world):
    """A store that is gone from one moment to the next, with its volume."""
    honest = world.metadata.write

    def dead(*writes):
        raise UnavailableError("this process is gone")

    try:
        async with running_store(world, graceful=False) as running:
            yield running
            world.metadata.write = dead
    finally:
        world.metadata.write = honest
        world.disk = MemoryJournalDisk()


def test_a_stop_in_good_order_needs_no_volume_for_what_has_left(world, run, calls):
    async def scenario():
        async with with_evicted(world, *SEGMENTS[:3]) as (_, client):
            await client.set_up(SEGMENTS[1], WRITER)
        world.disk = MemoryJournalDisk()
        calls.clear()
        async with running_store(world) as running:
            assert names_in_memory(running) == {SEGMENTS[1]}
            client = await running.connect()
            for name in SEGMENTS[:3]:
                assert await client.set_up(name, WRITER) == 0
            assert calls["queries"] == 0  # nothing is in doubt

    run(scenario())


def test_a_record_that_is_older_than_the_directory_is_brought_up_to_it(world, run):
    async def scenario():
        async with killed(world) as running:
            client = await running.connect()
            for name in SEGMENTS[:5]:
                await client.create(name)
                await write(client, name, [name.encode()])
            assert await evict(running) == 5
            owned = running.store.owned[0]
            await snapshot(running)
            owned.writer._snapshots._limits = replace(world.limits, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S)
            await write(client, SEGMENTS[0], [b"more"], first=1)
            await client.call(wire.DeleteSegment(1, SEGMENTS[1]))
            await client.call(wire.MergeSegments(1, SEGMENTS[2], SEGMENTS[3]))
            await running.flush()
            await running.until(lambda: not owned.container.metadata.deletions)
        for known in (set(), {SEGMENTS[0], SEGMENTS[2], SEGMENTS[4]}):  # the log tells as much as tier 2 did
            async with running_store(world, graceful=False) as running:
                assert names_in_memory(running) == known
                client = await running.connect()
                assert await client.read_all(SEGMENTS[0]) == SEGMENTS[0].encode() + b"more"
                assert await client.read_all(SEGMENTS[2]) == (SEGMENTS[2] + SEGMENTS[3]).encode()
                assert await client.read_all(SEGMENTS[4]) == SEGMENTS[4].encode()
                assert await client.set_up(SEGMENTS[0], WRITER) == 0  # may store "more" twice, loses nothing
                for gone in (SEGMENTS[1], SEGMENTS[3]):
                    assert isinstance(await client.call(wire.SetupAppend(6, WRITER, gone)), wire.NoSuchSegment)

    run(scenario())


def test_a_number_that_was_given_twice_does_no_harm(world, run):
    """Tier 2 forgot that a segment was made; its record remembers it, with a number that another one has got."""

    async def scenario():
        async with killed(world) as running:
            client = await running.connect()
            await client.create(FIRST)
            await rest(running)
            owned = running.store.owned[0]
            owned.writer._snapshots._limits = replace(world.limits, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S)
            await client.create(SEGMENTS[1])
            await write(client, SEGMENTS[1], [b"remembered"])
            await running.flush()
            world.clock.advance(2 * IDLE_S)
            assert await owned.evictor.sweep() == 2
        async with running_store(world) as running:
            client = await running.connect()
            await client.create(SEGMENTS[2])
            await write(client, SEGMENTS[2], [b"new"])
            assert await client.read_all(SEGMENTS[1]) == b"remembered"
            numbers = [segment.number for segment in running.store.owned[0].container.metadata.segments.values()]
            assert len(set(numbers)) == len(numbers) == 3

    run(scenario())


# Records


def test_a_record_that_is_none_is_told_and_stops_nobody_else(world, run):
    async def scenario():
        async with with_evicted(world, *SEGMENTS[:2]) as (running, client):
            record = world.metadata.get(record_key(FIRST))
            world.metadata.write(Replace(record.key, {"format": 1, "segment": {}}, record.version))
            assert isinstance(await client.call(wire.SetupAppend(1, WRITER, FIRST)), wire.WrongHost)
            assert isinstance(await client.call(wire.SealSegment(1, FIRST)), wire.ErrorMessage)
            with pytest.raises(CorruptError):
                await running.store.owned[0].container.find(FIRST)
            assert await client.set_up(SEGMENTS[1], WRITER) == 0

    run(scenario())


def test_the_largest_segment_that_may_leave_fits_into_its_record():
    attributes = {(1 << 128) - 1 - number: -(1 << 63) for number in range(EVICTABLE_ATTRIBUTES_MAX)}
    state = SegmentSnapshot(0, "\uffff" * (2032 // 3), 1 << 62, 1 << 62, False, 1 << 62, attributes)
    body = segment_record_body(SegmentRecord(state, 1 << 40))
    assert len(json.dumps(body, separators=(",", ":"))) < BODY_BYTES_MAX
    assert 60 * ATTRIBUTES_PER_BATCH_MAX + RECORDS_PER_WRITE_MAX * 6 * 2032 < TRANSACTION_BYTES_MAX


def test_a_segment_that_comes_back_knows_when_its_bytes_came(world, run):
    async def scenario():
        async with running_store(world) as running:
            client = await running.connect()
            await client.create(FIRST)
            await write(client, FIRST, [b"1" * 300, b"2" * 300])
            first, second = [
                (await client.call(wire.ReadSegment(FIRST, offset, 300, "", 2))).ordering_number for offset in (0, 300)
            ]
            for ordering, offset in [(first, 0), (first + 1, 300), (second, 300), (second + 1, 600)]:
                assert await evict(running) == 1
                located = await client.call(wire.LocateOffset(3, FIRST, 0, "", ordering))
                assert located == wire.OffsetLocated(3, FIRST, offset)

    run(scenario())
