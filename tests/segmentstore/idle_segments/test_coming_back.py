"""Segments that have left memory and come back: nobody notices, whatever is asked, and whatever is wrong meanwhile."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from idle_segments import (
    FIRST,
    SEGMENTS,
    evict,
    running_store,
    segment_is,
    with_evicted,
)
from segment_writes import OTHER, WRITER, write
from store_world import WAIT_S, World

from headrace import wire
from headrace.metadata.evicted_segment import evicted_segment_key
from headrace.model.errors import CorruptError, UnavailableError
from headrace.model.segment_attributes import EVENT_COUNT
from headrace.ports.metadata_store import Replace
from headrace.segmentstore.tiering.segment_records import READS_AT_ONCE_MAX

pytestmark = pytest.mark.anyio

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
async def test_every_request_finds_a_segment_that_has_left_memory(world: World, request_, reply):
    async with with_evicted(world, *SEGMENTS[:3]) as (_, client):
        answer = await client.call(request_)
        if isinstance(reply, type):
            assert isinstance(answer, reply)
        elif isinstance(reply, bytes):
            assert bytes(answer.data) == reply
        else:
            assert answer == reply


async def test_everything_is_as_it_was(world: World):
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


async def test_a_writer_that_was_set_up_before_goes_on_in_order(world: World, calls):
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
        assert running.store.pool.untiered_bytes == len(expected) - 1


async def test_appends_waiting_for_a_segment_end_with_their_connection(world: World):
    held, asked = threading.Event(), threading.Event()

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
        await running.until(lambda: running.store.pool.untiered_bytes == 12)
        client.close()
        await running.until(lambda: running.store.pool.untiered_bytes == 0)
        held.set()
        assert await other.read_all(FIRST) == FIRST.encode()


@pytest.mark.parametrize("gone", ["deleted", "sealed"])
async def test_writer_is_told_that_its_evicted_segment_changed(world: World, gone):
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


async def test_numbers_of_a_waiting_writer_are_checked_as_always(world: World):
    async with running_store(world) as running:
        client, other = await running.connect(), await running.connect()
        await client.create(FIRST)
        await write(client, FIRST, [b"0"])
        await evict(running)
        for number in (1, 2, 2, 3):
            client.send(wire.AppendBlockEnd(WRITER, 1, b"%d" % number, 1, number, 9))
        assert await client.closed()
        assert await other.read_all(FIRST) == b"012"
        assert running.store.pool.untiered_bytes == 2


async def test_look_ups_are_shared(world: World, calls):
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


async def test_a_metadata_store_that_does_not_answer_is_got_over(world: World):
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


async def test_a_record_that_is_none_is_told_and_stops_nobody_else(world: World):
    async with with_evicted(world, *SEGMENTS[:2]) as (running, client):
        record = world.metadata.get(evicted_segment_key(FIRST))
        world.metadata.write(Replace(record.key, {"format": 1, "segment": {}}, record.version))
        assert isinstance(await client.call(wire.SetupAppend(1, WRITER, FIRST)), wire.WrongHost)
        assert isinstance(await client.call(wire.SealSegment(1, FIRST)), wire.ErrorMessage)
        with pytest.raises(CorruptError):
            await running.store.owned[0].container.find(FIRST)
        assert await client.set_up(SEGMENTS[1], WRITER) == 0


async def test_a_segment_that_comes_back_knows_when_its_bytes_came(world: World):
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
            assert isinstance(located, wire.OffsetLocated)
            assert located.offset == offset
            assert located.ordering_number == {0: first, 300: second}.get(offset, located.ordering_number) > 0


@pytest.mark.parametrize("later_turn", range(3))
async def test_callers_of_a_look_up_go_on_in_their_order(world: World, later_turn: int):
    """The last one comes in the turn in which the segment is there, and those who waited have not gone on yet."""
    async with with_evicted(world, FIRST) as (running, _):
        container = running.store.owned[0].container
        ended, went_on = asyncio.Event(), list[int]()
        look_up = container.idle._look_up

        async def noted(name: str) -> bool:
            segment = await look_up(name)
            ended.set()
            return segment

        async def find(number: int) -> None:
            assert await container.find(FIRST) is not None
            went_on.append(number)

        container.idle._look_up = noted
        callers = [asyncio.ensure_future(find(number)) for number in range(3)]
        await ended.wait()
        for number in range(3, 3 + later_turn):
            callers.append(asyncio.ensure_future(find(number)))
            await asyncio.sleep(0)
        await find(9)
        await asyncio.gather(*callers)
        assert went_on == [*range(3 + later_turn), 9]


async def test_a_segment_created_meanwhile_needs_no_record(world: World):
    """A look-up began when the creator had learnt that there is none, and had not gone on yet."""
    async with with_evicted(world, FIRST) as (running, _):
        container, created = running.store.owned[0].container, SEGMENTS[1]
        look_up, looked_up, answers = container.idle._look_up, list[str](), asyncio.Event()
        ended = asyncio.Event()

        async def first_answers(name: str) -> bool:
            looked_up.append(name)
            if len(looked_up) > 1:
                await answers.wait()
                raise UnavailableError("the metadata store does not answer")
            segment = await look_up(name)
            ended.set()
            return segment

        async def find_then() -> object:
            await ended.wait()
            return await container.find(created)

        container.idle._look_up = first_answers
        finding = asyncio.ensure_future(find_then())
        await container.create(created, ())
        assert len(looked_up) == 2
        assert not finding.done()
        later = asyncio.ensure_future(container.find(created))
        await asyncio.sleep(0)
        answers.set()
        assert await asyncio.gather(finding, later) == [container.metadata.segments[created]] * 2
        assert not container.idle._queues


async def test_a_look_up_that_follows_others_is_answered(world: World, monkeypatch: pytest.MonkeyPatch):
    """It comes in the turn after the last readers have found nothing more to read."""
    async with with_evicted(world, *SEGMENTS[: READS_AT_ONCE_MAX + 1]) as (running, _):
        find = running.store.owned[0].container.idle._find_record
        all_answer, asked, to_thread = asyncio.Event(), [], asyncio.to_thread

        async def answer_together(call, *arguments):
            if call.__name__ != "get_many":
                return await to_thread(call, *arguments)
            asked.append(arguments)
            await all_answer.wait()
            return call(*arguments)

        async def find_all(*names: str) -> list[object]:
            return [await find(name) for name in names]

        monkeypatch.setattr(asyncio, "to_thread", answer_together)
        first, *others, last = SEGMENTS[: READS_AT_ONCE_MAX + 1]
        looking = [asyncio.ensure_future(find_all(first, last))]
        for name in others:
            await running.until(lambda: len(asked) == len(looking))
            looking.append(asyncio.ensure_future(find_all(name)))
        await running.until(lambda: len(asked) == READS_AT_ONCE_MAX)
        all_answer.set()
        segments = await asyncio.wait_for(asyncio.gather(*looking), WAIT_S)
        assert all(each is not None for answers in segments for each in answers)
