"""A store that hangs, or whose host is gone without a word. Its segments move to another store meanwhile."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from scripted_cluster import HOLD_S, Cluster
from silent_store import HOST, SilentStore

from headrace import wire
from headrace.api.segments import SegmentEndpoint
from headrace.client import AsyncHeadrace
from headrace.client.segment_connections import SegmentConnections
from headrace.client.writing import segment_appender
from headrace.model.errors import IllegalStateError, UnavailableError
from headrace.wire import client_end
from headrace.wire.connections import asynchronous
from headrace.wire.connections.asynchronous import AsyncConnection, SingleReply

WAIT_S = 20.0
"""Less than the time-out of a request, which would give the store up, too."""

SEARCHES = 8


@pytest.fixture
def silent(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentStore]:
    """The store of all segments, at first. Nothing but the search for another owner ends a connection to it."""
    monkeypatch.setattr(asynchronous, "KEEP_ALIVE_PERIOD_S", HOLD_S / 5)
    monkeypatch.setattr(client_end, "SILENT_PERIODS_MAX", 1_000_000)
    store = SilentStore(cluster.port)
    cluster.port = store.port
    yield store
    store.close()


def _until_searched(cluster: Cluster) -> None:
    """Return when the client has asked several times which store has a segment."""
    deadline_s = time.monotonic() + WAIT_S
    while sum(path.endswith("/endpoint") for _, path in cluster.requests) <= SEARCHES:
        assert time.monotonic() < deadline_s
        time.sleep(HOLD_S / 10)


@pytest.mark.parametrize("sets_up", [False, True], ids=["before its set-up", "with a block in flight"])
def test_writer_leaves_a_silent_store_that_has_lost_its_segment(
    cluster: Cluster, silent: SilentStore, *, sets_up: bool
) -> None:
    silent.sets_up = sets_up
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        ack = writer.write(b"event", "key")
        _until_searched(cluster)
        assert len(silent.accepted) == 1, "the store has the segment still, so it may only be slow"
        cluster.port = silent.other_port
        ack.result(timeout_s=WAIT_S)
    assert cluster.all_events() == [b"event"]


def test_reader_leaves_a_silent_store_that_has_lost_its_segment(cluster: Cluster, silent: SilentStore) -> None:
    cluster.put(0, b"event")
    with cluster.client() as headrace, headrace.reader("s", "t", start="earliest") as reader:
        events: list[bytes] = []
        reading = threading.Thread(target=lambda: events.append(next(iter(reader)).event))
        reading.start()
        _until_searched(cluster)
        assert len(silent.accepted) == 1
        cluster.port = silent.other_port
        reading.join(WAIT_S)
        assert events == [b"event"]


@pytest.mark.anyio
async def test_writer_that_leaves_a_slow_store_logs_no_error(
    cluster: Cluster, silent: SilentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the connection that it closes itself belongs to an append for which it does not wait any longer."""
    monkeypatch.setattr(segment_appender, "APPEND_TIMEOUT_S", HOLD_S)
    logged: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    silent.sets_up = True
    transport = httpx.MockTransport(cluster.handle)
    async with AsyncHeadrace("http://controller", transport=transport) as headrace:
        writer = await headrace.writer("s", "t")
        ack = await writer.write(b"event", "key")
        async with asyncio.timeout(WAIT_S):
            while len(silent.accepted) <= 1:
                await asyncio.sleep(HOLD_S / 10)
            cluster.port = silent.other_port
            await ack
        await writer.close()
    gc.collect()
    await asyncio.sleep(0)
    assert logged == []


class _Source:
    """It finds all segments at `port`, those in `moved` elsewhere. While `is_hung`, its answers never come."""

    delegation_tokens = None

    def __init__(self, port: int) -> None:
        self.port = port
        self.moved: set[int] = set()
        self.is_hung = False
        self.cancelled = 0
        self.asked: list[int] = []

    async def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint:
        self.asked.append(segment_id)
        if self.is_hung:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return SegmentEndpoint(HOST, self.port + (segment_id in self.moved), "local", 0, 0)

    async def until_searched(self) -> None:
        self.asked.clear()
        async with asyncio.timeout(WAIT_S):
            while len(self.asked) < SEARCHES:
                await asyncio.sleep(HOLD_S / 10)


async def _requested(connections: SegmentConnections, segment_id: int) -> asyncio.Future[wire.WireCommand]:
    """The reply to a request, which does not come: it raises UnavailableError when the connection is closed."""
    replies = SingleReply()
    flow = (await connections.to_segment(segment_id)).open_flow(replies, segment_id)
    return replies.ask(flow, wire.GetStreamSegmentInfo(flow.next_id(), "s/t/0.#epoch.0"))


@pytest.mark.anyio
async def test_closing_ends_a_search_for_the_owner(silent: SilentStore) -> None:
    source = _Source(silent.port)
    connections = SegmentConnections(source, "s", "t")  # type: ignore[arg-type]
    await _requested(connections, 0)
    source.is_hung = True
    async with asyncio.timeout(WAIT_S):
        while len(source.asked) < 2:
            await asyncio.sleep(HOLD_S / 10)
    await connections.close()
    assert source.cancelled == 1


@pytest.mark.anyio
async def test_closing_refuses_those_who_wait_for_a_connection() -> None:
    """Their own tasks are not cancelled: a task group would take that for their end, and say nothing."""
    with socket.create_server((HOST, 0)) as server:  # it never says Hello
        source = _Source(server.getsockname()[1])
        connections = SegmentConnections(source, "s", "t")  # type: ignore[arg-type]
        waiting = asyncio.create_task(connections.to_segment(0))
        async with asyncio.timeout(WAIT_S):
            while not connections._tasks:
                await asyncio.sleep(0)
        await connections.close()
        with pytest.raises(IllegalStateError, match="are closed"):
            await waiting


@pytest.mark.anyio
async def test_closing_while_connecting_logs_no_error(silent: SilentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is made, and no call waits for its Hello yet."""
    logged: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    connections = SegmentConnections(_Source(silent.port), "s", "t")  # type: ignore[arg-type]
    honest = AsyncConnection.connection_made
    closings: list[asyncio.Task[None]] = []

    def made(self: AsyncConnection, transport: asyncio.BaseTransport) -> None:
        honest(self, transport)
        closings.append(asyncio.create_task(connections.close()))

    monkeypatch.setattr(AsyncConnection, "connection_made", made)
    with pytest.raises(IllegalStateError, match="are closed"):
        await connections.to_segment(0)
    await asyncio.gather(*closings)
    gc.collect()
    await asyncio.sleep(0)
    assert logged == []


@pytest.mark.anyio
async def test_closing_ends_a_connection_whose_hello_has_come(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait for the connection have not gone on yet."""
    connections = SegmentConnections(_Source(cluster.port), "s", "t")  # type: ignore[arg-type]
    honest = AsyncConnection._dispatch
    greeted: list[AsyncConnection] = []
    closings: list[asyncio.Task[None]] = []

    def dispatch(self: AsyncConnection, command: wire.WireCommand) -> None:
        # The close comes after the Hello, and before the task that waits for it goes on.
        closings.append(asyncio.create_task(connections.close()))
        honest(self, command)
        greeted.append(self)

    monkeypatch.setattr(AsyncConnection, "_dispatch", dispatch)
    with pytest.raises(IllegalStateError, match="are closed"):
        await connections.to_segment(0)
    await asyncio.gather(*closings)
    (connection,) = greeted
    assert connection.closed is not None


@pytest.mark.anyio
async def test_silent_store_is_left_if_the_segment_was_forgotten(silent: SilentStore) -> None:
    """One request was throttled, and another of the same segment still waits for its reply."""
    source = _Source(silent.port)
    connections = SegmentConnections(source, "s", "t")  # type: ignore[arg-type]
    waiting = await _requested(connections, 0)
    connections.forget(0)
    await source.until_searched()
    assert not waiting.done()
    source.moved.add(0)
    with pytest.raises(UnavailableError, match="another store has"):
        await asyncio.wait_for(waiting, WAIT_S)
    await connections.close()


@pytest.mark.anyio
async def test_slow_store_is_kept_when_an_idle_segment_has_moved(silent: SilentStore) -> None:
    """The address of an idle segment may have been wrong for long, as no request told the client of its move."""
    source = _Source(silent.port)
    connections = SegmentConnections(source, "s", "t")  # type: ignore[arg-type]
    waiting = await _requested(connections, 0)
    (await connections.to_segment(1)).open_flow(SingleReply(), 1)
    source.moved.add(1)
    await source.until_searched()
    assert set(source.asked) == {0}
    assert not waiting.done()
    await connections.close()
