"""Streaming reads of the data source, Spark 4.0 and later: `MicroBatches` behind Spark's interface.

Spark 4.2 and later say where a batch starts and how much it may hold, and let the source end `availableNow` itself.
Earlier ones do neither: there, each batch holds about approx_bytes_per_trigger, and `availableNow` ends after one.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.spark.checkpoints import STREAM_CUT
from headrace.spark.engines.batch_reader import SegmentRanges
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import ReadOptions
from headrace.spark.python_workers import show_log_lines
from headrace.spark.task_reads import read_partition


def _limits() -> Any:
    """Spark's module of limits, which Spark 4.2 and later have."""
    try:
        return import_module("pyspark.sql.streaming.datasource")
    except ImportError:
        return None


limits: Final = _limits()
Offset = dict[str, str]


class HeadraceStreamReader(DataSourceStreamReader):
    """Plans micro-batches in the driver and reads them in tasks; only its options travel."""

    def __init__(self, options: ReadOptions, batches: MicroBatches | None = None) -> None:
        self._options = options
        self._batches = batches or MicroBatches(options)
        show_log_lines()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        HeadraceStreamReader.__init__(self, state["_options"])

    def initialOffset(self) -> Offset:
        return {STREAM_CUT: self._batches.initial()}

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """The end of the next batch. Spark 4.2 and later give both arguments."""
        budget = self._options.approx_bytes_per_trigger if limit is None else _bytes_max(limit)
        return {STREAM_CUT: self._batches.latest(None if start is None else _text(start), budget)}

    def getDefaultReadLimit(self) -> Any:
        """Spark hands this to `latestOffset`, unless the trigger wants everything at once."""
        budget = self._options.approx_bytes_per_trigger
        return limits.ReadAllAvailable() if budget is None else limits.ReadMaxBytes(budget)

    def reportLatestOffset(self) -> Offset | None:
        newest = self._batches.newest()
        return None if newest is None else {STREAM_CUT: newest}

    def prepareForTriggerAvailableNow(self) -> None:
        self._batches.end_now()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return [SegmentRanges(part) for part in self._batches.partitions(_text(start), _text(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentRanges), f"not one of our partitions: {partition!r}"
        return read_partition(self._options, partition.ranges)

    def commit(self, end: Offset) -> None:
        """Nothing to do: the checkpoint is Spark's, and a stream keeps its events for other readers."""

    def stop(self) -> None:
        self._batches.close()


if limits is not None:
    limits.SupportsTriggerAvailableNow.register(HeadraceStreamReader)


def _bytes_max(limit: Any) -> int | None:
    if isinstance(limit, limits.ReadAllAvailable):
        return None
    if isinstance(limit, limits.ReadMaxBytes):
        return int(limit.max_bytes)
    raise InvalidRequestError(
        f"a stream's batches are limited in bytes, not by {limit!r}: a segment does not say how many events it has",
        code="unsupported_limit",
    )


def _text(offset: Offset) -> str:
    text = offset.get(STREAM_CUT)
    if text is None:
        raise CorruptError(
            f"the checkpoint holds an offset of another source: {sorted(offset)}, expected {STREAM_CUT!r}. Use a"
            " checkpoint location of its own for each query",
            code="foreign_checkpoint",
        )
    return text
