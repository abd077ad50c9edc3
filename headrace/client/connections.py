"""Connections to segment stores on the event loop: framing, handshake, keep-alive, dispatch of replies.

A connection carries many flows. A request id is `flow << 32 | sequence`, as in Pravega's Java client. A reply echoes
the id, and its upper half names the flow. `SegmentConnections` finds the store of a segment and shares one connection
per store. This module never retries: it reports a lost connection to all its flows, and their owners decide.
"""

from __future__ import annotations

import asyncio
import socket
from itertools import count
from typing import Any, Protocol, cast

from headrace import wire
from headrace.adapters.tcp.connection import check_hello
from headrace.adapters.tcp.replies import error_of_reply
from headrace.api.segments import SegmentEndpoint
from headrace.model.errors import HeadraceError, UnavailableError

CONNECT_TIMEOUT_S = 5.0
KEEP_ALIVE_PERIOD_S = 10.0
SILENT_PERIODS_MAX = 3
"""The client closes a connection that has received nothing in this many periods, not even an echoed keep-alive."""

_JOIN_BYTES_MAX = 16 * 1024
_FLOW_BITS = 32
_SEQUENCE_MASK = (1 << _FLOW_BITS) - 1


class FlowListener(Protocol):
    """The owner of a flow. The connection calls it on the event loop's thread."""

    def replied(self, reply: wire.WireCommand) -> None:
        """A reply to a request of the flow."""
        ...

    def lost(self, problem: HeadraceError) -> None:
        """The connection is closed; no more replies will arrive. Called once."""
        ...


class Flow:
    """A sequence of requests and replies on a connection that it shares with other flows."""

    __slots__ = ("_number", "_sequence", "connection")

    def __init__(self, connection: WireConnection, number: int) -> None:
        self.connection = connection
        self._number = number
        self._sequence = 0

    def next_id(self) -> int:
        self._sequence = (self._sequence + 1) & _SEQUENCE_MASK
        return self._number << _FLOW_BITS | self._sequence

    def send(self, command: wire.WireCommand) -> None:
        """Queues the command. If the connection is lost before a reply arrives, the listener's `lost` is called."""
        self.connection.send(command)

    def close(self) -> None:
        """Ends the flow: the listener gets no more replies."""
        self.connection.forget_flow(self._number)


class WireConnection(asyncio.BufferedProtocol):
    """A connection to a segment store. Use `open_connection` to open one."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.closed: HeadraceError | None = None
        self.retired = False
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._hello: asyncio.Future[wire.WireCommand] = loop.create_future()
        self._receiver = wire.FrameReceiver()
        self._transport: asyncio.Transport | None = None
        self._flows: dict[int, FlowListener] = {}
        self._flow_numbers = count(1)
        self._heard = True
        self._silent_periods = 0
        self._timer: asyncio.TimerHandle | None = None

    async def shake_hands(self) -> None:
        """Exchanges versions. On an UnavailableError or CorruptError, the connection is closed."""
        self.send(wire.Hello(wire.WIRE_VERSION, wire.OLDEST_COMPATIBLE_VERSION))
        try:
            check_hello(await asyncio.wait_for(self._hello, CONNECT_TIMEOUT_S), f"{self.host}:{self.port}")
        except TimeoutError as error:
            self._end(self._unavailable("does not answer Hello"))
            raise self._unavailable("does not answer Hello") from error
        except HeadraceError as error:
            self._end(error)
            raise
        self._timer = self._loop.call_later(KEEP_ALIVE_PERIOD_S, self._keep_alive)

    def open_flow(self, listener: FlowListener) -> Flow:
        """Starts a flow. Raises UnavailableError if the connection is closed."""
        if self.closed is not None:
            raise UnavailableError(str(self.closed))
        number = next(self._flow_numbers)
        self._flows[number] = listener
        return Flow(self, number)

    def forget_flow(self, number: int) -> None:
        self._flows.pop(number, None)
        if self.retired and not self._flows:
            self.close()

    def retire(self) -> None:
        """Stops the use of this connection for new flows. It closes when its last flow ends."""
        self.retired = True

    def send(self, command: wire.WireCommand) -> None:
        if self._transport is None or self.closed is not None:
            return
        parts = wire.encode_parts(command)
        if sum(map(len, parts)) <= _JOIN_BYTES_MAX:
            self._transport.write(b"".join(parts))
        else:
            for part in parts:  # not `writelines`: asyncio's version copies the parts into one buffer
                self._transport.write(part)

    def close(self) -> None:
        """Closes the connection at once, and calls `lost` on the listeners of its flows."""
        self._end(self._unavailable("was disconnected by this client"))

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from asyncio's
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        try:
            for type_code, payload in self._receiver.received(nbytes):
                self._dispatch(wire.decode(type_code, payload))
        except wire.WireFormatError as error:
            self._end(error)

    def eof_received(self) -> None:
        self._end(self._unavailable("closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(self._unavailable(f"broke the connection: {exc}" if exc else "closed the connection"))

    def _dispatch(self, command: wire.WireCommand) -> None:
        if isinstance(command, wire.Hello):
            if not self._hello.done():
                self._hello.set_result(command)
            return
        listener = self._flows.get(getattr(command, "request_id", 0) >> _FLOW_BITS)
        if listener is not None:
            listener.replied(command)
        elif not self._hello.done():
            self._hello.set_result(command)

    def _keep_alive(self) -> None:
        if self.closed is not None:
            return
        if self._heard:
            self._silent_periods = 0
        else:
            self._silent_periods += 1
            if self._silent_periods >= SILENT_PERIODS_MAX:
                self._end(self._unavailable("has stopped answering"))
                return
            self.send(wire.KeepAlive())
        self._heard = False
        self._timer = self._loop.call_later(KEEP_ALIVE_PERIOD_S, self._keep_alive)

    def _end(self, problem: HeadraceError) -> None:
        if self.closed is not None:
            return
        self.closed = problem
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        if not self._hello.done():
            self._hello.set_exception(problem)
        flows, self._flows = self._flows, {}
        for listener in flows.values():
            listener.lost(problem)

    def _unavailable(self, what: str) -> UnavailableError:
        return UnavailableError(
            f"segment store {self.host}:{self.port} {what}", details={"host": self.host, "port": self.port}
        )


async def open_connection(host: str, port: int) -> WireConnection:
    """Connects to a segment store and exchanges versions with it.

    Raises:
        UnavailableError: no process listens at the address, or it does not answer in time.
        CorruptError: the process there does not speak the protocol, or only an incompatible version.
    """
    loop = asyncio.get_running_loop()
    connection = WireConnection(host, port)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await loop.create_connection(lambda: connection, host, port)
    except (OSError, TimeoutError) as error:
        connection._hello.cancel()
        raise UnavailableError(
            f"segment store {host}:{port} cannot be reached: {error or 'time-out'}",
            details={"host": host, "port": port},
        ) from error
    try:
        await connection.shake_hands()
    except asyncio.CancelledError:
        connection.close()
        raise
    return connection


class EndpointSource(Protocol):
    """Finds the store of a segment; the admin implements it."""

    async def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint: ...


class SegmentConnections:
    """Connections to the stores of one stream's segments: one per store, opened on first use."""

    def __init__(self, source: EndpointSource, scope: str, stream: str) -> None:
        self._source = source
        self._scope, self._stream = scope, stream
        self._endpoints: dict[int, SegmentEndpoint] = {}
        self._connections: dict[tuple[str, int], asyncio.Task[WireConnection]] = {}
        self._tasks: set[asyncio.Task[WireConnection]] = set()

    async def to_segment(self, segment_id: int) -> WireConnection:
        """Returns a connection to the segment's store. Its address is cached, so the store may have lost the segment.

        Raises:
            UnavailableError: no store owns the segment now, or it cannot be reached. The next call looks it up again.
            NotFoundError: the stream or the segment does not exist.
        """
        endpoint = self._endpoints.get(segment_id)
        if endpoint is None:
            endpoint = await self._source.endpoint(self._scope, self._stream, segment_id)
            self._endpoints[segment_id] = endpoint
        try:
            return await self._connection(endpoint.host, endpoint.port)
        except HeadraceError:
            self.forget(segment_id)
            raise

    def forget(self, segment_id: int) -> None:
        """Drops the cached address of the segment's store, because it is wrong or no longer needed."""
        self._endpoints.pop(segment_id, None)

    async def close(self) -> None:
        """Closes all connections at once."""
        tasks, self._tasks = self._tasks, set()
        self._connections.clear()
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            else:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, host: str, port: int) -> WireConnection:
        task = self._connections.get((host, port))
        if task is not None and _is_spent(task):
            task = None
        if task is None:
            task = asyncio.ensure_future(open_connection(host, port))
            task.add_done_callback(_retrieve)
            self._connections[host, port] = task
            self._tasks = {one for one in self._tasks if not _is_spent(one) or _is_open(one)} | {task}
        # Shielded, because other callers wait for the same connection: cancelling one must not cancel it for them.
        return await asyncio.shield(task)


def _is_spent(task: asyncio.Task[WireConnection]) -> bool:
    if not task.done():
        return False
    if task.cancelled() or task.exception() is not None:
        return True
    return task.result().retired or task.result().closed is not None


def _is_open(task: asyncio.Task[WireConnection]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().closed is None


async def answer_within(flow: Flow, waiting: asyncio.Future[wire.WireCommand], timeout_s: float) -> wire.WireCommand:
    """Waits for a reply. A store may echo keep-alives and still hang, so a late reply closes its connection.

    Raises:
        UnavailableError: no reply came in time, or the connection was lost. The connection is closed.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await waiting
    except TimeoutError:
        raise close_unresponsive(flow, timeout_s) from None


def close_unresponsive(flow: Flow, timeout_s: float) -> UnavailableError:
    """Closes the connection of a store that does not answer. Returns the error for the caller to raise."""
    connection = flow.connection
    connection.close()
    return UnavailableError(
        f"segment store {connection.host}:{connection.port} did not answer a request within {timeout_s:g} s",
        details={"host": connection.host, "port": connection.port},
    )


def problem_of(flow: Flow, reply: wire.WireCommand) -> HeadraceError:
    """Returns the error that a reply reports. After WrongHost the connection gets no new flows.

    Usually another store owns the segment now. If it is the same store, it has opened the container again, and this
    connection still belongs to the old instance.
    """
    if isinstance(reply, wire.WrongHost):
        flow.connection.retire()
    return error_of_reply(reply)


class SingleReply:
    """A listener of a flow that has one request at a time: `await listener.ask(flow, command)`."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[wire.WireCommand] | None = None
        self._problem: HeadraceError | None = None

    def ask(self, flow: Flow, command: wire.WireCommand) -> asyncio.Future[wire.WireCommand]:
        """Sends the command. The future gets the reply, or the error with which the connection was lost."""
        waiting = self._waiting = asyncio.get_running_loop().create_future()
        waiting.add_done_callback(_retrieve)
        if self._problem is not None:
            waiting.set_exception(self._problem)
        else:
            flow.send(command)
        return waiting

    def replied(self, reply: wire.WireCommand) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(reply)

    def lost(self, problem: HeadraceError) -> None:
        self._problem = problem
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(problem)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Marks the exception as retrieved: if the waiting task was cancelled, asyncio would log it as never retrieved."""
    if not future.cancelled():
        future.exception()
