"""Events into rows, and what is done about the bad ones: fail, keep them in a column, or skip them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.client.segment_ranges import SegmentRange
from headrace.codec.event_columns import EventColumns
from headrace.model.errors import CorruptError
from headrace.spark.json_columns import JsonColumns, json_columns, text_column
from headrace.spark.options import RecordFormat

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
    found = text_column(events.events) if records.is_text else json_columns(records.schema, events.events)
    if records.on_bad_record == "column":
        return RecordRows([*found.columns, *_corrupt_columns(found, events.events)], events)
    if not found.bad:
        return RecordRows(found.columns, events)
    first = min(found.bad)
    offset, reason = events.offsets[first].as_py(), found.bad[first]
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
        len(found.bad),
        offset,
        reason,
    )
    good = pa.array([record not in found.bad for record in range(len(events.events))], pa.bool_())
    kept = EventColumns(events.events.filter(good), events.offsets.filter(good), 0)
    return RecordRows([column.filter(good) for column in found.columns], kept)


def _corrupt_columns(found: JsonColumns, events: pa.BinaryArray) -> list[pa.Array]:
    """The bad events and the reasons; null for good ones."""
    bad = [record if record in found.bad else None for record in range(len(events))]
    reasons = [found.bad.get(record) for record in range(len(events))]
    return [events.take(pa.array(bad, pa.int32())), pa.array(reasons, pa.string())]
