"""How far the watermarks of a stream have come. A lost record can be restored from the mark segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.due_index import IndexPage, read_index
from headrace.metadata.record_layout import decode_positions, decoded, position_rows, stream_partition, versioned
from headrace.metadata.stream import create_in_incarnation
from headrace.metadata.stream_buckets import bucket_of
from headrace.model.names import scoped_stream_name
from headrace.model.streams import Stream
from headrace.model.watermarks import Watermark, WatermarkState
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Replace

# The streams of a bucket that have marks of writers: the tick computes watermarks for them.
#
# The entry of a stream is written whenever a mark is added or removed, and is removed with the last mark. Its versions
# are those of an incarnation, so that a late tick does not change the entry of the next incarnation.


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
