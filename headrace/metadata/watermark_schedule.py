"""The streams of a bucket that have marks of writers: the tick computes watermarks for them.

The entry of a stream is written whenever a mark is added or removed, and is removed with the last mark. Its versions
are those of an incarnation, so that a late tick does not change the entry of the next incarnation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.due_index import IndexPage, bucket_of, read_index
from headrace.metadata.record_layout import decoded, versioned
from headrace.model.names import scoped_stream_name
from headrace.ports.metadata_store import Body, Delete, Key, MetadataStore, Replace


@dataclass(frozen=True, slots=True)
class ScheduledStream:
    """`writers` have a mark in the incarnation of the stream that begins at `first_segment_number`.

    `failures` looks in a row have failed, and the next one waits until `not_before_ms` since the Unix epoch.
    """

    scope: str
    stream: str
    first_segment_number: int
    writers: int
    failures: int = 0
    not_before_ms: int = 0


def watermark_schedule_partition(bucket: int) -> str:
    return f"watermarks/{bucket:04d}"


def watermark_schedule_key(scope: str, stream: str) -> Key:
    return Key(watermark_schedule_partition(bucket_of(scope, stream)), scoped_stream_name(scope, stream))


def watermark_schedule_body(scheduled: ScheduledStream) -> dict[str, Any]:
    return versioned(
        scope=scheduled.scope,
        stream=scheduled.stream,
        first_number=scheduled.first_segment_number,
        writers=scheduled.writers,
        **({"failures": scheduled.failures, "not_before": scheduled.not_before_ms} if scheduled.failures else {}),
    )


def decode_watermark_schedule(body: Body) -> ScheduledStream:
    return decoded("watermark schedule", body, _scheduled)


def _scheduled(body: Body) -> ScheduledStream:
    return ScheduledStream(
        str(body["scope"]),
        str(body["stream"]),
        int(body["first_number"]),
        int(body["writers"]),
        int(body.get("failures", 0)),
        int(body.get("not_before", 0)),
    )


def read_schedule(store: MetadataStore, bucket: int, after: str, limit: int) -> IndexPage[ScheduledStream]:
    """The scheduled streams of a bucket; one query."""
    return read_index(store, watermark_schedule_partition(bucket), decode_watermark_schedule, after=after, limit=limit)


def replace_scheduled(key: Key, scheduled: ScheduledStream, version: int) -> Replace:
    """`key` is that of the entry as it was read: it may have been written with another number of buckets."""
    return Replace(key, watermark_schedule_body(scheduled), version)


def write_writers_left(key: Key, scheduled: ScheduledStream, version: int) -> Replace | Delete:
    """The write of an entry from which writers were removed. The entry is deleted with the last writer."""
    return replace_scheduled(key, scheduled, version) if scheduled.writers else Delete(key, version)
