"""The stream writer of `format("headrace")` on Spark 4.1 and later, which hands it Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter

from headrace.spark.engines.data_writers import HeadraceRowStreamWriter, ReportMessage


class HeadraceStreamWriter(HeadraceRowStreamWriter, DataSourceStreamArrowWriter):
    """Commits each micro-batch once; see the writer of rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ReportMessage:
        return self.write_batches(iterator)
