"""The records of watermarks: how far they have come, which streams the tick visits, and what each writer noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.metadata.optimistic_retry import repeat_on_conflict
from headrace.metadata.record_layout import decode_positions, decoded, position_rows, stream_partition, versioned
from headrace.metadata.stream import create_in_incarnation, no_such_stream
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.metadata.watermark_schedule import (
    ScheduledStream,
    decode_watermark_schedule,
    watermark_schedule_body,
    watermark_schedule_key,
)
from headrace.model import writer_marks
from headrace.model.errors import InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.limits import WRITER_MARKS_PER_STREAM_MAX
from headrace.model.names import mark_segment_name
from headrace.model.segment_attributes import MARK_INCARNATION
from headrace.model.segments import StreamSegment, segment_epoch
from headrace.model.streams import Stream
from headrace.model.watermarks import Watermark, WatermarkState
from headrace.model.writer_marks import (
    Positions,
    WriterMark,
    check_writer_name,
    invalid_position,
    noted,
    positions_of,
    shut_down,
)
from headrace.ports.metadata_store import Body, Create, Key, MetadataStore, Record, Replace, Write
from headrace.ports.segment_stores import AttributeBound, SegmentScaleRate, SegmentStores

# How far the watermarks of a stream have come. A lost record can be restored from the mark segment.

WATERMARK_SORT = "watermark"


def watermark_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), WATERMARK_SORT)


def watermark_state_body(state: WatermarkState) -> dict[str, Any]:
    last = state.last
    return versioned(
        first_number=state.first_segment_number,
        last=[last.lower_time, last.upper_time, position_rows(last.cut)] if last is not None else None,
        last_offset=state.last_offset,
        end_offset=state.end_offset,
        silent_since=dict(state.silent_since),
    )


def decode_watermark_state(body: Body) -> WatermarkState:
    return decoded("watermark", body, _watermark_state)


def _watermark_state(body: Body) -> WatermarkState:
    return WatermarkState(
        first_segment_number=int(body["first_number"]),
        last=_watermark(body["last"]),
        last_offset=int(body["last_offset"]),
        end_offset=int(body["end_offset"]),
        silent_since={str(writer): int(since_ms) for writer, since_ms in body["silent_since"].items()},
    )


def _watermark(fields: Any) -> Watermark | None:
    if fields is None:
        return None
    lower, upper, cut = fields
    return Watermark(int(lower), int(upper), decode_positions(cut))


@dataclass(frozen=True, slots=True)
class StoredWatermarkState:
    """The state of the watermarks of an incarnation; `version` is None if there is no record, not even an old one."""

    state: WatermarkState
    version: int | None


def read_watermark_state(record: Record | None, stream: Stream) -> StoredWatermarkState:
    """The state in a record. It is empty without a record, or if the record belongs to a former incarnation."""
    empty = WatermarkState(stream.first_segment_number)
    if record is None:
        return StoredWatermarkState(empty, None)
    state = decode_watermark_state(record.body)
    is_present = state.first_segment_number == stream.first_segment_number
    return StoredWatermarkState(state if is_present else empty, record.version)


def write_watermark_state(stream: Stream, state: WatermarkState, version: int | None) -> Create | Replace:
    """The write that replaces the record of this version, or creates the first one if `version` is None."""
    key, body = watermark_key(stream.scope, stream.name), watermark_state_body(state)
    return create_in_incarnation(stream, key, body) if version is None else Replace(key, body, version)


# The streams of a bucket that have marks of writers: the tick computes watermarks for them.
#
# The entry of a stream is written whenever a mark is added or removed, and is removed with the last mark. Its versions
# are those of an incarnation, so that a late tick does not change the entry of the next incarnation.


# The last time and position that each writer of a stream noted.
#
# A record has the incarnation of its stream, because a record of an earlier incarnation may be written late. The first
# mark of a writer also puts the stream on the schedule of its bucket, in the same transaction. A later mark is a single
# conditional write.

_ATTEMPTS_MAX = 5
"""Fewer than for other calls, because a commit also notes marks and repeats the whole on a conflict."""

_RECORDS_PER_READ = 1_000

WRITER_MARKS_FIRST, WRITER_MARKS_LAST = "writer-mark/", "writer-mark/~"
"""Bounds of the sort keys of all marks."""


def writer_mark_sort(writer: str) -> str:
    return f"{WRITER_MARKS_FIRST}{writer}"


def writer_mark_key(scope: str, stream: str, writer: str) -> Key:
    return Key(stream_partition(scope, stream), writer_mark_sort(check_writer_name(writer)))


def writer_mark_body(mark: WriterMark, first_segment_number: int) -> dict[str, Any]:
    return versioned(
        writer=mark.writer,
        time=mark.time,
        positions=position_rows(mark.positions),
        alive=mark.is_alive,
        first_number=first_segment_number,
    )


def decode_writer_mark(body: Body) -> tuple[WriterMark, int]:
    """The mark, and the first segment number of the incarnation of its stream."""
    return decoded("writer mark", body, _writer_mark)


class WriterMarkRecords:
    """Writes marks; safe for any number of threads. It caches the epochs that it has read, which never change."""

    def __init__(self, store: MetadataStore, streams: StreamRecords) -> None:
        self._store = store
        self._streams = streams
        self._history = streams.history

    def note(self, scope: str, stream: str, writer: str, time: int, offsets: Mapping[int, int]) -> None:
        """Record that all events of `writer` before `time` are before these offsets, given by segment id.

        One read and one write; the first mark of a writer needs one more read and a transaction.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: code "invalid_time" or "invalid_position", see `writer_marks.noted`, or a segment that
                the stream never had; code "too_many_writers".
            UnavailableError: the stream is being created, or the metadata store does not answer.
            ConflictError: other processes changed the records during every attempt; repeat.
        """
        writer_marks.check_time(time)
        writer_marks.check_offsets(offsets)
        repeat_on_conflict(lambda: self._try_to_note(scope, stream, writer, time, offsets), _ATTEMPTS_MAX)

    def note_commit(self, scope: str, stream: str, writer: str, time: int, offsets: Mapping[int, int]) -> bool:
        """As `note`, for the position where a transaction of the writer was committed; False if the mark is refused.

        A repeated or late commit may have an outdated mark. No client waits for the answer any more, so it is ignored.
        """
        try:
            self.note(scope, stream, writer, time, offsets)
        except (InvalidRequestError, NotFoundError):
            return False
        return True

    def shut_down(self, scope: str, stream: str, writer: str) -> None:
        """Deregister the writer, so that watermarks do not wait for it until it notes its time again.

        Raises:
            NotFoundError: there is no such stream; or, with code "writer_not_found", the writer has no mark.
        """
        repeat_on_conflict(lambda: self._try_to_shut_down(scope, stream, writer), _ATTEMPTS_MAX)

    def _try_to_note(self, scope: str, name: str, writer: str, time: int, offsets: Mapping[int, int]) -> None:
        stored, record = self._read(scope, name, writer)
        stream = stored.stream
        previous = _mark_of_incarnation(record, stream)
        mark = noted(previous, WriterMark(writer, time, self._positions(stream, offsets)))
        if mark == previous:
            return  # A commit that was interrupted notes its mark again.
        body = writer_mark_body(mark, stream.first_segment_number)
        key = writer_mark_key(scope, name, writer)
        write = create_in_incarnation(stream, key, body) if record is None else Replace(key, body, record.version)
        if previous is not None:
            self._store.write(write)
            return
        self._streams.while_unchanged(stored, write, self._schedule(stream))

    def _try_to_shut_down(self, scope: str, name: str, writer: str) -> None:
        stored, record = self._read(scope, name, writer)
        mark = _mark_of_incarnation(record, stored.stream)
        if record is None or mark is None:
            raise NotFoundError(
                f"writer {writer} has noted no time on stream {scope}/{name}",
                details={"writer": writer},
                code="writer_not_found",
            )
        if mark.is_alive:
            body = writer_mark_body(shut_down(mark), stored.stream.first_segment_number)
            self._store.write(Replace(record.key, body, record.version))

    def _read(self, scope: str, name: str, writer: str) -> tuple[StoredStream, Record | None]:
        stored, (record,) = self._streams.find_with(scope, name, writer_mark_key(scope, name, writer))
        if stored is None or stored.stream.is_deleting:
            raise no_such_stream(scope, name)
        if not stored.stream.state.is_readable:
            raise UnavailableError(
                f"stream {stored.stream.scoped_name} is being created: repeat until it is ACTIVE",
                code="stream_not_ready",
            )
        return stored, record

    def _positions(self, stream: Stream, offsets: Mapping[int, int]) -> Positions:
        """The positions with their segments. A segment outside the active epoch is looked up in the epoch of its id."""
        segments: dict[int, StreamSegment] = {
            offset: stream.epoch.by_id[offset] for offset in offsets if offset in stream.epoch.by_id
        }
        epochs = sorted({segment_epoch(identifier) for identifier in offsets if identifier not in segments})
        if epochs and epochs[-1] > stream.recorded_epoch:
            raise invalid_position(f"it names epoch {epochs[-1]}, but the stream is in epoch {stream.epoch.number}")
        for epoch in self._history.epochs(stream, epochs):
            segments |= {segment.segment_id: segment for segment in epoch.created}
        for identifier in offsets:
            if identifier not in segments:
                raise invalid_position(f"the stream never had segment {identifier}")
        return positions_of({segments[identifier]: offset for identifier, offset in offsets.items()})

    def _schedule(self, stream: Stream) -> Write:
        """The write that counts one more writer. It changes the entry's version, so no tick removes it meanwhile."""
        key = watermark_schedule_key(stream.scope, stream.name)
        record = self._store.get(key)
        scheduled = decode_watermark_schedule(record.body) if record else None
        writers = 1
        if scheduled is not None and scheduled.first_segment_number == stream.first_segment_number:
            writers += scheduled.writers
        if writers > WRITER_MARKS_PER_STREAM_MAX:
            raise InvalidRequestError(
                f"{WRITER_MARKS_PER_STREAM_MAX} writers of stream {stream.scoped_name} note their time already: "
                "remove some, or let fewer note it",
                details={"writers_max": WRITER_MARKS_PER_STREAM_MAX},
                code="too_many_writers",
            )
        body = watermark_schedule_body(ScheduledStream(stream.scope, stream.name, stream.first_segment_number, writers))
        return create_in_incarnation(stream, key, body) if record is None else Replace(key, body, record.version)


def _mark_of_incarnation(record: Record | None, stream: Stream) -> WriterMark | None:
    """The mark, or None if it belongs to a former incarnation of the stream."""
    if record is None:
        return None
    mark, first_segment_number = decode_writer_mark(record.body)
    return mark if first_segment_number == stream.first_segment_number else None


def _writer_mark(body: Body) -> tuple[WriterMark, int]:
    positions = decode_positions(body["positions"])
    mark = WriterMark(str(body["writer"]), int(body["time"]), positions, bool(body["alive"]))
    return mark, int(body["first_number"])


def read_writer_marks(store: MetadataStore, stream: Stream) -> list[tuple[Record, WriterMark | None]]:
    """The marks of all writers; None for a mark of a former incarnation. One query for each thousand."""
    marks: list[tuple[Record, WriterMark | None]] = []
    first: str | None = WRITER_MARKS_FIRST
    while first is not None:
        page = store.query(
            stream_partition(stream.scope, stream.name), first=first, last=WRITER_MARKS_LAST, limit=_RECORDS_PER_READ
        )
        marks += [(record, _mark_of_incarnation(record, stream)) for record in page.records]
        first = None if page.next_after is None else f"{page.next_after}\0"
    return marks


# The mark segment of a stream: created when it is first needed, and deleted with its stream.
#
# Its name is the same for every incarnation of a stream, so an attribute of the segment records the incarnation that it
# belongs to. The value only grows. A late deletion, truncation or revision mark cannot change the segment of a later
# incarnation, because the store compares the attribute and acts in one step.

_CREATE_ATTEMPTS_MAX = 5
"""An attempt fails only because of another late call: a deletion, or a claim for a former incarnation."""


def make_mark_segment(records: StreamRecords, segment_stores: SegmentStores, stream: Stream) -> bool:
    """Create the mark segment and claim it for this incarnation of the stream; two requests and a read.

    The stream is read after the segment was created, because a deletion that started earlier may already be past the
    step that deletes the mark segment.

    Returns:
        False if this incarnation of the stream is deleted or being deleted.

    Raises:
        UnavailableError: late calls of others made every attempt fail; repeat.
    """
    name = mark_segment_name(stream.scope, stream.name)
    for _ in range(_CREATE_ATTEMPTS_MAX):
        segment_stores.create_segment(name, SegmentScaleRate())
        current = records.find(stream.scope, stream.name)
        is_over = current is None or current.stream.first_segment_number != stream.first_segment_number
        if is_over or (current is not None and current.stream.is_deleting):
            delete_mark_segment(segment_stores, stream)
            return False
        try:
            own = stream.first_segment_number
            if segment_stores.compare_and_set_attribute(name, MARK_INCARNATION, own, None):
                return True
            owner = segment_stores.get_attribute(name, MARK_INCARNATION)
            if owner is not None and owner > own:
                return False
            if segment_stores.compare_and_set_attribute(name, MARK_INCARNATION, own, owner):
                return True
        except NotFoundError:
            continue  # a late deletion has removed the segment before it was claimed
    raise UnavailableError(f"the mark segment of {stream.scoped_name} cannot be created now: repeat")


def delete_mark_segment(segment_stores: SegmentStores, stream: Stream) -> None:
    """Delete the mark segment unless it belongs to a later incarnation of the stream."""
    name = mark_segment_name(stream.scope, stream.name)
    segment_stores.delete_segment_up_to(name, up_to_incarnation(stream))


def up_to_incarnation(stream: Stream) -> AttributeBound:
    """A condition that holds unless the mark segment belongs to a later incarnation of the stream."""
    return AttributeBound(MARK_INCARNATION, stream.first_segment_number)
