"""Event columns into the record batches that Spark asked for: exactly its columns, in its order, with its Arrow types.

Spark takes plain types only: no views, no dictionaries, no large variants.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.codec.event_columns import EventColumns
from headrace.model.errors import CorruptError
from headrace.spark.json_columns import JsonColumns, json_columns, text_column
from headrace.spark.options import EventFormat, RecordFormat

# Events into rows, and what is done about the bad ones: fail, keep them in a column, or skip them.

SLICE_BYTES: Final = 1024 * 1024
"""Events are parsed in slices of about this size, because a parsed event takes many times the bytes of its text."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordRows:
    """The columns in the place of `event`, and the events that are rows."""

    columns: list[pa.Array]
    events: EventColumns


def event_slices(events: EventColumns) -> Iterator[EventColumns]:
    """The events in order, in slices of at least one event and about SLICE_BYTES."""
    payloads = events.events
    count = len(payloads)
    if not count:
        return
    ends = np.frombuffer(payloads.buffers()[1], np.int32, count + 1, payloads.offset * 4)
    first = 0
    while first < count:
        last = int(np.searchsorted(ends, int(ends[first]) + SLICE_BYTES, side="right")) - 1
        last = min(max(last, first + 1), count)
        yield EventColumns(payloads.slice(first, last - first), events.offsets.slice(first, last - first), 0)
        first = last


def record_rows(records: RecordFormat, part: SegmentRange, events: EventColumns) -> RecordRows:
    """The rows of events of the segment range `part`.

    Raises:
        CorruptError: code "bad_record": an event does not fit the schema, and `on_bad_record` is fail. The message has
            its place and the reason.
    """
    columns = text_column(events.events) if records.is_text else json_columns(records.schema, events.events)
    if records.on_bad_record == "column":
        return RecordRows([*columns.columns, *_corrupt_columns(columns, events.events)], events)
    if not columns.bad:
        return RecordRows(columns.columns, events)
    first = min(columns.bad)
    offset, reason = events.offsets[first].as_py(), columns.bad[first]
    if records.on_bad_record == "fail":
        raise CorruptError(
            f"the event at offset {offset} of segment {part.segment_id} of {part.scope}/{part.stream} does not fit the"
            f" schema: {reason}. To read on, set the option on_bad_record=column, which keeps such events in a column,"
            " or skip",
            details={"segmentId": part.segment_id, "offset": offset, "reason": reason},
            code="bad_record",
        )
    _log.warning(
        "event=spark_records_skipped scope=%r stream=%r segment_id=%d records=%d first_offset=%d reason=%r",
        part.scope,
        part.stream,
        part.segment_id,
        len(columns.bad),
        offset,
        reason,
    )
    good = pa.array([record not in columns.bad for record in range(len(events.events))], pa.bool_())
    kept = EventColumns(events.events.filter(good), events.offsets.filter(good), 0)
    return RecordRows([column.filter(good) for column in columns.columns], kept)


def _corrupt_columns(columns: JsonColumns, events: pa.BinaryArray) -> list[pa.Array]:
    """The bad events and the reasons; null for good ones."""
    bad = [record if record in columns.bad else None for record in range(len(events))]
    reasons = [columns.bad.get(record) for record in range(len(events))]
    return [events.take(pa.array(bad, pa.int32())), pa.array(reasons, pa.string())]


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
