"""What a peer may do to a connection: anything. The session answers or closes, in bounded memory, and harms nobody."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_channels import feed, open_session
from store_world import World

from headrace import wire
from headrace.model.segment_attributes import EVENT_COUNT
from headrace.segmentstore.connections.connection_limits import (
    CONTROL_FRAME_BYTES_MAX,
    HELD_READS_MAX,
    READ_BYTES_MAX,
    REPLIES_PER_TURN_BYTES_MAX,
    STALL_S,
    STORAGE_READS_MAX,
    UNTAKEN_REPLY_BYTES_MAX,
)

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
OTHER = "scope/stream/1.#epoch.0"
WRITER, STRANGER = 5, 6
WAIT_S = 20.0


@pytest.mark.parametrize(
    "command", [wire.KeepAlive(), wire.SetupAppend(1, WRITER, SEGMENT), wire.GetStreamSegmentInfo(1, SEGMENT)]
)
async def test_peer_that_takes_no_replies_is_paused_and_then_closed(world: World, command):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        session, channel = open_session(running, takes=False)
        flood = wire.encode(command) * 20_000
        fed = 0
        for _ in range(40):
            fed += await feed(session, channel, flood)
            world.clock.advance(1)
            if not channel.receiving:
                break
        assert not channel.receiving
        assert len(channel.sent) <= UNTAKEN_REPLY_BYTES_MAX + 3 * CONTROL_FRAME_BYTES_MAX
        world.clock.advance(STALL_S + 1)
        session.received(0)  # it goes on sending, which is no excuse
        session.check_stalled(world.clock.monotonic_s())
        assert channel.closed
        session.disconnected()


async def test_reads_of_tier_2_that_nobody_takes_are_bounded(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 1, bytes(10_000))
        await running.flush()
        running.store.owner_of(SEGMENT).container.metadata.segments[SEGMENT].index.release_all()
        reads = b"".join(wire.encode(wire.ReadSegment(SEGMENT, n, 10_000, "", n)) for n in range(100))
        session, channel = open_session(running, takes=False)
        await feed(session, channel, reads)
        await running.until(lambda: not session._tasks)
        # Those under way when the first answers left, and those begun before the channel said that it is full.
        assert len(channel.replies()) <= 2 * STORAGE_READS_MAX
        channel.takes = True
        session.writing_resumed()
        await running.until(lambda: len(channel.replies()) == 100)
        assert {reply.request_id for reply in channel.replies()} == set(range(100))
        session.disconnected()


names = st.sampled_from([SEGMENT, "", "x" * 300, "scope/stream/9.#epoch.0"])
numbers = st.one_of(st.integers(-2, 5), st.sampled_from([-(1 << 63), (1 << 63) - 1]))
small = st.integers(-2, 40)
data = st.binary(max_size=60)
writers = st.sampled_from([STRANGER, STRANGER + 1, (1 << 127) | 1, 0])
commands = st.one_of(
    st.builds(wire.Hello, small, small),
    st.just(wire.KeepAlive()),
    st.builds(wire.SetupAppend, numbers, writers, names),
    st.builds(wire.AppendBlock, writers, data),
    st.builds(wire.AppendBlockEnd, writers, small, data, small, numbers, numbers),
    st.builds(wire.ConditionalAppend, writers, numbers, numbers, data, numbers),
    st.builds(wire.ConditionalBlockEnd, writers, numbers, numbers, data, numbers),
    st.builds(wire.ReadSegment, names, numbers, small, st.just(""), numbers, st.binary(max_size=256)),
    st.builds(wire.GetStreamSegmentInfo, numbers, names),
    st.builds(wire.LocateOffset, numbers, names, numbers, st.just(""), numbers),
    st.builds(wire.GetSegmentAttribute, numbers, names, writers),
    st.builds(wire.TruncateSegment, numbers, names, st.just(0)),
    st.builds(wire.SegmentSealed, numbers, names),
    st.builds(wire.CreateTransientSegment, numbers, writers, names),
    st.builds(wire.MergeSegmentsBatch, numbers, names, st.lists(names, max_size=3).map(tuple)),
)
pieces = st.one_of(
    commands.map(wire.encode),
    st.binary(max_size=40),
    st.builds(
        lambda kind, length: struct.pack(">ii", kind, length),
        st.integers(-3, 100),
        st.sampled_from([-1, 0, 7, 1 << 18, (1 << 24) - 9, 1 << 24, (1 << 31) - 1]),
    ),
    st.tuples(commands.map(wire.encode), st.integers(0, 50)).map(lambda cut: cut[0][: cut[1]]),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(pieces, max_size=12).map(b"".join), min_size=1, max_size=8), st.lists(st.integers(0), max_size=9)
)
async def test_no_bytes_harm_anybody_else(make_world: type[World], streams, cuts):
    world = make_world(cache_bytes=1 << 20)

    async with world.running() as running:
        client = await running.connect()
        await client.create(OTHER)
        await client.set_up(OTHER, WRITER)
        await client.append(WRITER, 1, b"before")
        untiered = running.store.pool.untiered_bytes
        for stream in streams:
            session, channel = open_session(running)
            await feed(session, channel, stream, cuts)
            channel.replies()  # whatever was answered is the protocol
            session.disconnected()
        await client.append(WRITER, 2, b"after")
        assert await client.read_all(OTHER) == b"beforeafter"
        # A stranger's own segment does not exist: nothing of what it sent is kept, half received or not.
        await running.until(lambda: running.store.pool.untiered_bytes == untiered + len(b"after"))


async def test_connections_are_counted(world: World, monkeypatch):
    async with world.running() as running:
        monkeypatch.setattr(running.listener._bounds, "total_max", 2)
        first = await running.connect()
        await running.connect()
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        first.close()
        await running.until(lambda: len(running.listener._connections) == 1)
        await running.connect()


async def test_a_peer_that_owes_bytes_is_closed_in_time(world: World):
    async with world.running() as running:
        session, channel = open_session(running)
        await feed(session, channel, wire.encode(wire.KeepAlive())[:5])
        world.clock.advance(STALL_S - 1)
        session.check_stalled(world.clock.monotonic_s())
        assert not channel.closed
        world.clock.advance(2)
        session.check_stalled(world.clock.monotonic_s())
        assert channel.closed
        idle, idle_channel = open_session(running)
        await feed(
            idle, idle_channel, wire.encode(wire.Hello(17, 5)) + wire.encode(wire.GetStreamSegmentInfo(1, OTHER))
        )
        world.clock.advance(100 * STALL_S)
        idle.check_stalled(world.clock.monotonic_s())  # between two frames a peer may rest as long as it likes
        assert not idle_channel.closed
        idle.disconnected()


async def test_transient_segments_of_a_connection_are_counted(world: World, monkeypatch):
    monkeypatch.setattr("headrace.segmentstore.connections.segment_processor.TRANSIENT_SEGMENTS_PER_CONNECTION_MAX", 2)

    async with world.running() as running:
        client = await running.connect()
        for _ in range(2):
            made = await client.call(wire.CreateTransientSegment(3, WRITER, SEGMENT))
            assert isinstance(made, wire.SegmentCreated)
        assert isinstance(await client.call(wire.CreateTransientSegment(3, WRITER, SEGMENT)), wire.ErrorMessage)


async def test_writer_cannot_use_the_id_of_a_store_attribute(world: World):
    """Its event numbers would be those attributes' values, beyond what an answer can say, in the middle of a report."""

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        stranger = await running.connect()
        stranger.send(
            wire.SetupAppend(1, EVENT_COUNT, SEGMENT),
            wire.AppendBlockEnd(EVENT_COUNT, 4, b"evil", 1, (1 << 63) - 1, 2),
            wire.SetupAppend(3, EVENT_COUNT, SEGMENT),
        )
        assert await stranger.closed()
        await client.append(WRITER, 1, b"fine")
        assert await client.read_all(SEGMENT) == b"fine"


async def test_a_listener_that_was_stopped_opens_no_session(world: World):
    async with world.running() as running:
        pass
    assert not running.listener.admit("10.0.0.1", "a connection on its way in")


async def test_commands_go_on_after_too_many_reads_at_a_tail(world: World):
    async with world.running() as running:
        client, reader = await running.connect(), await running.connect()
        await client.create(SEGMENT)
        for number in range(HELD_READS_MAX):
            reader.send(wire.ReadSegment(SEGMENT, 0, 100, "", number))
        await running.until(lambda: running.listener.held_reads == HELD_READS_MAX)
        reader.send(wire.KeepAlive())
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 1, b"data")
        replies = [await reader.receive() for _ in range(HELD_READS_MAX + 1)]
        assert replies.count(wire.KeepAlive()) == 1
        assert sum(isinstance(reply, wire.SegmentRead) for reply in replies) == HELD_READS_MAX


@pytest.mark.parametrize("takes", [True, False])
async def test_reads_that_come_at_once_are_not_copied_at_once(make_world: type[World], takes):
    """A reply of many small appends is a copy. A peer can ask for gigabytes of them with one packet."""
    world = make_world(container_count=1, cache_bytes=32 << 20, block_bytes=1 << 20)
    length, reads = 1 << 20, HELD_READS_MAX // 8
    async with world.running() as running:
        client, other = await running.connect(), await running.connect()
        for peer, name, writer in ((client, SEGMENT, WRITER), (other, OTHER, STRANGER)):
            await peer.create(name)
            await peer.set_up(name, writer)
        for number in range(100):  # in turn, so that no two appends of a segment are adjacent in the cache
            await client.append(WRITER, number, bytes([number]) * (length // 100))
            await other.append(STRANGER, number, b"between")
        session, channel = open_session(running, takes=takes)
        send, sent = channel.send, []

        def counted(parts):
            sent.append(sum(map(len, parts)))
            send(parts)

        channel.send = counted
        flood = b"".join(wire.encode(wire.ReadSegment(SEGMENT, 0, READ_BYTES_MAX, "", n)) for n in range(reads))
        await feed(session, channel, flood + wire.encode(wire.KeepAlive()))
        await asyncio.sleep(0.05)
        assert max(sent) <= REPLIES_PER_TURN_BYTES_MAX + READ_BYTES_MAX
        if takes:
            await running.until(lambda: sum(sent) > reads * (length // 100) * 100)
            replies = [reply for reply in channel.replies() if isinstance(reply, wire.SegmentRead)]
            assert [reply.request_id for reply in replies] == list(range(reads))
            assert {len(reply.data) for reply in replies} == {length // 100 * 100}
        else:
            assert len(sent) == 1
        session.disconnected()


async def test_a_merge_wakes_no_more_readers_than_can_be_answered(make_world: type[World]):
    world = make_world(container_count=1, cache_bytes=32 << 20, block_bytes=1 << 20)
    source = f"{SEGMENT}#transaction.{1:032x}"
    async with world.running() as running:
        client, other = await running.connect(), await running.connect()
        await client.create(SEGMENT)
        for peer, name, writer in ((client, source, WRITER), (other, OTHER, STRANGER)):
            await peer.create(name)
            await peer.set_up(name, writer)
        for number in range(100):
            await client.append(WRITER, number, bytes(10_000))
            await other.append(STRANGER, number, b"between")
        session, channel = open_session(running, takes=False)
        for number in range(50):
            await feed(session, channel, wire.encode(wire.ReadSegment(SEGMENT, 0, READ_BYTES_MAX, "", number)))
        assert session.held_reads == 50
        assert isinstance(await client.call(wire.MergeSegments(3, SEGMENT, source)), wire.SegmentsMerged)
        await asyncio.sleep(0.05)
        assert 0 < len(channel.sent) <= REPLIES_PER_TURN_BYTES_MAX + READ_BYTES_MAX
        channel.takes = True
        session.writing_resumed()
        await running.until(lambda: len(channel.sent) > 50 * 1_000_000)
        assert len(channel.replies()) == 50
        session.disconnected()
