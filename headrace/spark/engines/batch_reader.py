"""Batch reads of the data source, of events and of metadata tables, Spark 4.0 and later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.spark.metadata_tables import MetadataOptions, metadata_batches
from headrace.spark.options import ReadOptions
from headrace.spark.partitions import Partition
from headrace.spark.plans import open_plans
from headrace.spark.range_filters import EVERYTHING
from headrace.spark.task_reads import read_partition


class SegmentRanges(InputPartition):
    """What one task reads, in order."""

    def __init__(self, ranges: Partition) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class HeadraceBatchReader(DataSourceReader):
    """Reads the events between two stream cuts, once."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._wanted = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        with closing(open_plans(self._options, self._wanted)) as plans:
            # Without any partition Spark would make one itself, which is not one of ours.
            return [SegmentRanges(part) for part in plans.batch_partitions() or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentRanges), f"not one of our partitions: {partition!r}"
        return read_partition(self._options, partition.ranges)


class MetadataRows(InputPartition):
    """Rows that the driver has read."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        super().__init__(batch)
        self.batch = batch


class HeadraceMetadataReader(DataSourceReader):
    """Reads the table in the driver when a query is planned; tasks hand the rows on."""

    def __init__(self, options: MetadataOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [MetadataRows(batch) for batch in metadata_batches(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MetadataRows), f"not one of our partitions: {partition!r}"
        yield partition.batch
