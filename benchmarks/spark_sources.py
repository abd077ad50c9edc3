"""A Spark source of ready-made Arrow batches: what Spark itself takes for events that cost nothing to get."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.options import COLUMN_TYPES, COLUMNS_DEFAULT

FORMAT = "ready-made"
EVENTS_PER_BATCH = 9_000
"""About as many as a window of the connector has at 100 B."""


class ReadyMadeSource(DataSource):
    """Options: `event_bytes`, `events` and `tasks`; the columns are those that the connector has by default."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ", ".join(f"`{name}` {COLUMN_TYPES[name]}" for name in COLUMNS_DEFAULT)

    def reader(self, schema: StructType) -> _ReadyMadeReader:
        return _ReadyMadeReader(*(int(self.options[name]) for name in ("event_bytes", "events", "tasks")))


class _ReadyMadeReader(DataSourceReader):
    def __init__(self, event_bytes: int, events: int, tasks: int) -> None:
        self._event_bytes, self._events, self._tasks = event_bytes, events, tasks

    def partitions(self) -> list[InputPartition]:
        share, rest = divmod(self._events, self._tasks)
        return [InputPartition(share + (number < rest)) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        size = min(EVENTS_PER_BATCH, max(1, (1 << 20) // (self._event_bytes + 8)))
        whole = _batch(self._event_bytes, size)
        while left > 0:
            yield whole if left >= size else whole.slice(0, left)
            left -= size


def _batch(event_bytes: int, count: int) -> pa.RecordBatch:
    events = pa.array([bytes(event_bytes)] * count, pa.binary())
    words = [pa.array([word] * count, pa.string()) for word in ("scope", "stream")]
    numbers = [pa.array([0] * count, pa.int64()), pa.array(range(count), pa.int64())]
    return pa.RecordBatch.from_arrays([events, *words, *numbers], names=list(COLUMNS_DEFAULT))
