"""The asynchronous API of one reader of a reader group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from headrace.client.administration.admin import AsyncAdmin
from headrace.client.closing import close_all, close_wholly, handle_text, stop_tasks
from headrace.client.groups.group_member import GroupMember
from headrace.client.groups.group_segments import Arrived, OwnedSegment, OwnedSegments
from headrace.client.groups.group_synchronizer import END_UNBOUNDED, GroupSynchronizer
from headrace.client.ownership import Ownership
from headrace.client.reading.event_reader import Assemble, ReaderOptions, ReadOrder, arrow_assembler
from headrace.client.reading.object_iterators import AsyncObjectIterator
from headrace.client.reading.segment_stream import ArrowBatch, EventBatch, EventBatches
from headrace.client.reading.time_windows import TimeWindow, TimeWindows
from headrace.model.arguments import check_fields, checked_calls
from headrace.model.errors import InvalidRequestError
from headrace.model.group_state import GroupState
from headrace.model.group_updates import GroupUpdate
from headrace.model.limits import EVENT_HEADER_BYTES
from headrace.model.names import StreamSegmentName, check_reader_name, scoped_stream_name
from headrace.model.stream_cuts import END_OF_SEGMENT

if TYPE_CHECKING:
    import pyarrow as pa

LEASE_S_DEFAULT = 30.0
LEASE_S_MIN = 0.2


class GroupEvent(NamedTuple):
    """An event and its position: `offset` is the offset of its header in the segment, in bytes."""

    event: bytes
    scope: str
    stream: str
    segment_id: int
    offset: int


class GroupBatch(NamedTuple):
    """Consecutive events of one segment. The first starts at `offset`, the last ends at `end_offset`."""

    events: list[bytes]
    scope: str
    stream: str
    segment_id: int
    offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class GroupReaderOptions:
    """Options of a reader of a group.

    A reader that vanishes without a word is declared dead after `lease_s` seconds, and others read its segments on. It
    is at least 0.2 and should be longer than the pauses of the process. For the other options see `ReaderOptions`; the
    order of time is not possible, because the readers of a group have no common order. Neither is `from_s3`, because
    they write to the state of the group.
    """

    lease_s: float = LEASE_S_DEFAULT
    reading: ReaderOptions = field(default_factory=ReaderOptions)

    def __post_init__(self) -> None:
        check_fields(self)
        if not LEASE_S_MIN <= self.lease_s <= 86_400:
            raise InvalidRequestError(f"lease_s is {self.lease_s}: it must be between {LEASE_S_MIN} and 86400 seconds")
        if self.reading.order is not ReadOrder.ARRIVAL:
            raise InvalidRequestError(
                "the readers of a group share its segments, and have no common order in time: read the stream with one "
                "reader that is not in a group"
            )
        if self.reading.from_s3:
            raise InvalidRequestError("the readers of a group need the segment stores: `from_s3` is for other readers")


@checked_calls("returned", "returned_arrow", "events_of")
class AsyncGroupReader:
    """A reader of a group. Make it with `AsyncReaderGroup.reader`, use it with `async with`.

    An event counts as processed when the next one is asked for, or the reader is closed without an error. All methods
    raise IllegalStateError, code "reader_offline", if the reader was declared offline: then others read its segments.
    """

    def __init__(self, admin: AsyncAdmin, scope: str, group: str, reader: str, options: GroupReaderOptions) -> None:
        self._admin = admin
        self._options = options
        self._windows: dict[str, TimeWindows] = {}
        self._wake = asyncio.Event()
        self._segments = OwnedSegments(admin, options.reading, self._wake.set, f"{scope}/{group}")
        self._group = GroupSynchronizer(admin, scope, group, self._applied)
        self._member = GroupMember(admin, self._group, check_reader_name(reader), options.lease_s, self._segments)
        self._tasks: list[asyncio.Task[None]] = []
        self._current: OwnedSegment | None = None
        self._given_to = 0
        self._newest: Arrived | None = None
        self._events: Iterator[GroupEvent] = iter(())
        """Those of the newest batch, for an iterator over single events: of which segment, at which revision."""
        self._iterating: OwnedSegment | None = None
        self._revision = 0
        self._leaving: asyncio.Task[None] | None = None
        self._ownership = Ownership()

    def __repr__(self) -> str:
        return handle_text(self, f"{self.name} of {self._group.scope}/{self._group.group}", closed=self.closed)

    async def open(self) -> None:
        """Joins the group.

        Raises:
            NotFoundError: there is no such group.
            IllegalStateError: code "reader_online": the group has a reader of this name.
        """
        self._ownership.check()
        try:
            await self._group.open()
            await self._member.join()
        except BaseException:
            await self._group.close()
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._member.follow()), loop.create_task(self._member.beat())]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._wake.set())

    @property
    def name(self) -> str:
        """The name of the reader in its group."""
        return self._member.reader

    @property
    def segments(self) -> tuple[StreamSegmentName, ...]:
        """The segments that the reader owns."""
        return tuple(self._segments.owned)

    @property
    def ended(self) -> bool:
        """Whether the group has read all events up to its end cuts, or to the ends of its sealed streams."""
        return self._group.state.has_ended

    @property
    def closed(self) -> bool:
        return self._leaving is not None and self._leaving.done()

    async def read_batch(self, timeout_s: float | None = None) -> GroupBatch | None:
        """Returns the next events of one segment. None when `timeout_s` has passed, or when `ended` is true.

        Before it waits, the reader does its part in the group. `timeout_s` does not bound this: requests to the store
        of the group's state, and after a reset or a checkpoint to the controller.

        The events that were returned before count as processed. After an error of a segment, the next call reads it on
        from there if a repetition can succeed. Otherwise each call raises the error until the segment is released, or
        the group is reset.

        Raises:
            TruncatedError: unread events have been truncated, and `on_truncation` is "error".
            UnavailableError: a store or the controller could not be reached for too long.
            CorruptError: a segment does not contain valid events.
        """
        return self.returned(await self.next_events(timeout_s))

    async def read_arrow_batch(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """Returns the next events of one segment as a `pyarrow.RecordBatch` (extra `headrace[arrow]`).

        Its columns are `scope` and `stream` (dictionaries of strings), `segment_id` and `offset` (int64), and `event`
        (large binary). The events count as processed, and `timeout_s` is kept, as with `read_batch`. A reader returns
        either Arrow batches or events.

        Raises:
            InvalidRequestError: pyarrow is not installed.
            IllegalStateError: the reader has already returned events in another form.
            HeadraceError: an error of `read_batch`.
        """
        return self.returned_arrow(await self.next_arrow_batch(timeout_s))

    def arrow_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yields Arrow batches. Waits at the tail; stops when `ended` is true. See `read_arrow_batch`."""
        return AsyncObjectIterator(self.read_arrow_batch)

    async def next_events(self, timeout_s: float | None) -> Arrived | None:
        """Returns the next events, for `returned`. Otherwise the next call returns them again."""
        return await self._next(EventBatches, timeout_s)

    async def next_arrow_batch(self, timeout_s: float | None) -> Arrived | None:
        """As `next_events`, for `returned_arrow`."""
        return await self._next(arrow_assembler(), timeout_s)

    def returned(self, arrived: Arrived | None) -> GroupBatch | None:
        """Returns the events to the application: they count as processed at the next call."""
        if arrived is None:
            return None
        batch, segment = arrived.batch, arrived.owned.segment
        assert isinstance(batch, EventBatch), "the assembler makes batches of events"
        made = GroupBatch(
            batch.events, segment.scope, segment.stream, segment.segment_id, batch.offset, batch.end_offset
        )
        self._give(arrived)  # an interrupt behind it would lose the events, so no call follows
        return made

    def returned_arrow(self, arrived: Arrived | None) -> pa.RecordBatch | None:
        """As `returned`."""
        if arrived is None:
            return None
        from headrace.client.reading.arrow_batches import with_stream

        batch, segment = arrived.batch, arrived.owned.segment
        assert isinstance(batch, ArrowBatch), "the assembler makes Arrow batches"
        made = with_stream(batch.events, segment.scope, segment.stream)
        self._give(arrived)
        return made

    def _give(self, arrived: Arrived) -> None:
        assert arrived.batch is not None, "only batches are returned"
        self._current, self._given_to = arrived.owned, arrived.batch.end_offset

    async def _next(self, assemble: Assemble, timeout_s: float | None) -> Arrived | None:
        """Returns the next batch in this form. What was returned before counts as processed."""
        self._ownership.check()
        self._events, self._iterating = iter(()), None
        self._segments.choose_form(assemble)
        self._confirm()
        loop = asyncio.get_running_loop()
        deadline_s = float("inf") if timeout_s is None else loop.time() + timeout_s
        while True:
            self._wake.clear()
            self._check_tasks()
            wait_s = await self._member.take_part()
            if (arrived := self._rest() or self._segments.next_batch()) is not None:
                if arrived.batch is None:
                    continue
                self._newest = arrived
                return arrived
            if self.ended or loop.time() >= deadline_s:
                return None
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, deadline_s - loop.time())):
                    await self._wake.wait()

    def _rest(self) -> Arrived | None:
        """The events of the newest batch that the caller has not got, if the reader still owns the segment."""
        newest, self._newest = self._newest, None
        if newest is None or newest.batch is None:
            return None
        owned, batch = newest.owned, newest.batch
        if self._segments.owned.get(owned.segment) is not owned or owned.position >= batch.end_offset:
            return None
        return newest._replace(batch=batch.after(owned.position)) if isinstance(batch, EventBatch) else newest

    def __aiter__(self) -> AsyncIterator[GroupEvent]:
        """Yields single events. Waits at the tail; stops when `ended` is true."""
        self._events, self._iterating = iter(()), None
        return AsyncObjectIterator(self._next_event)

    async def _next_event(self) -> GroupEvent | None:
        while True:
            if self._iterating is not None and self._group.entries.revision != self._revision:
                self._confirm()
                await self._member.take_part()
                self._revision = self._group.entries.revision
                if self._segments.owned.get(self._iterating.segment) is not self._iterating:
                    self._events = iter(())  # the rest of the batch is for the next owner
            for event in self._events:
                return event
            arrived = await self.next_events(None)
            if arrived is None:
                return None
            self._iterating, self._revision = arrived.owned, self._group.entries.revision
            self._events = self.events_of(arrived)

    def events_of(self, arrived: Arrived) -> Iterator[GroupEvent]:
        """Yields the events of the newest batch. Each counts as processed when the next one is asked for."""
        owned, batch = arrived.owned, arrived.batch
        assert isinstance(batch, EventBatch), "the assembler makes batches of events"
        segment, offset = owned.segment, batch.offset
        for event in batch.events:
            read = GroupEvent(event, segment.scope, segment.stream, segment.segment_id, offset)
            following = offset + EVENT_HEADER_BYTES + len(event)
            owned.position = offset
            self._current, self._given_to = owned, following
            yield read
            offset = following

    async def time_window(self, scope: str, stream: str) -> TimeWindow:
        """Returns the bounds of the event times at the group's position in a stream, from the times that writers noted.

        The position is after the events that all readers have processed. The other readers tell theirs several times
        per `lease_s`. After the failure of a reader, events that are read again may be older than `lower`.

        Raises:
            InvalidRequestError: the group does not read the stream.
            NotFoundError: the stream was deleted.
            UnavailableError: a store or the controller could not be reached for too long.
        """
        state, name = self._group.state, scoped_stream_name(scope, stream)
        if name not in state.configuration.starts:
            raise InvalidRequestError(f"the group does not read {name}")
        if name not in self._windows:
            self._windows[name] = TimeWindows(self._admin, scope, stream, self._options.reading.give_up_after_s)
        positions = state.latest_positions(self.name, self._segments.positions)
        offsets = {
            segment.segment_id: END_UNBOUNDED if offset == END_OF_SEGMENT else offset
            for segment, offset in positions.items()
            if (segment.scope, segment.stream) == (scope, stream)
        }
        return await self._windows[name].at(offsets)

    async def release(self, segment: StreamSegmentName) -> bool:
        """Leaves a segment to other readers for a while. The next one begins after the processed events.

        Returns False, and keeps the segment, if a checkpoint waits for this reader.

        Raises:
            InvalidRequestError: the reader does not own the segment.
        """
        self._confirm()
        if segment not in self._segments.owned:
            raise InvalidRequestError(f"reader {self.name!r} does not own segment {segment}")
        return await self._member.release(segment)

    async def close(self) -> None:
        """Leaves the group: other readers continue after the events that were returned.

        If it is cancelled, it still tries to leave the group for a second. After that the lease ends the membership. A
        second call waits for the first, or does nothing.
        """
        self._confirm()
        await self._leave()

    async def __aenter__(self) -> AsyncGroupReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._confirm()
        await self._leave()

    async def _leave(self) -> None:
        if self._ownership.has_gone():
            return
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._end())
            await close_wholly(self._leaving)
        else:
            await asyncio.wait({self._leaving})  # the first call raises its error

    async def _end(self) -> None:
        try:
            await stop_tasks(self._tasks)
            await self._member.leave()
        finally:
            windows = (each.close for each in self._windows.values())
            await close_all(*windows, self._segments.close, self._group.close)

    def _confirm(self) -> None:
        """What was returned is processed."""
        if self._current is not None:
            self._current.position = self._given_to
            self._current.oldest_us = 0
            self._current = None

    def _check_tasks(self) -> None:
        """Raises the error with which the state of the group could no longer be followed."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def _applied(self, update: GroupUpdate, state: GroupState) -> None:
        self._member.heard(update)
        self._wake.set()
