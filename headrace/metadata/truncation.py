"""The head of a stream that was truncated: the stream cut at which the stream begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.metadata.record_layout import decode_segments, decoded, segment_rows, stream_partition, versioned
from headrace.model.stream_cut_order import PlacedCut
from headrace.model.stream_cuts import StreamCut
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import Body, Create, Key, MetadataStore, Record, Replace

TRUNCATION_SORT = "truncation"


def truncation_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), TRUNCATION_SORT)


def truncation_body(truncation: Truncation) -> dict[str, Any]:
    return versioned(**truncation_fields(truncation))


def decode_truncation(body: Body) -> Truncation:
    return decoded("truncation", body, decode_truncation_fields)


def read_truncation(record: Record | None) -> Truncation | None:
    """The truncation in a record; None if the stream was never truncated."""
    return decode_truncation(record.body) if record else None


def write_truncation(store: MetadataStore, stream: Stream, truncation: Truncation) -> Create | Replace:
    """The write of a new head, on condition that the record does not change; one read."""
    key, body = truncation_key(stream.scope, stream.name), truncation_body(truncation)
    record = store.get(key)
    return Create(key, body) if record is None else Replace(key, body, record.version)


def placed_cut_fields(placed: PlacedCut) -> dict[str, Any]:
    """A cut with its segments as part of a body."""
    cut = placed.cut
    return {
        "scope": cut.scope,
        "stream": cut.stream,
        "positions": [list(position) for position in cut.positions],
        "segments": segment_rows(placed.segments),
    }


def decode_placed_cut(fields: Mapping[str, Any]) -> PlacedCut:
    positions = tuple((int(identifier), int(offset)) for identifier, offset in fields["positions"])
    cut = StreamCut(str(fields["scope"]), str(fields["stream"]), positions)
    return PlacedCut(cut, decode_segments(fields["segments"]))


def truncation_fields(truncation: Truncation) -> dict[str, Any]:
    """A truncation as part of a body."""
    return {
        "head": placed_cut_fields(truncation.head),
        "first_epoch": truncation.first_epoch,
        "size_bytes": truncation.size_bytes,
    }


def decode_truncation_fields(fields: Body) -> Truncation:
    return Truncation(decode_placed_cut(fields["head"]), int(fields["first_epoch"]), int(fields["size_bytes"]))
