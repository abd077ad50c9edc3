"""The indexes of streams, and the writes that keep them consistent with each stream's configuration.

The list of a scope's streams has the tags of each stream and changes in the same transaction as the configuration. The
index of a tag only lists streams that may have the tag, because a stream can have more tags than one transaction can
write. An entry is therefore written before the stream gets the tag, and removed after the stream has lost it.

Creations, updates and deletions import the records of retention in their functions: other calls do not need them, and
a cold start is shorter without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.metadata.record_layout import versioned
from headrace.metadata.scope import listing_body, listing_key
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.metadata.watermark_schedule import watermark_schedule_key
from headrace.model.errors import ConflictError, CorruptError
from headrace.model.names import check_known_name
from headrace.model.stream_configuration import StreamConfiguration
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Create, Delete, Key, Replace, Write

# The index of a tag: the streams of a scope that may have the tag, by name.


def tag_partition(scope: str, tag: str) -> str:
    """A scope's name has no slash, so any tag may follow."""
    return f"tag/{check_known_name('scope', scope)}/{tag}"


def tag_key(scope: str, stream: str, tag: str) -> Key:
    return Key(tag_partition(scope, tag), check_known_name("stream", stream))


def tag_body() -> dict[str, Any]:
    return versioned()


_RECORDS_PER_READ = 100
_RECORDS_PER_WRITE = 90
"""Below WRITES_PER_TRANSACTION_MAX, with room for the check of the current record."""


def writes_of_creation(stream: Stream) -> list[Write]:
    """The writes for the indexes in the transaction that creates a stream."""
    from headrace.metadata.retention_records import retention_writes_of_creation

    listed = Create(listing_key(stream.scope, stream.name), listing_body(stream.configuration.tags))
    return [listed, *retention_writes_of_creation(stream)]


def writes_of_update(records: StreamRecords, stream: Stream, after: StreamConfiguration) -> list[Write]:
    """The writes for the indexes in the transaction that sets a new configuration.

    One read, and one more if the retention policy changes.
    """
    from headrace.metadata.retention_records import retention_writes_of_update

    key = listing_key(stream.scope, stream.name)
    listed = records.store.get(key)
    if listed is None:
        current = records.find(stream.scope, stream.name)
        if current is None or current.stream.first_segment_number != stream.first_segment_number:
            raise ConflictError(f"stream {stream.scoped_name} was deleted meanwhile: read it again")
        raise CorruptError(f"stream {stream.scoped_name} is missing from the list of its scope")
    retention = retention_writes_of_update(records.store, stream, after)
    return [Replace(key, listing_body(after.tags), listed.version), *retention]


def writes_of_deletion(stream: Stream) -> list[Write]:
    """The writes for the indexes in the transaction that completes the deletion of a stream."""
    return [
        Delete(listing_key(stream.scope, stream.name), None),
        Delete(watermark_schedule_key(stream.scope, stream.name), None),
    ]


def leave_due_index(records: StreamRecords, stored: StoredStream) -> None:
    """Remove a stream that will be deleted from the index of streams whose retention is due; one read."""
    from headrace.metadata.retention_records import retention_writes_of_end

    writes = retention_writes_of_end(records.store, stored.stream)
    if writes:
        records.while_unchanged(stored, *writes)


def index_tags(records: StreamRecords, stored: StoredStream, tags: Sequence[str]) -> None:
    """Add the stream to the index of each of these tags, unless it is there already."""
    wanted = _tag_keys(stored.stream, tags)
    batches = [wanted[start : start + _RECORDS_PER_READ] for start in range(0, len(wanted), _RECORDS_PER_READ)]
    present = {record.key for batch in batches for record in records.store.get_many(batch) if record is not None}
    missing = [key for key in wanted if key not in present]
    for start in range(0, len(missing), _RECORDS_PER_WRITE):
        writes = [Create(key, tag_body()) for key in missing[start : start + _RECORDS_PER_WRITE]]
        records.while_unchanged(stored, *writes)


def unindex_tags(records: StreamRecords, stored: StoredStream, tags: Sequence[str]) -> None:
    """Remove the stream from the index of each of these tags."""
    gone = _tag_keys(stored.stream, tags)
    for start in range(0, len(gone), _RECORDS_PER_WRITE):
        writes = [Delete(key, None) for key in gone[start : start + _RECORDS_PER_WRITE]]
        records.while_unchanged(stored, *writes)


def _tag_keys(stream: Stream, tags: Sequence[str]) -> list[Key]:
    return [tag_key(stream.scope, stream.name, tag) for tag in tags]
