"""The indexes in which streams are found, and the writes that keep them true to a stream's configuration.

The list of a scope's streams says which tags a stream has; it changes in the same write as the configuration. The index
of a tag only says which streams may have it: there can be more tags than one write holds, so that its entries come
before the tag does and go after it.

Only creations, updates and deletions need the records of retention: they import them, and a cold start does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.codec.records.listing_record import listing_body, tag_body
from headrace.metadata import keys
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.model.errors import ConflictError, CorruptError
from headrace.model.stream_configuration import StreamConfiguration
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Create, Delete, Key, Replace, Write

_RECORDS_PER_READ = 100
_RECORDS_PER_WRITE = 90
"""Below WRITES_PER_TRANSACTION_MAX, with room for the check of the current record."""


def writes_of_creation(stream: Stream) -> list[Write]:
    """What is written together with a new stream."""
    from headrace.metadata.retention_records import retention_writes_of_creation

    listed = Create(keys.listing_key(stream.scope, stream.name), listing_body(stream.configuration.tags))
    return [listed, *retention_writes_of_creation(stream)]


def writes_of_update(records: StreamRecords, stream: Stream, after: StreamConfiguration) -> list[Write]:
    """What is written together with a new configuration; one read, and one more if the retention policy changes."""
    from headrace.metadata.retention_records import retention_writes_of_update

    key = keys.listing_key(stream.scope, stream.name)
    listed = records.store.get(key)
    if listed is None:
        found = records.find(stream.scope, stream.name)
        if found is None or found.stream.first_segment_number != stream.first_segment_number:
            raise ConflictError(f"stream {stream.scoped_name} was deleted meanwhile: reading again")
        raise CorruptError(f"stream {stream.scoped_name} is missing in the list of its scope")
    retention = retention_writes_of_update(records.store, stream, after)
    return [Replace(key, listing_body(after.tags), listed.version), *retention]


def writes_of_deletion(stream: Stream) -> list[Write]:
    """What is written when the stream is gone."""
    return [
        Delete(keys.listing_key(stream.scope, stream.name), None),
        Delete(keys.watermark_schedule_key(stream.scope, stream.name), None),
    ]


def leave_due_index(records: StreamRecords, stored: StoredStream) -> None:
    """Take a stream that is to be deleted out of the index of streams whose retention is due; one read."""
    from headrace.metadata.retention_records import retention_writes_of_end

    writes = retention_writes_of_end(records.store, stored.stream)
    if writes:
        records.while_unchanged(stored, *writes)


def index_tags(records: StreamRecords, stored: StoredStream, tags: Sequence[str]) -> None:
    """Make sure that the stream is found by each of these tags."""
    wanted = _tag_keys(stored.stream, tags)
    batches = [wanted[start : start + _RECORDS_PER_READ] for start in range(0, len(wanted), _RECORDS_PER_READ)]
    present = {found.key for batch in batches for found in records.store.get_many(batch) if found is not None}
    missing = [key for key in wanted if key not in present]
    for start in range(0, len(missing), _RECORDS_PER_WRITE):
        writes = [Create(key, tag_body()) for key in missing[start : start + _RECORDS_PER_WRITE]]
        records.while_unchanged(stored, *writes)


def unindex_tags(records: StreamRecords, stored: StoredStream, tags: Sequence[str]) -> None:
    """Take the stream out of the index of each of these tags."""
    gone = _tag_keys(stored.stream, tags)
    for start in range(0, len(gone), _RECORDS_PER_WRITE):
        writes = [Delete(key, None) for key in gone[start : start + _RECORDS_PER_WRITE]]
        records.while_unchanged(stored, *writes)


def _tag_keys(stream: Stream, tags: Sequence[str]) -> list[Key]:
    return [keys.tag_key(stream.scope, stream.name, tag) for tag in tags]
