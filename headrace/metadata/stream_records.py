"""The mutable records of a stream. Only this module writes the current record, and it always checks the invariants."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.metadata.history_records import HistoryRecords
from headrace.metadata.intent import Intent, create_intent_write, delete_intent_write
from headrace.metadata.stream import (
    current_key,
    decode_stream,
    epoch_key,
    epoch_reference,
    find_configuration_update,
    find_transition,
    fit_in_current,
    is_tombstone,
    no_such_stream,
    stream_body,
    stream_tags_body,
    stream_tags_key,
    tags_reference,
    tombstone_body,
)
from headrace.metadata.truncation import (
    find_running_truncation,
    read_running_truncation,
    read_truncation,
    running_truncation_key,
    truncation_key,
)
from headrace.model.epochs import Epoch
from headrace.model.errors import CorruptError
from headrace.model.requests import ResourceKind
from headrace.model.stream_configuration import ConfigurationUpdate
from headrace.model.streams import Stream, check_write
from headrace.model.truncation import RunningTruncation, Truncation
from headrace.ports.metadata_store import Check, Create, Delete, Key, MetadataStore, Record, Replace, Write
from headrace.ports.request_queue import current_requester


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A stream as it was read, and the versions of its record and of all records that were read with it.

    A batch read is not a snapshot: a decision that is based on it holds only if no record of it has changed when the
    decision is written. So every write through `StreamRecords` checks all of these versions. `tags_version` refers to
    the record of the tags; None if they are part of the current record.
    """

    stream: Stream
    version: int
    read_with: tuple[Check, ...] = ()
    tags_version: int | None = None

    def unchanged(self, *others: Write) -> list[Write]:
        """`others`, with a check of each record that was read and that they do not write.

        The transaction of these writes takes effect only if no record has changed since it was read.
        """
        return [Check(current_key(self.stream.scope, self.stream.name), self.version), *self.with_checks(*others)]

    def with_checks(self, *others: Write) -> list[Write]:
        """`others`, with a check of each record that was read with the stream and that they do not write."""
        written = {write.key for write in others}
        return [*others, *(check for check in self.read_with if check.key not in written)]


_READS_OF_CURRENT_MAX = 5
"""How often a current record is read again because an epoch or tags that it names were not found.

Each repeat means that the stream was deleted, or got other tags, since the last read. That cannot happen often enough
to use up all of them.
"""


class StreamRecords:
    """Reads the current record of a stream with the records that it names, and others in the same batch; writes it.

    A read of a stream with many segments needs a second read unless its active epoch is in the cache of `history`, and
    a read of a stream with long tags needs one more unless they are.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.history = HistoryRecords(store)

    def find(self, scope: str, stream: str) -> StoredStream | None:
        """One read; None if there is no such stream."""
        return self.stored(self.store.get(current_key(scope, stream)))

    def stored(self, record: Record | None) -> StoredStream | None:
        """The stream in a current record; None if there is no record or a tombstone.

        Raises:
            CorruptError: the record names an epoch or tags that are missing.
        """
        for _ in range(_READS_OF_CURRENT_MAX):
            if record is None or is_tombstone(record.body):
                return None
            reference, named_tags = epoch_reference(record.body), tags_reference(record.body)
            epoch = self.history.active_epoch(reference) if reference else None
            tags = self.history.tags(named_tags) if named_tags else None
            if (reference is None or epoch is not None) and (named_tags is None or tags is not None):
                break
            # The stream was deleted or got other tags since its record was read, or the record is corrupt: read the
            # newest record.
            record = self.store.get(record.key)
        stream = decode_stream(record.body, epoch, tags) if record else None
        tags_version = named_tags.version if named_tags else None
        return StoredStream(stream, record.version, tags_version=tags_version) if record and stream else None

    def get(self, scope: str, stream: str) -> StoredStream:
        """One read; raises NotFoundError if there is no such stream."""
        stored = self.find(scope, stream)
        if stored is None:
            raise no_such_stream(scope, stream)
        return stored

    def get_with_truncation(self, scope: str, stream: str) -> tuple[StoredStream, Truncation | None]:
        """One batch read; raises NotFoundError if there is no such stream."""
        stored, (truncation,) = self.find_with(scope, stream, truncation_key(scope, stream))
        if stored is None:
            raise no_such_stream(scope, stream)
        return stored, read_truncation(truncation)

    def get_with_truncations(
        self, scope: str, stream: str
    ) -> tuple[StoredStream, Truncation | None, RunningTruncation | None]:
        """The stream, its head, and its running truncation; one batch read. Raises NotFoundError."""
        stored, (truncation, running) = self.find_with(
            scope, stream, truncation_key(scope, stream), running_truncation_key(scope, stream)
        )
        if stored is None:
            raise no_such_stream(scope, stream)
        return stored, read_truncation(truncation), read_running_truncation(running)

    def find_with(self, scope: str, stream: str, *others: Key) -> tuple[StoredStream | None, list[Record | None]]:
        """The stream and the records at other keys; one batch read. The `StoredStream` has the versions of all."""
        current, *records = self.store.get_many([current_key(scope, stream), *others])
        stored = self.stored(current)
        if stored is None:
            return None, records
        checks = (Check(key, record.version if record else None) for key, record in zip(others, records, strict=True))
        return replace(stored, read_with=tuple(checks)), records

    def transition(self, stream: Stream) -> Epoch | None:
        """The epoch that a running scale leads to; one read."""
        return find_transition(self.store, stream)

    def configuration_update(self, stream: Stream) -> ConfigurationUpdate | None:
        """The running update of the configuration; one read."""
        return find_configuration_update(self.store, stream)

    def running_truncation(self, stream: Stream) -> tuple[RunningTruncation, int] | None:
        """The running truncation and the version of its record; one read."""
        return find_running_truncation(self.store, stream)

    def replace(self, stored: StoredStream, after: Stream, *others: Write) -> StoredStream:
        """Write the current record and `others` in one transaction, if no record has changed since it was read.

        Long tags get their own record in the same write. Returns the stream as it is stored then.

        Raises:
            WriteConflictError: a record has changed since it was read, or a condition of another write failed.
            CorruptError: the write would break an invariant; nothing was written.
        """
        check_write(stored.stream, after)
        key = current_key(after.scope, after.name)
        tags_version, tags_writes = _tags_after(stored, after)
        body = stream_body(after, tags_version)
        self.store.write(Replace(key, body, stored.version), *tags_writes, *stored.with_checks(*others))
        self.history.remember(after, tags_version)
        return StoredStream(after, stored.version + 1, tags_version=tags_version)

    def while_unchanged(self, stored: StoredStream, *writes: Write) -> None:
        """Write in one transaction, if no record has changed since it was read; else raise WriteConflictError."""
        self.store.write(*stored.unchanged(*writes))


def create_current(stream: Stream, tombstone: Record | None) -> list[Write]:
    """The writes of a new stream. They replace the tombstone of a deleted stream of this name, if there is one.

    Raises:
        CorruptError: the write would break an invariant.
    """
    check_write(None, stream)
    tags_version, tags_writes = _tags_in_place(stream)
    key, body = current_key(stream.scope, stream.name), stream_body(stream, tags_version)
    current = Create(key, body) if tombstone is None else Replace(key, body, tombstone.version)
    return [current, *tags_writes]


def replace_with_tombstone(stored: StoredStream) -> list[Write]:
    """The writes that complete the deletion of a stream: of its current record and of the records that this names.

    Raises:
        CorruptError: the stream is not being deleted.
    """
    stream = stored.stream
    if not stream.is_deleting:
        raise CorruptError(
            f"refusing to remove stream {stream.scoped_name}: it is {stream.state} and not being deleted"
        )
    current = current_key(stream.scope, stream.name)
    tombstone = Replace(current, tombstone_body(stream.epoch.next_segment_number), stored.version)
    return [tombstone, *(Delete(key, None) for key in keys_named_in_current(stored))]


def keys_named_in_current(stored: StoredStream) -> list[Key]:
    """The records of the active epoch and the long tags, which a reader of the current record needs."""
    stream = stored.stream
    tags = [] if stored.tags_version is None else [_tags_key(stream, stored.tags_version)]
    return [epoch_key(stream.scope, stream.name, stream.epoch.number), *tags]


def _tags_after(stored: StoredStream, after: Stream) -> tuple[int | None, list[Write]]:
    """The version of the record that has the tags of `after`, and the writes of records of tags."""
    before = stored.tags_version
    if after.configuration.tags == stored.stream.configuration.tags:
        return before, []
    version, writes = _tags_in_place(after)
    gone: list[Write] = [] if before is None else [Delete(_tags_key(after, before), None)]
    return version, [*writes, *gone]


def _tags_in_place(stream: Stream) -> tuple[int | None, list[Write]]:
    """The version of a new record of the tags, None if they are short, and its write."""
    tags, version = stream.configuration.tags, stream.configuration_version
    if fit_in_current(tags):
        return None, []
    return version, [Create(_tags_key(stream, version), stream_tags_body(tags))]


def _tags_key(stream: Stream, version: int) -> Key:
    return stream_tags_key(stream.scope, stream.name, stream.first_segment_number, version)


def create_intent(stream: Stream, now_ms: int) -> tuple[Create, Intent]:
    """The write that makes the newest accepted request of `stream` durable, and its intent."""
    if stream.newest_request is None:
        raise CorruptError(f"stream {stream.scoped_name} has no pending request to write an intent for")
    intent = Intent(stream.scope, stream.name, stream.newest_request, now_ms, requester=current_requester())
    return create_intent_write(intent), intent


def delete_intent(stream: Stream) -> Delete:
    """Unconditional: its transaction also writes the current record, whose version is checked."""
    return delete_intent_write(ResourceKind.STREAM, stream.scope, stream.name)
