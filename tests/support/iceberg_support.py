"""Iceberg in the tests' Spark session, if its jar was fetched, and a lake with its tables."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble

from scripts.fetch_iceberg import jar_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.jobs.iceberg_lake import IcebergTable
    from headrace.spark.jobs.lake_records import LakeCounts

SPARK_VERSION = importlib.metadata.version("pyspark")
ICEBERG_JAR = jar_path(SPARK_VERSION)
"""None: there is no Iceberg for this Spark."""
needs_iceberg = pytest.mark.skipif(
    ICEBERG_JAR is None or not ICEBERG_JAR.exists(),
    reason=f"no Iceberg runtime for Spark {SPARK_VERSION} in the cache: python scripts/fetch_iceberg.py VERSION",
)


class IcebergRuns:
    """The job with `--format iceberg`, in a catalog of its own on the disk."""

    def __init__(self, spark: SparkSession, store: StoreDouble, directory: Path) -> None:
        self.spark = spark
        self.store = store
        self.checkpoint = directory / "checkpoint"
        catalog = f"lake_{directory.name}".replace("-", "_")
        self.table, self.quarantine_table = f"{catalog}.shop.orders", f"{catalog}.shop.orders_quarantine"
        spark.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"spark.sql.catalog.{catalog}.type", "hadoop")
        spark.conf.set(f"spark.sql.catalog.{catalog}.warehouse", str(directory / "warehouse"))

    def write(self, *records: object) -> None:
        for number, record in enumerate(records):
            event = record if isinstance(record, bytes) else json.dumps(record).encode()
            self.store.stream.append(number % 4 / 4, event)

    def run(self, **arguments: str) -> LakeCounts:
        from glue_jobs import stream_to_lake

        where = {"controller": self.store.url, "scope": SCOPE, "stream": STREAM, "checkpoint": str(self.checkpoint)}
        return stream_to_lake.run(self.spark, {**where, "format": "iceberg", "table": self.table, **arguments})

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        self.spark.catalog.refreshTable(self.table)
        return sorted((tuple(row[name] for name in names) for row in self.spark.table(self.table).collect()), key=repr)

    def refused(self) -> list[tuple[bytes, str]]:
        self.spark.catalog.refreshTable(self.quarantine_table)
        rows = self.spark.table(self.quarantine_table).collect()
        return sorted((bytes(row["event"]), row["reason"]) for row in rows)

    def opened(self, name: str) -> IcebergTable:
        from headrace.spark.jobs.iceberg_lake import IcebergTable

        return IcebergTable(self.spark, name)

    def batches(self, name: str) -> list[str]:
        """The properties of the table that name batches."""
        found = self.spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
        return [row["value"] for row in found if row["key"].startswith("headrace.batch.")]

    def forget_last_commit(self) -> None:
        """The state of a checkpoint after a crash between the end of the batch and Spark's own record of it."""
        commits = sorted((self.checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
        commits[-1].unlink()
        (commits[-1].parent / f".{commits[-1].name}.crc").unlink()
