"""Metadata tables: streams, their cuts and policies, their segments, and how far a reader is behind.

They are read with `format("headrace")` or `read_batch` and the option `metadata`. Tables and columns that Pravega's
connector has are named as there. The rows are made in the driver. A list of streams is one request for a thousand of
them; the other tables are two to five requests for each stream, and one more for thousands of segments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, get_args

import pyarrow as pa

from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.model.names import check_reader_group_name
from headrace.model.stream_cuts import StreamCut
from headrace.spark.checkpoints import finished_positions
from headrace.spark.client_access import open_streams
from headrace.spark.option_values import check_known, invalid_option, one_of
from headrace.spark.options import OF_PRAVEGA_FOR_WRITING, ReadOptions, read_options
from headrace.spark.plans import ReadPlans
from headrace.spark.stream_access import At, Positions, Streams

TableName = Literal["streams", "streaminfo", "segments", "lag"]

_STREAM: Final = {"scope_name": "string", "stream_name": "string"}
_SEGMENT: Final = _STREAM | {"segment_id": "bigint", "key_range_low": "double", "key_range_high": "double"}

TABLE_COLUMNS: Final[Mapping[TableName, Mapping[str, str]]] = {
    "streams": _STREAM | {"tags": "array<string>"},
    "streaminfo": {
        "head_stream_cut": "string",
        "tail_stream_cut": "string",
        **_STREAM,
        "state": "string",
        "epoch": "bigint",
        "segments": "bigint",
        "tags": "array<string>",
        "scaling_policy": "string",
        "retention_policy": "string",
        "creation_time_ms": "bigint",
    },
    "segments": _SEGMENT
    | {"head_offset": "bigint", "tail_offset": "bigint", "bytes": "bigint", "is_sealed": "boolean"},
    "lag": _SEGMENT | {"offset": "bigint", "tail_offset": "bigint", "bytes_behind": "bigint", "bytes_lost": "bigint"},
}
"""Name and Spark type of the columns of each table."""

SHOWN_NAMES: Final = "Streams, StreamInfo, Segments, Lag"

_OWN: Final = frozenset({"metadata", "checkpoint_location", "plans", "reader_group"})
"""Options that reads of events do not have."""

_POSITIONS: Final = ("start_stream_cut", "checkpoint_location", "reader_group")
_FOR_LAG: Final = frozenset({*_POSITIONS, "plans"})
_FOR_ALL: Final = frozenset(
    {"metadata", "controller", "scope", "stream", "stream_pattern", "auth", "network", "patience_s"}
)
ANY_STREAM: Final = ".*"
"""The pattern if the options name no streams."""


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """Checked options.

    `read` has the streams that the table is about, and for a lag behind a cut the cut. The other fields say where else
    the position is that a lag counts from; `plans` is the directory of plans of a query of `read_stream`.
    """

    table: TableName
    read: ReadOptions
    checkpoint_location: str | None = None
    plans: str | None = None
    reader_group: str | None = None

    def column_types(self) -> list[tuple[str, str]]:
        """Name and Spark type of each column."""
        return list(TABLE_COLUMNS[self.table].items())

    def ddl(self) -> str:
        """The schema of the table as Spark's DDL."""
        return ", ".join(f"`{column}` {kind}" for column, kind in self.column_types())


def asks_for_metadata(given: Mapping[str, str]) -> bool:
    """Whether the options are those of a metadata table, and not of events."""
    return any(name.lower() == "metadata" for name in given)


def metadata_options(given: Mapping[str, str]) -> MetadataOptions:
    """The checked options.

    Raises:
        InvalidRequestError: the table or an option is unknown, or an option is missing or has a value that means
            nothing; the message says which and what is allowed.
    """
    options = {name.lower(): value for name, value in given.items()}
    table = _table(options)
    known = _FOR_ALL | (_FOR_LAG if table == "lag" else frozenset())
    check_known(options, known | OF_PRAVEGA_FOR_WRITING, known)
    own = {name: options.pop(name) for name in _OWN if name in options}
    if table == "lag":
        _check_position(options, own)
    names_streams = "stream" in options or "stream_pattern" in options
    if not names_streams and (table == "streams" or own.keys() & {"checkpoint_location", "reader_group"}):
        options["stream_pattern"] = ANY_STREAM
    group = own.get("reader_group")
    return MetadataOptions(
        table,
        replace(read_options(options), on_truncation="skip"),
        own.get("checkpoint_location"),
        own.get("plans"),
        None if group is None else check_reader_group_name(group),
    )


def _table(options: Mapping[str, str]) -> TableName:
    try:
        table: TableName = one_of(options, "metadata", get_args(TableName), None)
    except InvalidRequestError as error:
        raise invalid_option(
            "metadata", f"there is no table {options['metadata']!r}; there are {SHOWN_NAMES}"
        ) from error
    return table


def _check_position(options: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Refuses a lag that counts from no position, or from several."""
    given = [name for name in _POSITIONS if name in options or name in own]
    if len(given) != 1:
        raise invalid_option(
            "metadata", f"a lag counts from one position: give one of {', '.join(_POSITIONS)}, not {len(given)}"
        )
    if "plans" in own and "checkpoint_location" not in own:
        raise invalid_option("plans", "it needs checkpoint_location, the checkpoint that the plans belong to")


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
    for summary in streams.summaries(read.scope, read.stream_pattern or ANY_STREAM):
        if read.reads(summary.scope, summary.stream):
            yield {"scope_name": summary.scope, "stream_name": summary.stream, "tags": list(summary.tags)}


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
    positions: dict[str, Positions]
    if options.checkpoint_location is not None:
        positions = finished_positions(read, options.checkpoint_location, options.plans)
    else:
        positions = ReadPlans(read, streams).starts("earliest")
    return [StreamCut.of(read.scope, name, cut) for name, cut in sorted(positions.items())]


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
