"""Batch reads of metadata tables by the data source, Spark 4.0 and later."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.spark.metadata_options import MetadataOptions
from headrace.spark.metadata_tables import metadata_batches


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
