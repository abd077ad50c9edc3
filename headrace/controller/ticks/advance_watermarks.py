"""Computes the next watermark of a stream with marks of writers, if it is time for it: work of the tick.

The mark segment is the truth: a watermark counts once it lies there, behind the one before it. The record of the state
only remembers where that was. Whoever finds something else at the end than expected has lost against somebody else, or
is late, and goes on from what lies there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from headrace.codec.events import frame_event, iter_events
from headrace.codec.records.watermark_record import watermark_state_body, watermark_state_of_body
from headrace.codec.records.watermark_schedule_record import (
    ScheduledStream,
    watermark_schedule_body,
)
from headrace.codec.records.writer_mark_record import WRITER_MARKS_FIRST, WRITER_MARKS_LAST, writer_mark_of_body
from headrace.codec.watermark_event import watermark_of_payload, watermark_payload
from headrace.controller.ticks.watermark_ticks import ScheduleEntry
from headrace.metadata import keys
from headrace.metadata.mark_segments import make_mark_segment, up_to_incarnation
from headrace.metadata.stream_records import StoredStream, StreamRecords, create_in_incarnation
from headrace.model.errors import ConflictError, CorruptError, NotFoundError, TruncatedError, UnavailableError
from headrace.model.limits import EVENT_HEADER_BYTES
from headrace.model.names import mark_segment_name
from headrace.model.streams import Stream
from headrace.model.watermarks import Watermark, WatermarkState, next_round
from headrace.model.writer_marks import WriterMark
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Delete, Key, MetadataStore, Record, Replace, Write
from headrace.ports.segment_stores import SegmentStores
from headrace.wire.fields import WireFormatError

_RECORDS_PER_READ = 1_000
_MARKS_REMOVED_AT_ONCE = 90
"""Below WRITES_PER_TRANSACTION_MAX, with room for the schedule."""

REVISION_MARK = 0x7DF9A874246CC9D69397CDD19EAD68C5
"""The attribute of the mark segment where Pravega's clients begin to read it: the offset of the newest watermark."""


@dataclass(frozen=True, slots=True)
class _StoredState:
    """The state of a stream's watermarks in its present life; `version` is None if there is no record at all."""

    state: WatermarkState
    version: int | None


class WatermarkAdvancer:
    """Safe for any number of threads and processes, also on the same stream at the same time."""

    def __init__(
        self,
        store: MetadataStore,
        segment_stores: SegmentStores,
        clock: Clock,
        is_away: Callable[[str], bool] = lambda _segment: False,
    ) -> None:
        """`is_away` says whether the store of a segment is known not to answer: then nothing is read for the stream."""
        self._is_away = is_away
        self._store = store
        self._records = StreamRecords(store)
        self._history = self._records.history
        self._segment_stores = segment_stores
        self._clock = clock

    def advance(self, entry: ScheduleEntry) -> None:
        """One read and one query; for a watermark one write and two requests to its segment store.

        Raises:
            WriteConflictError: what was read was changed meanwhile; look again.
            UnavailableError, ThrottledError: a store does not answer.
            CorruptError: stored records do not fit.
        """
        scheduled = entry.scheduled
        scope, name = scheduled.scope, scheduled.stream
        if self._is_away(mark_segment_name(scope, name)):
            raise UnavailableError(f"the segment store of the watermarks of {scope}/{name} is away")
        current, record = self._store.get_many([keys.current_key(scope, name), keys.watermark_key(scope, name)])
        stored = self._records.stored(current)
        if stored is None or stored.stream.is_deleting:
            self._store.write(Delete(entry.record.key, entry.record.version))
            return
        stream, before = stored.stream, _state(record, stored.stream)
        marks = self._marks(stream)
        of_this_life = [mark for _, mark in marks if mark is not None]
        after = next_round(
            before.state.last,
            of_this_life,
            before.state.silent_since,
            timeout_ms=stream.configuration.timestamp_aggregation_timeout_ms,
            now_ms=self._clock.now_ms(),
            segments_of_epoch=lambda number: self._history.epoch(stream, number).segments,
        )
        state = before.state if after.watermark is None else self._append(stream, before.state, after.watermark)
        if state is None:
            return
        self._keep(stored, before, replace(state, silent_since=after.silent_since))
        gone = [one for one, mark in marks if mark is None or mark in after.inactive]
        self._remove(entry, stream, gone, len(marks) - len(gone))

    def _marks(self, stream: Stream) -> list[tuple[Record, WriterMark | None]]:
        """The marks of all writers; None stands for one of a former life of the stream."""
        found: list[tuple[Record, WriterMark | None]] = []
        first: str | None = WRITER_MARKS_FIRST
        while first is not None:
            page = self._store.query(
                keys.stream_partition(stream.scope, stream.name),
                first=first,
                last=WRITER_MARKS_LAST,
                limit=_RECORDS_PER_READ,
            )
            for record in page.records:
                mark, first_segment_number = writer_mark_of_body(record.body)
                found.append((record, mark if first_segment_number == stream.first_segment_number else None))
            first = None if page.next_after is None else f"{page.next_after}\0"
        return found

    # The mark segment

    def _append(self, stream: Stream, state: WatermarkState, watermark: Watermark) -> WatermarkState | None:
        """Put the watermark behind the last one; the state then, or what others have made of it. None: deleted."""
        name = mark_segment_name(stream.scope, stream.name)
        data = frame_event(watermark_payload(watermark))
        try:
            end = self._append_to_own(stream, name, data, state)
        except ConflictError as lost:
            reached = self._found(stream, name, state, int(lost.details["offset"]))
        else:
            if end is None:
                return None
            reached = replace(state, last=watermark, last_offset=state.end_offset, end_offset=end)
        self._move_revision_mark(stream, state, reached)
        return reached

    def _append_to_own(self, stream: Stream, name: str, data: bytes, state: WatermarkState) -> int | None:
        """The end of the segment; None if the stream has gone meanwhile.

        The first watermark of an incarnation makes the segment, or claims what a former one has left of it: a deletion
        of the former one that is late does not reach what is claimed.
        """
        if state.last is not None:
            with suppress(NotFoundError):
                return self._segment_stores.append(name, data, state.end_offset, stream.first_segment_number)
        if not make_mark_segment(self._records, self._segment_stores, stream):
            return None
        return self._segment_stores.append(name, data, state.end_offset, stream.first_segment_number)

    def _found(self, stream: Stream, name: str, state: WatermarkState, length: int) -> WatermarkState:
        """The state that the mark segment shows, which was found to be of this length.

        What is no watermark of this incarnation of the stream was appended by a tick for a former one that was late,
        or by another program: it is cut off.
        """
        start = min(state.end_offset, length)
        try:
            data = self._segment_stores.read(name, start, length - start)
        except TruncatedError as gone:
            start = int(gone.details["start_offset"])
            data = self._segment_stores.read(name, start, length - start)
        newest = _last_watermark(data, stream)
        if newest is None:
            found = self._records.find(stream.scope, stream.name)
            if found is None or found.stream.first_segment_number != stream.first_segment_number:
                raise NotFoundError(f"stream {stream.scoped_name} was deleted meanwhile")
            if length > start:
                self._segment_stores.truncate_segment_up_to(name, length, up_to_incarnation(stream))
            return replace(state, end_offset=length)
        watermark, offset = newest
        if state.last is not None and watermark.lower_time <= state.last.lower_time:
            return replace(state, end_offset=length)
        return replace(state, last=watermark, last_offset=start + offset, end_offset=length)

    def _move_revision_mark(self, stream: Stream, before: WatermarkState, after: WatermarkState) -> None:
        """Never back, since a late call finds that others have moved it further; never that of a later incarnation."""
        if after.last is None:
            return
        name, bound = mark_segment_name(stream.scope, stream.name), up_to_incarnation(stream)
        expected = before.last_offset if before.last is not None else None
        offset = after.last_offset
        if self._segment_stores.set_attribute_up_to(name, REVISION_MARK, offset, expected, bound):
            return
        present = self._segment_stores.get_attribute(name, REVISION_MARK)
        if present is None or present < offset:
            self._segment_stores.set_attribute_up_to(name, REVISION_MARK, offset, present, bound)

    # Records

    def _keep(self, stored: StoredStream, before: _StoredState, after: WatermarkState) -> None:
        if after == before.state:
            return
        key = keys.watermark_key(stored.stream.scope, stored.stream.name)
        body = watermark_state_body(after)
        if before.version is None:
            self._records.while_unchanged(stored, create_in_incarnation(stored.stream, key, body))
        else:
            self._store.write(Replace(key, body, before.version))

    def _remove(self, entry: ScheduleEntry, stream: Stream, gone: Sequence[Record], left: int) -> None:
        """Forget marks, and the stream on the schedule with the last one, unless one came meanwhile."""
        key, version = entry.record.key, entry.record.version
        for start in range(0, len(gone), _MARKS_REMOVED_AT_ONCE):
            batch = gone[start : start + _MARKS_REMOVED_AT_ONCE]
            still_there = left + len(gone) - start - len(batch)
            removals = [Delete(record.key, record.version) for record in batch]
            self._store.write(*removals, _schedule_write(key, version, stream, still_there))
            version += 1
        if not gone and not left:
            self._store.write(Delete(key, version))


def _schedule_write(key: Key, version: int, stream: Stream, writers: int) -> Write:
    if not writers:
        return Delete(key, version)
    scheduled = ScheduledStream(stream.scope, stream.name, stream.first_segment_number, writers)
    return Replace(key, watermark_schedule_body(scheduled), version)


def _state(record: Record | None, stream: Stream) -> _StoredState:
    nothing = WatermarkState(stream.first_segment_number)
    if record is None:
        return _StoredState(nothing, None)
    state = watermark_state_of_body(record.body)
    is_present = state.first_segment_number == stream.first_segment_number
    return _StoredState(state if is_present else nothing, record.version)


def _last_watermark(data: bytes, stream: Stream) -> tuple[Watermark, int] | None:
    """The last of these watermarks and where it begins in `data`; None unless all are of this life of the stream."""
    try:
        payloads, consumed = iter_events(data)
        watermarks = [watermark_of_payload(payload) for payload in payloads]
    except (WireFormatError, CorruptError):
        return None
    first = stream.first_segment_number
    is_ours = all(one.segment.number >= first for watermark in watermarks for one in watermark.cut)
    if not watermarks or consumed != len(data) or not is_ours:
        return None
    return watermarks[-1], consumed - EVENT_HEADER_BYTES - len(payloads[-1])
