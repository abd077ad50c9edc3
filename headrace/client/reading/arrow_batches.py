"""Events of a segment as Arrow record batches, without a Python object per event.

This module needs pyarrow and numpy (extra `headrace[arrow]`). `event_reader.py` imports it for the first Arrow batch.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from headrace.client.reading.segment_stream import ArrowBatch
from headrace.codec.event_columns import ColumnAssembler, int64_array

EVENT_SCHEMA: Final = pa.schema([("segment_id", pa.int64()), ("offset", pa.int64()), ("event", pa.large_binary())])
"""The columns of a batch. `offset` is that of the event's header in the segment, in bytes."""


class ArrowBatches:
    """Assembles record batches. The payloads are copied once, out of the buffer in which they were received."""

    def __init__(self, segment_id: int, offset: int) -> None:
        self._segment_id = segment_id
        self._columns = ColumnAssembler(offset)

    @property
    def offset(self) -> int:
        return self._columns.offset

    @property
    def cut_off_bytes(self) -> int:
        return self._columns.cut_off_bytes

    def add(self, data: memoryview) -> ArrowBatch | None:
        columns = self._columns.add(data)
        if columns is None:
            return None
        segment_ids = int64_array(np.full(len(columns.events), self._segment_id, np.int64))
        events = columns.events.cast(pa.large_binary())  # changes the type of the offsets; the payloads are not copied
        batch = pa.RecordBatch.from_arrays([segment_ids, columns.offsets, events], schema=EVENT_SCHEMA)
        return ArrowBatch(self._segment_id, self._columns.offset, batch)


def with_stream(events: pa.RecordBatch, scope: str, stream: str) -> pa.RecordBatch:
    """The batch with its stream in two columns in front: streams of one group may have segments of the same id."""
    columns = [_repeated(scope, len(events)), _repeated(stream, len(events)), *events.columns]
    return pa.RecordBatch.from_arrays(columns, names=["scope", "stream", *events.schema.names])


def _repeated(text: str, count: int) -> pa.DictionaryArray:
    """A column of one text, with a byte per row. `pyarrow.array` and `pyarrow.repeat` would import pandas."""
    data = text.encode()
    texts = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, len(data)], np.int32)), pa.py_buffer(data))
    indices = pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(bytes(count))])
    return pa.DictionaryArray.from_arrays(indices, texts)
