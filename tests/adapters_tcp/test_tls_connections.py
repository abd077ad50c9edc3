"""TLS at the port of a segment store: which peers are served, what is counted, and that limits hold."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from ipaddress import ip_network

import pytest
from certificates_at_hand import Authority
from store_world import WAIT_S, RunningStore, WireClient, World

from headrace import wire
from headrace.adapters.tcp import arrivals
from headrace.adapters.tcp.arrivals import ServerTls
from headrace.adapters.tcp.tls_contexts import StoreContexts, store_contexts
from headrace.adapters.tcp.tls_engine import Buffer, TlsEngine
from headrace.model.tls_modes import TlsMode
from headrace.wire.tls import client_context

pytestmark = pytest.mark.anyio

NAME = "store-0.headrace.internal"
AUTHORITY = Authority()
LEAF = AUTHORITY.issue(NAME)
SEGMENT, WRITER = "s/t/0.#epoch.0", 7
HELLO = wire.encode(wire.Hello(17, 5))


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def contexts() -> StoreContexts:
    return store_contexts(LEAF, AUTHORITY.bundle, NAME)


@pytest.fixture
def trusting() -> ssl.SSLContext:
    return client_context(AUTHORITY.bundle.pem)


@pytest.fixture(autouse=True)
def long_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers are as slow as the machine, and those of a flood must be there until they are too many."""
    for limit in ("FIRST_BYTE_S", "HANDSHAKE_S"):
        monkeypatch.setattr(arrivals, limit, 600.0)


def world_of(mode: TlsMode, contexts: StoreContexts | None) -> World:
    return World(tls=ServerTls(mode, lambda: contexts.server if contexts is not None else None))


async def talk(client: WireClient) -> None:
    await client.create(SEGMENT)
    await client.set_up(SEGMENT, WRITER)
    await client.append(WRITER, 1, b"one")
    assert await client.read_all(SEGMENT) == b"one"


async def closed(running: RunningStore, data: bytes) -> bool:
    """Whether a peer that sends these bytes gets no command, but the end of its connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(data)
    try:
        async with asyncio.timeout(WAIT_S):
            return b"\xff" not in await reader.read()  # an alert may come
    except ConnectionResetError:
        return True
    finally:
        writer.close()


def failures(running: RunningStore) -> dict[str, int]:
    return dict(running.store.metrics.handshakes_failed)


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.REQUIRED])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_peers_with_tls_are_served(
    mode: TlsMode, version: ssl.TLSVersion, contexts: StoreContexts, trusting: ssl.SSLContext
):
    trusting.minimum_version = trusting.maximum_version = version
    async with world_of(mode, contexts).running() as running:
        await talk(await running.connect(context=trusting, name=NAME))
        assert failures(running) == {}
        assert running.store.metrics.plaintext_connections == 0
        assert running.store.metrics.connections == 1


async def test_a3_both_kinds_are_served_on_one_port(contexts: StoreContexts, trusting: ssl.SSLContext):
    async with world_of(TlsMode.PERMISSIVE, contexts).running() as running:
        await talk(await running.connect())
        encrypted = await running.connect(context=trusting, name=NAME)
        assert await encrypted.read_all(SEGMENT) == b"one"
        assert running.store.metrics.plaintext_connections == 1


async def test_a2_plaintext_is_refused_when_tls_is_required(contexts: StoreContexts):
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        assert await closed(running, HELLO)
        assert failures(running) == {"plaintext": 1}
        await running.until(lambda: running.store.metrics.connections == 0)


async def test_tls_is_refused_when_it_is_off(trusting: ssl.SSLContext):
    async with world_of(TlsMode.OFF, None).running() as running:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await running.connect(context=trusting, name=NAME)
        await running.until(lambda: failures(running) == {"tls_is_off": 1})
        await talk(await running.connect())


async def test_tls_is_refused_without_a_certificate(trusting: ssl.SSLContext):
    async with world_of(TlsMode.PERMISSIVE, None).running() as running:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await running.connect(context=trusting, name=NAME)
        await running.until(lambda: failures(running) == {"no_certificate": 1})


async def test_a2_clients_tell_a_wrong_name_from_a_stranger(contexts: StoreContexts, trusting: ssl.SSLContext):
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await running.connect(context=trusting, name="store-1.headrace.internal")
        with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed|unable to get local issuer|signature"):
            await running.connect(context=client_context(Authority("Other").bundle.pem), name=NAME)
        await running.until(lambda: sum(failures(running).values()) == 2)
        assert set(failures(running)) <= {"refused_by_peer", "gone"}
        await running.until(lambda: running.store.metrics.connections == 0)


async def test_a2_an_old_version_is_refused(contexts: StoreContexts):
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(cadata=AUTHORITY.bundle.pem)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await running.connect(context=old, name=NAME)
        await running.until(lambda: failures(running) == {"version": 1})


async def test_bytes_that_are_no_handshake_are_refused(contexts: StoreContexts):
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        await closed(running, b"\x16" + b"x" * 40)
        assert failures(running) == {"invalid": 1}


async def test_silent_peers_and_half_handshakes_are_closed(contexts: StoreContexts):
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        limits = running.listener._arrivals
        limits.first_byte_s = 0.1
        assert await closed(running, b"")
        limits.first_byte_s, limits.handshake_s = 600.0, 0.1
        assert await closed(running, b"\x16\x03\x01")
        assert failures(running) == {"silent": 1, "slow": 1}
        assert running.store.metrics.connections == 0


async def test_a12_a_writer_goes_on_next_to_half_handshakes(contexts: StoreContexts, trusting: ssl.SSLContext):
    """They are counted before their handshakes, so one address cannot take all connections."""
    hello = client_hello(trusting)
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        client = await running.connect(context=trusting, name=NAME)
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        flood: list[socket.socket] = []
        try:
            for number in range(2_000):
                peer = socket.socket()
                peer.setblocking(False)
                flood.append(peer)
                await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", running.port))
                peer.send(hello if number % 2 else hello[: number % 100])
                if number % 100 == 0:
                    await client.append(WRITER, number + 1, b"one")
            await running.until(lambda: running.store.metrics.connections_refused["address"] > 0)
            assert running.store.metrics.connections <= 1_024
            await client.append(WRITER, 3_000, b"end")
        finally:
            for peer in flood:
                peer.close()
        assert await client.read_all(SEGMENT) == b"one" * 20 + b"end"


async def test_a12_a_flood_leaves_room_for_internal_callers(
    contexts: StoreContexts, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
):
    """2,000 peers of twenty addresses that stay: silent, half-open, dripping, and with a whole first message."""
    hello, flood = client_hello(trusting), list[tuple[socket.socket, int]]()
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        bounds = running.listener._bounds
        monkeypatch.setattr(bounds, "total_max", 1_024)
        monkeypatch.setattr(bounds, "_networks", (ip_network("127.0.99.0/24"),))
        client = await running.connect(context=trusting, name=NAME)
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        try:
            for number in range(2_000):
                peer = socket.socket()
                peer.setblocking(False)
                flood.append((peer, number))
                peer.bind((f"127.0.1.{number % 20 + 1}", 0))
                with suppress(ConnectionError):
                    await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", running.port))
                    peer.send((b"", hello[:1], hello[: number % 100], hello)[number % 4])
                if number % 100 == 0:
                    drip(flood, hello, number)
                    await client.append(WRITER, number + 1, b"one")
            await running.until(lambda: running.store.metrics.connections_refused["total"] > 0)
            assert running.store.metrics.connections <= 1_024 - 64
            assert running.store.metrics.connections_refused["address"] == 0
            internal = WireClient(
                *await asyncio.open_connection(
                    "127.0.0.1", running.port, ssl=trusting, server_hostname=NAME, local_addr=("127.0.99.1", 0)
                )
            )
            running.clients.append(internal)
            assert await internal.call(wire.Hello(17, 5)) == wire.Hello(17, 5)
            assert await internal.read_all(SEGMENT) == b"one" * 20
            memory = running.listener.receive_memory
            assert memory.used_bytes <= memory.total_bytes // 8
        finally:
            for peer, _ in flood:
                peer.close()
        await client.append(WRITER, 3_000, b"end")
        await running.until(lambda: running.store.metrics.connections == 2)


def drip(flood: list[tuple[socket.socket, int]], hello: bytes, now: int) -> None:
    """The next byte of each hello that was begun with one; called after each hundred peers."""
    for peer, number in flood:
        if number % 4 == 1:
            sent = 1 + now // 100 - number // 100 - 1
            with suppress(OSError):  # it was refused
                peer.send(hello[sent : sent + 1])


async def test_large_replies_wait_for_a_peer_that_takes_nothing(contexts: StoreContexts, trusting: ssl.SSLContext):
    """The cache must not use memory again that is still to be sent, and the peer gets every byte once it reads."""
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        client = await running.connect(context=trusting, name=NAME)
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        blocks = [bytes([number]) * 500_000 for number in range(8)]
        for number, block in enumerate(blocks):
            await client.append(WRITER, number + 1, block)
        slow = await asyncio.to_thread(connected, running.port, trusting)
        try:
            slow.sendall(HELLO)
            slow.sendall(b"".join(wire.encode(wire.ReadSegment(SEGMENT, 0, 4_000_000, "", 1)) for _ in range(20)))
            session = await blocked_session(running)
            assert await client.read_all(SEGMENT) == b"".join(blocks)
            taken = await asyncio.to_thread(take_replies, slow, 21)
        finally:
            slow.close()
        assert not session.sending_blocked
        assert all(each == b"".join(blocks)[: len(each)] for each in taken)
        assert len(taken) == 20


async def test_many_commands_in_one_write_are_handled_in_order(contexts: StoreContexts, trusting: ssl.SSLContext):
    """A session stops in the middle of what was received, and gets the rest without another byte from the peer."""
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        client = await running.connect(context=trusting, name=NAME)
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        count = 3_000
        client.send(*(wire.AppendBlockEnd(WRITER, 4, b"%04d" % each, 1, each + 1, each) for each in range(count)))
        last = 0
        while last < count:
            reply = await client.receive()
            assert isinstance(reply, wire.DataAppended)
            last = reply.event_number
        assert await client.read_all(SEGMENT) == b"".join(b"%04d" % each for each in range(count))


async def test_thousands_of_tiny_records_are_handled_in_order(contexts: StoreContexts, trusting: ssl.SSLContext):
    """They arrive together, and take several turns of the event loop."""
    count = 300
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        client = await running.connect(context=trusting, name=NAME)
        await client.create(SEGMENT)
        commands = [wire.encode(wire.GetStreamSegmentInfo(each, SEGMENT)) for each in range(count)]
        peer = await asyncio.to_thread(connected, running.port, trusting)
        try:
            peer.sendall(HELLO)
            await asyncio.to_thread(lambda: [peer.send(bytes([byte])) for byte in b"".join(commands)])
            replies = await asyncio.to_thread(take_ids, peer, count)
        finally:
            peer.close()
        assert replies == list(range(count))


async def test_a_flood_of_small_requests_waits_in_the_kernel(
    contexts: StoreContexts, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
):
    """A session pauses again and again. What it cannot take must not pile up beside it, encrypted."""
    waiting: list[int] = []
    feed = TlsEngine.feed

    def watched(engine: TlsEngine, ciphertext: Buffer) -> None:
        feed(engine, ciphertext)
        waiting.append(engine.waiting_bytes)

    monkeypatch.setattr(TlsEngine, "feed", watched)
    request = wire.encode(wire.GetStreamSegmentInfo(1, SEGMENT))
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        client = await running.connect(context=trusting, name=NAME)
        await client.create(SEGMENT)
        peer, tls, outgoing = await asyncio.to_thread(connected_over_memory, running.port, trusting)
        count = 40_000
        tls.write(HELLO)
        requests = count * request
        for first in range(0, len(requests), 100):
            tls.write(requests[first : first + 100])
        replies_bytes = count * len(wire.encode(await client.call(wire.GetStreamSegmentInfo(1, SEGMENT))))
        try:
            sending = asyncio.to_thread(peer.sendall, outgoing.read())
            await asyncio.gather(sending, asyncio.to_thread(take_bytes, peer, replies_bytes))
        finally:
            peer.close()
        assert max(waiting) < 300 << 10


async def test_a2_a_new_certificate_is_for_new_connections(contexts: StoreContexts, trusting: ssl.SSLContext):
    current = [contexts]
    world = World(tls=ServerTls(TlsMode.REQUIRED, lambda: current[0].server))
    async with world.running() as running:
        before = await running.connect(context=trusting, name=NAME)
        later = Authority("Later")
        current[0] = store_contexts(later.issue(NAME), later.bundle, NAME)
        await talk(before)
        with pytest.raises(ssl.SSLCertVerificationError):
            await running.connect(context=trusting, name=NAME)
        after = await running.connect(context=client_context(later.bundle.pem), name=NAME)
        assert await after.read_all(SEGMENT) == b"one"
        assert await before.read_all(SEGMENT) == b"one"


async def test_a_drain_answers_what_was_taken_over_tls(contexts: StoreContexts, trusting: ssl.SSLContext):
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        client = await running.connect(context=trusting, name=NAME)
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        await running.until(lambda: running.store.metrics.connections == 2)
        await client.append(WRITER, 1, b"one")
        await running.listener.drain(WAIT_S)
        assert await reader.read() == b""
        writer.close()


async def test_failures_are_logged_once_and_without_a_key(
    contexts: StoreContexts, caplog: pytest.LogCaptureFixture, trusting: ssl.SSLContext
):
    caplog.set_level(logging.DEBUG)
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        for _ in range(5):
            assert await closed(running, HELLO)
        await talk(await running.connect(context=trusting, name=NAME))
    lines = [record.getMessage() for record in caplog.records if "event=handshake_failed" in record.getMessage()]
    assert len(lines) == 1
    assert "reason='plaintext'" in lines[0]
    assert all(part not in caplog.text for part in LEAF.key.splitlines()[1:-1])


async def test_broken_tls_is_logged_once(
    contexts: StoreContexts, caplog: pytest.LogCaptureFixture, trusting: ssl.SSLContext
):
    async with world_of(TlsMode.REQUIRED, contexts).running() as running:
        for _ in range(5):
            peer, _, outgoing = await asyncio.to_thread(connected_over_memory, running.port, trusting)
            peer.sendall(outgoing.read() + b"not a record of TLS")
            await asyncio.to_thread(take_end, peer)
        await running.until(lambda: running.store.metrics.connections == 0)
    lines = [message for message in caplog.messages if message.startswith("event=tls_ended")]
    assert len(lines) == 1
    assert "ended=1" in lines[0]
    assert "peer=127.0.0.1:" in lines[0]


def client_hello(context: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=NAME).do_handshake()
    return outgoing.read()


def connected(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    raw.settimeout(WAIT_S)
    raw.connect(("127.0.0.1", port))
    return context.wrap_socket(raw, server_hostname=NAME)


def connected_over_memory(port: int, context: ssl.SSLContext) -> tuple[socket.socket, ssl.SSLObject, ssl.MemoryBIO]:
    """A peer that can encrypt much and then send all of it at once."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=NAME)
    raw = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    while True:
        try:
            tls.do_handshake()
            return raw, tls, outgoing
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
            incoming.write(raw.recv(64 << 10))


def take_end(peer: socket.socket) -> None:
    """Read until the store has closed or reset the connection."""
    with peer, suppress(ConnectionResetError):
        while peer.recv(1 << 20):
            pass


def take_bytes(peer: socket.socket, count: int) -> None:
    while count > 0:
        received = len(peer.recv(1 << 20))
        assert received
        count -= received


async def blocked_session(running: RunningStore):
    blocked = []

    def found() -> bool:
        blocked[:] = [
            connection.session for connection in running.listener._connections if connection.session.sending_blocked
        ]
        return bool(blocked)

    await running.until(found)
    return blocked[0]


def take_ids(peer: ssl.SSLSocket, count: int) -> list[int]:
    receiver, taken = wire.FrameReceiver(), []
    while len(taken) < count:
        received = peer.recv_into(receiver.writable())
        assert received
        for type_code, payload in receiver.received(received):
            command = wire.decode(type_code, payload)
            if isinstance(command, wire.StreamSegmentInfo):
                taken.append(command.request_id)
    return taken


def take_replies(peer: ssl.SSLSocket, count: int) -> list[bytes]:
    """The data of the reads among the next replies."""
    receiver, taken = wire.FrameReceiver(), []
    while count:
        received = peer.recv_into(receiver.writable())
        assert received
        for type_code, payload in receiver.received(received):
            count -= 1
            command = wire.decode(type_code, payload)
            if isinstance(command, wire.SegmentRead):
                taken.append(bytes(command.data))
    return taken
