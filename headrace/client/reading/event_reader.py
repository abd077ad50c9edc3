"""The asynchronous API for reading the events of a stream, in order per routing key.

Several segments are read concurrently, through one bounded queue, or in the order of time (`time_order.py`).
`read_progress.py` describes the order in which segments and their successors are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from headrace import wire
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.backoff import Backoff
from headrace.client.closing import close_all, handle_text, stop_tasks
from headrace.client.column_errors import arrow_missing
from headrace.client.ownership import Ownership
from headrace.client.ranges.segment_ranges import SegmentRange, ranges_between, refuse_invalid_cut, segment_ranges
from headrace.client.reading.linked_history import LinkedHistory
from headrace.client.reading.object_iterators import AsyncEventIterator, AsyncObjectIterator
from headrace.client.reading.read_progress import ReadProgress
from headrace.client.reading.recorded_successors import (
    after_freeze,
    recorded_successors,
    sealed_length_behind,
    truncated_length,
)
from headrace.client.reading.segment_stream import (
    ArrowBatch,
    Assembler,
    EventBatch,
    EventBatches,
    OnTruncation,
    SegmentStream,
)
from headrace.client.reading.time_order import SPANS_WAITING_MAX, TimeOrder
from headrace.client.reading.time_windows import TimeWindow, TimeWindows
from headrace.client.segment_connections import SegmentConnections
from headrace.client.single_segment.segment_requests import REPLY_TIMEOUT_S, MakeCommand, SegmentRequests
from headrace.codec.places import End
from headrace.model.arguments import check_fields, checked_calls
from headrace.model.errors import CorruptError, FrozenError, IllegalStateError, InvalidRequestError, TruncatedError
from headrace.model.limits import EVENT_HEADER_BYTES
from headrace.model.names import segment_name
from headrace.model.stream_cuts import END_OF_SEGMENT, StreamCut

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_BYTES_MAX = 1024 * 1024
WINDOW_BYTES_MIN = 64 * 1024
WINDOWS_BYTES_TOTAL = 64 * 1024 * 1024
"""The limit of all outstanding reads together. Many segments are therefore read in smaller windows."""

BATCHES_WAITING_MAX = 4

TIME_RESOLUTION_S_DEFAULT = 0.1
TIME_RESOLUTION_S_MAX = 3600.0

Start = End | StreamCut
AnyBatch = EventBatch | ArrowBatch
ReturnedBatch = TypeVar("ReturnedBatch", EventBatch, ArrowBatch)
Assemble = Callable[[int, int], Assembler[AnyBatch]]


class EventRead(NamedTuple):
    """An event and its position: `offset` is the offset of its header in the segment, in bytes."""

    event: bytes
    segment_id: int
    offset: int


class ReadOrder(Enum):
    """The order of events that are in different segments. Events of one routing key are always in their order.

    ARRIVAL is the order in which the segments' bytes reach the reader. TIME is the order in which they were stored.
    """

    ARRIVAL = "arrival"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Options of a reader.

    When unread events have been truncated, `on_truncation` decides: "error" raises TruncatedError, "skip" continues
    with the first retained event. If a segment's store is unreachable for `give_up_after_s`, reading fails with
    UnavailableError. With `ReadOrder.TIME`, no event comes before one that was stored `time_resolution_s` (0 to 3600
    seconds) or more before it.

    With `from_s3` the reader connects to no store: it reads what is in S3, through links that the controller signs. It
    gets events some 5 to 10 seconds later, and later with many segments at the tail. If it gets none for
    `give_up_after_s` before its end, that fails, too. S3 has no times: it has no `ReadOrder.TIME` and no `time_window`.
    """

    on_truncation: OnTruncation = "error"
    give_up_after_s: float = 120.0
    order: ReadOrder = ReadOrder.ARRIVAL
    time_resolution_s: float = TIME_RESOLUTION_S_DEFAULT
    from_s3: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.from_s3 and self.order is ReadOrder.TIME:
            raise InvalidRequestError("a reader from S3 has no order of time: S3 has no times of events")
        if not 0 <= self.time_resolution_s <= TIME_RESOLUTION_S_MAX:
            raise InvalidRequestError(
                f"time_resolution_s is {self.time_resolution_s}: it must be between 0 and {TIME_RESOLUTION_S_MAX:g}"
            )


@dataclass(frozen=True, slots=True)
class _SegmentEnded:
    segment_id: int
    successors: Mapping[int, Sequence[int]]


class _Arrivals(Protocol):
    """What the tasks of the segments hand to the reader, in the order in which the reader returns it.

    `get` raises the error that was passed to `fail`.
    """

    def open(self, segment_id: int, offset: int) -> None: ...
    async def add(self, batch: AnyBatch, stored_at_us: int, *, at_tail: bool) -> None: ...
    async def end(self, last: _SegmentEnded) -> None: ...
    async def fail(self, problem: BaseException) -> None: ...
    async def get(self) -> AnyBatch | _SegmentEnded: ...
    async def close(self) -> None: ...


class _ArrivalOrder:
    """A bounded queue."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[AnyBatch | _SegmentEnded | BaseException] = asyncio.Queue(BATCHES_WAITING_MAX)
        self._failure: BaseException | None = None

    def open(self, segment_id: int, offset: int) -> None:
        """Segments need no preparation."""

    async def add(self, batch: AnyBatch, stored_at_us: int, *, at_tail: bool) -> None:
        await self._queue.put(batch)

    async def end(self, last: _SegmentEnded) -> None:
        await self._queue.put(last)

    async def fail(self, problem: BaseException) -> None:
        await self._queue.put(problem)

    async def get(self) -> AnyBatch | _SegmentEnded:
        if self._failure is not None:
            raise self._failure  # the segment is not read any more, and may be the only one
        arrived = await self._queue.get()
        if isinstance(arrived, BaseException):
            self._failure = arrived
            raise arrived
        return arrived

    async def close(self) -> None:
        """Holds nothing open."""


@checked_calls("returned")
class AsyncEventReader:
    """Reads events on an event loop. Make it with `AsyncHeadrace.reader`, use it with `async with`."""

    def __init__(
        self, admin: AsyncAdmin, scope: str, stream: str, start: Start, end: StreamCut | None, options: ReaderOptions
    ) -> None:
        self.scope, self.stream = scope, stream
        self._admin = admin
        self._start, self._end = start, end
        self._options = options
        self._connections = SegmentConnections(admin, scope, stream)
        self._plan: dict[int, SegmentRange] | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._arrived = self._arrivals()
        self._assemble: Assemble | None = None
        self._progress = ReadProgress({})
        self._unread: AnyBatch | None = None
        """The newest batch. A caller that stops before its end gets the rest from the next call."""
        self._history = LinkedHistory(admin, scope, stream)
        self._windows = TimeWindows(admin, scope, stream, options.give_up_after_s)
        self._unreturned: Iterator[EventRead] = iter(())
        """Those of the newest batch, for an iterator over single events."""
        self._is_closed = False
        self._ownership = Ownership()

    def __repr__(self) -> str:
        return handle_text(self, f"{self.scope}/{self.stream}", closed=self.closed)

    async def open(self) -> None:
        """Gets the start position from the controller. The first call for events starts to read.

        Raises:
            NotFoundError: there is no such stream.
            TruncatedError: events after the start have been truncated, and `on_truncation` is "error". Without an end
                the first read may raise it instead.
            InvalidRequestError: a stream cut belongs to another stream, is inside an event or beyond the tail, or the
                end is before the start.
        """
        self._ownership.check()
        for cut in (self._start, self._end):
            if isinstance(cut, StreamCut):
                cut.check_belongs_to(self.scope, self.stream)
                cut.check_between_events()
        start = await self._start_offsets()
        if self._end is None:
            if END_OF_SEGMENT in start.values():
                # The lengths are needed for `position`, and a segment that was not reached must not be read.
                start = await self._resolved(start)
            elif isinstance(self._start, StreamCut):
                await refuse_invalid_cut(self._admin, self._start)
            self._progress = ReadProgress(start)
        else:
            begin, ranges = await self._ranges_up_to(start, self._end)
            self._plan = {span.segment_id: span for span in ranges}
            if not self._plan.keys() >= begin.offsets.keys():
                raise CorruptError("the controller's answer lacks segments of the start cut")
            self._progress = ReadProgress(begin.offsets)

    async def read_batch(self, timeout_s: float | None = None) -> EventBatch | None:
        """Returns the next events of one segment. None when `timeout_s` has passed, or when `ended` is true.

        After an error each call raises it again: open another reader at the `position` of this one.

        Raises:
            TruncatedError: unread events have been truncated, and `on_truncation` is "error".
            NotFoundError: the stream was deleted.
            UnavailableError: a segment's store could not be reached for too long.
            CorruptError: a segment does not contain valid events.
        """
        return self.returned(await self.next_events(timeout_s))

    async def read_arrow_batch(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """Returns the next events of one segment as a `pyarrow.RecordBatch` (extra `headrace[arrow]`).

        Its columns are `segment_id` and `offset` (int64), and `event` (large binary). None when `timeout_s` has passed,
        or when `ended` is true. A reader returns either Arrow batches or events.

        Raises:
            InvalidRequestError: pyarrow is not installed.
            IllegalStateError: the reader has already returned events in another form.
            HeadraceError: an error of `read_batch`.
        """
        batch = self.returned(await self.next_arrow_batch(timeout_s))
        return None if batch is None else batch.events

    def arrow_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yields Arrow batches until `ended` is true. See `read_arrow_batch`."""
        return AsyncObjectIterator(self.read_arrow_batch)

    @property
    def ended(self) -> bool:
        """Whether all events were read, up to the end cut or to the end of a sealed stream."""
        return self._progress.has_ended

    @property
    def position(self) -> StreamCut:
        """The cut after the last returned event. A reader that starts here continues without gaps and duplicates."""
        return StreamCut.of(self.scope, self.stream, self._progress.offsets)

    async def time_window(self) -> TimeWindow:
        """Returns the bounds of the event times at `position`, from the times that writers have noted (`note_time`).

        Raises:
            NotFoundError: the stream was deleted.
            UnavailableError: a store or the controller could not be reached for too long.
            InvalidRequestError: the reader is `from_s3`: the times are read from a store.
        """
        if self._options.from_s3:
            raise InvalidRequestError("a reader from S3 has no time window: only a segment store has the noted times")
        return await self._windows.at(self._progress.offsets)

    def __aiter__(self) -> AsyncIterator[EventRead]:
        """Yields single events, and moves `position` past each of them. Stops when `ended` is true."""
        self._unreturned = iter(())
        return AsyncEventIterator(self)

    @property
    def closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """Stops reading. `position` keeps its value."""
        self._is_closed = True
        if self._ownership.has_gone():
            return
        tasks, self._tasks = self._tasks, {}
        await close_all(
            partial(stop_tasks, tasks.values()),
            self._arrived.close,
            self._connections.close,
            self._windows.close,
            self._history.close,
        )

    async def __aenter__(self) -> AsyncEventReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def progress(self) -> ReadProgress:
        """The position, which the caller of `next_events` advances."""
        return self._progress

    async def next_events(self, timeout_s: float | None) -> EventBatch | None:
        """Returns the next events. They are returned again unless the caller moves `progress` past them."""
        self._unreturned = iter(())
        batch = await self._next_unread(EventBatches, timeout_s)
        assert not isinstance(batch, ArrowBatch), "the assembler makes batches of events"
        return batch

    async def next_arrow_batch(self, timeout_s: float | None) -> ArrowBatch | None:
        """As `next_events`, for `read_arrow_batch`."""
        batch = await self._next_unread(arrow_assembler(), timeout_s)
        assert not isinstance(batch, EventBatch), "the assembler makes Arrow batches"
        return batch

    def returned(self, batch: ReturnedBatch | None) -> ReturnedBatch | None:
        """Moves `progress` past a batch. Returns it."""
        if batch is not None:
            self._progress.advance(batch.segment_id, batch.end_offset)
        return batch

    async def _following(self) -> Iterator[EventRead] | None:
        """See `AsyncEventSource`."""
        batch = await self.next_events(None)
        return None if batch is None else events_of(batch, self._progress)

    async def _next_unread(self, assemble: Assemble, timeout_s: float | None) -> AnyBatch | None:
        self._ownership.check()
        self._begin(assemble)
        last = self._unread
        if last is not None and self._progress.is_behind(last.segment_id, last.end_offset):
            return last if isinstance(last, ArrowBatch) else last.after(self._progress.offsets[last.segment_id])
        self._unread = batch = await self._next_batch(timeout_s)
        return batch

    async def _next_batch(self, timeout_s: float | None) -> AnyBatch | None:
        deadline_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        while not self._progress.has_ended:
            try:
                async with asyncio.timeout_at(deadline_s):
                    arrived = await self._arrived.get()
            except TimeoutError:
                return None
            if isinstance(arrived, EventBatch | ArrowBatch):
                return arrived
            for segment_id in self._progress.finish(arrived.segment_id, arrived.successors):
                self._read(segment_id, 0)
        return None

    async def _start_offsets(self) -> dict[int, int]:
        if isinstance(self._start, StreamCut):
            return self._start.offsets
        return (await self._admin.stream_cut(self.scope, self.stream, at=self._start)).offsets

    async def _resolved(self, start: Mapping[int, int]) -> dict[int, int]:
        """The start with the lengths of the segments at whose ends it is."""
        try:
            return (await self._admin.segments_between(self.scope, self.stream, start)).start.offsets
        except TruncatedError:
            if self._options.on_truncation == "error":
                raise
        # One byte is enough: the batch begins where reading does.
        left = await self._admin.next_cut(self.scope, self.stream, start, bytes_max=1, on_truncation="skip")
        return left.start.offsets

    async def _ranges_up_to(self, start: Mapping[int, int], end: StreamCut) -> tuple[StreamCut, Sequence[SegmentRange]]:
        """Where reading begins, and the ranges up to the end cut; what was truncated of them may be skipped."""
        try:
            between = await self._admin.segments_between(self.scope, self.stream, start, end)
        except TruncatedError:
            if self._options.on_truncation == "error":
                raise
        else:
            return between.start, segment_ranges(between)
        await refuse_invalid_cut(self._admin, end)
        return await ranges_between(self._admin, self.scope, self.stream, start, end, on_truncation="skip")

    def _begin(self, assemble: Assemble) -> None:
        """Starts to read, in the form in which the events are asked for first."""
        if self._assemble is assemble:
            return
        if self._assemble is not None:
            raise IllegalStateError(
                "a reader returns either Arrow batches or events: open another reader at the `position` of this one"
            )
        self._assemble = assemble
        for segment_id, offset in self._progress.offsets.items():
            self._read(segment_id, offset)

    def _arrivals(self) -> _Arrivals:
        if self._options.order is ReadOrder.ARRIVAL:
            return _ArrivalOrder()
        requests = _OrderRequests(self._connections, self._options.give_up_after_s, self._is_frozen)
        resolution_us = int(self._options.time_resolution_s * 1e6)
        return TimeOrder(requests, lambda identifier: segment_name(self.scope, self.stream, identifier), resolution_us)

    def _read(self, segment_id: int, start: int) -> None:
        self._arrived.open(segment_id, start)
        task = asyncio.get_running_loop().create_task(self._read_segment(segment_id, start))
        self._tasks[segment_id] = task

    async def _read_segment(self, segment_id: int, start: int) -> None:
        stop = None if self._plan is None else self._plan[segment_id].end
        waiting_max = SPANS_WAITING_MAX if self._options.order is ReadOrder.TIME else 1
        window_bytes = WINDOWS_BYTES_TOTAL // waiting_max // max(1, self._progress.open_segments)
        assert self._assemble is not None, "only called after `_begin`"
        of_segment = (self.scope, self.stream, segment_id)
        stream = SegmentStream(
            self._connections,
            segment_id,
            segment_name(self.scope, self.stream, segment_id),
            start=start,
            stop=stop,
            window_bytes=max(WINDOW_BYTES_MIN, min(WINDOW_BYTES_MAX, window_bytes)),
            on_truncation=self._options.on_truncation,
            backoff=Backoff(self._options.give_up_after_s),
            assemble=self._assemble,
            truncated_length=partial(truncated_length, self._admin, *of_segment),
            # Bytes from S3 come without the times by which they are put in order.
            history=self._history if self._options.order is ReadOrder.ARRIVAL else None,
            sealed_length=partial(sealed_length_behind, self._admin, *of_segment) if self._options.from_s3 else None,
        )

        async def add(batch: AnyBatch) -> None:
            await self._arrived.add(batch, stream.stored_at_us, at_tail=stream.at_tail)

        try:
            await stream.run(add)
            await self._arrived.end(_SegmentEnded(segment_id, await self._successors(segment_id)))
        except Exception as error:  # noqa: BLE001 - the next `read_batch` raises it
            await self._arrived.fail(error)
        finally:
            self._tasks.pop(segment_id, None)

    async def _is_frozen(self, segment_id: int) -> bool:
        """Whether a segment is sealed because the stream is frozen."""
        try:
            await self._admin.successors(self.scope, self.stream, segment_id, as_recorded=True)
        except FrozenError:
            return True
        return False

    async def _successors(self, segment_id: int) -> Mapping[int, Sequence[int]]:
        """Returns the successors of the segment that are to be read, each with its predecessors."""
        if self._plan is not None:
            following = self._plan[segment_id].successors
            return {each: self._plan[each].predecessors for each in following}
        backoff = Backoff(self._options.give_up_after_s)
        find = partial(recorded_successors, self._admin, self.scope, self.stream, segment_id, backoff)
        found = await after_freeze(find, backoff)
        return {segment.segment_id: segment.predecessors for segment in found.segments}


class _OrderRequests(SegmentRequests):
    """The requests of a reader in the order of time.

    A sealed segment of a frozen stream counts as one that may grow. Its successors are created after the store has
    answered, so that no older event follows.
    """

    def __init__(
        self,
        connections: SegmentConnections,
        give_up_after_s: float,
        is_frozen: Callable[[int], Awaitable[bool]],
    ) -> None:
        super().__init__(connections, give_up_after_s)
        self._is_frozen = is_frozen

    async def ask(self, segment_id: int, make: MakeCommand, *, timeout_s: float = REPLY_TIMEOUT_S) -> wire.WireCommand:
        reply = await super().ask(segment_id, make, timeout_s=timeout_s)
        if isinstance(reply, wire.StreamSegmentInfo) and reply.is_sealed and await self._is_frozen(segment_id):
            return replace(reply, is_sealed=False)
        return reply


def arrow_assembler() -> Assemble:
    """Imports what makes Arrow batches. Raises InvalidRequestError if pyarrow is not installed."""
    try:
        from headrace.client.reading.arrow_batches import ArrowBatches
    except ImportError as error:
        raise arrow_missing("read_arrow_batch") from error
    return ArrowBatches


def events_of(batch: EventBatch, progress: ReadProgress) -> Iterator[EventRead]:
    """Yields the events of a batch, and moves the progress past each of them."""
    segment_id, offset = batch.segment_id, batch.offset
    for event in batch.events:
        read = EventRead(event, segment_id, offset)
        following = offset + EVENT_HEADER_BYTES + len(event)
        progress.advance(segment_id, following)  # an interrupt behind it would lose the event, so no call follows
        yield read
        offset = following
