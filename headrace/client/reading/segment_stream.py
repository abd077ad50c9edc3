"""Reads the events of one segment, window by window, from an offset to a stop or to the segment's end.

The next window is requested while the current one is parsed and delivered. At the tail the store holds a request until
an event is written. After a lost connection or a move of the segment, reading resumes at the same offset. Where the
store is in another zone than the reader, history comes from S3 (`linked_history.py`); all does for a reader that uses
no store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from headrace import wire
from headrace.client.backoff import Backoff
from headrace.client.reading.linked_history import LinkedHistory
from headrace.client.segment_connections import SegmentConnections
from headrace.codec.events import EventAssembler
from headrace.model.errors import CorruptError, HeadraceError, NotFoundError, TruncatedError, UnavailableError
from headrace.model.limits import EVENT_HEADER_BYTES
from headrace.wire.connections.asynchronous import Flow, SingleReply, answer_within, problem_of

READ_TIMEOUT_S = 60.0
"""Longer than the 10 to 20 s for which a store holds a request at the tail."""

GLIMPSE_BYTES = 4096
"""Read from the store before bytes are read from S3. The reply tells of truncations, and when the bytes were stored."""

STORE_BYTES_BETWEEN_LISTINGS = 8 << 20
"""Read from the store behind its tail, before S3 is looked at again."""

OnTruncation = Literal["error", "skip"]

AskForLength = Callable[[], Awaitable[int | None]]

AskForSealedLength = Callable[[int], Awaitable[int | None]]


class EventBatch(NamedTuple):
    """Consecutive events of one segment. The first starts at `offset`, the last ends at `end_offset`."""

    segment_id: int
    offset: int
    end_offset: int
    events: list[bytes]

    def after(self, at: int) -> EventBatch | None:
        """Returns the events that start at the offset `at` or behind it, None if there are none."""
        return self if at <= self.offset else self.split(at)[1]

    def split(self, at: int) -> tuple[EventBatch, EventBatch | None]:
        """Returns the events that start before the offset `at`, at least one, and the others."""
        middle, count = self.offset, 0
        while count < len(self.events) and (not count or middle < at):
            middle += EVENT_HEADER_BYTES + len(self.events[count])
            count += 1
        first = self._replace(end_offset=middle, events=self.events[:count])
        if count == len(self.events):
            return first, None
        return first, self._replace(offset=middle, events=self.events[count:])


class ArrowBatch(NamedTuple):
    """Consecutive events of one segment as an Arrow record batch. The last one ends at `end_offset`."""

    segment_id: int
    end_offset: int
    events: Any

    @property
    def offset(self) -> int:
        """Where the first event starts."""
        return int(self.events["offset"][0].as_py())

    def split(self, at: int) -> tuple[ArrowBatch, ArrowBatch | None]:
        """Returns the events that start before the offset `at`, at least one, and the others."""
        offsets = self.events["offset"].to_numpy()
        count = max(1, int(offsets.searchsorted(at)))
        if count >= len(offsets):
            return self, None
        first = self._replace(end_offset=int(offsets[count]), events=self.events.slice(0, count))
        return first, self._replace(events=self.events.slice(count))


Batch = TypeVar("Batch", covariant=True)


class Assembler(Protocol[Batch]):
    """Turns consecutive reads of one segment into batches. It keeps the start of an incomplete event."""

    @property
    def offset(self) -> int:
        """Where the first event starts that is not yet in a batch, in bytes."""
        ...

    @property
    def cut_off_bytes(self) -> int:
        """The bytes after `offset` that belong to an incomplete event."""
        ...

    def add(self, data: memoryview) -> Batch | None:
        """Returns the events that these bytes complete, None if there are none.

        Raises:
            CorruptError: the bytes are not events.
        """
        ...


class EventBatches:
    """Assembles batches of single events."""

    def __init__(self, segment_id: int, offset: int) -> None:
        self._segment_id = segment_id
        self._events = EventAssembler(offset)

    @property
    def offset(self) -> int:
        return self._events.offset

    @property
    def cut_off_bytes(self) -> int:
        return self._events.cut_off_bytes

    def add(self, data: memoryview) -> EventBatch | None:
        offset = self._events.offset
        events = self._events.add(data)
        return EventBatch(self._segment_id, offset, self._events.offset, events) if events else None


async def unknown_length() -> None:
    """The length of a deleted segment for callers that cannot ask: its end is then not known from its bytes."""


class SegmentStream(Generic[Batch]):
    """Reads one segment once: call `run` a single time.

    `stored_at_us` is when the bytes that came last were stored, by the clock of the store, in microseconds since the
    Unix epoch; 0 if it is not known. For bytes from S3 it is the time of some bytes before them, at most
    `LISTED_BYTES_MAX` away. `at_tail` tells whether they are the last ones that the store had.
    """

    def __init__(
        self,
        connections: SegmentConnections,
        segment_id: int,
        segment_name: str,
        *,
        start: int,
        stop: int | None,
        window_bytes: int,
        on_truncation: OnTruncation,
        backoff: Backoff,
        assemble: Callable[[int, int], Assembler[Batch]],
        truncated_length: AskForLength = unknown_length,
        history: LinkedHistory | None = None,
        sealed_length: AskForSealedLength | None = None,
    ) -> None:
        """`assemble(segment_id, offset)` makes the assembler of the segment's bytes from an offset on.

        `truncated_length` asks for the length that the segment had, if a truncation has deleted it. Without `history`
        all bytes come from the store. With `sealed_length` all come from S3: it asks the controller for the length of
        the segment, None while it may grow, and raises TruncatedError if what follows an offset was truncated.
        """
        self.segment_id = segment_id
        self.stored_at_us = 0
        self.at_tail = False
        self._connections = connections
        self._name = segment_name
        self._stop = stop
        self._window_bytes = window_bytes
        self._on_truncation = on_truncation
        self._backoff = backoff
        self._assemble = assemble
        self._truncated_length = truncated_length
        self._history = history
        self._sealed_length = sealed_length
        self._before_links: int | None = None  # bytes to read from the store before S3 is looked at; None: all
        self._assembler = assemble(segment_id, start)
        self._began_at = start
        self._ended = stop is not None and start >= stop

    async def run(self, deliver: Callable[[Batch], Awaitable[None]]) -> None:
        """Passes all events to `deliver`. Returns at the stop or at the end of the segment.

        Raises:
            TruncatedError: unread events have been truncated, and `on_truncation` is "error". A segment that was read
                to its end before a truncation has deleted it ends here as others do.
            CorruptError: the segment does not contain valid events, or ends before the stop.
            UnavailableError: its store, or S3, could not be reached for too long; or S3 has no bytes up to the stop.
        """
        while not self._ended:
            try:
                if self._sealed_length is None:
                    await self._converse(deliver)
                else:
                    await self._read_stored(deliver, self._sealed_length)
            except TruncatedError:
                if await self._truncated_length() != self._next_offset:
                    raise
                check_ends_between_events(self._name, self._assembler)
                self._ended = True  # all of it was read before a truncation has deleted it
            except HeadraceError as problem:
                if problem.retry == "never":
                    raise
                self._connections.forget(self.segment_id)
                await self._backoff.wait(problem)
        self._connections.forget(self.segment_id)

    async def _converse(self, deliver: Callable[[Batch], Awaitable[None]]) -> None:
        """Reads over one connection until the end, or until it is lost."""
        connection = await self._connections.to_segment(self.segment_id)
        zone = self._connections.zone_of(self.segment_id)
        links_pay = self._history is not None and await self._history.saves(zone)
        self._before_links = GLIMPSE_BYTES if links_pay else None
        replies = SingleReply()
        flow = connection.open_flow(replies, self.segment_id)
        try:
            asked_at = self._next_offset
            waiting = self._ask(flow, replies)
            while not self._ended:
                reply = await answer_within(flow, waiting, READ_TIMEOUT_S)
                data = self._data_of(flow, reply, asked_at)
                self._backoff.progress()
                asked_at = self._next_offset + len(data)
                links_are_due = self._links_are_due(reply, len(data))
                if not self._ended and not links_are_due:
                    waiting = self._ask(flow, replies, after=len(data))
                if isinstance(reply, wire.SegmentRead):
                    self.stored_at_us = reply.ordering_number
                    self.at_tail = reply.at_tail
                batch = self._assembler.add(data) if data else None
                del data, reply  # frees the receive buffer, so that the connection does not allocate another one
                self._refuse_begin_inside_event()
                if batch is not None:
                    await deliver(batch)
                if links_are_due and not self._ended:
                    asked_at = await self._read_links(deliver)
                    if not self._ended:
                        waiting = self._ask(flow, replies)
            check_ends_between_events(self._name, self._assembler)
        finally:
            flow.close()

    def _links_are_due(self, reply: wire.WireCommand, count: int) -> bool:
        """Whether S3 is looked at behind this reply with so many bytes: enough came from the store, behind its tail."""
        if self._before_links is None or not isinstance(reply, wire.SegmentRead):
            return False
        if reply.at_tail:
            self._before_links = STORE_BYTES_BETWEEN_LISTINGS
            return False
        self._before_links -= count
        return self._before_links <= 0

    async def _read_links(self, deliver: Callable[[Batch], Awaitable[None]]) -> int:
        """Reads what S3 gives from here on. Returns the offset behind it, where the store is asked again."""
        assert self._history is not None, "only due with it"
        start = self._next_offset
        await self._deliver_windows(self._history.windows(self.segment_id, start, self._stop), deliver)
        self._before_links = STORE_BYTES_BETWEEN_LISTINGS if self._next_offset == start else GLIMPSE_BYTES
        return self._next_offset

    async def _deliver_windows(
        self, given: AsyncGenerator[bytes | bytearray, None], deliver: Callable[[Batch], Awaitable[None]]
    ) -> None:
        async with aclosing(given) as windows:
            async for window in windows:
                self._backoff.progress()
                self._ended = self._next_offset + len(window) == self._stop
                batch = self._assembler.add(memoryview(window))
                if batch is not None:
                    await deliver(batch)

    async def _read_stored(
        self, deliver: Callable[[Batch], Awaitable[None]], sealed_length: AskForSealedLength
    ) -> None:
        """Reads what S3 has, and looks again for more, until the end."""
        assert self._history is not None, "it lists what S3 has"
        while not self._ended:
            start = self._next_offset
            try:
                await self._deliver_windows(self._history.stored(self.segment_id, start, self._stop), deliver)
                if self._next_offset == start and not self._ended:
                    await self._wait_for_stored(self._history, await sealed_length(start))
            except NotFoundError as error:
                if await self._truncated_length() is None:
                    raise  # the stream was deleted
                self._skip_rest(error)
            except TruncatedError as error:
                head = error.details.get("startOffset")
                if not isinstance(head, int) or head <= self._next_offset:
                    self._skip_rest(error)
                elif self._on_truncation == "skip":
                    self._skip_to(head)
                else:
                    raise
        check_ends_between_events(self._name, self._assembler)

    async def _wait_for_stored(self, history: LinkedHistory, length: int | None) -> None:
        """At the end of what S3 has of the segment, which has this length if it is sealed."""
        offset = self._next_offset
        if length is not None and self._ended_with(end_of_segment=offset == length, offset=offset):
            self._ended = True
            return
        await history.until_next_listing()
        if self._stop is None:
            self._backoff.progress()
        else:
            await self._backoff.wait(
                UnavailableError(
                    f"S3 has {self._name} up to {offset}, and not yet up to the end {self._stop} of the stream cut",
                    details={"segment": self._name, "length": offset},
                )
            )

    @property
    def _next_offset(self) -> int:
        return self._assembler.offset + self._assembler.cut_off_bytes

    def _ask(self, flow: Flow, replies: SingleReply, after: int = 0) -> asyncio.Future[wire.WireCommand]:
        offset = self._next_offset + after
        length = self._window_bytes if self._stop is None else min(self._window_bytes, self._stop - offset)
        if self._before_links is not None:
            length = min(length, self._before_links)
        return replies.ask(flow, wire.ReadSegment(self._name, offset, length, request_id=flow.next_id()))

    def _data_of(self, flow: Flow, reply: wire.WireCommand, asked_at: int) -> memoryview:
        """Returns the bytes of the reply up to the stop, and records whether the reading has ended."""
        if not isinstance(reply, wire.SegmentRead):
            self._no_data(flow, reply)
            return memoryview(b"")
        if reply.offset != asked_at:
            raise CorruptError(f"{self._name}: requested offset {asked_at}, received offset {reply.offset}")
        data = memoryview(reply.data)
        if self._stop is not None:
            data = data[: self._stop - asked_at]
        self._ended = self._ended_with(end_of_segment=reply.end_of_segment, offset=asked_at + len(data))
        return data

    def _refuse_begin_inside_event(self) -> None:
        """Raises CorruptError if the last bytes of the segment, as it is now, are part of an event.

        Events are stored whole. So the reading began inside the last one, and it would wait for more
        bytes that are not an event.
        """
        if self.at_tail and self._stop is None and self._assembler.offset == self._began_at:
            check_begins_between_events(self._name, self._assembler)

    def _ended_with(self, *, end_of_segment: bool, offset: int) -> bool:
        if self._stop is None:
            return end_of_segment
        if offset < self._stop and end_of_segment:
            raise CorruptError(f"{self._name} ends at {offset}, before the end {self._stop} of the stream cut")
        return offset >= self._stop

    def _no_data(self, flow: Flow, reply: wire.WireCommand) -> None:
        """Handles a reply without data: the segment has ended, or was truncated and may be skipped; else raises."""
        if isinstance(reply, wire.SegmentIsSealed) and self._stop is None:
            self._ended = True
        elif isinstance(reply, wire.NoSuchSegment):
            self._skip_rest(None)
        elif (
            isinstance(reply, wire.SegmentIsTruncated)
            and self._on_truncation == "skip"
            and reply.start_offset > self._next_offset
        ):
            self._skip_to(reply.start_offset)
        else:
            raise problem_of(flow, reply)

    def _skip_to(self, head: int) -> None:
        """Goes on at the first byte that is left."""
        self._assembler = self._assemble(self.segment_id, head)
        self._began_at = head
        self._ended = self._stop is not None and head >= self._stop

    def _skip_rest(self, cause: HeadraceError | None) -> None:
        """Ends, because the segment was deleted. Raises TruncatedError if its events may not be skipped."""
        if self._on_truncation == "error":
            raise TruncatedError(
                f"segment {self._name} was deleted with its events; start at the head of the stream",
                details={"segment": self._name},
            ) from cause
        self._assembler = self._assemble(self.segment_id, self._assembler.offset)
        self._ended = True


def check_begins_between_events(name: str, assembler: Assembler[Batch]) -> None:
    """Raises CorruptError if all bytes that were read do not begin with a whole event."""
    if assembler.cut_off_bytes:
        raise CorruptError(
            f"{name}: reading begins at offset {assembler.offset}, where no event begins; a stream cut must be between "
            "two events",
            details={"segment": name, "offset": assembler.offset},
        )


def check_ends_between_events(name: str, assembler: Assembler[Batch]) -> None:
    """Raises CorruptError if the bytes that were read end with an incomplete event."""
    if assembler.cut_off_bytes:
        raise CorruptError(
            f"{name}: reading ends inside the event at offset {assembler.offset}; a stream cut must be between two "
            "events",
            details={"segment": name, "offset": assembler.offset},
        )
