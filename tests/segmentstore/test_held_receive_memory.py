"""Peers that begin large commands and do not end them keep no receive memory from the others."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from session_channels import FakeChannel, feed, open_session
from store_world import RunningStore, World
from token_clients import KEYS, SEGMENT, TABLE, admin, refused, writing

from headrace import wire
from headrace.segmentstore.connections.connection_limits import STRANGER_FRAME_BYTES_MAX
from headrace.segmentstore.connections.receive_memory import (
    LARGE_PIECE_BYTES,
    PATIENCE_S,
    SLOW_PERIODS,
    SMALL_PIECE_BYTES,
    ReceiveMemory,
    receive_bytes_min,
)
from headrace.segmentstore.connections.session import Session

pytestmark = pytest.mark.anyio

UPDATE_BYTES = 15 << 20
PERIODS_MAX = int(1 / PATIENCE_S)
"""A well-behaved writer waits at most a second."""

WRITER = 7
KINDS = pytest.mark.parametrize("kind", [wire.UpdateTableEntries, wire.RemoveTableKeys, wire.ReadTable])


def memory_of(megabytes: int) -> ReceiveMemory:
    """A memory of which so much is shared."""
    return ReceiveMemory(receive_bytes_min(100) + (megabytes << 20), 100)


def table_command(kind: type[wire.WireCommand] = wire.UpdateTableEntries, token: str = "") -> bytes:
    """The beginning of a large table command. Its entries are never read."""
    texts = b"".join(struct.pack(">H", len(text)) + text for text in (TABLE.encode(), token.encode()))
    payload = struct.pack(">q", 5) + texts + struct.pack(">i", 1)
    return struct.pack(">ii", kind.TYPE, UPDATE_BYTES) + payload


async def opened(running: RunningStore, memory: ReceiveMemory, peer: str) -> tuple[Session, FakeChannel]:
    session, channel = open_session(running, memory=memory, peer=f"{peer}:80")
    await feed(session, channel, wire.encode(wire.OWN_HELLO))
    return session, channel


async def writer(
    running: RunningStore, memory: ReceiveMemory, peer: str, token: str = ""
) -> tuple[Session, FakeChannel]:
    session, channel = await opened(running, memory, peer)
    await feed(session, channel, wire.encode(wire.SetupAppend(1, WRITER, SEGMENT, token)))
    await running.until(lambda: any(isinstance(reply, wire.AppendSetup) for reply in channel.replies()))
    return session, channel


def append(number: int, size: int) -> bytes:
    return wire.encode(wire.AppendBlockEnd(WRITER, size, bytes(size), 1, number, 9))


async def begun(running: RunningStore, memory: ReceiveMemory, peers: list[str], token: str) -> list[Any]:
    """Peers that have begun a large table command each, and sent as much of it as the store received."""
    sessions = [await opened(running, memory, peer) for peer in peers]
    for session, channel in sessions:
        await feed(session, channel, table_command(token=token) + bytes(UPDATE_BYTES - 1_000))
    return sessions


# Without a valid token


@KINDS
@pytest.mark.parametrize("token", ["", "a.b.c", "x" * 3_000, "x" * 60_000], ids=["none", "wrong", "long", "longest"])
@pytest.mark.parametrize("piece", [1, 400_000])
async def test_a_refused_table_command_takes_no_memory(
    make_world: type[World], kind: type[wire.WireCommand], token: str, piece: int
):
    world = make_world(container_count=1, token_keys=KEYS, cache_bytes=64 << 20)
    async with world.running() as running:
        memory = memory_of(8)
        session, channel = await opened(running, memory, "10.0.0.1")
        command = table_command(kind, token)
        for start in range(0, len(command) if piece > 1 else 400, piece):
            await feed(session, channel, command[start : start + piece])
        if piece == 1:
            await feed(session, channel, command[400:])
        assert channel.replies()[1:] == [refused(5)]
        assert memory.used_bytes == 0
        rest = bytes(8 + UPDATE_BYTES - len(command))
        while rest:
            rest = rest[await feed(session, channel, rest[: 1 << 20]) :]
            assert memory.used_bytes == 0
        await feed(session, channel, wire.encode(wire.CreateTableSegment(6, TABLE, admin(world))))
        await running.until(lambda: channel.replies()[-1] == wire.SegmentCreated(6, TABLE))
        session.disconnected()


async def test_a_stranger_sends_small_frames_only(make_world: type[World]):
    world = make_world(container_count=1, token_keys=KEYS)
    async with world.running() as running:
        memory = memory_of(8)
        for token, closes in (("", True), (admin(world), False)):
            session, channel = await opened(running, memory, "10.0.0.1")
            await feed(session, channel, wire.encode(wire.GetStreamSegmentInfo(1, SEGMENT, token)))
            frame = struct.pack(">ii", wire.MergeSegments.TYPE, STRANGER_FRAME_BYTES_MAX) + b"beginning"
            await feed(session, channel, frame)
            assert channel.closed == closes
            session.disconnected()


@pytest.mark.parametrize("tokens", [KEYS, None], ids=["tokens", "no-tokens"])
async def test_the_first_command_of_a_controller_may_be_long(make_world: type[World], tokens: Any):
    world = make_world(container_count=1, token_keys=tokens)
    async with world.running() as running:
        memory = memory_of(1)
        session, channel = await opened(running, memory, "10.0.0.1")
        sources = tuple(f"{SEGMENT}#transaction.{number:032x}" for number in range(1_000))
        await feed(session, channel, wire.encode(wire.MergeSegmentsBatch(3, SEGMENT, sources, admin(world))))
        await running.until(lambda: len(channel.replies()) == 2)
        assert channel.replies()[1] == wire.NoSuchSegment(3, SEGMENT)
        assert memory.used_bytes == 0


async def test_strangers_share_an_eighth(make_world: type[World]):
    """A merge may be long before its token comes."""
    world = make_world(container_count=1, token_keys=KEYS)
    async with world.running() as running:
        memory = memory_of(16)
        client = await running.connect()
        await client.call(wire.CreateSegment(2, SEGMENT, 0, 0, admin(world)))
        sessions = [await opened(running, memory, f"10.0.{number}.1") for number in range(50)]
        merge = struct.pack(">ii", wire.MergeSegmentsBatch.TYPE, 200_000) + bytes(150_000)
        for session, channel in sessions:
            await feed(session, channel, merge)
        assert memory.waiting > 10
        assert memory.used_bytes <= (16 << 20) // 8
        session, channel = await writer(running, memory, "10.1.0.1", writing(world))
        await feed(session, channel, append(1, 2 << 20))
        await running.until(lambda: isinstance(channel.replies()[-1], wire.DataAppended))


# With valid tokens, or where none are needed


@pytest.mark.parametrize("tokens", [KEYS, None], ids=["tokens", "no-tokens"])
@pytest.mark.parametrize("size", [100, 10_000, 300_000, 2 << 20])
async def test_one_address_does_not_take_all_memory(make_world: type[World], tokens: Any, size: int):
    """Six connections are enough to hold 40 MiB, and sent a little more before each check of their pace."""
    world = make_world(container_count=1, token_keys=tokens, cache_bytes=64 << 20)
    async with world.running() as running:
        memory = memory_of(40)
        client = await running.connect()
        await client.call(wire.CreateSegment(2, SEGMENT, 0, 0, admin(world)))
        holders = await begun(running, memory, ["10.0.0.1"] * 6, admin(world))
        assert memory.waiting > 0
        session, channel = await writer(running, memory, "10.0.0.2", writing(world))
        frame = append(1, size)
        assert await feed(session, channel, frame[: len(frame) // 2]) == len(frame) // 2
        await feed(session, channel, frame[len(frame) // 2 :])
        await running.until(lambda: isinstance(channel.replies()[-1], wire.DataAppended))
        assert not any(holder.closed for _, holder in holders)


@pytest.mark.parametrize("count", [20, 60])
@pytest.mark.parametrize("own_address", [True, False])
async def test_the_slowest_holders_are_closed_for_a_writer(make_world: type[World], count: int, own_address: bool):
    """Many addresses hold all memory and send no more. The writer may share the address of one of them."""
    world = make_world(container_count=1, cache_bytes=64 << 20)
    frame = append(1, 2 << 20 if own_address else 250_000)
    async with world.running() as running:
        memory = memory_of(40)
        client = await running.connect()
        await client.create(SEGMENT)
        holders = await begun(running, memory, [f"10.0.{number % 5}.1" for number in range(count)], "")
        session, channel = await writer(running, memory, "10.1.0.1" if own_address else "10.0.0.1")
        periods = sent = 0
        while sent < len(frame) and periods < PERIODS_MAX:
            sent += await feed(session, channel, frame[sent:])
            memory.close_slowest()
            periods += 1
            for _ in range(5):
                await feed(session, channel, b"")
        await running.until(lambda: isinstance(channel.replies()[-1], wire.DataAppended))
        assert 0 < sum(holder.closed for _, holder in holders) < periods
        for open_session, _ in [*holders, (session, channel)]:
            open_session.disconnected()
        assert memory.used_bytes == memory.waiting == 0


async def test_a_first_small_piece_is_always_there(make_world: type[World]):
    world = make_world(container_count=1)
    async with world.running() as running:
        memory = memory_of(8)
        client = await running.connect()
        await client.create(SEGMENT)
        await begun(running, memory, [f"10.0.{number}.1" for number in range(20)], "")
        session, channel = await writer(running, memory, "10.1.0.1")
        for number in range(20):
            frame = append(number, SMALL_PIECE_BYTES - 100)
            for start in range(0, len(frame), 700):
                await feed(session, channel, frame[start : start + 700])
            assert channel.receiving
        await running.until(lambda: getattr(channel.replies()[-1], "event_number", 0) == 19)


async def test_a_steady_holder_is_not_closed(make_world: type[World]):
    """It sends what it holds within four seconds, while others that send less wait for memory or are closed."""
    world = make_world(container_count=1, cache_bytes=64 << 20)
    async with world.running() as running:
        memory = memory_of(8)
        steady_session, steady = await opened(running, memory, "10.1.0.1")
        await feed(steady_session, steady, table_command() + bytes(400_000))
        holders = await begun(running, memory, [f"10.0.{number}.1" for number in range(20)], "")
        for _ in range(30):
            await feed(steady_session, steady, bytes((900 << 10) // SLOW_PERIODS))
            for session, channel in holders:
                await feed(session, channel, bytes(100))
            memory.close_slowest()
        assert not steady.closed
        assert sum(holder.closed for _, holder in holders) > 10


async def test_connection_that_ends_leaves_its_memory_to_others(make_world: type[World]):
    """It waits for more memory when it ends, and must not be served with what it gives back."""
    world = make_world(container_count=1, cache_bytes=64 << 20)
    async with world.running() as running:
        memory = memory_of(8)
        (_, finisher), (session, _), *others = await begun(running, memory, ["10.0.0.1"] * 6, "")
        held = [open_session.assembler.held_bytes for open_session, _ in others]
        assert (finisher.closed, memory.waiting) == (False, 5)
        session.disconnected()
        assert session.assembler.held_bytes == 0
        assert memory.waiting < 5
        assert sum(open_session.assembler.held_bytes for open_session, _ in others) > sum(held)


async def test_a_peer_that_the_store_keeps_waiting_is_not_closed(make_world: type[World]):
    """The cache is full. What has arrived waits in the receive memory, and others wait for that."""
    world = make_world(container_count=1, cache_bytes=1 << 20)
    async with world.running() as running:
        memory = memory_of(2)
        client = await running.connect()
        await client.create(SEGMENT)
        sessions = [await writer(running, memory, f"10.0.{number}.1") for number in range(20)]
        for session, channel in sessions:
            session.store.pool.wait = lambda *_: None  # no room in the cache for as long as the test runs
            session.store.pool.reserve = lambda *_: None
            await feed(session, channel, append(1, 300_000))
        assert memory.waiting > 0
        before = memory.used_bytes
        assert before >= LARGE_PIECE_BYTES
        for _ in range(30):
            memory.close_slowest()
        assert not any(channel.closed for _, channel in sessions)
