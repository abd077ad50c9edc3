"""Event columns into the record batches that Spark asked for: exactly its columns, in its order, with its Arrow types.

Spark takes plain binary, string, int64 and double only: no views, no dictionaries, no large variants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.segment_ranges import SegmentRange
from headrace.codec.event_columns import EventColumns
from headrace.model.errors import CorruptError
from headrace.spark.options import EventFormat


@dataclass(frozen=True, slots=True)
class RowShape:
    """`columns` are names of `options.COLUMN_TYPES`."""

    scope: str
    stream: str
    columns: tuple[str, ...]
    event_format: EventFormat


def row_batches(shape: RowShape, part: SegmentRange, parsed: Iterable[EventColumns]) -> Iterator[pa.RecordBatch]:
    """One record batch per block of parsed events of the segment range `part`.

    Raises:
        CorruptError: an event is not UTF-8, but text was asked for.
    """
    makers = [_column(name, shape, part) for name in shape.columns]
    for events in parsed:
        yield _batch(shape.columns, makers, events)


Maker = Callable[[EventColumns], pa.Array]


def _batch(names: Sequence[str], makers: Sequence[Maker], events: EventColumns) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([make(events) for make in makers], names=list(names))


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
                    " read with event_format=binary",
                    details={"offset": offset.as_py()},
                    code="not_text",
                ) from error
        raise
