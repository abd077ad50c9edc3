"""A batch table of events as they were written, with their places in the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.spark.jobs.batch_table import BatchRows
from headrace.spark.jobs.parquet_lake import SMALL_PART_BYTES
from headrace.spark.jobs.spark_tables import open_table, query_of, read_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT_COLUMNS = {"event": "binary", "segment_id": "bigint", "offset": "bigint"}
KIND = "rows"


class RawEvents:
    """The writer of one directory; `write` is for `foreachBatch`. `events` counts those of this run."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self.events = 0
        self.table = open_table(spark, directory)
        self._spark = spark
        self.table.clean([KIND])

    def write(self, events: DataFrame, batch_id: int) -> None:
        """Add a micro-batch, once."""
        added = self.table.add_batch(query_of(events), batch_id, lambda path: self._write(events, path))
        self.events += added.rows[KIND] if added else 0
        if self.table.merge(KIND, self._merge, bytes_max=SMALL_PART_BYTES):
            self.table.clean([KIND])

    def _write(self, events: DataFrame, path: Callable[[str], str]) -> BatchRows:
        events.select(*EVENT_COLUMNS).write.mode("overwrite").parquet(path(KIND))
        return BatchRows({KIND: self._spark.read.parquet(path(KIND)).count()}, EVENT_COLUMNS)

    def _merge(self, directories: Sequence[str], into: str) -> None:
        rows = read_rows(self._spark, directories, EVENT_COLUMNS).coalesce(1)
        rows.sortWithinPartitions("segment_id", "offset").write.mode("overwrite").parquet(into)
