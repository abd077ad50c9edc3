"""Event columns into the record batches that Spark asked for: exactly its columns, in its order, with its Arrow types.

Spark takes plain types only: no views, no dictionaries, no large variants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.segment_ranges import SegmentRange
from headrace.codec.event_columns import EventColumns
from headrace.model.errors import CorruptError
from headrace.spark.json_rows import event_slices, record_rows
from headrace.spark.options import EventFormat, RecordFormat


@dataclass(frozen=True, slots=True)
class RowShape:
    """`columns` are names of `options.COLUMN_TYPES`."""

    scope: str
    stream: str
    columns: tuple[str, ...]
    event_format: EventFormat
    records: RecordFormat | None = None


def row_batches(shape: RowShape, part: SegmentRange, parsed: Iterable[EventColumns]) -> Iterator[pa.RecordBatch]:
    """The record batches for blocks of parsed events of the segment range `part`.

    Raises:
        CorruptError: an event is not UTF-8, but text was asked for, or it does not fit the schema, and such events
            fail the read.
    """
    makers = [_column(name, shape, part) for name in shape.columns]
    for events in parsed:
        if shape.records is not None and "event" in shape.columns:
            for some in event_slices(events):
                yield from _record_batch(shape, shape.records, part, makers, some)
        else:
            yield _batch(shape.columns, [make(events) for make in makers])


Maker = Callable[[EventColumns], pa.Array]


def _batch(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), names=list(names))


def _record_batch(
    shape: RowShape, records: RecordFormat, part: SegmentRange, makers: Sequence[Maker], events: EventColumns
) -> Iterator[pa.RecordBatch]:
    """The fields are in the place of `event`."""
    rows = record_rows(records, part, events)
    if not len(rows.events.events):
        return
    names: list[str] = []
    columns: list[pa.Array] = []
    for name, make in zip(shape.columns, makers, strict=True):
        if name == "event":
            names += [field for field, _ in records.column_types()]
            columns += rows.columns
        else:
            names.append(name)
            columns.append(make(rows.events))
    yield _batch(names, columns)


def _column(name: str, shape: RowShape, part: SegmentRange) -> Maker:
    if name == "event":
        return _text if shape.event_format == "text" else lambda events: events.events
    if name == "offset":
        return lambda events: events.offsets
    constants = {
        "scope": pa.scalar(shape.scope, pa.string()),
        "stream": pa.scalar(shape.stream, pa.string()),
        "segment_id": pa.scalar(part.segment_id, pa.int64()),
        "key_range_low": pa.scalar(part.low, pa.float64()),
        "key_range_high": pa.scalar(part.high, pa.float64()),
    }
    value = constants[name]
    return lambda events: pa.repeat(value, len(events.events))


def _text(events: EventColumns) -> pa.Array:
    """Arrow checks that it is UTF-8; the search for the culprit costs only when there is one."""
    try:
        return pc.cast(events.events, pa.string())
    except pa.ArrowInvalid:
        for offset, event in zip(events.offsets, events.events, strict=True):
            try:
                event.as_py().decode()
            except UnicodeDecodeError as error:
                raise CorruptError(
                    f"the event at offset {offset} is not UTF-8 text ({error.reason} at byte {error.start}):"
                    " read with event_format=binary, or set the option on_bad_record=column, which keeps such events in"
                    " a column, or skip",
                    details={"offset": offset.as_py()},
                    code="not_text",
                ) from error
        raise
