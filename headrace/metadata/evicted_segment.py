"""An evicted segment of a segment store: its whole state, in the partition of its chunk directory.

The record counts only while the segment is not in its container's memory; for a segment in memory it is out of date
and harmless. It is deleted with the last run of a removed segment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.codec.container_snapshots import SegmentSnapshot, segment_body, segment_of_body
from headrace.metadata.record_layout import decoded, versioned
from headrace.model.chunks import chunk_partition
from headrace.ports.metadata_store import Body, Create, Key, Record, Replace

SEGMENT_SORT: Final = "segment"
_NO_NUMBER: Final = 0


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """`state` has no number: a container gives a new one to each segment that comes back. `epoch` is the writer's."""

    state: SegmentSnapshot
    epoch: int


def without_number(state: SegmentSnapshot) -> SegmentSnapshot:
    """The state as a record holds it."""
    return replace(state, number=_NO_NUMBER)


def evicted_segment_key(name: str) -> Key:
    """The key of a segment's record."""
    return Key(chunk_partition(name), SEGMENT_SORT)


def segment_record_body(record: SegmentRecord) -> dict[str, Any]:
    return versioned(epoch=record.epoch, segment=segment_body(record.state))


def decode_segment_record(body: Body) -> SegmentRecord:
    """Raises CorruptError: the body is not such a record."""
    return decoded(
        "segment", body, lambda fields: SegmentRecord(segment_of_body(fields["segment"]), int(fields["epoch"]))
    )


def read_segment_record(record: Record) -> SegmentRecord:
    """Raises CorruptError: the record is not that of a segment."""
    return decode_segment_record(record.body)


def write_segment_record(state: SegmentSnapshot, epoch: int, version: int | None) -> Create | Replace:
    """The write that replaces the record of this version, or creates it if `version` is None."""
    key, body = evicted_segment_key(state.name), segment_record_body(SegmentRecord(state, epoch))
    return Create(key, body) if version is None else Replace(key, body, version)
