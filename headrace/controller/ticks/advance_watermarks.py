"""The watermark tick: computes the next watermark of a stream from the marks of its writers.

The mark segment is authoritative: a watermark is valid once it is appended to that segment, after the previous one. The
state record only caches where the segment ended. A tick whose append fails because the segment ends elsewhere was late
or was overtaken by another tick. It then continues from the content of the segment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from headrace.codec.events import frame_event, iter_events
from headrace.codec.stored_objects import watermark_of_payload, watermark_payload
from headrace.controller.ticks.due_work import DuePage, DueWork, DueWorkTicks, NoteUndecodable
from headrace.metadata.stream import current_key
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.metadata.watermark_records import (
    StoredWatermarkState,
    make_mark_segment,
    read_watermark_state,
    read_writer_marks,
    up_to_incarnation,
    watermark_key,
    write_watermark_state,
)
from headrace.metadata.watermark_schedule import ScheduledStream, read_schedule, replace_scheduled, write_writers_left
from headrace.model.backoff import backoff_ms, failures_in_a_row
from headrace.model.errors import (
    ConflictError,
    CorruptError,
    HeadraceError,
    NotFoundError,
    TruncatedError,
    UnavailableError,
)
from headrace.model.limits import EVENT_HEADER_BYTES
from headrace.model.names import mark_segment_name
from headrace.model.segment_attributes import REVISION_MARK
from headrace.model.streams import Stream
from headrace.model.watermarks import Watermark, WatermarkState, next_watermark_step
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Delete, MetadataStore, Record
from headrace.ports.segment_stores import SegmentStores
from headrace.ports.workers import Workers
from headrace.wire.fields import WireFormatError

# The schedule of the watermark tick: it visits the streams that have marks of writers, in order.

TICK_KIND = "watermarks"
_RECORDS_PER_READ = 500

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """A stream on the schedule with its record."""

    scheduled: ScheduledStream
    record: Record


def watermark_ticks(
    store: MetadataStore,
    clock: Clock,
    advance: Callable[[ScheduleEntry], None],
    workers: Workers | None = None,
    note_undecodable: NoteUndecodable | None = None,
) -> DueWorkTicks[ScheduleEntry]:
    """Ticks that call `advance` for each stream that is due.

    A tick costs one query, and a lease if there are due streams. A stream that fails costs one write.
    """

    def read(shard: int, after: str) -> DuePage[ScheduleEntry]:
        now_ms = clock.now_ms()
        page = read_schedule(store, shard, after, _RECORDS_PER_READ)
        due = [
            (record.key.sort, ScheduleEntry(scheduled, record))
            for record, scheduled in page.entries
            if scheduled.not_before_ms <= now_ms
        ]
        return DuePage(due, page.next_after, page.undecodable)

    def put_off(entry: ScheduleEntry, error: HeadraceError) -> None:
        scheduled, now_ms = entry.scheduled, clock.now_ms()
        failures = failures_in_a_row(scheduled.failures, scheduled.not_before_ms, now_ms) + 1
        later = replace(scheduled, failures=failures, not_before_ms=now_ms + backoff_ms(failures))
        if failures == 1:  # An unavailable segment store makes thousands of streams fail in each tick.
            _log.warning("no watermark for %s/%s now: %s", scheduled.scope, scheduled.stream, error)
        store.write(replace_scheduled(entry.record.key, later, entry.record.version))

    due_work = DueWork(TICK_KIND, read, advance, put_off, is_cyclic=True)
    return DueWorkTicks(store, clock, due_work, workers, note_undecodable)


_MARKS_REMOVED_AT_ONCE = 90
"""Less than WRITES_PER_TRANSACTION_MAX, so that the transaction can also write the schedule entry."""


class WatermarkAdvancer:
    """Safe for any number of threads and processes, also on the same stream at the same time."""

    def __init__(
        self,
        store: MetadataStore,
        segment_stores: SegmentStores,
        clock: Clock,
        is_unreachable: Callable[[str], bool] = lambda _segment: False,
    ) -> None:
        """`is_unreachable` tells whether the store of a segment is known not to answer. Such a stream is not read."""
        self._is_unreachable = is_unreachable
        self._store = store
        self._records = StreamRecords(store)
        self._history = self._records.history
        self._segment_stores = segment_stores
        self._clock = clock

    def advance(self, entry: ScheduleEntry) -> None:
        """Append the next watermark of a stream if there is one, and delete the marks that are no longer needed.

        Costs one read and one query; a new watermark costs one write and two requests to its segment store more.

        Raises:
            WriteConflictError: a record was changed since it was read; the next tick reads it again.
            UnavailableError, ThrottledError: a store does not answer.
            CorruptError: a stored record does not decode.
        """
        scheduled = entry.scheduled
        scope, name = scheduled.scope, scheduled.stream
        if self._is_unreachable(mark_segment_name(scope, name)):
            raise UnavailableError(f"the segment store of the watermarks of {scope}/{name} is away")
        current, record = self._store.get_many([current_key(scope, name), watermark_key(scope, name)])
        stored = self._records.stored(current)
        if stored is None or stored.stream.is_deleting:
            self._store.write(Delete(entry.record.key, entry.record.version))
            return
        stream, before = stored.stream, read_watermark_state(record, stored.stream)
        marks = read_writer_marks(self._store, stream)
        present = [mark for _, mark in marks if mark is not None]
        after = next_watermark_step(
            before.state.last,
            present,
            before.state.silent_since,
            timeout_ms=stream.configuration.timestamp_aggregation_timeout_ms,
            now_ms=self._clock.now_ms(),
            segments_of_epoch=lambda number: self._history.epoch(stream, number).segments,
        )
        state = before.state if after.watermark is None else self._append(stream, before.state, after.watermark)
        if state is None:
            return
        self._keep(stored, before, replace(state, silent_since=after.silent_since))
        gone = [writer for writer, mark in marks if mark is None or mark in after.inactive]
        self._remove(entry, stream, gone, len(marks) - len(gone))

    # The mark segment

    def _append(self, stream: Stream, state: WatermarkState, watermark: Watermark) -> WatermarkState | None:
        """Append the watermark after the last one, unless another tick was faster.

        Returns the state that the mark segment then has, or None if the stream has been deleted.
        """
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
        """Append to the mark segment of this incarnation; return its new length, or None if the stream was deleted.

        The first watermark of an incarnation creates the segment, or claims the one that a former incarnation left. A
        late deletion by the former incarnation does not delete a claimed segment.
        """
        if state.last is not None:
            with suppress(NotFoundError):
                return self._segment_stores.append(name, data, state.end_offset, stream.first_segment_number)
        if not make_mark_segment(self._records, self._segment_stores, stream):
            return None
        return self._segment_stores.append(name, data, state.end_offset, stream.first_segment_number)

    def _found(self, stream: Stream, name: str, state: WatermarkState, length: int) -> WatermarkState:
        """The state according to the mark segment, whose length is `length`.

        Other bytes than watermarks of this incarnation come from a late tick of a former one, or from another program.
        They are truncated.
        """
        start = min(state.end_offset, length)
        try:
            data = self._segment_stores.read(name, start, length - start)
        except TruncatedError as gone:
            start = int(gone.details["start_offset"])
            data = self._segment_stores.read(name, start, length - start)
        newest = _last_watermark(data, stream)
        if newest is None:
            present = self._records.find(stream.scope, stream.name)
            if present is None or present.stream.first_segment_number != stream.first_segment_number:
                raise NotFoundError(f"stream {stream.scoped_name} was deleted meanwhile")
            if length > start:
                self._segment_stores.truncate_segment_up_to(name, length, up_to_incarnation(stream))
            return replace(state, end_offset=length)
        watermark, offset = newest
        if state.last is not None and watermark.lower_time <= state.last.lower_time:
            return replace(state, end_offset=length)
        return replace(state, last=watermark, last_offset=start + offset, end_offset=length)

    def _move_revision_mark(self, stream: Stream, before: WatermarkState, after: WatermarkState) -> None:
        """Advance the attribute to the newest watermark, but never backwards, and not that of a later incarnation.

        If this call is late, another tick has set a larger offset, which stays.
        """
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

    def _keep(self, stored: StoredStream, before: StoredWatermarkState, after: WatermarkState) -> None:
        if after == before.state:
            return
        write = write_watermark_state(stored.stream, after, before.version)
        if before.version is None:
            self._records.while_unchanged(stored, write)
        else:
            self._store.write(write)

    def _remove(self, entry: ScheduleEntry, stream: Stream, gone: Sequence[Record], left: int) -> None:
        """Delete marks. Without marks the stream leaves the schedule, unless a writer has added a mark meanwhile."""
        key, version = entry.record.key, entry.record.version
        for start in range(0, len(gone), _MARKS_REMOVED_AT_ONCE):
            batch = gone[start : start + _MARKS_REMOVED_AT_ONCE]
            still_there = left + len(gone) - start - len(batch)
            removals = [Delete(record.key, record.version) for record in batch]
            scheduled = ScheduledStream(stream.scope, stream.name, stream.first_segment_number, still_there)
            self._store.write(*removals, write_writers_left(key, scheduled, version))
            version += 1
        if not gone and not left:
            self._store.write(Delete(key, version))


def _last_watermark(data: bytes, stream: Stream) -> tuple[Watermark, int] | None:
    """The last watermark in `data` and its offset there; None unless all of them belong to this incarnation."""
    try:
        payloads, consumed = iter_events(data)
        watermarks = [watermark_of_payload(payload) for payload in payloads]
    except (WireFormatError, CorruptError):
        return None
    first = stream.first_segment_number
    is_ours = all(each.segment.number >= first for watermark in watermarks for each in watermark.cut)
    if not watermarks or consumed != len(data) or not is_ours:
        return None
    return watermarks[-1], consumed - EVENT_HEADER_BYTES - len(payloads[-1])
