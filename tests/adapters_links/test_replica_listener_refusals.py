"""Strangers at the port of replicas: each is refused, none reaches the host, and owners are served meanwhile."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress

import pytest
from recorded_links import OWNER, PEER, open_message
from replica_sockets import CLUSTER, PATIENT, Ends, identity, raw_connection, replica_ends

from headrace.adapters.tcp import replica_listener
from headrace.adapters.tcp.replica_protocol import HELLO_BYTES, HELLO_OK_BYTES, LinkIdentity, LinkTimes, OwnerHandshake
from headrace.codec.replica_messages import MESSAGE_HEADER, Entry, Hello, Proof, encode_message
from headrace.model.container_logs import ReplicaId

pytestmark = pytest.mark.anyio
HASTY = LinkTimes(handshake_s=0.2, silence_s=60, dial_s=60, forgotten_s=60)
OPEN = encode_message(open_message())


async def say(ends: Ends, data: bytes) -> bytes:
    """All that the listener answers until it closes the connection."""
    reader, writer = await raw_connection(ends.port)
    writer.write(data)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.transport.abort()


def hello(own: LinkIdentity | None = None, wanted: ReplicaId = PEER) -> bytes:
    return OwnerHandshake(own or identity(OWNER), wanted, secrets.token_bytes).hello


async def prove(ends: Ends, proof: bytes) -> bytes:
    """What follows the HELLO_OK if the owner sends these bytes then."""
    reader, writer = await raw_connection(ends.port)
    writer.write(hello())
    await reader.readexactly(HELLO_OK_BYTES)
    writer.write(proof)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.transport.abort()


STRANGERS = {
    "open-at-once": OPEN,
    "entry-at-once": MESSAGE_HEADER.pack(Entry.TYPE, 0, 0, 1 << 20),
    "another-protocol": b"GET / HTTP/1.1\r\nHost: replica\r\n\r\n",
    "another-cluster": hello(identity(OWNER, cluster=b"d" * 16)),
    "no-common-version": encode_message(Hello(2, 9, CLUSTER, OWNER, PEER, 1, bytes(32))),
    "long-hello": MESSAGE_HEADER.pack(Hello.TYPE, 0, 0, HELLO_BYTES),
    "proof-before-hello": encode_message(Proof(bytes(32))),
    "hello-without-end": MESSAGE_HEADER.pack(Hello.TYPE, 0, 0, 10) + bytes(10),
}


@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS)
async def test_strangers_get_no_answer(data: bytes):
    async with replica_ends() as ends:
        assert await say(ends, data) == b""
        assert ends.host.links == []
        await ends.connect()


@pytest.mark.parametrize(
    "proof",
    [encode_message(Proof(bytes(32))), OPEN, hello(), b"\xff" * 40],
    ids=["wrong-proof", "open", "second-hello", "nonsense"],
)
async def test_without_the_proof_no_owner_is_connected(proof: bytes):
    async with replica_ends() as ends:
        assert await prove(ends, proof + OPEN) == b""
        assert ends.host.links == []


async def test_a_wrong_secret_fails_at_the_owner():
    async with replica_ends(owner_secret=b"w" * 32) as ends:
        ends.links.send(PEER, open_message())
        await ends.events.until(lambda: ends.events.lost == [PEER])
        assert ends.host.links == []


async def test_a_recorded_conversation_cannot_be_repeated():
    async with replica_ends() as ends:
        owner = OwnerHandshake(identity(OWNER), PEER, secrets.token_bytes)
        reader, writer = await raw_connection(ends.port)
        writer.write(owner.hello)
        _, proof = owner.proof(await reader.readexactly(HELLO_OK_BYTES))
        writer.write(proof + OPEN)
        await ends.host.until(lambda: len(ends.host.messages) == 1)
        writer.transport.abort()
        await ends.host.until(lambda: len(ends.host.lost_links) == 1)
        answer = await say(ends, owner.hello + proof + OPEN)
        assert len(answer) in (0, HELLO_OK_BYTES)
        assert len(ends.host.links) == 1


async def test_an_owner_that_wants_a_former_replica_is_told():
    async with replica_ends() as ends:
        owner = OwnerHandshake(identity(OWNER), ReplicaId(b"f" * 16), secrets.token_bytes)
        answer, _ = owner.proof(await say(ends, owner.hello))
        assert answer.replica == PEER
        assert ends.host.links == []


@pytest.mark.parametrize("start", [b"", hello()[:50], hello()], ids=["nothing", "half", "no-proof"])
async def test_a_handshake_that_takes_too_long_is_closed(start: bytes):
    async with replica_ends(HASTY) as ends:
        assert len(await say(ends, start)) in (0, HELLO_OK_BYTES)
        assert ends.host.links == []


async def test_bytes_that_trickle_in_gain_no_time():
    async with replica_ends(HASTY) as ends:
        reader, writer = await raw_connection(ends.port)
        answer = asyncio.create_task(reader.read())
        for value in hello():
            if answer.done() or writer.transport.is_closing():
                break
            writer.write(bytes([value]))
            await asyncio.sleep(0.01)
        with suppress(ConnectionResetError):
            assert await answer == b""
        writer.transport.abort()
        assert ends.host.links == []


async def test_too_many_handshakes_are_refused(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replica_listener, "_REFUSALS_LOGGED_EVERY_S", 3600.0)
    caplog.set_level(logging.WARNING)
    async with replica_ends(PATIENT, unproved_max=3) as ends:
        held = [await raw_connection(ends.port) for _ in range(3)]
        for _, writer in held:
            writer.write(hello())
        for reader, _ in held:
            await reader.readexactly(HELLO_OK_BYTES)
        for _ in range(5):
            assert await say(ends, hello()) == b""
        lines = [record.getMessage() for record in caplog.records if "replica_owner_refused" in record.getMessage()]
        assert len(lines) == 1, "one line for all of them"
        assert "too many" in lines[0]
        held.pop()[1].transport.abort()
        while not ends.host.links:
            ends.links.send(PEER, open_message())
            await asyncio.sleep(0.01)
        for _, writer in held:
            writer.transport.abort()


async def test_links_are_bounded():
    async with replica_ends() as ends:
        ends.listener._links_max = 1
        await ends.connect()
        other = OwnerHandshake(identity(ReplicaId(b"2" * 16)), PEER, secrets.token_bytes)
        reader, writer = await raw_connection(ends.port)
        writer.write(other.hello)
        writer.write(other.proof(await reader.readexactly(HELLO_OK_BYTES))[1])
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            assert len(ends.host.links) == 1
        writer.transport.abort()
        assert len(ends.host.links) == 1
