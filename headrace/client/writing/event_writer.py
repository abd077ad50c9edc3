"""The asynchronous API for writing events to a stream, and the core that it shares with the synchronous API.

Events of one routing key are stored in the order in which they were written, each exactly once, across reconnects,
restarts of segment stores and scaling. There is one exception: if a segment was sealed and deleted before the writer
learned the outcome of events in flight, these events are written again to the successors.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, cast

from headrace.api.segments import SegmentView, Successors
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.backoff import Backoff
from headrace.client.closing import handle_text
from headrace.client.column_errors import arrow_missing
from headrace.client.ownership import Ownership
from headrace.client.reading.recorded_successors import recorded_successors
from headrace.client.segment_connections import SegmentConnections
from headrace.client.writing.awaited_changes import Ack
from headrace.client.writing.batch_accumulator import (
    BLOCK_BYTES,
    BUFFER_BYTES,
    BatchAccumulator,
    check_routing_key,
    too_large,
)
from headrace.client.writing.ordered_calls import OrderedCalls
from headrace.client.writing.routing_table import Route
from headrace.client.writing.segment_appender import WRITER_ID_BITS, SegmentAppender
from headrace.model.arguments import check_argument, check_fields, checked_calls
from headrace.model.errors import (
    HeadraceError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_BYTES_MAX_LARGE
from headrace.model.names import segment_name
from headrace.model.writer_marks import check_writer_name

if TYPE_CHECKING:
    from headrace.client.writing.column_writes import ColumnSlice

Event = bytes | bytearray | memoryview
RoutingKeys = Sequence[str | None] | str | None


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Options of a writer.

    `write` waits while `buffer_bytes` of events are not acknowledged; one event may exceed this limit. If a segment
    makes no progress for `give_up_after_s`, its events fail with UnavailableError; whether they are stored is unknown.

    `writer_id` is the name under which `note_time` records times. The default is a random name. Set it if the writer is
    to be recognised after a restart.
    """

    block_bytes: int = BLOCK_BYTES
    buffer_bytes: int = BUFFER_BYTES
    give_up_after_s: float = 120.0
    writer_id: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.writer_id is not None:
            check_writer_name(self.writer_id)
        if not 1 <= self.block_bytes <= EVENT_BYTES_MAX or self.buffer_bytes < self.block_bytes:
            raise InvalidRequestError(
                f"a writer needs 1 <= block_bytes <= {EVENT_BYTES_MAX} and buffer_bytes >= block_bytes"
            )


class WriterCore:
    """The part of a writer that runs on the event loop: one appender per segment, and the change to successors."""

    def __init__(self, admin: AsyncAdmin, scope: str, stream: str, options: WriterOptions) -> None:
        self.scope, self.stream = scope, stream
        self.accumulator = BatchAccumulator(
            block_bytes=options.block_bytes, buffer_bytes=options.buffer_bytes, stream_name=f"{scope}/{stream}"
        )
        self._admin = admin
        self._options = options
        self._connections = SegmentConnections(admin, scope, stream)
        self._appenders: dict[int, SegmentAppender] = {}
        self._writer_id = options.writer_id or secrets.token_hex(WRITER_ID_BITS // 8)
        self._noted: dict[int, int] = {}
        self.closed = False
        self._ownership = Ownership()

    async def open(self) -> None:
        """Gets the stream's segments from the controller.

        Raises:
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed.
        """
        self._ownership.check()
        current = await self._admin.epoch_segments(self.scope, self.stream)
        if current.sealed:
            raise self._sealed()
        self.accumulator.route(Route(segment.key_range, self._appender(segment).queue) for segment in current.segments)

    async def close(self, reason: HeadraceError) -> None:
        """Closes the connections. Events that are not acknowledged fail with `reason`."""
        self.closed = True
        self.accumulator.close(reason)
        if self._ownership.has_gone():
            return
        # All at once: one that went on could make an appender of a successor, which would not be stopped.
        appenders, self._appenders = list(self._appenders.values()), {}
        ends = [appender.stop() for appender in appenders]
        for appender in appenders:
            self.segment_failed(appender, reason)
        try:
            await asyncio.gather(*ends)
        finally:
            await self._connections.close()  # also if the caller does not wait any longer

    async def note_time(self, time: int) -> None:
        """Tells the controller that all events acknowledged so far are before `time`."""
        offsets: dict[int, int] = {}
        for identifier, appender in self._appenders.items():
            if appender.acknowledged_offset is None:
                # After a reconnect only the store knows the offset. The tail of the stream is certainly not before it.
                offsets = (await self._admin.stream_cut(self.scope, self.stream, at="latest")).offsets
                break
            offsets[identifier] = appender.acknowledged_offset
        newest = max(offsets, default=0)
        for identifier, offset in self._noted.items():
            if identifier in offsets or identifier > newest:
                offsets[identifier] = max(offset, offsets.get(identifier, 0))
        await self._admin.watermarks.note_position(self.scope, self.stream, self._writer_id, time, offsets)
        self._noted = offsets

    async def deregister(self) -> None:
        """Deregisters the writer so that watermarks do not wait for it.

        If the call fails, the stream's time-out has the same effect.
        """
        if self._noted:
            with suppress(HeadraceError):
                await self._admin.watermarks.remove_writer(self.scope, self.stream, self._writer_id)

    # AppendOwner

    async def segment_replaced(self, appender: SegmentAppender) -> None:
        """Moves the unacknowledged events of a sealed segment to its successors."""
        found = await self._successors(appender.segment_id)
        self._appenders.pop(appender.segment_id, None)
        self._connections.forget(appender.segment_id)
        targets = [(segment.key_range, self._appender(segment).queue) for segment in found.segments]
        self.accumulator.reroute(appender.queue, appender.in_flight, targets)
        appender.in_flight.clear()

    def segment_failed(self, appender: SegmentAppender, error: HeadraceError) -> None:
        """Fails the events of the segment, and all later writes."""
        self._appenders.pop(appender.segment_id, None)
        self.accumulator.fail(appender.queue, appender.in_flight, error)
        appender.in_flight.clear()

    async def _successors(self, segment_id: int) -> Successors:
        """Waits for the successors of a sealed segment.

        Raises SealedError if the stream ends with the segment, NotFoundError if the stream was deleted.
        """
        try:
            found = await recorded_successors(self._admin, self.scope, self.stream, segment_id, self._backoff())
        except NotFoundError as error:
            raise NotFoundError(f"stream {self.scope}/{self.stream} was deleted") from error
        if not found.segments:
            raise self._sealed()
        return found

    def _appender(self, segment: SegmentView) -> SegmentAppender:
        """Returns the appender of a segment. Segments that were merged into one share its appender."""
        appender = self._appenders.get(segment.segment_id)
        if appender is None:
            appender = self._appenders[segment.segment_id] = SegmentAppender(
                self,
                self._connections,
                self.accumulator,
                segment_id=segment.segment_id,
                segment_name=segment.name or segment_name(self.scope, self.stream, segment.segment_id),
                writer_id=secrets.randbits(WRITER_ID_BITS),
                new_backoff=self._backoff,
                wake=asyncio.get_running_loop().call_soon_threadsafe,
            )
        return appender

    def _backoff(self) -> Backoff:
        return Backoff(self._options.give_up_after_s)

    def _sealed(self) -> SealedError:
        return SealedError(
            f"stream {self.scope}/{self.stream} is sealed: it accepts no more events",
            details={"scope": self.scope, "stream": self.stream},
        )


@checked_calls("write", "write_batch", "write_many")
class AsyncEventWriter:
    """Writes events on an event loop. Make it with `AsyncHeadrace.writer`, use it with `async with`."""

    def __init__(self, core: WriterCore) -> None:
        self._core = core
        self._accumulator = core.accumulator
        self._calls = OrderedCalls(core.accumulator)

    def __repr__(self) -> str:
        return handle_text(self, f"{self._core.scope}/{self._core.stream}", closed=self.closed)

    async def write(self, event: Event, routing_key: str | None = None) -> Ack:
        """Queues an event, and waits while the buffer is full. `await` the acknowledgement until it is durable.

        Raises:
            InvalidRequestError: code "event_too_large", or the event is not bytes-like.
            HeadraceError: the error that ended the writer, for example SealedError.
        """
        payload = event if type(event) is bytes else event_bytes(event)
        calls = self._calls
        # As in `calls.write`. Its call would cost more than what it does here.
        if not calls.unfinished and self._accumulator.filled_blocks == calls.filled_blocks:
            ack = self._accumulator.add(payload, routing_key)
            if ack is not None:
                return ack
        return await calls.write(payload, routing_key)

    async def write_batch(self, events: Iterable[Event], routing_keys: RoutingKeys = None) -> Ack:
        """Queues many events. `routing_keys` has one key per event, or is one key for all, or None.

        Raises the same errors as `write`.
        """
        return await self._calls.write_batch(*checked_batch(events, routing_keys))

    async def write_many(self, events: Any, routing_keys: Any = None) -> Ack:
        """Queues the events of an Arrow or numpy column, without a Python object per event (extra `headrace[arrow]`).

        `events` is an Arrow array of binary or string, a numpy array of bytes, text, records or rows of uint8, anything
        that exports such a column to Arrow, or a table with the column `event` and perhaps `routing_key`. Other columns
        of a table are ignored. `routing_keys` is a column of text (null: no key), one key for all, or None.

        Raises:
            InvalidRequestError: code "event_too_large", the columns do not have these types or lengths, an event is
                null, or pyarrow is not installed. No event is queued.
            HeadraceError: the error that ended the writer, for example SealedError.
        """
        slices = column_slices(events, routing_keys, EVENT_BYTES_MAX_LARGE, too_large)
        return await self._calls.write_slices(slices)

    async def flush(self) -> None:
        """Waits until all written events are acknowledged. Raises the error that ended the writer, if any."""
        await self._calls.flush()

    async def note_time(self, time: int) -> None:
        """Flushes, and records that all events written so far are before `time`, in the events' own time.

        The stream's watermarks are computed from the times of all its writers. Readers get them from `time_window`.

        Raises:
            InvalidRequestError: code "invalid_time": the writer has already noted a later time.
            HeadraceError: an error of `flush`, or the controller cannot be reached.
        """
        await self.flush()
        await self._core.note_time(time)

    async def close(self) -> None:
        """Flushes, then closes the connections. Raises the same errors as `flush`."""
        try:
            if self._accumulator.failure is None:
                await self.flush()
                await self._core.deregister()
        finally:
            await self._core.close(closed_error())

    @property
    def closed(self) -> bool:
        return self._core.closed

    @property
    def acknowledged_events(self) -> int:
        """The number of events that are known to be durable."""
        return self._accumulator.acknowledged_events

    async def __aenter__(self) -> AsyncEventWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self._core.close(closed_error())


def event_bytes(event: Event) -> bytes:
    """Returns the event as immutable bytes, so that the caller cannot change it while it waits to be sent."""
    if type(event) is bytes:
        return event
    if not isinstance(event, bytes | bytearray | memoryview):
        raise InvalidRequestError(f"an event is bytes, not {type(event).__name__}; encode it first")
    return bytes(event)


def checked_batch(
    events: Iterable[Event],
    routing_keys: RoutingKeys,
    event_bytes_max: int = EVENT_BYTES_MAX_LARGE,
    refuse: Callable[[int], InvalidRequestError] = too_large,
) -> tuple[list[bytes], Sequence[str | None]]:
    """Returns the events as bytes, with one key per event.

    Raises:
        InvalidRequestError: an event is too large or not bytes, or the number of keys differs from that of the events.
    """
    if isinstance(events, str | bytes | bytearray | memoryview | Mapping):
        raise InvalidRequestError(f"write_batch: events is a {type(events).__name__}, but must be a list of bytes")
    check_argument("write_batch: events", events, Iterable)
    given = list(events)
    payloads = cast("list[bytes]", given) if set(map(type, given)) <= {bytes} else list(map(event_bytes, given))
    largest_bytes = max(map(len, payloads), default=0)
    if largest_bytes > event_bytes_max:
        raise refuse(largest_bytes)
    if routing_keys is None or isinstance(routing_keys, str):
        return payloads, [routing_keys] * len(payloads)
    check_argument("write_batch: routing_keys", routing_keys, Sequence)
    if len(routing_keys) != len(payloads):
        raise InvalidRequestError(f"{len(payloads)} events came with {len(routing_keys)} routing keys")
    keys = routing_keys if isinstance(routing_keys, list | tuple) else list(routing_keys)  # not an array of numpy
    if not set(map(type, keys)) <= {str, NoneType}:
        for key in keys:
            check_routing_key(key)
    return payloads, keys


def column_slices(
    events: Any, routing_keys: Any, event_bytes_max: int, refuse: Callable[[int], InvalidRequestError]
) -> list[ColumnSlice]:
    """Returns the events of columns in slices. Imports what needs pyarrow; see `column_writes.column_slices`."""
    try:
        from headrace.client.writing import column_writes
    except ImportError as error:
        raise arrow_missing("write_many") from error
    return column_writes.column_slices(events, routing_keys, event_bytes_max, refuse)


def closed_error() -> HeadraceError:
    return UnavailableError("the writer is closed; make a new one", code="writer_closed")
