"""An entry in the index of streams whose retention is due: an index per bucket, sorted by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.due_index import IndexPage, read_index
from headrace.metadata.record_layout import decoded, time_prefix, versioned
from headrace.metadata.stream_buckets import bucket_of
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore


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
