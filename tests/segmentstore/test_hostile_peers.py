"""Peers that vanish, lie or only take up room are bounded and refused, and other connections notice nothing."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest
from segment_writes import created_segment
from session_channels import feed, open_session
from store_world import RunningStore, WireClient, World

from headrace import wire
from headrace.adapters.tcp import listener as listener_module
from headrace.segmentstore.connections.connection_limits import EMPTY_EVENTS_MAX, STALL_S

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
LIAR, HONEST = 5, 6
EVENT_NUMBER_MAX = (1 << 63) - 1


@pytest.fixture
async def running(world: World) -> AsyncIterator[RunningStore]:
    async with world.running() as running:
        yield running


@pytest.fixture
async def honest(running: RunningStore) -> WireClient:
    """A client that has written one event."""
    return await created_segment(running, SEGMENT, b"one", writer=HONEST, first=1)


@pytest.fixture
async def liar(running: RunningStore, honest: WireClient) -> WireClient:
    """A client whose writer is set up on the segment, too."""
    client = await running.connect()
    await client.set_up(SEGMENT, LIAR)
    return client


async def unharmed(running: RunningStore, honest: WireClient, before: bytes = b"one") -> None:
    """The honest client continues, the segment has what was acknowledged, and nothing else takes memory."""
    await honest.append(HONEST, 2, b"two")
    assert await honest.read_all(SEGMENT) == before + b"two"
    await running.until(lambda: running.listener.receive_memory.used_bytes == 0)
    assert running.store.pool.untiered_bytes == len(before + b"two")


def append(number: int, data: bytes, *, count: int = 1) -> wire.AppendBlockEnd:
    return wire.AppendBlockEnd(LIAR, len(data), data, count, number, 9)


# Peers that vanish


@pytest.mark.parametrize("arrived", [9, 60, 20_000, 300_000])
async def test_peer_that_vanishes_in_an_append_leaves_nothing(running, honest, liar, arrived):
    liar.send_raw(wire.encode(append(1, bytes(400_000)))[:arrived])
    assert await liar.drain_to_server() is None
    liar._writer.transport.abort()
    await running.until(lambda: len(running.listener._connections) == 1)
    assert await honest.set_up(SEGMENT, LIAR) == wire.NO_EVENT_NUMBER
    await unharmed(running, honest)


async def test_append_of_a_peer_that_vanishes_is_stored_once(running, honest, liar):
    """It did not wait for the acknowledgement, and learns from its next set-up that the event is stored."""
    liar.send(append(1, b"last words"))
    liar.close()
    await running.until(lambda: len(running.listener._connections) == 1)
    again = await running.connect()
    assert await again.set_up(SEGMENT, LIAR) == 1
    await unharmed(running, honest, b"onelast words")


async def test_peer_that_vanishes_while_it_reads_frees_the_cache(running, honest):
    for number in range(2, 10):
        await honest.append(HONEST, number, bytes(400_000))
    session, channel = open_session(running, takes=False)
    await feed(session, channel, wire.encode(wire.ReadSegment(SEGMENT, 0, 2 << 20, "", 1)))
    await running.until(lambda: len(channel.sent) > 1 << 20)
    blocks = list(session._pins)
    sending = sum(block.references for block in blocks)
    assert blocks
    session.disconnected()
    assert sum(block.references for block in blocks) == sending - len(blocks)
    assert not session.held_reads


async def test_connections_are_probed_by_the_system(running, honest):
    """A peer that loses its network sends nothing more, and waits for nothing: only probes of TCP find out."""
    (connection,) = running.listener._connections
    raw = connection._transport.get_extra_info("socket")
    assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    silent_s = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) + (
        raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        * raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
    )
    assert silent_s == listener_module.VANISHED_AFTER_S


async def test_connection_that_never_asks_anything_is_closed(running):
    session, channel = open_session(running)
    running.world.clock.advance(STALL_S - 1)
    session.check_stalled(running.world.clock.monotonic_s())
    assert not channel.closed
    running.world.clock.advance(2)
    session.check_stalled(running.world.clock.monotonic_s())
    assert channel.closed


async def test_hello_alone_does_not_keep_a_connection(running):
    """A peer that said Hello on every connection, and nothing more, would keep all others out."""
    session, channel = open_session(running)
    await feed(session, channel, wire.encode(wire.OWN_HELLO))
    running.world.clock.advance(STALL_S + 1)
    session.check_stalled(running.world.clock.monotonic_s())
    assert channel.closed


async def test_keep_alives_keep_a_connection_without_requests(running):
    """Pools of clients keep connections until they have something to ask."""
    session, channel = open_session(running)
    await feed(session, channel, wire.encode(wire.OWN_HELLO))
    for _ in range(10):
        running.world.clock.advance(STALL_S - 1)
        await feed(session, channel, wire.encode(wire.KeepAlive()))
        session.check_stalled(running.world.clock.monotonic_s())
    assert not channel.closed
    running.world.clock.advance(STALL_S + 1)
    session.check_stalled(running.world.clock.monotonic_s())
    assert channel.closed


@pytest.mark.parametrize(
    "request_",
    [
        wire.SetupAppend(1, HONEST, SEGMENT),
        wire.ReadSegment(SEGMENT, 0, 10, "", 1),
        wire.GetStreamSegmentInfo(1, SEGMENT),
        wire.GetTableSegmentInfo(1, SEGMENT, ""),
    ],
    ids=lambda request: type(request).__name__,
)
async def test_a_connection_that_has_asked_may_be_idle(running, request_):
    session, channel = open_session(running)
    await feed(session, channel, wire.encode(wire.OWN_HELLO) + wire.encode(request_))
    running.world.clock.advance(100 * STALL_S)
    session.check_stalled(running.world.clock.monotonic_s())
    assert not channel.closed
    session.disconnected()


# Peers that lie about events and sizes


@pytest.mark.parametrize("number", [4, 5, 0, -1, -(1 << 63)])
async def test_event_number_that_goes_back_is_refused(running, honest, liar, number):
    await liar.append(LIAR, 5, b"five")
    liar.send(append(number, b"again"))
    assert await liar.closed()
    assert await honest.set_up(SEGMENT, LIAR) == 5
    await unharmed(running, honest, b"onefive")


async def test_last_event_number_of_all_ends_its_writer_only(running, honest, liar):
    await liar.append(LIAR, EVENT_NUMBER_MAX, b"end")
    liar.send(append(1, b"more"))
    assert await liar.closed()
    assert await honest.set_up(SEGMENT, LIAR) == EVENT_NUMBER_MAX
    await unharmed(running, honest, b"oneend")


@pytest.mark.parametrize("count", [len(b"four") + EMPTY_EVENTS_MAX + 1, (1 << 31) - 1, 0, -1, -(1 << 31)])
async def test_impossible_number_of_events_is_refused(running, honest, liar, count):
    """Few events are empty. The count is added up in the segment and decides about scaling."""
    liar.send(append(1, b"four", count=count))
    assert await liar.closed()
    assert await honest.set_up(SEGMENT, LIAR) == wire.NO_EVENT_NUMBER
    await unharmed(running, honest)


@pytest.mark.parametrize("data", [b"", b"1"])
async def test_empty_events_are_accepted_together(running, honest, liar, data):
    """Pravega's Java writers write one to each segment when another is sealed, and send them again after a failure."""
    liar.send(append(3, data, count=3))
    assert (await liar.receive()).event_number == 3
    assert await honest.set_up(SEGMENT, LIAR) == 3


async def test_an_append_without_bytes_is_one_event(honest, liar):
    assert (await liar.append(LIAR, 1, b"")).current_segment_write_offset == 3


@pytest.mark.parametrize("claimed", [-1, -(1 << 31), 40, 1 << 20, (1 << 31) - 1])
async def test_wrong_size_of_an_append_is_refused(running, honest, liar, claimed):
    payload = struct.pack(">QQii4siqq", 0, LIAR, 4, claimed, b"four", 1, 1, 9)
    liar.send_raw(struct.pack(">ii", wire.AppendBlockEnd.TYPE, len(payload)) + payload)
    assert await liar.closed()
    await unharmed(running, honest)


@pytest.mark.parametrize("offset", [-1, -(1 << 63), 4, EVENT_NUMBER_MAX])
@pytest.mark.parametrize("length", [-1, 0, (1 << 31) - 1])
async def test_reads_at_any_offset_are_answered_or_held(running, honest, liar, offset, length, monkeypatch):
    monkeypatch.setattr("headrace.segmentstore.connections.read_processor.TAIL_HOLD_S", 0.001)
    reply = await liar.call(wire.ReadSegment(SEGMENT, offset, length, "", 3))
    assert reply.request_id == 3
    assert isinstance(reply, wire.SegmentIsTruncated if offset < 0 else wire.SegmentRead)
    await unharmed(running, honest)


# Peers that speak another language


@pytest.mark.parametrize("type_code", [-(1 << 31), -3, 0, 6, 41, 10_000, (1 << 31) - 1])
async def test_unknown_type_code_closes_the_connection(running, honest, liar, type_code):
    liar.send_raw(struct.pack(">ii", type_code, 4) + b"four")
    assert await liar.closed()
    await unharmed(running, honest)


@pytest.mark.parametrize(
    "reply",
    [wire.AppendSetup(1, SEGMENT, LIAR, 0), wire.SegmentSealed(1, SEGMENT), wire.NoSuchSegment(1, SEGMENT)],
    ids=lambda reply: type(reply).__name__,
)
async def test_reply_sent_as_a_request_closes_the_connection(running, honest, liar, reply):
    liar.send(reply)
    assert await liar.closed()
    await unharmed(running, honest)


@pytest.mark.parametrize("versions", [(4, 1), (0, 0), (-1, -5), (99, 18), (1 << 30, 1 << 29), (5, 17), (10, 11)])
async def test_versions_out_of_reach_are_told_and_closed(running, honest, liar, versions):
    assert await liar.call(wire.Hello(*versions)) == wire.Hello(17, 5)
    assert await liar.closed()
    await unharmed(running, honest)


@pytest.mark.parametrize("versions", [(5, 1), (15, 5), (17, 17), (99, 17)])
async def test_versions_that_overlap_are_welcome(running, honest, liar, versions):
    assert await liar.call(wire.Hello(*versions)) == wire.Hello(17, 5)
    await liar.append(LIAR, 1, b"fine")
    await unharmed(running, honest, b"onefine")


async def test_hello_may_be_repeated_between_appends(running, honest, liar):
    for number in range(1, 4):
        assert await liar.call(wire.Hello(17, 5)) == wire.Hello(17, 5)
        await liar.append(LIAR, number, b"x")
    await unharmed(running, honest, b"onexxx")


@pytest.mark.parametrize("token", ["", "expired", "x" * 60_000, "\u0000\u20ac"], ids=["none", "old", "long", "odd"])
async def test_delegation_tokens_are_not_looked_at(running, honest, liar, token):
    """There is no authentication: a client that reaches the port may do everything, with any token or none."""
    stranger = await running.connect()
    assert isinstance(await stranger.call(wire.SetupAppend(1, 99, SEGMENT, token)), wire.AppendSetup)
    reply = await stranger.call(wire.ReadSegment(SEGMENT, 0, 100, token, 1))
    assert bytes(reply.data) == b"one"
    assert (await stranger.call(wire.GetStreamSegmentInfo(2, SEGMENT, token))).write_offset == 3
    await unharmed(running, honest)


# Peers that come in crowds


async def test_crowd_is_refused_and_the_others_continue(running, honest, monkeypatch, caplog):
    monkeypatch.setattr(running.listener._bounds, "total_max", 3)
    crowd = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(40)]
    await running.until(lambda: running.store.metrics.connections_refused["total"] == 38)
    await honest.append(HONEST, 2, b"two")
    ends = [asyncio.ensure_future(reader.read()) for reader, _ in crowd]
    await running.until(lambda: sum(end.done() for end in ends) == 38)
    for end, (_, writer) in zip(ends, crowd, strict=True):
        assert not end.done() or isinstance(end.exception(), ConnectionResetError) or end.result() == b""
        writer.close()
    await asyncio.gather(*ends, return_exceptions=True)
    lines = [message for message in caplog.messages if message.startswith("event=connection_refused")]
    assert len(lines) == 1, "at most one line in ten seconds"
    await running.until(lambda: len(running.listener._connections) == 1)
    assert await (await running.connect()).read_all(SEGMENT) == b"onetwo"


async def test_one_address_does_not_take_all_connections(running, honest, monkeypatch, caplog):
    """Linux owns all of 127.0.0.0/8, so that one machine can be several peers."""
    monkeypatch.setattr(running.listener._bounds, "per_address_max", 5)
    crowd = [await asyncio.open_connection("127.0.0.1", running.port, local_addr=("127.0.0.2", 0)) for _ in range(20)]
    await running.until(lambda: running.store.metrics.connections_refused["address"] == 15)
    assert running.store.metrics.connections == 6
    others = [await running.connect() for _ in range(4)]
    assert await others[-1].read_all(SEGMENT) == b"one"
    lines = [message for message in caplog.messages if message.startswith("event=connection_refused")]
    assert len(lines) == 1, "at most one line in ten seconds"
    assert "bound=address" in lines[0]
    for _, writer in crowd:
        writer.close()
    await running.until(lambda: running.store.metrics.connections == 5)
    again, writer = await asyncio.open_connection("127.0.0.1", running.port, local_addr=("127.0.0.2", 0))
    writer.write(wire.encode(wire.OWN_HELLO))
    assert await again.readexactly(8)
    writer.close()
