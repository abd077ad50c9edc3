"""Connections to segment stores on the event loop: framing, handshake, keep-alive, replies to whom they belong.

A connection carries many flows. A request id is `flow << 32 | sequence`, as Pravega's Java client has it, so a reply
finds its flow by the upper half of the id it echoes. `SegmentConnections` finds the store of a segment and shares one
connection per store. Nothing here retries: a lost connection is told to every flow, which decides.
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
"""A connection over which nothing came for so many periods, not even the echo of a keep-alive, is given up."""

_JOIN_BYTES_MAX = 16 * 1024
_FLOW_BITS = 32
_SEQUENCE_MASK = (1 << _FLOW_BITS) - 1


class FlowListener(Protocol):
    """Who owns a flow; called on the event loop's thread."""

    def replied(self, reply: wire.WireCommand) -> None:
        """A reply to a request of the flow."""
        ...

    def lost(self, problem: HeadraceError) -> None:
        """The connection is gone; no more replies come. Called once."""
        ...


class Flow:
    """One conversation on a connection."""

    __slots__ = ("_number", "_sequence", "connection")

    def __init__(self, connection: WireConnection, number: int) -> None:
        self.connection = connection
        self._number = number
        self._sequence = 0

    def next_id(self) -> int:
        self._sequence = (self._sequence + 1) & _SEQUENCE_MASK
        return self._number << _FLOW_BITS | self._sequence

    def send(self, command: wire.WireCommand) -> None:
        """Queues the command; a connection that is lost meanwhile is told through `lost`."""
        self.connection.send(command)

    def close(self) -> None:
        """No more replies reach the listener."""
        self.connection.forget_flow(self._number)


class WireConnection(asyncio.BufferedProtocol):
    """One connection; made by `open_connection`."""

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
        """Raises UnavailableError or CorruptError; the connection is closed then."""
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
        """Raises UnavailableError if the connection is closed."""
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
        """New conversations get another connection; this one closes when its last one has ended."""
        self.retired = True

    def send(self, command: wire.WireCommand) -> None:
        if self._transport is None or self.closed is not None:
            return
        parts = wire.encode_parts(command)
        if sum(map(len, parts)) <= _JOIN_BYTES_MAX:
            self._transport.write(b"".join(parts))
        else:
            for part in parts:  # not `writelines`: asyncio's would join them
                self._transport.write(part)

    def close(self) -> None:
        """Drops the connection at once; flows are told that it is lost."""
        self._end(self._unavailable("was left by this client"))

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
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
        self._end(self._unavailable(f"is gone: {exc}" if exc else "closed the connection"))

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
                self._end(self._unavailable("does not answer any more"))
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
    """A connection over which versions were exchanged.

    Raises:
        UnavailableError: nobody listens there or answers in time.
        CorruptError: whoever answers does not speak the protocol, or another version.
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
    """Who knows where segments live: the admin."""

    async def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint: ...


class SegmentConnections:
    """Connections to the stores of one stream's segments: one per store, opened when first needed."""

    def __init__(self, source: EndpointSource, scope: str, stream: str) -> None:
        self._source = source
        self._scope, self._stream = scope, stream
        self._endpoints: dict[int, SegmentEndpoint] = {}
        self._connections: dict[tuple[str, int], asyncio.Task[WireConnection]] = {}
        self._tasks: set[asyncio.Task[WireConnection]] = set()

    async def to_segment(self, segment_id: int) -> WireConnection:
        """The connection to the store that owns the segment, as far as is known.

        Raises:
            UnavailableError: nobody owns it now, or its store cannot be reached: the next call asks anew.
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
        """What is known about the segment's store is wrong, or the segment is done with."""
        self._endpoints.pop(segment_id, None)

    async def close(self) -> None:
        """Ends all conversations at once."""
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
        # Shielded: others wait for the same connection.
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
    """The reply; a store that does not give it in time, though it may echo keep-alives, is not trusted any more.

    Raises:
        UnavailableError: no reply came, or the connection was lost; it is closed now.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await waiting
    except TimeoutError:
        raise give_up(flow, timeout_s) from None


def give_up(flow: Flow, timeout_s: float) -> UnavailableError:
    """Closes the connection of a store that does not answer; the error to raise."""
    connection = flow.connection
    connection.close()
    return UnavailableError(
        f"segment store {connection.host}:{connection.port} did not answer a request within {timeout_s:g} s",
        details={"host": connection.host, "port": connection.port},
    )


def problem_of(flow: Flow, reply: wire.WireCommand) -> HeadraceError:
    """The error that a reply stands for. A store that is not the owner any more is left, politely.

    Most often the next endpoint is another store. If it is the same one, it has restarted within itself, and this
    connection leads to what is left of the old one.
    """
    if isinstance(reply, wire.WrongHost):
        flow.connection.retire()
    return error_of_reply(reply)


class SingleReply:
    """A listener for one request at a time: `await listener.ask(flow, command)`."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[wire.WireCommand] | None = None
        self._problem: HeadraceError | None = None

    def ask(self, flow: Flow, command: wire.WireCommand) -> asyncio.Future[wire.WireCommand]:
        """Sends; the future gets the reply, or the problem with which the connection was lost."""
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
    """Whoever waited may be gone by now; asyncio would complain that nobody looked at the exception."""
    if not future.cancelled():
        future.exception()
