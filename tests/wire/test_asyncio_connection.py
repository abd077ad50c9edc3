"""The asyncio connection: peers of another kind, keep-alives and silence, flows, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from headrace import wire
from headrace.model.errors import CorruptError, UnavailableError
from headrace.wire.client_end import SILENT_PERIODS_MAX
from headrace.wire.connections import asynchronous
from headrace.wire.connections.asynchronous import AsyncConnection, Flow, SingleReply, open_connection
from headrace.wire.connections.blocking import BlockingConnection
from headrace.wire.tls import ENCRYPTED_AT_ONCE_BYTES

pytestmark = pytest.mark.anyio

WAIT_S = 20
"""Only turns a hang into a failure."""

HELLO = wire.encode(wire.OWN_HELLO)
SEGMENT = "s/t/0.#epoch.0"


@asynccontextmanager
async def _server(answer: Callable[[wire.WireCommand], bytes]) -> AsyncIterator[int]:
    """The port of a server that replies to each command with the bytes of `answer`.

    Its end waits until the client has closed every connection.
    """
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.append(task)
        try:
            with suppress(ConnectionResetError, asyncio.IncompleteReadError):
                while True:
                    type_code, length = wire.decode_header(await reader.readexactly(wire.FRAME_HEADER.size))
                    payload = memoryview(await reader.readexactly(length))
                    writer.write(answer(wire.decode(type_code, payload)))
        finally:
            writer.close()
            with suppress(ConnectionResetError, BrokenPipeError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.wait_for(asyncio.gather(*serving), WAIT_S)
        await server.wait_closed()


def _only_hello(command: wire.WireCommand) -> bytes:
    """A store that hangs after the handshake."""
    return HELLO if isinstance(command, wire.Hello) else b""


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (wire.encode(wire.Hello(30, 18)), CorruptError, "versions 18 to 30"),
        (wire.encode(wire.Hello(4, 1)), CorruptError, "versions 1 to 4"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", CorruptError, "claims"),
        (wire.encode(wire.SegmentSealed(0, "x")), CorruptError, "is this a segment store"),
        (b"", UnavailableError, "does not answer Hello"),
    ],
)
async def test_peers_of_another_kind(
    answer: bytes, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not answer:
        monkeypatch.setattr(asynchronous, "CONNECT_TIMEOUT_S", 0.05)
    async with _server(lambda _: answer) as port:
        with pytest.raises(kind, match=message):
            await open_connection("127.0.0.1", port)


async def test_silence_ends_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asynchronous, "KEEP_ALIVE_PERIOD_S", 0.01)
    async with _server(_only_hello) as port:
        connection = await open_connection("127.0.0.1", port)
        replies = SingleReply()
        flow = connection.open_flow(replies, 0)
        with pytest.raises(UnavailableError, match="has stopped answering"):
            await replies.ask(flow, wire.GetStreamSegmentInfo(flow.next_id(), SEGMENT))
        with pytest.raises(UnavailableError):
            connection.open_flow(SingleReply(), 0)


async def test_keep_alive_echoes_keep_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asynchronous, "KEEP_ALIVE_PERIOD_S", 0.005)
    echoed: list[wire.KeepAlive] = []
    enough = asyncio.Event()

    def echo(command: wire.WireCommand) -> bytes:
        if isinstance(command, wire.KeepAlive):
            echoed.append(command)
            if len(echoed) == 2 * SILENT_PERIODS_MAX:
                enough.set()
        return wire.encode(command)

    async with _server(echo) as port:
        connection = await open_connection("127.0.0.1", port)
        await asyncio.wait_for(enough.wait(), WAIT_S)
        assert connection.closed is None
        connection.close()


async def test_late_reply_does_not_reach_another_flow() -> None:
    def locate(command: wire.WireCommand) -> bytes:
        if isinstance(command, wire.LocateOffset):
            return wire.encode(wire.OffsetLocated(command.request_id, command.segment, command.target_offset))
        return HELLO

    async with _server(locate) as port:
        connection = await open_connection("127.0.0.1", port)
        first_replies, second_replies = SingleReply(), SingleReply()
        first, second = connection.open_flow(first_replies, 0), connection.open_flow(second_replies, 1)
        late = first_replies.ask(first, wire.LocateOffset(first.next_id(), SEGMENT, 5))
        first.close()
        reply = await second_replies.ask(second, wire.LocateOffset(second.next_id(), SEGMENT, 7))
        assert isinstance(reply, wire.OffsetLocated)
        assert reply.offset == 7
        assert not late.done()
        connection.close()


async def test_wrong_host_retires_its_connection() -> None:
    def refuse(command: wire.WireCommand) -> bytes:
        return HELLO if isinstance(command, wire.Hello) else wire.encode(wire.WrongHost(1 << 32 | 1, SEGMENT))

    async with _server(refuse) as port:
        connection = await open_connection("127.0.0.1", port)
        replies = SingleReply()
        flow = connection.open_flow(replies, 0)
        reply = await replies.ask(flow, wire.SealSegment(flow.next_id(), SEGMENT))
        assert isinstance(asynchronous.problem_of(flow, reply), UnavailableError)
        assert connection.retired
        assert connection.closed is None
        flow.close()
        assert connection.closed is not None


async def test_address_without_a_listener_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await open_connection("127.0.0.1", 9)


@pytest.mark.parametrize("host", ["store..internal", "a" * 64 + ".internal", "\ud800"])
async def test_a_host_that_cannot_be_a_name_is_unavailable(host: str) -> None:
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await open_connection(host, 9)
    with pytest.raises(UnavailableError, match="cannot be reached"):
        BlockingConnection(host, 9)


async def test_connection_is_closed_if_its_opening_is_cancelled() -> None:
    """A reader that is closed at once does not wait for connections that it was opening."""
    came, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(16)
        came.set()
        try:
            await reader.read()
        except ConnectionError:
            pass
        finally:
            gone.set()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        opening = asyncio.create_task(open_connection("127.0.0.1", server.sockets[0].getsockname()[1]))
        await came.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.wait_for(gone.wait(), WAIT_S)


class Transport(asyncio.Transport):
    """Keeps what was written by each call."""

    def __init__(self, info: Mapping[str, object] | None) -> None:
        super().__init__(info)
        self.writes: list[bytes] = []
        self.is_aborted = False

    def write(self, data: Any) -> None:
        assert not self.is_aborted
        self.writes.append(bytes(data))

    def abort(self) -> None:
        self.is_aborted = True


class Answering:
    """Sends a command for each reply, then perhaps closes the connection."""

    is_waiting = True

    def __init__(self, following: Callable[[int], wire.WireCommand], *, closes: bool = False) -> None:
        self._following = following
        self._closes = closes
        self.flow: Flow | None = None

    def replied(self, reply: wire.WireCommand) -> None:
        assert self.flow is not None
        self.flow.send(self._following(self.flow.next_id()))
        if self._closes:
            self.flow.connection.close()

    def lost(self, problem: Exception) -> None:
        assert self._closes


def _answering_connection(
    *listeners: Answering, info: Mapping[str, object] | None = None
) -> tuple[AsyncConnection, Transport]:
    connection, transport = AsyncConnection("store", 1), Transport(info)
    connection.connection_made(transport)
    _receive(connection, HELLO)
    for number, listener in enumerate(listeners):
        listener.flow = connection.open_flow(listener, number)
    return connection, transport


def _receive(connection: AsyncConnection, data: bytes) -> None:
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def _replies(*listeners: Answering) -> bytes:
    flows = [listener.flow for listener in listeners if listener.flow is not None]
    return b"".join(wire.encode(wire.OffsetLocated(flow.next_id(), SEGMENT, 0)) for flow in flows)


def _locate(request_id: int) -> wire.WireCommand:
    return wire.LocateOffset(request_id, SEGMENT, 0)


async def test_what_replies_cause_is_sent_together() -> None:
    """Else the store syncs its log once for each of the blocks that follow acknowledgements."""
    first, second = Answering(_locate), Answering(_locate)
    connection, transport = _answering_connection(first, second)
    _receive(connection, _replies(first, second))
    (sent,) = transport.writes
    assert len(sent) == 2 * len(wire.encode(_locate(1)))


async def test_large_blocks_are_not_copied_to_be_sent() -> None:
    block = bytes(asynchronous._JOIN_BYTES_MAX)
    large = Answering(lambda request_id: wire.AppendBlockEnd(1, len(block), block, 1, 1, request_id))
    connection, transport = _answering_connection(large)
    _receive(connection, _replies(large))
    assert block in transport.writes
    assert len(transport.writes) > 1


async def test_large_blocks_are_encrypted_in_pieces() -> None:
    """The store decrypts a piece while the next one is encrypted."""
    block = bytes(range(256)) * (3 * ENCRYPTED_AT_ONCE_BYTES // 256) + b"end"
    large = Answering(lambda request_id: wire.AppendBlockEnd(1, len(block), block, 1, 1, request_id))
    connection, transport = _answering_connection(large, info={"sslcontext": object()})
    _receive(connection, _replies(large))
    assert b"".join(transport.writes).count(block) == 1
    assert max(map(len, transport.writes)) == ENCRYPTED_AT_ONCE_BYTES


async def test_what_was_sent_before_a_close_leaves() -> None:
    closing = Answering(_locate, closes=True)
    connection, transport = _answering_connection(closing)
    _receive(connection, _replies(closing, closing))
    (sent,) = transport.writes
    assert len(sent) == len(wire.encode(_locate(1)))
    assert transport.is_aborted


async def test_what_is_sent_outside_of_replies_leaves_at_once() -> None:
    other = Answering(_locate)
    _, transport = _answering_connection(other)
    assert other.flow is not None
    other.flow.send(_locate(other.flow.next_id()))
    assert len(transport.writes) == 1
