"""Records of writers' times and positions, written for the service and for the commit of a writer's transactions.

The first mark of a writer also puts the stream on the schedule of its bucket, in the same transaction. A later mark is
a single conditional write.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.codec.records.watermark_schedule_record import (
    ScheduledStream,
    watermark_schedule_body,
    watermark_schedule_of_body,
)
from headrace.codec.records.writer_mark_record import writer_mark_body, writer_mark_of_body
from headrace.metadata import keys
from headrace.metadata.optimistic_retry import repeat_on_conflict
from headrace.metadata.stream_records import StoredStream, StreamRecords, create_in_incarnation, no_such_stream
from headrace.model import writer_marks
from headrace.model.errors import InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.limits import WRITER_MARKS_PER_STREAM_MAX
from headrace.model.segments import StreamSegment, segment_epoch
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream
from headrace.model.writer_marks import Positions, WriterMark, invalid_position, noted, positions_of, shut_down
from headrace.ports.metadata_store import MetadataStore, Record, Replace, Write

_ATTEMPTS_MAX = 5
"""Fewer than for other calls, because a commit also notes marks and repeats the whole on a conflict."""


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
        previous = _mark_of(record, stream)
        mark = noted(previous, WriterMark(writer, time, self._positions(stream, offsets)))
        if mark == previous:
            return  # A commit that was interrupted notes its mark again.
        body = writer_mark_body(mark, stream.first_segment_number)
        key = keys.writer_mark_key(scope, name, writer)
        write = create_in_incarnation(stream, key, body) if record is None else Replace(key, body, record.version)
        if previous is not None:
            self._store.write(write)
            return
        self._streams.while_unchanged(stored, write, self._schedule(stream))

    def _try_to_shut_down(self, scope: str, name: str, writer: str) -> None:
        stored, record = self._read(scope, name, writer)
        mark = _mark_of(record, stored.stream)
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
        stored, (record,) = self._streams.find_with(scope, name, keys.writer_mark_key(scope, name, writer))
        if stored is None or stored.stream.is_deleting:
            raise no_such_stream(scope, name)
        if stored.stream.state is StreamState.CREATING:
            raise UnavailableError(
                f"stream {stored.stream.scoped_name} is being created: repeat until it is ACTIVE",
                code="stream_not_ready",
            )
        return stored, record

    def _positions(self, stream: Stream, offsets: Mapping[int, int]) -> Positions:
        """The positions with their segments. A segment outside the active epoch is looked up in the epoch of its id."""
        found: dict[int, StreamSegment] = {one: stream.epoch.by_id[one] for one in offsets if one in stream.epoch.by_id}
        epochs = sorted({segment_epoch(identifier) for identifier in offsets if identifier not in found})
        if epochs and epochs[-1] > stream.recorded_epoch:
            raise invalid_position(f"it names epoch {epochs[-1]}, but the stream is in epoch {stream.epoch.number}")
        for epoch in self._history.epochs(stream, epochs):
            found |= {one.segment_id: one for one in epoch.created}
        for identifier in offsets:
            if identifier not in found:
                raise invalid_position(f"the stream never had segment {identifier}")
        return positions_of({found[identifier]: offset for identifier, offset in offsets.items()})

    def _schedule(self, stream: Stream) -> Write:
        """The write that counts one more writer. It changes the entry's version, so no tick removes it meanwhile."""
        key = keys.watermark_schedule_key(stream.scope, stream.name)
        record = self._store.get(key)
        scheduled = watermark_schedule_of_body(record.body) if record else None
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


def _mark_of(record: Record | None, stream: Stream) -> WriterMark | None:
    """The mark, or None if it belongs to a former incarnation of the stream."""
    if record is None:
        return None
    mark, first_segment_number = writer_mark_of_body(record.body)
    return mark if first_segment_number == stream.first_segment_number else None
