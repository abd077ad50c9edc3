"""The records of a stream's retention: the state and its index entry, written together, and the cuts of the set."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as dataclass_replace

from headrace.metadata.retention_cut import find_cut
from headrace.metadata.retention_due import DueStream, create_due_stream, delete_due_stream
from headrace.metadata.retention_state import (
    StoredRetention,
    retention_body,
    retention_key,
    stored_retention,
)
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.metadata.truncation import read_truncation, truncation_key
from headrace.model.errors import ConflictError
from headrace.model.retention import RetentionCut, RetentionState
from headrace.model.stream_configuration import StreamConfiguration
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import Create, Delete, Key, MetadataStore, Replace, Write

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
        found = find_cut(self._store, stream, cut)
        if found is None:
            raise ConflictError(f"the retention set of {stream.scoped_name} has changed: read it again")
        return found

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
    found = stored_retention(store.get(retention_key(stream.scope, stream.name, stream.first_segment_number)))
    due_ms = None if after.retention is None else DUE_AT_ONCE_MS
    if found is None:
        return writes_of_state(stream, None, RetentionState(due_ms, stream.creation_time_ms))
    return writes_of_state(stream, found, dataclass_replace(found.state, due_ms=due_ms))


def retention_writes_of_end(store: MetadataStore, stream: Stream) -> list[Write]:
    """The writes that remove a stream from the index for good; one read."""
    found = stored_retention(store.get(retention_key(stream.scope, stream.name, stream.first_segment_number)))
    if found is None or found.state.due_ms is None:
        return []
    return writes_of_state(stream, found, dataclass_replace(found.state, due_ms=None))


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
