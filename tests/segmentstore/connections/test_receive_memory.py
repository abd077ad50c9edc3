"""What is received in part is within one budget, which slow and silent peers cannot keep from the others."""

from __future__ import annotations

import asyncio
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_channels import feed, open_session
from store_world import World

from headrace import wire
from headrace.model.errors import InvalidRequestError
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.connections import connection_limits
from headrace.segmentstore.connections.connection_limits import (
    CONTROL_FRAME_BYTES_MAX,
    STALL_S,
    TRANSFER_BYTES_PER_S_MIN,
)
from headrace.segmentstore.connections.receive_memory import (
    DIRECT_APPENDS_MAX,
    LARGE_PIECE_BYTES,
    SMALL_PIECE_BYTES,
    UNCHARGED_BYTES,
    ReceiveAccount,
    ReceiveMemory,
    receive_bytes_min,
)
from headrace.segmentstore.connections.received_bytes import ReceivedBytes
from headrace.segmentstore.connections.session import TransferPace

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
APPEND_BYTES_MAX = 512 << 10


def small_memory(*, connections=100, pieces=1):
    """Room for one command, and for some large pieces that are shared."""
    least = receive_bytes_min(connections, APPEND_BYTES_MAX)
    return ReceiveMemory(least + (pieces - 1) * LARGE_PIECE_BYTES, connections, APPEND_BYTES_MAX)


def block_and_end(writer, data, cut):
    """One event as Pravega's Java client sends it: its first `cut` bytes in a block, the others in the block's end."""
    header = struct.pack(">ii", wire.PartialEvent.TYPE, cut)
    block = wire.encode(wire.AppendBlock(writer, header + data[:cut]))
    return block, wire.encode(wire.AppendBlockEnd(writer, 0, data[cut:], 1, 0, 9))


def as_one_frame(writer, data):
    return wire.encode(wire.AppendBlockEnd(writer, len(data), data, 1, 0, 9))


async def prepared(running, count, memory=None):
    """A segment, and sessions with a writer each that is set up."""
    client = await running.connect()
    await client.create(SEGMENT)
    sessions = [open_session(running, memory=memory) for _ in range(count)]
    for writer, (session, channel) in enumerate(sessions, 1):
        await feed(session, channel, wire.encode(wire.SetupAppend(1, writer, SEGMENT)))
        await running.until(lambda channel=channel: bool(channel.sent))
    return client, sessions


# With real connections


async def test_blocks_without_their_ends_do_not_fill_the_cache(make_world: type[World]):
    world = make_world(container_count=1, cache_bytes=1 << 20)

    async with world.running() as running:
        clients = [await running.connect() for _ in range(10)]
        await clients[0].create(SEGMENT)
        frames = [block_and_end(writer, bytes([writer]) * 160_000, 100_000) for writer in range(1, 11)]
        for writer, (client, (block, _)) in enumerate(zip(clients, frames, strict=True), 1):
            await client.set_up(SEGMENT, writer)
            client.send_raw(block)
            assert isinstance(await client.call(wire.KeepAlive()), wire.KeepAlive)  # the block was received
        for client, (_, end) in zip(clients, frames, strict=True):
            client.send_raw(end)
        for client in clients:
            assert isinstance(await client.receive(), wire.DataAppended)
        assert len(await clients[0].read_all(SEGMENT)) == 1_600_000


async def test_frame_headers_alone_take_no_memory_from_others(make_world: type[World]):
    world = make_world(container_count=1, cache_bytes=1 << 20)

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, 99)
        for writer in range(1, 28):
            slow = await running.connect()
            await slow.set_up(SEGMENT, writer)
            slow.send_raw(as_one_frame(writer, bytes(400_000))[:60])
            assert isinstance(await client.call(wire.KeepAlive()), wire.KeepAlive)
        await client.append(99, 0, bytes(400_000))
        memory = running.listener.receive_memory
        await running.until(lambda: memory.used_bytes == 27 * SMALL_PIECE_BYTES)
        assert running.store.pool.untiered_bytes == 400_000


# Slow peers


async def test_a_peer_that_sends_a_byte_now_and_then_is_closed(world: World):
    async with world.running() as running:
        _, [(session, channel)] = await prepared(running, 1)
        frame = as_one_frame(1, bytes(100_000))
        await feed(session, channel, frame[:50])
        for position in range(50, 54):
            world.clock.advance(STALL_S - 10)
            session.check_stalled(world.clock.monotonic_s())
            if not channel.closed:
                await feed(session, channel, frame[position : position + 1])
        assert channel.closed


async def test_a_peer_that_keeps_a_block_without_its_end_is_closed(world: World):
    async with world.running() as running:
        memory = small_memory()
        _, [(session, channel)] = await prepared(running, 1, memory)
        await feed(session, channel, block_and_end(1, bytes(100_000), 100_000)[0])
        world.clock.advance(STALL_S + 1)
        await feed(session, channel, wire.encode(wire.KeepAlive()))  # an answer is not what it owes
        session.check_stalled(world.clock.monotonic_s())
        assert channel.closed
        assert memory.used_bytes == 0


@given(st.lists(st.tuples(st.floats(0.01, 50), st.floats(1, 3)), min_size=1, max_size=30))
def test_a_peer_at_the_least_rate_is_never_too_slow(steps):
    pace, now_s = TransferPace(), 1000.0
    pace.received(now_s, 1, 10)
    for passed_s, factor in steps:
        now_s += passed_s
        assert not pace.is_too_slow(now_s)
        pace.received(now_s, 1, int(passed_s * factor * TRANSFER_BYTES_PER_S_MIN) + 1)


@given(st.lists(st.tuples(st.floats(1, 59), st.integers(0, 5000)), min_size=70, max_size=80))
def test_a_peer_below_the_least_rate_is_too_slow_in_the_end(steps):
    pace, now_s = TransferPace(), 1000.0
    pace.received(now_s, 1, 1 << 20)
    for passed_s, count in steps:
        now_s += passed_s
        if pace.is_too_slow(now_s):
            return
        pace.received(now_s, 1, count)
    raise AssertionError("it was never too slow")


def test_time_in_which_the_store_does_not_receive_does_not_count():
    pace = TransferPace()
    pace.received(0.0, 1, 10)
    pace.pause(STALL_S - 1)
    assert not pace.is_too_slow(100 * STALL_S)
    pace.resume(100 * STALL_S)
    assert not pace.is_too_slow(100 * STALL_S + 1)
    assert pace.is_too_slow(100 * STALL_S + 1.1)
    pace.received(200 * STALL_S, 2, 10)  # it began another command: the former one is here
    assert not pace.is_too_slow(201 * STALL_S)
    pace.received(300 * STALL_S, None, 10)
    assert not pace.is_too_slow(400 * STALL_S)


# Straight into the cache


async def test_a_slow_append_leaves_the_cache(make_world: type[World]):
    world = make_world(container_count=1, cache_bytes=16 << 20)
    value = bytes(range(250)) * 1600

    async with world.running() as running:
        memory, pool = small_memory(pieces=40), running.store.pool
        client, sessions = await prepared(running, 3, memory)
        slow, fast, gone = sessions
        for writer, peer in enumerate(sessions, 1):
            position = await feed(*peer, as_one_frame(writer, value)[:40_000])
        assert pool.untiered_bytes == 3 * len(value)
        assert memory.used_bytes == 3 * (len(value) + LARGE_PIECE_BYTES)
        for session, _ in sessions:
            session.check_stalled(world.clock.monotonic_s())
        await feed(*fast, as_one_frame(2, value)[position:])
        assert pool.untiered_bytes == 3 * len(value)
        for session, _ in sessions:
            session.check_stalled(world.clock.monotonic_s())
        assert pool.untiered_bytes == len(value)  # of the one that is appended
        assert memory.used_bytes == 2 * LARGE_PIECE_BYTES
        gone[0].disconnected()
        await feed(*slow, as_one_frame(1, value)[position:])
        assert memory.used_bytes == memory.direct_count == memory.direct_bytes == 0
        await running.until(lambda: all(any(map(is_append, channel.replies())) for _, channel in sessions[:2]))
        assert await client.read_all(SEGMENT) == 2 * value
        assert pool.untiered_bytes == 2 * len(value)


async def test_few_appends_are_received_straight_into_the_cache(make_world: type[World]):
    world = make_world(container_count=1, cache_bytes=64 << 20)

    async with world.running() as running:
        memory = ReceiveMemory(64 << 20, 100)
        _, sessions = await prepared(running, DIRECT_APPENDS_MAX + 3, memory)
        for writer, (session, channel) in enumerate(sessions, 1):
            await feed(session, channel, as_one_frame(writer, bytes(200_000))[:20_000])
        assert running.store.pool.untiered_bytes == DIRECT_APPENDS_MAX * 200_000
        for session, _ in sessions:
            session.disconnected()
        assert memory.used_bytes == memory.direct_count == running.store.pool.untiered_bytes == 0


@pytest.mark.parametrize("first_bytes", [60, 10_000, SMALL_PIECE_BYTES, SMALL_PIECE_BYTES + 100])
async def test_an_append_that_begins_small_enters_the_cache(make_world: type[World], first_bytes):
    """As with TLS, where the end of a record cuts it: a small piece is filled first, then the cache has it."""
    world = make_world(container_count=1, cache_bytes=16 << 20)
    value = bytes(range(250)) * 1600

    async with world.running() as running:
        memory, pool = small_memory(pieces=40), running.store.pool
        client, [peer] = await prepared(running, 1, memory)
        frame = as_one_frame(1, value)
        position = await feed(*peer, frame[:first_bytes])
        position += await feed(*peer, frame[position : position + SMALL_PIECE_BYTES])
        assert pool.untiered_bytes == len(value)
        assert (memory.direct_count, memory.used_bytes) == (1, len(value) + LARGE_PIECE_BYTES)
        await feed(*peer, frame[position:])
        assert memory.used_bytes == memory.direct_count == memory.direct_bytes == 0
        await running.until(lambda: any(map(is_append, peer[1].replies())))
        assert await client.read_all(SEGMENT) == value


@pytest.mark.parametrize("missing", range(-70, 70, 5))
async def test_an_append_of_a_small_piece_keeps_its_end(make_world: type[World], missing):
    world = make_world(container_count=1, cache_bytes=16 << 20)
    value = bytes(range(256)) * (SMALL_PIECE_BYTES // 256 + 1)
    value = value[: SMALL_PIECE_BYTES - missing]

    async with world.running() as running:
        memory = small_memory(pieces=40)
        client, [peer] = await prepared(running, 1, memory)
        await feed(*peer, as_one_frame(1, value), range(0, len(value) + 200, 1000))
        await running.until(lambda: any(map(is_append, peer[1].replies())))
        assert await client.read_all(SEGMENT) == value
        assert memory.used_bytes == memory.direct_count == memory.direct_bytes == 0


@pytest.mark.parametrize("missing", [1, 12, 19])
async def test_a_cut_trailer_leaves_the_cache_with_its_data(make_world: type[World], missing):
    world = make_world(container_count=1, cache_bytes=16 << 20)
    value = bytes(range(250)) * 1600

    async with world.running() as running:
        memory = small_memory(pieces=40)
        client, [(session, channel)] = await prepared(running, 1, memory)
        frame = as_one_frame(1, value) + wire.encode(wire.KeepAlive())
        begun = len(as_one_frame(1, value)) - missing
        await feed(session, channel, frame[:begun])
        assert memory.direct_count == 1
        for _ in range(2):
            session.check_stalled(world.clock.monotonic_s())
        assert memory.direct_count == 0
        await feed(session, channel, frame[begun:])
        assert any(isinstance(reply, wire.KeepAlive) for reply in channel.replies())
        await running.until(lambda: any(map(is_append, channel.replies())))
        (appended,) = filter(is_append, channel.replies())
        assert (appended.event_number, appended.request_id) == (0, 9)
        assert await client.read_all(SEGMENT) == value
        assert memory.used_bytes == 0


async def test_an_append_that_has_left_the_cache_stays_out(make_world: type[World]):
    world = make_world(container_count=1, cache_bytes=16 << 20)
    value = bytes(400_000)

    async with world.running() as running:
        memory, pool = small_memory(pieces=40), running.store.pool
        _, [(session, channel)] = await prepared(running, 1, memory)
        frame = as_one_frame(1, value)
        position = await feed(session, channel, frame[: SMALL_PIECE_BYTES + 100])
        assert pool.untiered_bytes == len(value)
        for _ in range(2):
            session.check_stalled(world.clock.monotonic_s())
        assert pool.untiered_bytes == 0
        await feed(session, channel, frame[position:-100])
        assert pool.untiered_bytes == 0
        session.disconnected()
        assert memory.used_bytes == memory.direct_count == memory.direct_bytes == 0


def test_bytes_that_move_arrive_once_and_free_their_place():
    """From a small piece into the cache, and from there into large pieces."""
    memory, pool = small_memory(pieces=40), BlockPool(16 << 20)
    account = ReceiveAccount(memory, "peer", on_room=pytest.fail, on_slow=pytest.fail, is_excused=lambda: False)
    received = ReceivedBytes(account, pool)
    data = memoryview(bytes(range(250)) * 1600)
    assert memory.charge(account, SMALL_PIECE_BYTES)
    received.add_piece(SMALL_PIECE_BYTES)
    piece = received.writable.obj
    account.begin_contest(0)
    assert received.write(data) == SMALL_PIECE_BYTES
    assert received.begin_in_cache(len(data))
    assert memory.piece(SMALL_PIECE_BYTES).obj is piece
    assert memory.used_bytes == memory.direct_bytes == len(data) + LARGE_PIECE_BYTES
    assert received.write(data[SMALL_PIECE_BYTES:300_000]) == 300_000 - SMALL_PIECE_BYTES
    received.leave_cache()
    assert memory.used_bytes == 2 * LARGE_PIECE_BYTES
    assert received.write(data[300_000:]) == len(data) - 300_000
    assert b"".join(received.parts) == data
    account.ends_period()
    assert account.recent_bytes == len(data)
    received.release()
    assert memory.used_bytes == memory.direct_count == memory.direct_bytes == pool.untiered_bytes == 0


# The budget


async def test_connection_waiting_for_budget_is_not_closed_as_stalled(world: World):
    """One peer has the shared part, one the reserve; a third waits, until one of them is closed for its slowness."""

    async with world.running() as running:
        memory = small_memory()
        _, sessions = await prepared(running, 3, memory)
        frames = [as_one_frame(writer, bytes(400_000)) for writer in (1, 2, 3)]
        sent = [
            await feed(session, channel, frame[:200_000])
            for (session, channel), frame in zip(sessions, frames, strict=True)
        ]
        assert memory.waiting == 1
        waiting, waiting_channel = sessions[2]
        assert not waiting_channel.receiving
        world.clock.advance(STALL_S + 1)
        for session, _ in reversed(sessions):
            session.check_stalled(world.clock.monotonic_s())
        assert [channel.closed for _, channel in sessions] == [True, True, False]
        await running.until(lambda: waiting_channel.receiving)
        waiting.check_stalled(world.clock.monotonic_s() + STALL_S - 1)
        assert not waiting_channel.closed
        await feed(waiting, waiting_channel, frames[2][sent[2] :])
        await running.until(lambda: any(map(is_append, waiting_channel.replies())))
        assert memory.used_bytes == 0
        waiting.disconnected()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
async def test_all_commands_arrive_whatever_the_others_hold(make_world: type[World], data):
    """Peers send pieces in any order, some of them stop; the budget is for little more than one of them."""
    world = make_world(container_count=1, cache_bytes=data.draw(st.sampled_from([1 << 20, 16 << 20])))
    count = data.draw(st.integers(2, 7))
    sizes = data.draw(st.lists(st.integers(1, APPEND_BYTES_MAX - 100), min_size=count, max_size=count))
    silent = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    random = data.draw(st.randoms(use_true_random=False))

    async with world.running() as running:
        memory = small_memory(pieces=2)
        client, sessions = await prepared(running, count, memory)
        cuts = [data.draw(st.one_of(st.none(), st.integers(0, size))) for size in sizes]
        streams = [
            as_one_frame(n, bytes([n]) * size) if cut is None else b"".join(block_and_end(n, bytes([n]) * size, cut))
            for n, (size, cut) in enumerate(zip(sizes, cuts, strict=True), 1)
        ]
        for n in silent:
            streams[n] = streams[n][:-1]
        positions = [0] * count

        def pass_time():
            world.clock.advance(1)
            for n in silent:
                if positions[n] == len(streams[n]):
                    sessions[n][0].check_stalled(world.clock.monotonic_s())

        def are_durable():
            pass_time()  # the end of a good command may still wait for what a silent peer holds
            return all(any(map(is_append, sessions[n][1].replies())) for n in good)

        while any(positions[n] < len(streams[n]) for n in range(count)):
            able = [n for n, (_, channel) in enumerate(sessions) if positions[n] < len(streams[n])]
            ready = [n for n in able if sessions[n][1].receiving]
            if not ready:
                await asyncio.sleep(0)
                pass_time()
                continue
            n = random.choice(ready)
            session, _ = sessions[n]
            target = session.assembler.writable()
            taken = min(len(target), len(streams[n]) - positions[n], random.choice((1, 100, 100_000, 1 << 20)))
            target[:taken] = streams[n][positions[n] : positions[n] + taken]
            positions[n] += taken
            session.received(taken)
            if random.random() < 0.2:
                session.assembler.leave_cache_if_slow()
            assert memory.used_bytes <= memory.total_bytes
        good = [n for n in range(count) if n not in silent]
        await running.until(are_durable)
        stored = await client.read_all(SEGMENT)
        assert sorted((value, stored.count(value)) for value in set(stored)) == [(n + 1, sizes[n]) for n in good]
        for session, _ in sessions:
            session.disconnected()
        await running.until(lambda: not memory.used_bytes)  # a piece may be granted to a session that has just ended
        assert memory.waiting == 0


def is_append(reply):
    return isinstance(reply, wire.DataAppended)


async def test_commands_that_wait_unparsed_are_charged(world: World, monkeypatch):
    monkeypatch.setattr("headrace.segmentstore.connections.session.RUNNING_REQUESTS_MAX", 0)
    flood = wire.encode(wire.KeepAlive()) * 30_000

    async with world.running() as running:
        memory = small_memory(pieces=2)
        sessions = [open_session(running, memory=memory) for _ in range(50)]
        for session, _ in sessions:  # as a socket does that had bytes when the store stopped receiving
            target = session.assembler.writable()
            count = min(len(target), len(flood))
            target[:count] = flood[:count]
            session.received(count)
        kept = [len(session.assembler._leftover) for session, _ in sessions]
        assert sum(kept) > CONTROL_FRAME_BYTES_MAX  # some of them were received
        assert memory.used_bytes == sum(max(length - UNCHARGED_BYTES, 0) for length in kept)
        assert sum(kept) <= 2 * LARGE_PIECE_BYTES + CONTROL_FRAME_BYTES_MAX + 50 * UNCHARGED_BYTES
        monkeypatch.setattr("headrace.segmentstore.connections.session.RUNNING_REQUESTS_MAX", 256)
        for session, _ in sessions:
            session.count_outstanding(0)
        await running.until(lambda: memory.used_bytes == 0)
        for (_, channel), length in zip(sessions, kept, strict=True):
            await running.until(lambda channel=channel, count=length // 8: len(channel.replies()) == count)


async def test_a_command_of_more_than_a_connection_may_have_is_refused(world: World):
    async with world.running() as running:
        _, [(session, channel)] = await prepared(running, 1, small_memory())
        block, end = block_and_end(1, bytes(APPEND_BYTES_MAX), APPEND_BYTES_MAX // 2)  # and the header of a frame
        await feed(session, channel, block)
        assert not channel.closed
        await feed(session, channel, end)
        assert channel.closed


def test_a_budget_that_cannot_hold_a_command_is_refused():
    least = receive_bytes_min(10)
    assert least > connection_limits.CONTROL_FRAME_BYTES_MAX
    ReceiveMemory(least, 10)
    with pytest.raises(InvalidRequestError, match=str(least)):
        ReceiveMemory(least - 1, 10)
