"""Appends over the wire: numbers, blocks, conditions, refusals, order."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest
from store_world import RunningStore, WireClient, World

from headrace import wire

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = 0xFFEEDDCCBBAA99887766554433221100


@pytest.fixture
async def running(world: World) -> AsyncIterator[RunningStore]:
    async with world.running() as running:
        yield running


@pytest.fixture
async def client(running: RunningStore) -> WireClient:
    """A client that has set up its writer on a new segment."""
    client = await running.connect()
    await client.create(SEGMENT)
    assert await client.set_up(SEGMENT, WRITER) == wire.NO_EVENT_NUMBER
    return client


def block_end(number, data=b"data", **fields):
    return wire.AppendBlockEnd(WRITER, fields.pop("whole", len(data)), data, fields.pop("count", 1), number, number)


async def test_event_number_zero_and_gaps_are_fine(client):
    assert (await client.append(WRITER, 0, b"a")).event_number == 0
    assert (await client.append(WRITER, 100, b"b")).previous_event_number == 0


async def test_pipelined_appends_are_acknowledged_in_order(client):
    client.send(*(block_end(number, b"%03d" % number) for number in range(200)))
    acknowledged, previous = -1, wire.NO_EVENT_NUMBER
    while acknowledged < 199:
        reply = await client.receive()
        assert isinstance(reply, wire.DataAppended)
        assert reply.previous_event_number == previous
        assert reply.event_number > acknowledged
        assert reply.current_segment_write_offset == 3 * (reply.event_number + 1)
        acknowledged = previous = reply.event_number
    assert await client.read_all(SEGMENT) == b"".join(b"%03d" % number for number in range(200))


@pytest.mark.parametrize("number", [5, 4])
async def test_repeated_event_number_closes_the_connection(running, client, number):
    await client.append(WRITER, 5, b"once")
    client.send(block_end(number))
    assert await client.closed()
    other = await running.connect()
    assert await other.set_up(SEGMENT, WRITER) == 5
    assert await other.read_all(SEGMENT) == b"once"


async def test_two_connections_of_one_writer_never_both_append(running, client):
    await client.append(WRITER, 1, b"one")
    newer = await running.connect()
    assert await newer.set_up(SEGMENT, WRITER) == 1
    await newer.append(WRITER, 2, b"two")
    reply = await client.call(block_end(2, b"again"))
    assert reply == wire.InvalidEventNumber(WRITER, 2, "", 2)
    assert await client.closed()
    assert await newer.read_all(SEGMENT) == b"onetwo"


async def test_a_writer_that_was_not_set_up_is_cut_off(running, client):
    client.send(wire.AppendBlockEnd(WRITER + 1, 4, b"data", 1, 1, 1))
    assert await client.closed()
    assert running.store.pool.untiered_bytes == 0


async def test_set_up_on_a_missing_segment(client):
    reply = await client.call(wire.SetupAppend(5, WRITER, "scope/stream/9.#epoch.0"))
    assert reply == wire.NoSuchSegment(5, "scope/stream/9.#epoch.0")


async def test_a_sealed_segment_refuses_after_what_was_in_flight(running, client):
    await client.append(WRITER, 1, b"one")
    other = await running.connect()
    assert await other.call(wire.SealSegment(3, SEGMENT)) == wire.SegmentSealed(3, SEGMENT)
    client.send(block_end(2), block_end(3), wire.SetupAppend(9, WRITER, SEGMENT))
    assert await client.receive() == wire.SegmentIsSealed(2, SEGMENT, "", 2)
    # What was sent behind the refused append is dropped, and the writer learns what is stored.
    assert await client.receive() == wire.AppendSetup(9, SEGMENT, WRITER, 1)
    assert await other.read_all(SEGMENT) == b"one"


async def test_a_removed_segment_refuses(running, client):
    other = await running.connect()
    assert await other.call(wire.DeleteSegment(3, SEGMENT)) == wire.SegmentDeleted(3, SEGMENT)
    assert await client.call(block_end(1)) == wire.NoSuchSegment(1, SEGMENT)


# Blocks in two parts


def block(data):
    return wire.AppendBlock(WRITER, data)


def partial(data):
    return struct.pack(">ii", -2, len(data)) + data


def padding(length):
    return struct.pack(">ii", -1, length) + bytes(length)


@pytest.mark.parametrize(
    ("start", "end", "stored"),
    [
        (b"whole" * 9, block_end(1, b"", whole=45), b"whole" * 9),
        (b"whole" + padding(17), block_end(1, b"", whole=5), b"whole"),
        (b"whole" + padding(0), block_end(1, b"", whole=5), b"whole"),
        (b"whole" + partial(b"begin "), block_end(1, b"and end", whole=5), b"wholebegin and end"),
        (partial(b"begin "), block_end(1, b"and end", whole=0), b"begin and end"),
        (b"x" * 200_000 + partial(b"y" * 99_000), block_end(1, b"z" * 150_000, whole=200_000),
         b"x" * 200_000 + b"y" * 99_000 + b"z" * 150_000),
    ],
)  # fmt: skip
async def test_blocks_in_two_parts(running, client, start, end, stored):
    client.send(block(start), wire.KeepAlive(), end)
    assert await client.receive() == wire.KeepAlive()
    reply = await client.receive()
    assert isinstance(reply, wire.DataAppended)
    assert reply.current_segment_write_offset == len(stored)
    assert await client.read_all(SEGMENT) == stored
    await running.flush()
    assert await client.read_all(SEGMENT) == stored


@pytest.mark.parametrize(
    "commands",
    [
        [block(b"abc"), block_end(1, b"", whole=4)],
        [block(b"abc"), block_end(1, b"", whole=-1)],
        [block(b"abc"), block_end(1, b"more", whole=3)],
        [block(b"abc" + padding(3)), block_end(1, b"more", whole=3)],
        [block(b"abc" + b"12345"), block_end(1, b"", whole=3)],
        [block(b"abc" + struct.pack(">ii", -2, 9) + b"12"), block_end(1, b"", whole=3)],
        [block(b"abc" + struct.pack(">ii", 0, 2) + b"12"), block_end(1, b"", whole=3)],
        [block(b"abc"), block(b"def")],
        [block(b"abc"), wire.ConditionalAppend(WRITER, 1, 0, b"event", 1)],
        [block_end(1, b"data", count=0)],
        [block_end(1, b"data", count=-1)],
    ],
)
async def test_broken_blocks_close_the_connection_and_store_nothing(running, client, commands):
    client.send(*commands)
    assert await client.closed()
    other = await running.connect()
    assert await other.set_up(SEGMENT, WRITER) == wire.NO_EVENT_NUMBER
    assert await other.read_all(SEGMENT) == b""
    assert running.store.pool.untiered_bytes == 0


# Conditional appends


async def test_a_conditional_append_is_stored_with_its_event_header(client):
    reply = await client.call(wire.ConditionalAppend(WRITER, 7, 0, b"event", 3))
    assert reply == wire.DataAppended(WRITER, 7, wire.NO_EVENT_NUMBER, 3, 13)
    assert await client.read_all(SEGMENT) == struct.pack(">ii", 0, 5) + b"event"


async def test_failed_condition_leaves_its_event_number_usable(client):
    reply = await client.call(wire.ConditionalAppend(WRITER, 7, 1, b"event", 3))
    assert reply == wire.ConditionalCheckFailed(WRITER, 7, 3)
    reply = await client.call(wire.ConditionalBlockEnd(WRITER, 7, 0, b"raw", 4))
    assert reply == wire.DataAppended(WRITER, 7, wire.NO_EVENT_NUMBER, 4, 3)
    reply = await client.call(wire.ConditionalBlockEnd(WRITER, 8, 0, b"raw", 5))
    assert reply == wire.ConditionalCheckFailed(WRITER, 8, 5)
    assert await client.read_all(SEGMENT) == b"raw"


async def test_each_of_many_conditional_appends_is_acknowledged(client):
    """As Java clients send the parts of a large event: they wait for a reply to every part."""
    client.send(*(wire.ConditionalBlockEnd(WRITER, number, 3 * number, b"raw", 50 + number) for number in range(40)))
    previous = wire.NO_EVENT_NUMBER
    for number in range(40):
        acknowledged = wire.DataAppended(WRITER, number, previous, 50 + number, 3 * (number + 1))
        assert await client.receive() == acknowledged
        previous = number


async def test_plain_and_conditional_appends_keep_their_order(client):
    """A conditional append is acknowledged alone; the plain ones before it and after it may be taken together."""
    conditional = {number for number in range(60) if number % 7 in (2, 3)}
    client.send(
        *(
            wire.ConditionalBlockEnd(WRITER, number, 4 * number, b"data", 900 + number)
            if number in conditional
            else block_end(number)
            for number in range(60)
        )
    )
    acknowledged: list[int] = []
    while not acknowledged or acknowledged[-1] < 59:
        reply = await client.receive()
        assert isinstance(reply, wire.DataAppended)
        assert reply.previous_event_number == (acknowledged[-1] if acknowledged else wire.NO_EVENT_NUMBER)
        assert reply.current_segment_write_offset == 4 * (reply.event_number + 1)
        if reply.event_number in conditional:
            assert reply.request_id == 900 + reply.event_number
        acknowledged.append(reply.event_number)
    assert conditional <= set(acknowledged)
    before = {number - 1 for number in conditional if number - 1 not in conditional}
    assert before <= set(acknowledged)  # no plain append is acknowledged by the reply to a conditional one
    assert acknowledged == sorted(acknowledged)


async def test_a_failed_condition_follows_earlier_replies(client):
    client.send(
        wire.ConditionalBlockEnd(WRITER, 0, 0, b"one", 20),
        wire.ConditionalBlockEnd(WRITER, 1, 3, b"two", 21),
        wire.ConditionalBlockEnd(WRITER, 2, 5, b"not at the end", 22),
    )
    assert [await client.receive() for _ in range(3)] == [
        wire.DataAppended(WRITER, 0, wire.NO_EVENT_NUMBER, 20, 3),
        wire.DataAppended(WRITER, 1, 0, 21, 6),
        wire.ConditionalCheckFailed(WRITER, 2, 22),
    ]
    later = await client.call(wire.ConditionalBlockEnd(WRITER, 2, 6, b"six", 23))
    assert later == wire.DataAppended(WRITER, 2, 1, 23, 9)
    assert await client.read_all(SEGMENT) == b"onetwosix"


# Bytes that are no protocol


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: headrace\r\n\r\n",
        struct.pack(">ii", 9999, 4) + b"abcd",
        struct.pack(">ii", 100, -1),
        struct.pack(">ii", 100, 1 << 24),
        struct.pack(">ii", 20, (256 << 10) + 1),  # no control frame is so large
        struct.pack(">ii", 20, 3) + b"abc",
        struct.pack(">ii", 4, 10) + bytes(10),
        struct.pack(">ii", 72, 20) + bytes(20),  # a table command that was retired
        struct.pack(">iiQQii", 4, 100, 0, 1, 4, 1 << 23),
        struct.pack(">iiQQqqii", 5, 100, 0, 1, 1, 1, 1, 4),
    ],
)
async def test_garbage_closes_only_its_own_connection(running, client, data):
    stranger = await running.connect()
    stranger.send_raw(data)
    assert await stranger.closed()
    await client.append(WRITER, 1, b"still here")
    assert running.store.pool.untiered_bytes == len(b"still here")


async def test_a_client_of_another_age_is_told_and_cut_off(running):
    stranger = await running.connect()
    assert await stranger.call(wire.Hello(99, 18)) == wire.Hello(17, 5)
    assert await stranger.closed()


async def test_bytes_may_come_one_by_one(client):
    frames = [
        block_end(1, b"first"),
        wire.KeepAlive(),
        wire.ConditionalAppend(WRITER, 2, 5, b"event", 3),
        wire.GetStreamSegmentInfo(4, SEGMENT),
    ]
    for byte in b"".join(map(wire.encode, frames)):
        client.send_raw(bytes([byte]))
        await client.drain_to_server()
    kinds, acknowledged = set(), 0
    while acknowledged < 2 or len(kinds) < 3:  # one acknowledgement may speak for both appends
        reply = await client.receive()
        kinds.add(type(reply))
        acknowledged = max(acknowledged, getattr(reply, "event_number", 0))
    assert kinds == {wire.DataAppended, wire.KeepAlive, wire.StreamSegmentInfo}
    assert await client.read_all(SEGMENT) == b"first" + struct.pack(">ii", 0, 5) + b"event"
