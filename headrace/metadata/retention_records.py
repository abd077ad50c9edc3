"""The records of a stream's retention: the state and its index entry, written together, and the cuts of the set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from typing import Any

from headrace.metadata.due_index import IndexPage, bucket_of, read_index
from headrace.metadata.record_layout import decoded, stream_partition, time_prefix, versioned
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.metadata.truncation import decode_placed_cut, placed_cut_fields, read_truncation, truncation_key
from headrace.model.errors import ConflictError
from headrace.model.retention import Counting, RetentionCut, RetentionState
from headrace.model.stream_configuration import StreamConfiguration
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import Body, Check, Create, Delete, Key, MetadataStore, Record, Replace, Write

# The state of a stream's retention: when it is due, and the cuts of its retention set.
#
# The key has the first segment number of the stream's incarnation: a process that was delayed beyond the end of an
# incarnation cannot write into the next one.


@dataclass(frozen=True, slots=True)
class StoredRetention:
    """A retention state as it was read, and the version of its record."""

    state: RetentionState
    version: int


def retention_sort(first_segment_number: int) -> str:
    return f"retention/{first_segment_number:010d}"


def retention_key(scope: str, stream: str, first_segment_number: int) -> Key:
    return Key(stream_partition(scope, stream), retention_sort(first_segment_number))


def retention_body(state: RetentionState) -> dict[str, Any]:
    return versioned(
        due=state.due_ms,
        head_time=state.head_time_ms,
        cuts=[[cut.time_ms, cut.size_bytes] for cut in state.cuts],
        **({"counting": _counting_fields(state.counting)} if state.counting else {}),
    )


def decode_retention(body: Body) -> RetentionState:
    return decoded("retention", body, _state)


def stored_retention(record: Record | None) -> StoredRetention | None:
    return StoredRetention(decode_retention(record.body), record.version) if record else None


def check_retention(stream: Stream, retention: StoredRetention) -> Check:
    """A check that the state has not changed and no subscriber was registered since it was read."""
    return Check(retention_key(stream.scope, stream.name, stream.first_segment_number), retention.version)


def _state(body: Body) -> RetentionState:
    due = body["due"]
    return RetentionState(
        due_ms=None if due is None else int(due),
        head_time_ms=int(body["head_time"]),
        cuts=tuple(RetentionCut(int(time_ms), int(size_bytes)) for time_ms, size_bytes in body["cuts"]),
        counting=_decode_counting(body["counting"]) if "counting" in body else None,
    )


def _counting_fields(counting: Counting) -> dict[str, Any]:
    return {
        "place": placed_cut_fields(counting.place),
        "first_epoch": counting.first_epoch,
        "before_bytes": counting.before_bytes,
        "next_epoch": counting.next_epoch,
        "size_bytes": counting.size_bytes,
    }


def _decode_counting(fields: Body) -> Counting:
    return Counting(
        decode_placed_cut(fields["place"]),
        int(fields["first_epoch"]),
        int(fields["before_bytes"]),
        int(fields["next_epoch"]),
        int(fields["size_bytes"]),
    )


# An entry in the index of streams whose retention is due: an index per bucket, sorted by time.


@dataclass(frozen=True, slots=True)
class DueStream:
    """A stream whose retention is to be looked at, from `due_ms` since the Unix epoch on.

    `failures` looks in a row have failed before.
    """

    due_ms: int
    scope: str
    stream: str
    first_segment_number: int
    failures: int = 0


def retention_due_partition(bucket: int) -> str:
    return f"retention-due/{bucket:04d}"


def retention_due_sort(due: DueStream) -> str:
    """Two incarnations of a stream have two entries: removing one never removes the other."""
    return f"{retention_due_last(due.due_ms)}{due.scope}/{due.stream}/{due.first_segment_number:010d}"


def retention_due_last(time_ms: int) -> str:
    """Sorts before all that is due at this time, and after all that is due before it."""
    return f"{time_prefix(time_ms)}/"


def retention_due_key(due: DueStream) -> Key:
    return Key(retention_due_partition(bucket_of(due.scope, due.stream)), retention_due_sort(due))


def retention_due_body(due: DueStream) -> dict[str, Any]:
    return versioned(
        due=due.due_ms,
        scope=due.scope,
        stream=due.stream,
        first_number=due.first_segment_number,
        **({"failures": due.failures} if due.failures else {}),
    )


def decode_retention_due(body: Body) -> DueStream:
    return decoded(
        "due retention",
        body,
        lambda fields: DueStream(
            int(fields["due"]),
            str(fields["scope"]),
            str(fields["stream"]),
            int(fields["first_number"]),
            int(fields.get("failures", 0)),
        ),
    )


def read_due_streams(store: MetadataStore, bucket: int, now_ms: int, after: str, limit: int) -> IndexPage[DueStream]:
    """The streams of a bucket that are due at `now_ms`, the longest overdue first; one query."""
    partition, last = retention_due_partition(bucket), retention_due_last(now_ms + 1)
    return read_index(store, partition, decode_retention_due, after=after, last=last, limit=limit)


def create_due_stream(due: DueStream) -> Create:
    return Create(retention_due_key(due), retention_due_body(due))


def delete_due_stream(due: DueStream) -> Delete:
    return Delete(retention_due_key(due), None)


# A cut of a stream's retention set, with its positions. The key has the incarnation of the stream.


def retention_cut_sort(first_segment_number: int, time_ms: int) -> str:
    return f"retention-cut/{first_segment_number:010d}/{time_prefix(time_ms)}"


def retention_cut_key(scope: str, stream: str, first_segment_number: int, time_ms: int) -> Key:
    return Key(stream_partition(scope, stream), retention_cut_sort(first_segment_number, time_ms))


def retention_cut_body(cut: Truncation) -> dict[str, Any]:
    """A place to truncate at has the shape of a truncation."""
    return versioned(cut=placed_cut_fields(cut.head), first_epoch=cut.first_epoch, size_bytes=cut.size_bytes)


def decode_retention_cut(body: Body) -> Truncation:
    return decoded(
        "retention cut",
        body,
        lambda fields: Truncation(
            decode_placed_cut(fields["cut"]), int(fields["first_epoch"]), int(fields["size_bytes"])
        ),
    )


def read_retention_cut(record: Record) -> Truncation:
    """The cut in a record, as a place to truncate at; raises CorruptError if it is not one."""
    return decode_retention_cut(record.body)


def create_cut(stream: Stream, cut: RetentionCut, place: Truncation) -> Create:
    key = retention_cut_key(stream.scope, stream.name, stream.first_segment_number, cut.time_ms)
    return Create(key, retention_cut_body(place))


def delete_cuts(stream: Stream, cuts: Sequence[RetentionCut]) -> list[Write]:
    return [
        Delete(retention_cut_key(stream.scope, stream.name, stream.first_segment_number, cut.time_ms), None)
        for cut in cuts
    ]


def find_cut(store: MetadataStore, stream: Stream, cut: RetentionCut) -> Truncation | None:
    """A cut of the set with its positions, or None if it is no longer part of the set; one read."""
    key = retention_cut_key(stream.scope, stream.name, stream.first_segment_number, cut.time_ms)
    record = store.get(key)
    return decode_retention_cut(record.body) if record else None


DUE_AT_ONCE_MS = 0


@dataclass(frozen=True, slots=True)
class StoredDue:
    """An entry of the index, and the key of its record."""

    due: DueStream
    key: Key


@dataclass(frozen=True, slots=True)
class RetainedStream:
    """A stream, its head and its retention state from one batch read.

    `retention` is None if the stream never had a retention policy.
    """

    stored: StoredStream
    truncation: Truncation | None
    retention: StoredRetention | None

    @property
    def stream(self) -> Stream:
        return self.stored.stream

    @property
    def head_bytes(self) -> int:
        """The bytes before the head, counted since the creation of the stream."""
        return self.truncation.size_bytes if self.truncation else 0


class RetentionRecords:
    """Reads a stream with its head and its retention in one batch; safe for any number of threads."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._streams = StreamRecords(store)

    def load(self, scope: str, stream: str, first_segment_number: int) -> RetainedStream | None:
        """The incarnation of a stream with this first segment number, or None if it was deleted; one batch read."""
        stored, (truncation, retention) = self._streams.find_with(
            scope, stream, truncation_key(scope, stream), retention_key(scope, stream, first_segment_number)
        )
        if stored is None or stored.stream.first_segment_number != first_segment_number:
            return None
        return RetainedStream(stored, read_truncation(truncation), stored_retention(retention))

    def cut(self, stream: Stream, cut: RetentionCut) -> Truncation:
        """A cut of the set with its positions; one read.

        Raises:
            ConflictError: the set has changed since it was read.
        """
        truncation = find_cut(self._store, stream, cut)
        if truncation is None:
            raise ConflictError(f"the retention set of {stream.scoped_name} has changed: read it again")
        return truncation

    def replace(self, stream: Stream, before: StoredRetention, after: RetentionState, *others: Write) -> None:
        """Write the state, its index entry and `others` in one transaction.

        Raises:
            WriteConflictError: the state has changed since it was read, or a condition of `others` failed.
        """
        self._store.write(*writes_of_state(stream, before, after), *others)

    def put_off(self, stream: Stream, before: StoredRetention, due_ms: int, failures: int) -> None:
        """Make the stream due at `due_ms`, after `failures` failed attempts in a row. Raises as `replace` does."""
        after = dataclass_replace(before.state, due_ms=due_ms)
        self._store.write(*writes_of_state(stream, before, after, failures))

    def forget_due(self, due: StoredDue) -> None:
        """Remove a stale entry: its incarnation was deleted, or the number of buckets has changed."""
        self._store.write(Delete(due.key, None))


def retention_writes_of_creation(stream: Stream) -> list[Write]:
    """The writes for retention in the transaction that creates a stream."""
    if stream.configuration.retention is None:
        return []
    return writes_of_state(stream, None, RetentionState(DUE_AT_ONCE_MS, stream.creation_time_ms))


def retention_writes_of_update(store: MetadataStore, stream: Stream, after: StreamConfiguration) -> list[Write]:
    """The writes for retention in the transaction that sets a new configuration; one read if the policy changes.

    If the new configuration has no policy, the set is kept for the case that a later one has a policy again.
    """
    if stream.configuration.retention == after.retention:
        return []
    before = stored_retention(store.get(retention_key(stream.scope, stream.name, stream.first_segment_number)))
    due_ms = None if after.retention is None else DUE_AT_ONCE_MS
    if before is None:
        return writes_of_state(stream, None, RetentionState(due_ms, stream.creation_time_ms))
    return writes_of_state(stream, before, dataclass_replace(before.state, due_ms=due_ms))


def retention_writes_of_end(store: MetadataStore, stream: Stream) -> list[Write]:
    """The writes that remove a stream from the index for good; one read."""
    before = stored_retention(store.get(retention_key(stream.scope, stream.name, stream.first_segment_number)))
    if before is None or before.state.due_ms is None:
        return []
    return writes_of_state(stream, before, dataclass_replace(before.state, due_ms=None))


def writes_of_state(
    stream: Stream, before: StoredRetention | None, after: RetentionState, failures: int = 0
) -> list[Write]:
    """The writes of the state, and of its index entry if the due time changes."""
    key = retention_key(stream.scope, stream.name, stream.first_segment_number)
    body = retention_body(after)
    writes: list[Write] = [Create(key, body) if before is None else Replace(key, body, before.version)]
    due_before_ms = before.state.due_ms if before else None
    if due_before_ms != after.due_ms:
        if due_before_ms is not None:
            writes.append(delete_due_stream(_due(stream, due_before_ms)))
        if after.due_ms is not None:
            writes.append(create_due_stream(_due(stream, after.due_ms, failures)))
    return writes


def _due(stream: Stream, due_ms: int, failures: int = 0) -> DueStream:
    return DueStream(due_ms, stream.scope, stream.name, stream.first_segment_number, failures)
