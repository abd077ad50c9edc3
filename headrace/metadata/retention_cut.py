"""A cut of a stream's retention set, with its positions. The key has the incarnation of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.metadata.record_layout import decoded, stream_partition, time_prefix, versioned
from headrace.metadata.truncation import decode_placed_cut, placed_cut_fields
from headrace.model.retention import RetentionCut
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Write


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
