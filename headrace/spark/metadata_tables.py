"""The rows of metadata tables: streams, their cuts and policies, their segments, and how far a reader is behind.

They are made in the driver. A list of streams is one request for a thousand of them; the other tables are two to five
requests for each stream, and one more for thousands of segments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final, TypeAlias, get_args

import pyarrow as pa

from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.stream_cuts import StreamCut
from headrace.spark.checkpoints import finished_positions
from headrace.spark.client_access import open_streams
from headrace.spark.metadata_options import ANY_STREAM, MetadataOptions, TableName
from headrace.spark.plans import ReadPlans
from headrace.spark.stream_access import At, Positions, Streams

Row: TypeAlias = dict[str, Any]

ROWS_PER_BATCH: Final = 10_000

_ARROW_TYPES: Final = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "array<string>": pa.list_(pa.string()),
}


def metadata_batches(options: MetadataOptions) -> list[pa.RecordBatch]:
    """The table as of now; at least one batch.

    Raises:
        NotFoundError: there is no such scope, stream or reader group; or see `finished_positions`.
        HeadraceError: the controller could not answer; or see `finished_positions`.
    """
    schema = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in options.column_types()])
    with closing(open_streams(options.read)) as streams:
        rows = list(_TABLES[options.table](options, streams))
    starts = range(0, max(1, len(rows)), ROWS_PER_BATCH)
    return [pa.RecordBatch.from_pylist(rows[first : first + ROWS_PER_BATCH], schema) for first in starts]


def _stream_rows(options: MetadataOptions, streams: Streams) -> Iterator[Row]:
    read = options.read
    for found in streams.summaries(read.scope, read.stream_pattern or ANY_STREAM):
        if read.reads(found.scope, found.stream):
            yield {"scope_name": found.scope, "stream_name": found.stream, "tags": list(found.tags)}


def _stream_info_rows(options: MetadataOptions, streams: Streams) -> Iterator[Row]:
    scope = options.read.scope
    for name in ReadPlans(options.read, streams).names():
        view, access = streams.view(scope, name), streams.stream(scope, name)
        head, tail = (stream_cut_text(StreamCut.of(scope, name, access.cut(at))) for at in get_args(At))
        policies = view.configuration.to_json()
        retention = policies["retentionPolicy"]
        yield {
            "head_stream_cut": head,
            "tail_stream_cut": tail,
            "scope_name": scope,
            "stream_name": name,
            "state": view.state.value,
            "epoch": view.epoch,
            "segments": view.segments,
            "tags": list(view.tags),
            "scaling_policy": json.dumps(policies["scalingPolicy"]),
            "retention_policy": None if retention is None else json.dumps(retention),
            "creation_time_ms": view.creation_time_ms,
        }


def _segment_rows(options: MetadataOptions, streams: Streams) -> Iterator[Row]:
    scope = options.read.scope
    for name in ReadPlans(options.read, streams).names():
        is_sealed = streams.view(scope, name).state.is_sealed
        access = streams.stream(scope, name)
        for part in access.unread(access.cut("earliest")).ranges:
            yield _of_segment(part) | {
                "head_offset": part.start,
                "tail_offset": part.end,
                "bytes": part.length_bytes,
                "is_sealed": is_sealed or bool(part.successors),
            }


def _lag_rows(options: MetadataOptions, streams: Streams) -> Iterator[Row]:
    for cut in _positions(options, streams):
        unread = streams.stream(cut.scope, cut.stream).unread(cut.offsets)
        lost = {segment.segment_id: segment for segment in unread.lost}
        for part in unread.ranges:
            gone = lost.pop(part.segment_id, None)
            yield _of_segment(part) | {
                "offset": part.start if gone is None else gone.offset,
                "tail_offset": part.end,
                "bytes_behind": part.length_bytes,
                "bytes_lost": 0 if gone is None else gone.length,
            }
        for gone in lost.values():
            yield {
                "scope_name": cut.scope,
                "stream_name": cut.stream,
                "segment_id": gone.segment_id,
                "offset": gone.offset,
                "tail_offset": gone.offset + gone.length,
                "bytes_behind": 0,
                "bytes_lost": gone.length,
            }


def _positions(options: MetadataOptions, streams: Streams) -> list[StreamCut]:
    """The cuts that a lag counts from."""
    read = options.read
    if options.reader_group is not None:
        cuts = streams.group_cuts(read.scope, options.reader_group)
        return [cut for cut in cuts if read.stream_pattern == ANY_STREAM or read.reads(cut.scope, cut.stream)]
    found: dict[str, Positions]
    if options.checkpoint_location is not None:
        found = finished_positions(read, options.checkpoint_location, options.plans)
    else:
        found = ReadPlans(read, streams).starts("earliest")
    return [StreamCut.of(read.scope, name, cut) for name, cut in sorted(found.items())]


def _of_segment(part: SegmentRange) -> Row:
    return {
        "scope_name": part.scope,
        "stream_name": part.stream,
        "segment_id": part.segment_id,
        "key_range_low": part.low,
        "key_range_high": part.high,
    }


_TABLES: Final[Mapping[TableName, Callable[[MetadataOptions, Streams], Iterator[Row]]]] = {
    "streams": _stream_rows,
    "streaminfo": _stream_info_rows,
    "segments": _segment_rows,
    "lag": _lag_rows,
}
