"""What a connection does with peers of another kind, silence, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from scripted_cluster import Cluster

from headrace import wire
from headrace.client import CorruptError, UnavailableError, connections
from headrace.client.connections import SingleReply, open_connection

pytestmark = pytest.mark.anyio

WAIT_S = 20
"""Only turns a hang into a failure."""


@asynccontextmanager
async def _server(answer: bytes) -> AsyncIterator[int]:
    """The port of a server that answers whatever comes first with `answer` and then says nothing more.

    Its end waits until the client has closed every connection.
    """
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.append(task)
        try:
            await reader.readexactly(16)
            writer.write(answer)
            with suppress(ConnectionResetError):  # closed with bytes unread
                await reader.read()
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


HELLO = wire.encode(wire.Hello(17, 5))


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
        monkeypatch.setattr(connections, "CONNECT_TIMEOUT_S", 0.05)
    async with _server(answer) as port:
        with pytest.raises(kind, match=message):
            await open_connection("127.0.0.1", port)


async def test_silence_ends_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE_PERIOD_S", 0.01)
    async with _server(HELLO) as port:
        connection = await open_connection("127.0.0.1", port)
        replies = SingleReply()
        flow = connection.open_flow(replies)
        with pytest.raises(UnavailableError, match="has stopped answering"):
            await replies.ask(flow, wire.GetStreamSegmentInfo(flow.next_id(), "s/t/0.#epoch.0"))
        with pytest.raises(UnavailableError):
            connection.open_flow(SingleReply())


async def test_keep_alive_echoes_keep_a_connection(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE_PERIOD_S", 0.005)
    echoed: list[wire.WireCommand] = []

    def count(command: Any, names: dict[int, str], honest: Any = cluster._reply) -> Any:
        if isinstance(command, wire.KeepAlive):
            echoed.append(command)
        return honest(command, names)

    cluster._reply = count
    connection = await open_connection("127.0.0.1", cluster.port)
    while len(echoed) < 2 * connections.SILENT_PERIODS_MAX:
        await asyncio.sleep(0.001)
    assert connection.closed is None
    connection.close()


async def test_replies_find_their_flows_and_late_ones_are_dropped(cluster: Cluster) -> None:
    connection = await open_connection("127.0.0.1", cluster.port)
    one, two = SingleReply(), SingleReply()
    first, second = connection.open_flow(one), connection.open_flow(two)
    late = one.ask(first, wire.LocateOffset(first.next_id(), "s/t/0.#epoch.0", 5))
    first.close()
    reply = await two.ask(second, wire.LocateOffset(second.next_id(), "s/t/1.#epoch.0", 7))
    assert isinstance(reply, wire.OffsetLocated)
    assert reply.offset == 7
    assert not late.done()
    connection.close()


async def test_address_without_a_listener_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await open_connection("127.0.0.1", 9)


async def test_a_connection_whose_opening_is_cancelled_is_closed() -> None:
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
        await asyncio.wait_for(gone.wait(), 20)
