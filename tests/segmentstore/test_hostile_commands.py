"""Commands that are cheap to send and would be dear to answer: their work is bounded before it begins."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from session_channels import FakeChannel, feed, open_session
from store_world import RunningStore, World
from token_clients import KEYS, SEGMENT, admin, refused

from headrace import wire
from headrace.model.limits import SEGMENT_NAME_BYTES_MAX
from headrace.segmentstore.connections.connection_limits import COMMANDS_PER_TURN_MAX, REFUSED_TOKENS_MAX, TURN_S
from headrace.segmentstore.connections.session import Session

pytestmark = pytest.mark.anyio

KEEP_ALIVE = wire.encode(wire.KeepAlive())


def receive(session: Session, data: bytes) -> int:
    """Give the session bytes as one packet, in one turn of the event loop; how many it took."""
    target = session.assembler.writable()
    count = min(len(target), len(data))
    target[:count] = data[:count]
    session.received(count)
    return count


def opened(running: RunningStore) -> tuple[Session, FakeChannel]:
    session, channel = open_session(running)
    assert receive(session, wire.encode(wire.OWN_HELLO)) == 16
    return session, channel


def merge_of(count: int, source: bytes = b"") -> bytes:
    """A MergeSegmentsBatch of `count` sources, with an empty target and no token."""
    sources = (struct.pack(">H", len(source)) + source) * count
    payload = struct.pack(">qHi", 7, 0, count) + sources + struct.pack(">H", 0)
    return struct.pack(">ii", wire.MergeSegmentsBatch.TYPE, len(payload)) + payload


@pytest.mark.parametrize("tokens", [KEYS, None], ids=["tokens", "no-tokens"])
@pytest.mark.parametrize("count", [1_001, 131_038 - 16])
async def test_a_long_list_closes_its_connection(make_world: type[World], tokens: Any, count: int):
    world = make_world(container_count=1, token_keys=tokens)
    async with world.running() as running:
        session, channel = opened(running)
        await feed(session, channel, merge_of(count))
        assert channel.closed
        assert running.store.metrics.protocol_errors == 1


async def test_commands_of_one_packet_share_the_loop(world: World):
    count = 4 * COMMANDS_PER_TURN_MAX
    async with world.running() as running:
        session, channel = opened(running)
        receive(session, KEEP_ALIVE * count)
        assert not channel.receiving
        answered = []
        while len(channel.replies()) <= count:
            await asyncio.sleep(0)
            answered.append(len(channel.replies()))
        turns = [later - before for before, later in zip([0, *answered], answered, strict=False)]
        assert max(turns) <= COMMANDS_PER_TURN_MAX
        await asyncio.sleep(0)
        assert channel.receiving


async def test_slow_commands_of_one_packet_share_the_loop(world: World):
    async with world.running() as running:
        session, _ = opened(running)
        handled = 0

        def slow(_command: Any) -> None:
            nonlocal handled
            handled += 1
            world.clock.advance(0.001)

        session._handlers[wire.GetStreamSegmentInfo] = slow
        receive(session, wire.encode(wire.GetStreamSegmentInfo(1, SEGMENT)) * 100)
        assert handled <= TURN_S / 0.001 + 1
        await running.until(lambda: handled == 100)


async def test_appends_of_one_packet_share_the_loop(world: World):
    count = 4 * COMMANDS_PER_TURN_MAX
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        session, channel = opened(running)
        await feed(session, channel, wire.encode(wire.SetupAppend(1, 5, SEGMENT)))
        await running.until(lambda: any(isinstance(reply, wire.AppendSetup) for reply in channel.replies()))
        appends = b"".join(wire.encode(wire.AppendBlockEnd(5, 1, b"x", 1, number, 9)) for number in range(count))
        receive(session, appends)
        accepted = running.store.owner_of(SEGMENT).container.metadata.segments[SEGMENT].accepted
        assert accepted.length == COMMANDS_PER_TURN_MAX
        await running.until(lambda: getattr(channel.replies()[-1], "event_number", 0) == count - 1)


@pytest.mark.parametrize("token", ["", "a.b.c", "x" * 5_000])
async def test_refused_tokens_close_the_connection(make_world: type[World], token: str):
    world = make_world(container_count=1, token_keys=KEYS)
    async with world.running() as running:
        session, channel = opened(running)
        asked = wire.encode(wire.GetStreamSegmentInfo(3, SEGMENT, token))
        await feed(session, channel, asked * REFUSED_TOKENS_MAX)
        assert not channel.closed
        await feed(session, channel, asked * 5)
        assert channel.closed
        assert channel.replies()[1:] == [refused(3)] * (REFUSED_TOKENS_MAX + 1)


async def test_refused_tokens_between_valid_ones_are_allowed(make_world: type[World]):
    """Clients repeat a request with the next token when one is at its end."""
    world = make_world(container_count=1, token_keys=KEYS)
    async with world.running() as running:
        session, channel = opened(running)
        for _ in range(3 * REFUSED_TOKENS_MAX):
            for token in ("", admin(world)):
                await feed(session, channel, wire.encode(wire.GetStreamSegmentInfo(3, SEGMENT, token)))
        assert not channel.closed
        session.disconnected()


@pytest.mark.parametrize(
    "command",
    [
        wire.GetStreamSegmentInfo(3, "x" * SEGMENT_NAME_BYTES_MAX),
        wire.MergeSegments(3, SEGMENT, "x" * SEGMENT_NAME_BYTES_MAX),
        wire.MergeSegmentsBatch(3, SEGMENT, ("x" * SEGMENT_NAME_BYTES_MAX,)),
        wire.CreateTransientSegment(3, 5, "x" * SEGMENT_NAME_BYTES_MAX),
        wire.ReadSegment("x" * SEGMENT_NAME_BYTES_MAX, 0, 9, "", 3),
        wire.RemoveTableKeys(3, "x" * SEGMENT_NAME_BYTES_MAX, "", ()),
    ],
    ids=lambda command: type(command).__name__,
)
async def test_a_name_that_is_too_long_closes_its_connection(world: World, command: Any):
    name, longer = b"x" * SEGMENT_NAME_BYTES_MAX, b"x" * (SEGMENT_NAME_BYTES_MAX + 1)
    frame = wire.encode(command)
    payload = frame[8:].replace(struct.pack(">H", len(name)) + name, struct.pack(">H", len(longer)) + longer)
    async with world.running() as running:
        session, channel = opened(running)
        await feed(session, channel, frame)
        await running.until(lambda: len(channel.replies()) == 2 or session.held_reads == 1)
        assert not channel.closed
        await feed(session, channel, struct.pack(">ii", command.TYPE, len(payload)) + payload)
        assert channel.closed
        assert running.store.metrics.protocol_errors == 1


async def test_no_segment_is_part_of_a_part_of_a_part(world: World):
    transaction = f"{SEGMENT}#transaction.{5:032x}"
    async with world.running() as running:
        client = await running.connect()
        for name in (SEGMENT, transaction):
            await client.create(name)
            made = await client.call(wire.CreateTransientSegment(3, 5, name))
            assert made.segment.startswith(f"{name}#transient.")
            refused_one = await client.call(wire.CreateTransientSegment(4, 5, made.segment))
            assert isinstance(refused_one, wire.ErrorMessage)
        deeper = wire.CreateSegment(5, f"{transaction}#transaction.{6:032x}", 0, 0)
        assert isinstance(await client.call(deeper), wire.ErrorMessage)
