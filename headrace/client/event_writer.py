"""Writes events to a stream: the asynchronous face, and what both faces share.

Events of one routing key are stored in the order in which they were written, each exactly once, across reconnects,
restarts of segment stores and scaling. (One exception: a segment that was not only sealed but deleted before the writer
learnt what became of events in flight; these are written again to the successors.)
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import cast

from headrace.api.segments import SegmentView, Successors
from headrace.client.admin import AsyncAdmin
from headrace.client.back_off import BackOff
from headrace.client.connections import SegmentConnections
from headrace.client.event_blocks import Ack
from headrace.client.event_packer import BLOCK_BYTES, BUFFER_BYTES, EventPacker, too_large
from headrace.client.routing_table import Route
from headrace.client.segment_appender import WRITER_ID_BITS, SegmentAppender
from headrace.model.errors import (
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_BYTES_MAX_LARGE
from headrace.model.names import segment_name
from headrace.model.writer_marks import check_writer_name

Event = bytes | bytearray | memoryview
RoutingKeys = Sequence[str | None] | str | None
BATCH_SLICE_EVENTS = 10_000
"""Events of a batch packed under one hold of the lock."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """`buffer_bytes` bounds what is not yet acknowledged; beyond it `write` waits. One event may go beyond it.

    `give_up_after_s` without any progress of a segment, its events fail with UnavailableError; whether they were
    stored is then unknown. `writer_id` is the name under which `note_time` speaks: a random one, unless a writer that
    comes back is to be known as the same.
    """

    block_bytes: int = BLOCK_BYTES
    buffer_bytes: int = BUFFER_BYTES
    give_up_after_s: float = 120.0
    writer_id: str | None = None

    def __post_init__(self) -> None:
        if self.writer_id is not None:
            check_writer_name(self.writer_id)
        if not 1 <= self.block_bytes <= EVENT_BYTES_MAX or self.buffer_bytes < self.block_bytes:
            raise InvalidRequestError(
                f"a writer needs 1 <= block_bytes <= {EVENT_BYTES_MAX} and a buffer of at least one block"
            )


class WriterCore:
    """The part of a writer that lives on the event loop: appenders of segments and the change from one to the next."""

    def __init__(self, admin: AsyncAdmin, scope: str, stream: str, options: WriterOptions) -> None:
        self.scope, self.stream = scope, stream
        self.packer = EventPacker(block_bytes=options.block_bytes, buffer_bytes=options.buffer_bytes)
        self._admin = admin
        self._options = options
        self._connections = SegmentConnections(admin, scope, stream)
        self._appenders: dict[int, SegmentAppender] = {}
        self._writer_id = options.writer_id or secrets.token_hex(WRITER_ID_BITS // 8)
        self._noted: dict[int, int] = {}

    async def open(self) -> None:
        """Learns the stream's segments.

        Raises:
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed.
        """
        current = await self._admin.epoch_segments(self.scope, self.stream)
        if current.sealed:
            raise self._sealed()
        self.packer.route(Route(one.key_range, self._appender(one).queue) for one in current.segments)

    async def close(self, reason: HeadraceError) -> None:
        """Drops the connections; whatever is not acknowledged fails with `reason`."""
        self.packer.close(reason)
        for appender in list(self._appenders.values()):
            await appender.stop()
            self.packer.fail(appender.queue, appender.in_flight, reason)
        self._appenders.clear()
        await self._connections.close()

    async def note_time(self, time: int) -> None:
        """Tells the controller that everything acknowledged so far was written before `time`."""
        offsets: dict[int, int] = {}
        for identifier, appender in self._appenders.items():
            if appender.acknowledged_offset is None:
                # Only the store knows how far a reconnect got: the end of the stream is behind that for sure.
                offsets = (await self._admin.stream_cut(self.scope, self.stream, at="tail")).offsets
                break
            offsets[identifier] = appender.acknowledged_offset
        newest = max(offsets, default=0)
        for identifier, offset in self._noted.items():
            if identifier in offsets or identifier > newest:
                offsets[identifier] = max(offset, offsets.get(identifier, 0))
        await self._admin.watermarks.note_position(self.scope, self.stream, self._writer_id, time, offsets)
        self._noted = offsets

    async def shut_down(self) -> None:
        """Nobody shall wait for this writer's time; if that cannot be said, the stream's time-out will do."""
        if self._noted:
            with suppress(HeadraceError):
                await self._admin.watermarks.remove_writer(self.scope, self.stream, self._writer_id)

    # AppendOwner

    async def segment_replaced(self, appender: SegmentAppender) -> None:
        """Reroutes what is left of a segment that takes no more events."""
        found = await self._successors(appender.segment_id)
        self._appenders.pop(appender.segment_id, None)
        self._connections.forget(appender.segment_id)
        targets = [(one.segment.key_range, self._appender(one.segment).queue) for one in found.segments]
        self.packer.reroute(appender.queue, appender.in_flight, targets)
        appender.in_flight.clear()

    def segment_failed(self, appender: SegmentAppender, error: HeadraceError) -> None:
        """Its events fail; so does, from now on, the writer."""
        self._appenders.pop(appender.segment_id, None)
        self.packer.fail(appender.queue, appender.in_flight, error)
        appender.in_flight.clear()

    async def _successors(self, segment_id: int) -> Successors:
        """Raises SealedError if the stream ends here, NotFoundError if it was deleted."""
        back_off = self._back_off()
        while True:
            try:
                found = await self._admin.successors(self.scope, self.stream, segment_id, as_recorded=True)
            except NotFoundError as error:
                raise NotFoundError(f"stream {self.scope}/{self.stream} was deleted") from error
            if found.segments:
                return found
            if found.sealed:
                raise self._sealed()
            # Sealed in the store, and the controller does not say yet why: the stream is being sealed.
            await back_off.wait(IllegalStateError(f"segment {segment_id} is sealed but has no successors"))

    def _appender(self, segment: SegmentView) -> SegmentAppender:
        """The appender of a segment; a segment that several others were merged into has one."""
        appender = self._appenders.get(segment.segment_id)
        if appender is None:
            appender = self._appenders[segment.segment_id] = SegmentAppender(
                self,
                self._connections,
                self.packer,
                segment_id=segment.segment_id,
                segment_name=segment.name or segment_name(self.scope, self.stream, segment.segment_id),
                writer_id=secrets.randbits(WRITER_ID_BITS),
                new_back_off=self._back_off,
                wake=asyncio.get_running_loop().call_soon_threadsafe,
            )
        return appender

    def _back_off(self) -> BackOff:
        return BackOff(self._options.give_up_after_s)

    def _sealed(self) -> SealedError:
        return SealedError(
            f"stream {self.scope}/{self.stream} is sealed: it takes no more events",
            details={"scope": self.scope, "stream": self.stream},
        )


class AsyncEventWriter:
    """Writes events on an event loop. Make it with `AsyncHeadrace.writer`, use it with `async with`."""

    def __init__(self, core: WriterCore) -> None:
        self._core = core
        self._packer = core.packer
        self._changed = asyncio.Event()
        self._packer.listen(self._changed.set)

    async def write(self, event: Event, routing_key: str | None = None) -> Ack:
        """Queues an event; waits while the buffer is full. `await` the acknowledgement to know that it is durable.

        Raises:
            InvalidRequestError: code "event_too_large".
            HeadraceError: what ended the writer, for example SealedError.
        """
        payload = event_bytes(event)
        while (ack := self._packer.add(payload, routing_key)) is None:
            await self._until(self._packer.has_room)
        return ack

    async def write_batch(self, events: Iterable[Event], routing_keys: RoutingKeys = None) -> Ack:
        """Queues many events; `routing_keys` is one for each, one for all, or None. Raises as `write`."""
        payloads, keys = checked_batch(events, routing_keys)
        ack = self._packer.new_ack()
        for first in range(0, len(payloads), BATCH_SLICE_EVENTS):
            last = first + BATCH_SLICE_EVENTS
            while not self._packer.add_batch(payloads[first:last], keys[first:last], ack):
                await self._until(self._packer.has_room)
        self._packer.settle(ack)
        return ack

    async def flush(self) -> None:
        """Returns when every event written is acknowledged; raises what ended the writer, if something did."""
        await self._until(self._packer.is_empty)
        if self._packer.failure is not None:
            raise self._packer.failure

    async def note_time(self, time: int) -> None:
        """Says that everything this writer wrote so far is before `time`, by the events' own clock; waits for `flush`.

        Watermarks of the stream follow from what all its writers say; readers learn them from `time_window`.

        Raises:
            InvalidRequestError: code "invalid_time": the writer has noted a later time before.
            HeadraceError: as `flush`, or the controller cannot be reached.
        """
        await self.flush()
        await self._core.note_time(time)

    async def close(self) -> None:
        """Flushes, then lets go of the connections; raises as `flush`."""
        try:
            if self._packer.failure is None:
                await self.flush()
                await self._core.shut_down()
        finally:
            await self._core.close(closed_error())

    @property
    def acknowledged_events(self) -> int:
        """How many events are known to be durable."""
        return self._packer.acknowledged_events

    async def __aenter__(self) -> AsyncEventWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self._core.close(closed_error())

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


def event_bytes(event: Event) -> bytes:
    """An event that nobody can change while it waits to be sent."""
    if type(event) is bytes:
        return event
    if not isinstance(event, bytes | bytearray | memoryview):
        raise InvalidRequestError(f"an event is bytes, not {type(event).__name__}; encode it first")
    return bytes(event)


def checked_batch(events: Iterable[Event], routing_keys: RoutingKeys) -> tuple[list[bytes], Sequence[str | None]]:
    """The events as bytes and a key for each.

    Raises:
        InvalidRequestError: an event is too large or no bytes, or there are more or fewer keys than events.
    """
    given = list(events)
    payloads = cast("list[bytes]", given) if set(map(type, given)) <= {bytes} else list(map(event_bytes, given))
    largest_bytes = max(map(len, payloads), default=0)
    if largest_bytes > EVENT_BYTES_MAX_LARGE:
        raise too_large(largest_bytes)
    if routing_keys is None or isinstance(routing_keys, str):
        return payloads, [routing_keys] * len(payloads)
    if len(routing_keys) != len(payloads):
        raise InvalidRequestError(f"{len(payloads)} events came with {len(routing_keys)} routing keys")
    return payloads, routing_keys


def closed_error() -> HeadraceError:
    return UnavailableError("the writer is closed; make a new one", code="writer_closed")
