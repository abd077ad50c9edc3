"""The asyncio connection: peers of another kind, keep-alives and silence, flows, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from headrace import wire
from headrace.model.errors import CorruptError, UnavailableError
from headrace.wire.client_end import SILENT_PERIODS_MAX
from headrace.wire.connections import asynchronous
from headrace.wire.connections.asynchronous import SingleReply, open_connection

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
        one, two = SingleReply(), SingleReply()
        first, second = connection.open_flow(one, 0), connection.open_flow(two, 1)
        late = one.ask(first, wire.LocateOffset(first.next_id(), SEGMENT, 5))
        first.close()
        reply = await two.ask(second, wire.LocateOffset(second.next_id(), SEGMENT, 7))
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
