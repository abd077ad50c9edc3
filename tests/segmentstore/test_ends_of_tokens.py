"""Writers and reads that wait, at the end of their delegation token.

What was accepted is kept, and other flows continue.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from held_disk import HeldDisk
from session_channels import feed, open_session
from store_world import World
from token_clients import (
    EXPIRED,
    KEY,
    KEYS,
    LIFE_S,
    REVOKED,
    SEGMENT,
    STREAM,
    TABLE,
    admin,
    prepare,
    refused,
    set_up,
    token_of,
    writing,
)

from headrace import wire
from headrace.codec.delegation_tokens import CLOCK_SKEW_S, TokenKeys
from headrace.model.access import Access, scope_resource

pytestmark = pytest.mark.anyio

END_S = LIFE_S + CLOCK_SKEW_S


@pytest.fixture
def world(make_world: type[World]) -> World:
    return make_world(container_count=1, token_keys=KEYS)


async def test_writer_ends_with_its_token(world: World) -> None:
    async with world.running() as running:
        client, tokens = await running.connect(), running.store.tokens
        assert tokens is not None
        await prepare(world, client)
        await set_up(client, writing(world), request_id=55)
        await client.append(7, 1, b"one")
        world.clock.advance(END_S - 1)
        tokens.end_holds()
        await client.append(7, 2, b"two")
        world.clock.advance(1)
        tokens.end_holds()
        assert await client.receive() == refused(55, EXPIRED)
        client.send(wire.AppendBlockEnd(7, 5, b"three", 1, 3, 9))  # it was on its way, and is dropped
        assert await set_up(client, writing(world)) == 2
        await client.append(7, 3, b"three")
        info = await client.call(wire.GetStreamSegmentInfo(9, SEGMENT, admin(world)))
        assert info.write_offset == len(b"onetwothree")
        assert tokens.hold_count == 1


async def test_renewed_writer_does_not_end(world: World) -> None:
    async with world.running() as running:
        client, tokens = await running.connect(), running.store.tokens
        assert tokens is not None
        await prepare(world, client)
        await set_up(client, writing(world))
        await client.append(7, 1, b"one")
        world.clock.advance(LIFE_S)
        assert await set_up(client, writing(world)) == 1
        world.clock.advance(CLOCK_SKEW_S)
        tokens.end_holds()
        await client.append(7, 2, b"two")
        assert tokens.hold_count == 1


@pytest.mark.parametrize("version", [15, 17])
async def test_a6_appends_are_acknowledged_before_the_end(world: World, version: int) -> None:
    disk = HeldDisk(world.disk)
    disk.release()
    async with world.running() as running:
        tokens = running.store.tokens
        assert tokens is not None
        await prepare(world, await running.connect())
        client = await running.connect(version)
        await set_up(client, writing(world), request_id=55)
        held = HeldDisk(world.disk)
        for number in (1, 2, 3):
            client.send(wire.AppendBlockEnd(7, 5, b"event", 1, number, 100 + number))
        await running.until(lambda: running.store.owned[0].container.metrics.appends == 3)
        world.clock.advance(END_S)
        tokens.end_holds()
        client.send(wire.AppendBlockEnd(7, 5, b"event", 1, 4, 104))  # too late: neither stored nor acknowledged
        assert await client.call(wire.KeepAlive()) == wire.KeepAlive()  # it was received
        held.release()
        acknowledged = 0
        while acknowledged < 3:
            reply = await client.receive()
            assert isinstance(reply, wire.DataAppended)
            acknowledged = reply.event_number
        assert acknowledged == 3
        if version == 15:
            assert await client.closed()
        else:
            assert await client.receive() == refused(55, EXPIRED)
        again = await running.connect(version)
        assert await set_up(again, writing(world)) == 3
        info = await again.call(wire.GetStreamSegmentInfo(9, SEGMENT, admin(world)))
        assert info.write_offset == 15
    async with world.running() as running:  # also after a restart
        client = await running.connect()
        read = await client.call(wire.ReadSegment(SEGMENT, 0, 100, admin(world), 1))
        assert bytes(read.data) == b"event" * 3


async def test_a6_other_flows_go_on_at_the_end_of_a_token(world: World) -> None:
    """Those of the same connection, and those of other connections."""
    async with world.running() as running:
        client, other, tokens = await running.connect(), await running.connect(15), running.store.tokens
        assert tokens is not None
        await prepare(world, client)
        await set_up(client, writing(world), writer_id=7, request_id=55)
        world.clock.advance(1)
        await set_up(client, writing(world), writer_id=8)
        await set_up(other, writing(world), writer_id=9)
        world.clock.advance(END_S - 1)
        tokens.end_holds()
        assert await client.receive() == refused(55, EXPIRED)
        await client.append(8, 1, b"one")
        await other.append(9, 1, b"two")
        read = await other.call(wire.ReadSegment(SEGMENT, 0, 100, admin(world), 1))
        assert bytes(read.data) == b"onetwo"


async def test_writer_of_a_revoked_key_ends(world: World) -> None:
    world.token_keys = TokenKeys((KEY, REVOKED))
    async with world.running() as running:
        client, tokens = await running.connect(), running.store.tokens
        assert tokens is not None
        await prepare(world, client)
        token = token_of(world, {STREAM: Access.READ_UPDATE}, key=REVOKED)
        await set_up(client, token, writer_id=7, request_id=55)
        await set_up(client, writing(world), writer_id=8)
        tokens.use(KEYS)
        tokens.end_holds()
        assert await client.receive() == refused(55, EXPIRED)
        await client.append(8, 1, b"one")


async def test_writer_ends_with_the_key_of_its_token(world: World) -> None:
    """Also if the end of the key is only known later."""
    async with world.running() as running:
        client, tokens = await running.connect(), running.store.tokens
        assert tokens is not None
        await prepare(world, client)
        await set_up(client, writing(world), request_id=55)
        tokens.use(TokenKeys((replace(KEY, verifies_until_s=world.clock.now_ms() // 1_000 + 5),)))
        world.clock.advance(4)
        tokens.end_holds()
        await client.append(7, 1, b"one")
        world.clock.advance(1)
        tokens.end_holds()
        assert await client.receive() == refused(55, EXPIRED)


async def test_end_is_not_told_to_a_newer_set_up(world: World) -> None:
    disk = HeldDisk(world.disk)
    disk.release()
    async with world.running() as running:
        client, tokens = await running.connect(), running.store.tokens
        assert tokens is not None
        await prepare(world, client)
        await set_up(client, writing(world), request_id=55)
        held = HeldDisk(world.disk)
        client.send(wire.AppendBlockEnd(7, 5, b"event", 1, 1, 9))
        await running.until(lambda: running.store.owned[0].container.metrics.appends == 1)
        world.clock.advance(END_S)
        tokens.end_holds()
        client.send(wire.SetupAppend(56, 7, SEGMENT, writing(world)))
        await running.until(lambda: tokens.hold_count == 1)
        held.release()
        replies = [await client.receive() for _ in range(2)]
        assert [type(reply) for reply in replies] == [wire.DataAppended, wire.AppendSetup] or [
            type(reply) for reply in replies
        ] == [wire.AppendSetup, wire.DataAppended]
        await client.append(7, 2, b"more")


async def test_holds_are_bounded_by_the_writers(world: World) -> None:
    async with world.running() as running:
        client, tokens = await running.connect(), running.store.tokens
        assert tokens is not None
        await prepare(world, client)
        for number in range(50):
            world.clock.advance(1)
            await set_up(client, writing(world), writer_id=7 + number % 2)
        assert tokens.hold_count == 2
        client.close()
        await running.until(lambda: tokens.hold_count == 0)


async def test_set_up_that_waits_ends_with_its_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its container, which moves, or for its segment, which is loaded again."""
    async with world.running() as running:
        client, container, loads = await running.connect(), running.store.owned[0].container, asyncio.Event()
        await prepare(world, client)
        find, segments = container.find, dict(container.metadata.segments)

        async def find_later(name: str) -> Any:
            await loads.wait()
            container.metadata.segments.update(segments)
            return await find(name)

        monkeypatch.setattr(container, "find", find_later)
        monkeypatch.setattr(container.metadata, "may_be_evicted", lambda name: True)
        container.metadata.segments.clear()
        client.send(wire.SetupAppend(5, 7, SEGMENT, writing(world)))
        assert await client.call(wire.KeepAlive()) == wire.KeepAlive()
        world.clock.advance(END_S)
        loads.set()
        assert await client.receive() == refused(5, EXPIRED)


async def test_read_at_the_tail_ends_with_its_token(world: World) -> None:
    async with world.running() as running:
        client, reader = await running.connect(), await running.connect()
        await prepare(world, client)
        await set_up(client, admin(world))
        reader.send(wire.ReadSegment(SEGMENT, 0, 9, token_of(world, {STREAM: Access.READ}), 5))
        assert await reader.call(wire.KeepAlive()) == wire.KeepAlive()  # the read is held
        world.clock.advance(END_S)
        await client.append(7, 1, b"secret")
        assert await reader.receive() == refused(5, EXPIRED)


def _read(request_id: int, token: str) -> Any:
    return wire.ReadSegment(SEGMENT, 0, 9, token, request_id)


def _read_table(request_id: int, token: str) -> Any:
    return wire.ReadTableEntries(request_id, TABLE, token, 9)


@pytest.mark.parametrize("read", [_read, _read_table])
async def test_peer_that_takes_no_replies_reads_no_longer(world: World, read: Any) -> None:
    """It may have sent a thousand reads, and may take the reply to one of them every minute."""
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        await set_up(client, admin(world))
        await client.append(7, 1, b"event")
        session, channel = open_session(running, takes=False)
        token = token_of(world, {scope_resource("shop"): Access.READ})
        await feed(session, channel, wire.encode(wire.Hello(17, 5)))
        await running.until(lambda: session.sending_blocked)
        await feed(session, channel, wire.encode(read(1, token)) + wire.encode(read(2, token)))
        world.clock.advance(END_S)
        channel.takes = True
        session.writing_resumed()
        await running.until(lambda: len(channel.replies()) == 3)
        assert channel.replies()[1:] == [refused(1, EXPIRED), refused(2, EXPIRED)]
        session.disconnected()
