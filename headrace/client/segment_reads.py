"""Bytes of segments for callers that are threads, such as Spark's executors: no events, no event loop.

Reads any range of a segment through its store, one request ahead of the caller, and resumes from where it stopped when
the store restarts or the segment moves. Not for use by several threads at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

from headrace import wire
from headrace.adapters.tcp.connection import CONNECT_TIMEOUT_S, BlockingConnection
from headrace.adapters.tcp.replies import error_of_reply
from headrace.api.segments import SegmentEndpoint
from headrace.client.back_off import FIRST_WAIT_S, LONGEST_WAIT_S
from headrace.model.errors import CorruptError, HeadraceError, InvalidRequestError
from headrace.model.names import segment_name

WINDOW_BYTES = 1024 * 1024
REPLY_TIMEOUT_S = 30.0
"""What is asked for is there already, so a store that does not answer for so long is in trouble."""


class Endpoints(Protocol):
    """Who knows where segments live: the admin."""

    def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint: ...


class SegmentReads:
    """Reads of the segments of one stream. Keeps one connection per store; use it with `with`."""

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
        """Gives up with the last problem after `give_up_after_s` without a byte."""
        self._endpoints = endpoints
        self._scope, self._stream = scope, stream
        self._window_bytes = window_bytes
        self._give_up_after_s = give_up_after_s
        self._sleep = sleep
        self._monotonic_s = monotonic_s
        self._connections: dict[tuple[str, int], BlockingConnection] = {}
        self.closed = False

    def read(self, segment_id: int, start: int, stop: int) -> Iterator[memoryview]:
        """The bytes `[start, stop)` of a segment, in order, in windows of at most `window_bytes`.

        Raises:
            TruncatedError: some of them are gone.
            NotFoundError: the segment is gone, or never was.
            CorruptError: the segment ends before `stop`.
            UnavailableError: its store could not be reached for too long.
        """
        if not 0 <= start <= stop:
            raise InvalidRequestError(f"[{start}, {stop}) is no range of bytes")
        position = start
        waits = _Waits(self._give_up_after_s, self._sleep, self._monotonic_s)
        while position < stop:
            try:
                for window in self._windows(segment_id, position, stop):
                    position += len(window)
                    waits.progress()
                    yield window
            except HeadraceError as problem:
                waits.wait(problem)

    def locate_offset(self, segment_id: int, target: int) -> int:
        """The nearest append boundary at or behind `target`; the segment's length if none is known. Raises as `read`.

        An append boundary is an event boundary.
        """
        waits = _Waits(self._give_up_after_s, self._sleep, self._monotonic_s)
        name = segment_name(self._scope, self._stream, segment_id)
        while True:
            try:
                connection = self._connection(segment_id)
                with _closing_on_error(connection):
                    (reply,) = connection.call(
                        [lambda number: wire.LocateOffset(number, name, target)], self._deadline_s()
                    )
                if isinstance(reply, wire.OffsetLocated):
                    return reply.offset
                raise error_of_reply(reply)
            except HeadraceError as problem:
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
        """Reads over one connection; the next window is asked for before the last one is handed out."""
        name = segment_name(self._scope, self._stream, segment_id)
        connection = self._connection(segment_id)
        position = start
        # Closed on every way out before the end, also by a caller that stops: an answer is still on its way.
        with _closing_on_error(connection):
            self._ask(connection, name, position, stop)
            while position < stop:
                reply = connection.receive(self._deadline_s())
                if not isinstance(reply, wire.SegmentRead):
                    raise error_of_reply(reply)
                if reply.offset != position:
                    raise CorruptError(f"{name}: asked for offset {position}, got bytes of {reply.offset}")
                window = memoryview(reply.data)[: stop - position]
                position += len(window)
                if position < stop:
                    if reply.end_of_segment:
                        raise CorruptError(
                            f"{name} ends at {position}, before {stop}", details={"segment": name, "length": position}
                        )
                    self._ask(connection, name, position, stop)
                if window:
                    yield window

    def _ask(self, connection: BlockingConnection, name: str, position: int, stop: int) -> None:
        length = min(self._window_bytes, stop - position)
        request = wire.ReadSegment(name, position, length, request_id=connection.next_request_id())
        connection.send(request, self._deadline_s())

    def _connection(self, segment_id: int) -> BlockingConnection:
        endpoint = self._endpoints.endpoint(self._scope, self._stream, segment_id)
        address = (endpoint.host, endpoint.port)
        connection = self._connections.get(address)
        if connection is None or connection.is_closed:
            connection = BlockingConnection(*address, timeout_s=CONNECT_TIMEOUT_S, monotonic_s=self._monotonic_s)
            self._connections[address] = connection
        return connection

    def _deadline_s(self) -> float:
        return self._monotonic_s() + REPLY_TIMEOUT_S


class _Waits:
    """Waits between attempts that double, until there was no progress for too long."""

    def __init__(
        self, give_up_after_s: float, sleep: Callable[[float], None], monotonic_s: Callable[[], float]
    ) -> None:
        self._give_up_after_s = give_up_after_s
        self._sleep = sleep
        self._monotonic_s = monotonic_s
        self.progress()

    def progress(self) -> None:
        self._next_wait_s = FIRST_WAIT_S
        self._since_s: float | None = None

    def wait(self, problem: HeadraceError) -> None:
        """Sleeps; raises `problem` if repeating cannot help, or did not for too long."""
        now_s = self._monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        if problem.retry == "never" or now_s - self._since_s >= self._give_up_after_s:
            raise problem
        self._sleep(self._next_wait_s)
        self._next_wait_s = min(self._next_wait_s * 2, LONGEST_WAIT_S)


class _closing_on_error:
    """Closes a connection when its conversation is broken off."""

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._connection.close()
