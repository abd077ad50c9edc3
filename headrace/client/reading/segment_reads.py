"""Blocking reads of byte ranges of segments, for threads without an event loop, such as Spark's executors.

Reads a range of a segment through its store, one request ahead of the caller. After a restart of the store or a move of
the segment it resumes at the same offset. Not thread-safe.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

from headrace import wire
from headrace.api.segments import SegmentEndpoint
from headrace.client.backoff import pause_s
from headrace.client.synchronous.synchronous_delegation_tokens import DelegationTokens
from headrace.client.synchronous.synchronous_trust import Trust
from headrace.model.errors import CorruptError, HeadraceError, InvalidRequestError, UnavailableError
from headrace.model.names import segment_name
from headrace.wire.client_end import CONNECT_TIMEOUT_S
from headrace.wire.connections.blocking import BlockingConnection
from headrace.wire.tls import STORE_NOT_TRUSTED, StoreTls

WINDOW_BYTES = 1024 * 1024
REPLY_TIMEOUT_S = 30.0
"""The bytes of a read are already stored, so a store that takes longer than this is not working."""


class Endpoints(Protocol):
    """Finds the store of a segment; the admin implements it."""

    @property
    def delegation_tokens(self) -> DelegationTokens: ...

    @property
    def trust(self) -> Trust: ...

    def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint: ...


class SegmentReads:
    """Reads segments of one stream, over one connection per store. Use it with `with`."""

    def __init__(
        self,
        endpoints: Endpoints,
        scope: str,
        stream: str,
        *,
        window_bytes: int = WINDOW_BYTES,
        give_up_after_s: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """After `give_up_after_s` without progress, reads raise the last error."""
        self._endpoints = endpoints
        self._scope, self._stream = scope, stream
        self._window_bytes = window_bytes
        self._give_up_after_s = give_up_after_s
        self._sleep = sleep
        self._monotonic_s = monotonic_s
        self._connections: dict[tuple[str, int, str], BlockingConnection] = {}
        self._expected: dict[int, SegmentEndpoint] = {}
        self.closed = False

    def expect(self, segment_id: int, endpoint: SegmentEndpoint) -> None:
        """Says where a segment was a moment ago, so that the controller is asked only if it is there no longer."""
        self._expected[segment_id] = endpoint

    def read(self, segment_id: int, start: int, stop: int) -> Iterator[memoryview]:
        """Yields the bytes `[start, stop)` of a segment, in order, in windows of at most `window_bytes`.

        Raises:
            TruncatedError: some of the bytes have been truncated.
            NotFoundError: the segment was deleted or never existed.
            CorruptError: the segment ends before `stop`.
            UnavailableError: its store could not be reached, or did not have these bytes yet, for too long.
        """
        if not 0 <= start <= stop:
            raise InvalidRequestError(f"[{start}, {stop}) is not a range of bytes")
        position = start
        waits = _Waits(self._give_up_after_s, self._sleep, self._monotonic_s)
        while position < stop:
            try:
                for window in self._windows(segment_id, position, stop):
                    position += len(window)
                    waits.progress()
                    yield window
            except HeadraceError as problem:
                if self._expected.pop(segment_id, None) is None or problem.retry == "never":
                    waits.wait(problem)

    def close(self) -> None:
        self.closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> SegmentReads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _windows(self, segment_id: int, start: int, stop: int) -> Iterator[memoryview]:
        """Reads over one connection. Requests the next window before it yields the current one."""
        name = segment_name(self._scope, self._stream, segment_id)
        connection = self._connection(segment_id)
        position = start
        # Closes the connection unless all was read, also if the caller stops early: a late reply would otherwise be
        # taken for that of the next request.
        with _closing_on_error(connection):
            request = self._ask(connection, name, position, stop)
            while position < stop:
                reply = self._reply(connection, request)
                if not isinstance(reply, wire.SegmentRead):
                    raise wire.error_of_reply(reply)
                if reply.offset != position:
                    raise CorruptError(f"{name}: requested offset {position}, received offset {reply.offset}")
                window = memoryview(reply.data)[: stop - position]
                position += len(window)
                if position < stop:
                    if reply.end_of_segment:
                        raise CorruptError(
                            f"{name} ends at {position}, before {stop}", details={"segment": name, "length": position}
                        )
                    request = self._ask(connection, name, position, stop)
                if not window:
                    raise UnavailableError(
                        f"{name}: asked for bytes up to {stop}, but its store has none after {position} yet",
                        details={"segment": name, "length": position},
                    )
                yield window

    def _ask(self, connection: BlockingConnection, name: str, position: int, stop: int) -> wire.WireCommand:
        length = min(self._window_bytes, stop - position)
        request = wire.ReadSegment(name, position, length, request_id=connection.next_request_id())
        return self._send(connection, request)

    def _send(self, connection: BlockingConnection, request: wire.WireCommand) -> wire.WireCommand:
        """Sends a request with a delegation token, if the deployment wants one. Returns what was sent."""
        tokens = self._endpoints.delegation_tokens
        if tokens.demanded:
            request = tokens.attached(request)
        connection.send(request, self._deadline_s())
        return request

    def _reply(self, connection: BlockingConnection, request: wire.WireCommand) -> wire.WireCommand:
        """Returns the reply to the request that was sent last. If its token is refused, it is sent with another one."""
        refusals = 0
        while isinstance(reply := connection.receive(self._deadline_s()), wire.AuthTokenCheckFailed):
            refused = request
            request = self._endpoints.delegation_tokens.after_refusal(refused, reply, refusals)
            refusals += bool(getattr(refused, "delegation_token", ""))
            connection.send(request, self._deadline_s())
        return reply

    def _connection(self, segment_id: int) -> BlockingConnection:
        endpoint = self._expected.get(segment_id)
        if endpoint is None:
            endpoint = self._endpoints.endpoint(self._scope, self._stream, segment_id)
        address = (endpoint.host, endpoint.port, endpoint.tls_name)
        connection = self._connections.get(address)
        if connection is None or connection.is_closed:
            connection = self._connections[address] = self._open(endpoint)
        return connection

    def _open(self, endpoint: SegmentEndpoint) -> BlockingConnection:
        if not endpoint.tls_name:
            return self._connect(endpoint, None)
        trust = self._endpoints.trust
        context = trust.context()
        try:
            return self._connect(endpoint, context)
        except UnavailableError as problem:
            if problem.specific_code != STORE_NOT_TRUSTED:
                raise
            renewed = trust.renewed(context, problem)
            if renewed is None:
                raise
        return self._connect(endpoint, renewed)

    def _connect(self, endpoint: SegmentEndpoint, context: ssl.SSLContext | None) -> BlockingConnection:
        return BlockingConnection(
            endpoint.host,
            endpoint.port,
            tls=None if context is None else StoreTls(context, endpoint.tls_name),
            timeout_s=CONNECT_TIMEOUT_S,
            monotonic_s=self._monotonic_s,
        )

    def _deadline_s(self) -> float:
        return self._monotonic_s() + REPLY_TIMEOUT_S


class _Waits:
    """Exponential back-off between attempts, until there was no progress for too long."""

    def __init__(
        self, give_up_after_s: float, sleep: Callable[[float], None], monotonic_s: Callable[[], float]
    ) -> None:
        self._give_up_after_s = give_up_after_s
        self._sleep = sleep
        self._monotonic_s = monotonic_s
        self.progress()

    def progress(self) -> None:
        self._failures = 0
        self._since_s: float | None = None

    def wait(self, problem: HeadraceError) -> None:
        """Sleeps before a retry. Raises `problem` if a retry cannot succeed, or after too long without progress."""
        now_s = self._monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        if problem.retry == "never" or now_s - self._since_s >= self._give_up_after_s:
            raise problem
        self._failures += 1
        self._sleep(pause_s(problem, self._failures))


class _closing_on_error:
    """Closes a connection when the block is left by an exception."""

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._connection.close()
