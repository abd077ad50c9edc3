"""TLS over memory: how much of what a peer sends is handled in one step, and what waits."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import suppress
from unittest.mock import Mock

import key_updates
import pytest
from certificates_at_hand import Authority
from key_updates import KeyUpdatingPeer

from headrace.adapters.tcp.arrivals import UNTAKEN_ANSWER_BYTES_MAX, TlsTransport
from headrace.adapters.tcp.tls_contexts import store_contexts
from headrace.adapters.tcp.tls_engine import RECORDS_AT_ONCE_MAX, TlsEngine
from headrace.wire.tls import ENCRYPTED_AT_ONCE_BYTES, client_context

NAME = "store-0.headrace.internal"
AUTHORITY = Authority()
SERVER = store_contexts(AUTHORITY.issue(NAME), AUTHORITY.bundle, NAME).server

needs_openssl = pytest.mark.skipif(not key_updates.is_available(), reason="OpenSSL's library is not there by itself")


class Client:
    """The other end, over memory."""

    def __init__(self) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = client_context(AUTHORITY.bundle.pem)
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=NAME)

    def written(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()


def connected() -> tuple[TlsEngine, Client]:
    engine, client = TlsEngine(SERVER), Client()
    is_complete = False
    while not is_complete:
        with suppress(ssl.SSLWantReadError):
            client.tls.do_handshake()
        engine.feed(client.outgoing.read())
        is_complete = engine.shake_hands()
        client.incoming.write(engine.take_output())
    return engine, client


@pytest.fixture
def peer() -> Iterator[KeyUpdatingPeer]:
    found = KeyUpdatingPeer()
    yield found
    found.close()


def engine_of(peer: KeyUpdatingPeer) -> TlsEngine:
    engine, received = TlsEngine(SERVER), b""
    while True:
        _, sent = peer.shake_hands(received)
        engine.feed(sent)
        is_complete = engine.shake_hands()
        received = engine.take_output()
        if is_complete:
            peer.shake_hands(received)  # the tickets
            return engine


def test_records_may_arrive_in_any_pieces() -> None:
    engine, client = connected()
    expected = b"".join(bytes([number]) * (number * 97) for number in range(1, 200))
    ciphertext = b"".join(client.written(bytes([number]) * (number * 97)) for number in range(1, 200))
    target, found, position, step = memoryview(bytearray(3_000)), b"", 0, 1
    while position < len(ciphertext):
        engine.feed(ciphertext[position : position + step])
        position, step = position + step, step * 7 % 4_099 + 1
        while (count := engine.read_into(target)) or engine.has_more:
            found += target[:count]
            engine.feed(b"")
    assert found == expected
    assert engine.waiting_bytes == 0


def test_a_large_answer_is_encrypted_in_pieces() -> None:
    """The peer decrypts a piece while the next one is encrypted."""
    engine, client = connected()
    parts = [b"header", b"", bytes(range(256)) * 1_600, memoryview(bytes(ENCRYPTED_AT_ONCE_BYTES - 6)), b"end"]
    found, counts = b"", []
    for piece in engine.encrypted(parts):
        client.incoming.write(piece)
        before = len(found)
        with suppress(ssl.SSLWantReadError):
            while True:
                found += client.tls.read(1 << 20)
        counts.append(len(found) - before)
    assert found == b"".join(parts)
    assert counts == [ENCRYPTED_AT_ONCE_BYTES] * 4 + [len(found) % ENCRYPTED_AT_ONCE_BYTES]
    assert list(engine.encrypted([b""])) == []
    client.incoming.write(b"".join(engine.encrypted([b"x"])))
    assert client.tls.read(9) == b"x"


def test_a_step_decrypts_a_bounded_number_of_records() -> None:
    engine, client = connected()
    records = [client.written(b"x") for _ in range(3 * RECORDS_AT_ONCE_MAX)]
    engine.feed(b"".join(records))
    target = memoryview(bytearray(64 << 10))
    counts = []
    while True:
        counts.append(engine.read_into(target))
        if not engine.has_more:
            break
        engine.feed(b"")
    assert counts == [RECORDS_AT_ONCE_MAX] * 3


@needs_openssl
def test_a_step_takes_a_bounded_number_of_new_keys(peer: KeyUpdatingPeer) -> None:
    """OpenSSL handles all that it is given in one call, some 20 microseconds each."""
    engine = engine_of(peer)
    first = peer.new_keys(1, asks_for_answers=True)
    record_bytes = len(first)
    engine.feed(first + peer.new_keys(999, asks_for_answers=True) + peer.written(b"end"))
    target, steps, found = memoryview(bytearray(64 << 10)), 0, b""
    while not found:
        before = engine.waiting_bytes
        count = engine.read_into(target)
        assert before - engine.waiting_bytes <= RECORDS_AT_ONCE_MAX * record_bytes
        found = bytes(target[:count])
        engine.feed(b"")
        steps += 1
    assert found == b"end"
    assert steps > 1_000 // RECORDS_AT_ONCE_MAX


@needs_openssl
def test_a_peer_that_takes_no_answers_is_cut_off(peer: KeyUpdatingPeer) -> None:
    async def flood() -> tuple[int, bool]:
        below = Mock(spec=asyncio.Transport)
        below.is_closing.side_effect = lambda: below.abort.called
        below.get_write_buffer_size.side_effect = lambda: sum(len(call.args[0]) for call in below.write.mock_calls)
        protocol = Mock(spec=asyncio.BufferedProtocol)
        protocol.get_buffer.return_value = memoryview(bytearray(1024))
        transport = TlsTransport(below, engine_of(peer), protocol, lambda _detail: None)
        for _ in range(100):
            transport.received(memoryview(peer.new_keys(50, asks_for_answers=True)))
            await asyncio.sleep(0)
        return below.get_write_buffer_size(), below.abort.called

    waiting_bytes, was_cut_off = asyncio.run(flood())
    assert was_cut_off
    assert waiting_bytes <= UNTAKEN_ANSWER_BYTES_MAX


async def failing_after_a_pause() -> bool:
    """Whether a connection has ended whose protocol fails in a later turn than the one that received."""
    engine, client = connected()
    below = Mock(spec=asyncio.Transport)
    below.is_closing.side_effect = lambda: below.abort.called
    protocol = Mock(spec=asyncio.BufferedProtocol)
    protocol.get_buffer.return_value = memoryview(bytearray(1024))
    protocol.buffer_updated.side_effect = RuntimeError("a defect")
    transport = TlsTransport(below, engine, protocol, lambda _detail: None)
    transport.pause_reading()
    transport.received(memoryview(client.written(b"x")))
    transport.resume_reading()
    for _ in range(3):
        await asyncio.sleep(0)
    return below.abort.called


def test_a_protocol_that_fails_after_a_pause_ends_its_connection() -> None:
    async def run() -> bool:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        return await failing_after_a_pause()

    assert asyncio.run(run())
