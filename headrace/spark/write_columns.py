"""The columns of rows that are written: their check, and rows as record batches, split by target stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.errors import InvalidRequestError
from headrace.spark.write_options import WriteOptions

EVENT: Final = "event"
ROUTING_KEY: Final = "routing_key"
STREAM: Final = "stream"

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    EVENT: ("binary", "string"),
    ROUTING_KEY: ("string",),
    STREAM: ("string",),
}
_ARROW_TYPES: Final = {"binary": pa.binary(), "string": pa.string()}

ROWS_PER_BATCH: Final = 8192
BYTES_PER_BATCH: Final = 4 * 1024 * 1024
"""Rows become record batches of about this size, for Spark 4.0, whose stream writers get rows only."""

ColumnTypes = Sequence[tuple[str, str]]
"""The name and Spark's type of each column, in order."""


def check_columns(columns: ColumnTypes, options: WriteOptions) -> None:
    """Refuses columns that the sink does not know, so that none is dropped without notice.

    Raises:
        InvalidRequestError: code "invalid_columns"; the message says what to select.
    """
    names = [name for name, _ in columns]
    if len(set(names)) != len(names):
        raise _invalid(f"a column occurs twice in {', '.join(names)}")
    if EVENT not in names:
        raise _invalid(f"there is no column {EVENT!r} in {', '.join(names)}")
    for name, kind in columns:
        if name not in _TYPES:
            raise _invalid(f"the column {name!r} cannot be written")
        if kind not in _TYPES[name]:
            raise _invalid(f"the column {name!r} has the type {kind}, not {' or '.join(_TYPES[name])}")
    if STREAM in names and not options.streams:
        # Rows that were read from Headrace have this column, with the stream that they came from.
        raise _invalid(f"the column {STREAM!r} needs the option 'streams', which lists the streams that it may name")


def batches_of_rows(rows: Iterable[Sequence[Any]], columns: ColumnTypes) -> Iterator[pa.RecordBatch]:
    """Spark's rows as record batches. The first is alone, because a task begins its transaction at its first row."""
    schema = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in columns])
    at = [name for name, _ in columns].index(EVENT)
    held: list[Sequence[Any]] = []
    held_bytes, rows_max = 0, 1
    for row in rows:
        held.append(row)
        held_bytes += len(row[at] or b"")
        if len(held) >= rows_max or held_bytes >= BYTES_PER_BATCH:
            yield _batch(held, schema)
            held, held_bytes, rows_max = [], 0, ROWS_PER_BATCH
    if held:
        yield _batch(held, schema)


def split_by_stream(batch: pa.RecordBatch, options: WriteOptions) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each target stream, in their order; a row without a stream goes to the stream of the options.

    Raises:
        InvalidRequestError: an event is null, or a row names a stream that the options do not list.
    """
    names = batch.schema.names
    events = batch.column(names.index(EVENT))
    if events.null_count:
        raise InvalidRequestError(
            f"{events.null_count} rows have null in the column {EVENT!r}: filter them out before the write",
            code="null_event",
        )
    kept = [name for name in names if name != STREAM]
    columns = pa.RecordBatch.from_arrays([batch.column(names.index(name)) for name in kept], kept)
    if STREAM not in names:
        yield options.stream, columns
        return
    targets = pc.fill_null(pc.cast(batch.column(names.index(STREAM)), pa.string()), options.stream)
    for stream in pc.unique(targets).to_pylist():
        if stream not in options.targets:
            raise InvalidRequestError(
                f"a row names the stream {stream!r}, which is neither the option 'stream' nor in 'streams'",
                code="unlisted_stream",
            )
        yield stream, columns.filter(pc.equal(targets, stream))


def _batch(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _invalid(problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{problem}: select the columns {EVENT!r} (binary or string), {ROUTING_KEY!r} (string, optional) and {STREAM!r}"
        " (string, optional)",
        code="invalid_columns",
    )
