"""Batch tables in a Spark session: open one for writing, read its rows, find the query that a batch belongs to."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.adapters.system_clock import SystemClock
from headrace.model.errors import IllegalStateError
from headrace.spark.jobs.batch_table import BatchTable, read_version
from headrace.spark.jobs.job_files import HadoopFiles
from headrace.spark.jobs.json_fields import quoted_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def query_of(batch: DataFrame) -> str:
    """The id of the query that a batch of `foreachBatch` belongs to: that of its checkpoint, also after a restart."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not found:
        raise IllegalStateError("a batch has a query id only within foreachBatch")
    return str(found)


def open_table(spark: SparkSession, root: str) -> BatchTable:
    """A table for writing. Two that one application opens do not write into the same directories."""
    run_id = f"{spark.sparkContext.applicationId}-{secrets.token_hex(4)}"
    return BatchTable(HadoopFiles(spark), root, run_id=run_id, clock=SystemClock())


def read_rows(spark: SparkSession, paths: Sequence[str], columns: Mapping[str, str]) -> DataFrame:
    """The rows of some directories of a kind; columns that a file does not have are null."""
    ddl = quoted_ddl(columns)
    if not paths:
        return spark.createDataFrame([], ddl)
    kind = paths[0].rpartition("/")[0]  # so that Spark takes the directories below as values of partition columns
    rows = spark.read.schema(ddl).option("basePath", kind).parquet(*paths)
    return rows.select(*(rows[f"`{name.replace('`', '``')}`"] for name in columns))


def read_table(spark: SparkSession, root: str, kind: str, columns: Mapping[str, str] | None = None) -> DataFrame:
    """The rows of a kind in the current version of a table; `columns` None: those that the table records."""
    version = read_version(HadoopFiles(spark), root)
    paths = [f"{root.rstrip('/')}/{part.directory}" for part in version.of_kind(kind)]
    return read_rows(spark, paths, version.columns if columns is None else columns)
