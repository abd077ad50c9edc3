"""The connection to a segment store on the event loop: sockets, timers, dispatch of replies to flows.

A connection carries many flows. It never retries: it reports a lost connection to all its flows, and their owners
decide.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final, Protocol, cast

from headrace import wire
from headrace.futures import mark_retrieved
from headrace.model.errors import CorruptError, HeadraceError, UnavailableError
from headrace.wire.client_end import CONNECT_TIMEOUT_S, ClientEnd, RequestIds, flow_of, request_id_of
from headrace.wire.tls import ENCRYPTED_AT_ONCE_BYTES, StoreTls, tls_problem

KEEP_ALIVE_PERIOD_S: Final = 3.0
_JOIN_BYTES_MAX: Final = 64 * 1024
"""Fewer bytes are joined: copying them takes less time than another call of the system."""


class FlowListener(Protocol):
    """The owner of a flow. The connection calls it on the event loop's thread."""

    @property
    def is_waiting(self) -> bool:
        """Whether a reply to a request of the flow is still to come."""
        ...

    def replied(self, reply: wire.WireCommand) -> None:
        """A reply to a request of the flow."""
        ...

    def lost(self, problem: HeadraceError) -> None:
        """The connection is closed; no more replies will arrive. Called once."""
        ...


class Tokens(Protocol):
    """Puts delegation tokens into the commands that need one."""

    def ready(self, command: wire.WireCommand) -> wire.WireCommand | None:
        """The command as it is to be sent; None if its token must be fetched first, with `attached`."""
        ...

    async def attached(self, command: wire.WireCommand) -> wire.WireCommand:
        """Returns the command as it is to be sent. Raises UnauthorizedError if it may not be sent."""
        ...

    async def after_refusal(
        self, command: wire.WireCommand, reply: wire.AuthTokenCheckFailed, refusals: int
    ) -> wire.WireCommand:
        """Returns a refused command with another token, after so many refusals before. Raises as `attached`."""
        ...


class Flow(RequestIds):
    """A sequence of requests and replies on a connection that it shares with other flows."""

    __slots__ = ("connection",)

    def __init__(self, connection: AsyncConnection, number: int) -> None:
        super().__init__(number)
        self.connection = connection

    def send(self, command: wire.WireCommand) -> None:
        """Queues the command. If the connection is lost before a reply arrives, the listener's `lost` is called."""
        self.connection.send(command)

    def close(self) -> None:
        """Ends the flow: the listener gets no more replies."""
        self.connection.forget_flow(self.number)


class AsyncConnection(asyncio.BufferedProtocol):
    """A connection to a segment store. Use `open_connection` to open one."""

    def __init__(self, host: str, port: int, tokens: Tokens | None = None, on_silence: OnSilence | None = None) -> None:
        self.host, self.port = host, port
        self.tokens = tokens
        self.closed: HeadraceError | None = None
        self.retired = False
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._on_silence = on_silence
        self._end = ClientEnd(host, port)
        self._hello: asyncio.Future[wire.WireCommand] = loop.create_future()
        self._hello.add_done_callback(mark_retrieved)
        self._transport: asyncio.Transport | None = None
        self._flows: dict[int, FlowListener] = {}
        self._segment_ids: dict[int, int] = {}
        self._flow_numbers = count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._held: list[wire.Buffer] | None = None
        self._is_encrypted = False

    async def shake_hands(self) -> None:
        """Exchanges versions. On an UnavailableError or CorruptError, the connection is closed."""
        self.send(wire.OWN_HELLO)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):  # `wait_for` keeps a cancellation that comes with the reply
                await self._hello
        except TimeoutError as error:
            silent = self._end.unavailable("does not answer Hello")
            self._fail(silent)
            raise silent from error
        self._timer = self._loop.call_later(KEEP_ALIVE_PERIOD_S, self._keep_alive)

    def open_flow(self, listener: FlowListener, segment_id: int) -> Flow:
        """Starts a flow of requests to one segment. Raises UnavailableError if the connection is closed."""
        if self.closed is not None:
            raise UnavailableError(str(self.closed))
        number = next(self._flow_numbers)
        self._flows[number] = listener
        self._segment_ids[number] = segment_id
        return Flow(self, number)

    def awaited_segments(self) -> list[int]:
        """The ids of the segments of which replies are still to come."""
        return list({self._segment_ids[number] for number, listener in self._flows.items() if listener.is_waiting})

    def forget_flow(self, number: int) -> None:
        self._flows.pop(number, None)
        self._segment_ids.pop(number, None)
        if self.retired and not self._flows:
            self.close()

    def retire(self) -> None:
        """Stops the use of this connection for new flows. It closes when its last flow ends."""
        self.retired = True

    def send(self, command: wire.WireCommand) -> None:
        if self._transport is None or self.closed is not None:
            return
        parts = wire.encode_joined(command, _JOIN_BYTES_MAX)
        if self._held is None:
            self._write(parts)
        else:
            self._held += parts

    def close(self, why: str = "was disconnected by this client") -> None:
        """Closes the connection at once, and calls `lost` on the listeners of its flows.

        `why` completes the sentence "segment store X ..." of their error.
        """
        self._fail(self._end.unavailable(why))

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from asyncio's
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._end.writable()

    def buffer_updated(self, nbytes: int) -> None:
        # The store often acknowledges several writers at once. Their next blocks leave together, so that the store
        # receives them together and syncs its log once. At 10,000 events/s that saves a seventh of its processor time.
        self._held = []
        try:
            for command in self._end.received(nbytes):
                self._dispatch(command)
        except CorruptError as error:
            self._fail(error)
        finally:
            self._write_held()

    def eof_received(self) -> None:
        self._fail(self._end.unavailable("closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(self._end.unavailable(f"broke the connection: {exc}" if exc else "closed the connection"))

    def _write_held(self) -> None:
        held, self._held = self._held, None
        if held and self.closed is None:
            self._write([b"".join(held)] if sum(map(len, held)) <= _JOIN_BYTES_MAX else held)

    def _write(self, parts: list[wire.Buffer]) -> None:
        assert self._transport is not None, "checked by `send`"
        for part in parts:  # `writelines` would copy all parts into one buffer
            if not self._is_encrypted:
                self._transport.write(part)
                continue
            for start in range(0, len(part), ENCRYPTED_AT_ONCE_BYTES):
                self._transport.write(memoryview(part)[start : start + ENCRYPTED_AT_ONCE_BYTES])

    def _dispatch(self, command: wire.WireCommand) -> None:
        listener = self._flows.get(flow_of(command))
        if listener is not None:
            listener.replied(command)
        elif not self._hello.done():
            self._hello.set_result(command)

    def _keep_alive(self) -> None:
        if self.closed is not None:
            return
        try:
            if self._end.keep_alive_is_due():
                self.send(wire.KeepAlive())
                if self._end.is_silent and self._on_silence is not None:
                    self._on_silence(self)
        except UnavailableError as silent:
            self._fail(silent)
            return
        self._timer = self._loop.call_later(KEEP_ALIVE_PERIOD_S, self._keep_alive)

    def _fail(self, problem: HeadraceError) -> None:
        if self.closed is not None:
            return
        self._write_held()
        self.closed = problem
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        if not self._hello.done():
            self._hello.set_exception(problem)
        flows, self._flows = self._flows, {}
        self._segment_ids.clear()
        for listener in flows.values():
            listener.lost(problem)


OnSilence = Callable[[AsyncConnection], object]
"""Called after each keep-alive period in which a store echoed nothing. The store may be slow, or gone."""


async def open_connection(
    host: str,
    port: int,
    tokens: Tokens | None = None,
    on_silence: OnSilence | None = None,
    tls: StoreTls | None = None,
) -> AsyncConnection:
    """Connects to a segment store and exchanges versions with it. `SingleReply` puts `tokens` into requests.

    `tls` None: without TLS.

    Raises:
        UnavailableError: no process listens at the address, or it does not answer in time; code "store_not_trusted":
            its certificate is refused.
        CorruptError: the process there does not speak the protocol, or only an incompatible version.
    """
    loop = asyncio.get_running_loop()
    connection = AsyncConnection(host, port, tokens, on_silence)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if tls is None:
                await loop.create_connection(lambda: connection, host, port)
            else:
                await loop.create_connection(lambda: connection, host, port, ssl=tls.context, server_hostname=tls.name)
    except (OSError, UnicodeError, TimeoutError) as error:  # UnicodeError: the host cannot be a DNS name
        connection._hello.cancel()
        if tls is not None and isinstance(error, ssl.SSLError):
            raise tls_problem(f"{host}:{port}", tls.name, error) from error
        raise connection._end.unavailable(f"cannot be reached: {error or 'time-out'}") from error
    try:
        await connection.shake_hands()
    except asyncio.CancelledError:
        connection.close()
        raise
    return connection


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
    flow.connection.close()
    return flow.connection._end.unavailable(f"did not answer a request within {timeout_s:g} s")


def problem_of(flow: Flow, reply: wire.WireCommand) -> HeadraceError:
    """Returns the error that a reply reports. After WrongHost the connection gets no new flows.

    Usually another store owns the segment now. If it is the same store, it has opened the container again, and this
    connection still belongs to the old instance.
    """
    if isinstance(reply, wire.WrongHost):
        flow.connection.retire()
    return wire.error_of_reply(reply)


class SingleReply:
    """A listener of a flow that has one request at a time: `await listener.ask(flow, command)`.

    A request that needs a delegation token gets it from the connection. If the store refuses the token, the request is
    sent again with another one.
    """

    def __init__(self) -> None:
        self.is_sent = False
        """Whether the store may have executed the last request. It executes none whose token it refuses."""
        self._waiting: asyncio.Future[wire.WireCommand] | None = None
        self._problem: HeadraceError | None = None
        self._flow: Flow | None = None
        self._command: wire.WireCommand | None = None
        self._refusals = 0
        self._sending: asyncio.Task[None] | None = None

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None and not self._waiting.done()

    @property
    def problem(self) -> HeadraceError | None:
        """What has ended the connection, or the appending of its writer: no more replies will arrive."""
        return self._problem

    @property
    def token(self) -> str:
        """The delegation token of the last request; empty if it had none."""
        token: str = getattr(self._command, "delegation_token", "")
        return token

    def ask(self, flow: Flow, command: wire.WireCommand) -> asyncio.Future[wire.WireCommand]:
        """Sends the command. The future gets the reply, or the error with which the connection was lost."""
        waiting = self._waiting = asyncio.get_running_loop().create_future()
        waiting.add_done_callback(mark_retrieved)
        if self._problem is not None:
            waiting.set_exception(self._problem)
            return waiting
        self._flow, self._command, self._refusals, self.is_sent = flow, command, 0, False
        tokens = flow.connection.tokens
        ready = command if tokens is None else tokens.ready(command)
        if ready is not None:
            self._send_now(flow, ready)
        else:
            assert tokens is not None, "without tokens each command is ready"
            self._send_later(waiting, tokens.attached(command))
        return waiting

    def replied(self, reply: wire.WireCommand) -> None:
        waiting = None if self._waiting is None or self._waiting.done() else self._waiting
        if type(reply) is wire.AuthTokenCheckFailed:
            self._refused(reply, waiting)
        elif waiting is not None:
            waiting.set_result(reply)

    def lost(self, problem: HeadraceError) -> None:
        self._problem = problem
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(problem)

    def _refused(self, reply: wire.AuthTokenCheckFailed, waiting: asyncio.Future[wire.WireCommand] | None) -> None:
        flow, command = self._flow, self._command
        if waiting is None or flow is None or command is None:
            self._problem = appending_ended()
        elif not hasattr(command, "delegation_token"):
            waiting.set_exception(appending_ended())
        elif request_id_of(command) != reply.request_id:
            return  # it ends an earlier set-up, which the request replaces
        elif (tokens := flow.connection.tokens) is None:
            waiting.set_result(reply)
        else:
            self.is_sent = False
            self._send_later(waiting, tokens.after_refusal(command, reply, self._refusals))
            self._refusals += bool(command.delegation_token)

    def _send_later(
        self, waiting: asyncio.Future[wire.WireCommand], coming: Coroutine[Any, Any, wire.WireCommand]
    ) -> None:
        self._sending = asyncio.get_running_loop().create_task(self._send(waiting, coming))

    async def _send(
        self, waiting: asyncio.Future[wire.WireCommand], coming: Coroutine[Any, Any, wire.WireCommand]
    ) -> None:
        try:
            command = await coming
        except Exception as error:  # noqa: BLE001 - the caller that waits raises it
            if not waiting.done():
                waiting.set_exception(error)
            return
        # A caller that does not wait any longer may have set its writer up again elsewhere, so nothing is sent for it.
        if not waiting.done() and self._flow is not None:
            self._send_now(self._flow, command)

    def _send_now(self, flow: Flow, command: wire.WireCommand) -> None:
        self._command, self.is_sent = command, True
        flow.send(command)


def appending_ended() -> UnavailableError:
    """The error for a store that ends the appending of a writer between two requests: its token has expired."""
    return UnavailableError("the delegation token of the writer has expired; set it up again", code="token_expired")
