"""A stream of JSON objects as a batch table of Parquet files: new fields become columns, bad records are kept apart.

`read_table(spark, directory, "rows")` reads it. Engines that list the directories of `rows/` themselves may see a row
twice while a batch is repeated or merged, because only the table's version says which directories count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.model.errors import InvalidRequestError
from headrace.spark.jobs.batch_table import MERGED_AT_ONCE, BatchRows, open_table, query_of, read_rows
from headrace.spark.jobs.json_records import QUARANTINE_COLUMNS, extended, quarantined
from headrace.spark.jobs.lake_records import (
    DATE_COLUMN,
    PLACE_COLUMNS,
    RESERVED,
    LakeCounts,
    lake_rows,
    write_with_new_fields,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession


KINDS = ("rows", "quarantine")

SMALL_PART_BYTES = 64 * 1024 * 1024
FILE_BYTES = 128 * 1024 * 1024
"""Merges write files of about this size, and skip parts that have half of it."""


class ParquetLake:
    """The writer of one directory; `write` is for `foreachBatch`.

    `columns` are names and types of fields to begin with, others are added when they appear. `date_field` divides the
    rows by date: a field with text that starts with a date, or with milliseconds since 1970 if it is a bigint.

    Raises:
        InvalidRequestError: the directory has rows with other partitions, or with another type of a column.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: str,
        *,
        columns: Mapping[str, str] | None = None,
        date_field: str | None = None,
        merged_at_once: int = MERGED_AT_ONCE,
    ) -> None:
        self.counts = LakeCounts()
        self.table = open_table(spark, directory)
        self._spark = spark
        self._date_field = date_field
        self._merged_at_once = merged_at_once
        self._wanted = columns or {}
        self._check(self.table.version.columns)
        self.table.clean(KINDS)

    def write(self, events: DataFrame, batch_id: int) -> None:
        """Add a micro-batch with the columns event, segment_id and offset, once."""
        added = self.table.add_batch(query_of(events), batch_id, lambda path: self._write(events, path))
        if added is not None:
            self.counts.rows += added.rows["rows"]
            self.counts.quarantined += added.rows["quarantine"]
        merges = self.table.merge("rows", self._merge_rows, at_once=self._merged_at_once, bytes_max=SMALL_PART_BYTES)
        merges += self.table.merge("quarantine", self._merge_quarantine, bytes_max=SMALL_PART_BYTES)
        if merges:
            self.table.clean(KINDS)

    def _write(self, events: DataFrame, path: Callable[[str], str]) -> BatchRows:
        """One pass over a batch without news; a second one for bad records, two more for new fields."""
        done = write_with_new_fields(
            events,
            extended(self._fields(), self._wanted, RESERVED),
            RESERVED,
            lambda records, fields: self._writer(lake_rows(records, fields, self._date_field)).parquet(path("rows")),
        )
        rows = dict.fromkeys(KINDS, 0)
        if done.has_good:  # divided by date, no rows are no file, which Spark does not read
            rows["rows"] = self._spark.read.parquet(path("rows")).count()
        if done.has_bad:
            quarantined(done.records).coalesce(1).write.mode("overwrite").parquet(path("quarantine"))
            rows["quarantine"] = self._spark.read.parquet(path("quarantine")).count()
        return BatchRows(rows, self._columns(done.fields))

    def _writer(self, rows: DataFrame) -> DataFrameWriter:
        # A session may replace only the partitions that are written. Those of a former pass or attempt would stay.
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "static")
        return writer if self._date_field is None else writer.partitionBy(DATE_COLUMN)

    def _merge_rows(self, directories: Sequence[str], into: str) -> None:
        directory_bytes = sum(
            part.size_bytes
            for part in self.table.version.of_kind("rows")
            if any(directory.endswith(part.directory) for directory in directories)
        )
        rows = read_rows(self._spark, directories, self.table.version.columns)
        files = max(1, math.ceil(directory_bytes / FILE_BYTES))
        self._writer(rows.coalesce(files).sortWithinPartitions(*PLACE_COLUMNS)).parquet(into)

    def _merge_quarantine(self, directories: Sequence[str], into: str) -> None:
        read_rows(self._spark, directories, QUARANTINE_COLUMNS).coalesce(1).write.mode("overwrite").parquet(into)

    def _fields(self) -> dict[str, str]:
        return {name: type_ for name, type_ in self.table.version.columns.items() if name not in RESERVED}

    def _columns(self, fields: Mapping[str, str]) -> dict[str, str]:
        return PLACE_COLUMNS | dict(fields) | ({} if self._date_field is None else {DATE_COLUMN: "string"})

    def _check(self, stored: Mapping[str, str]) -> None:
        if stored and (DATE_COLUMN in stored) != (self._date_field is not None):
            raise InvalidRequestError(
                "the directory was begun " + ("with" if DATE_COLUMN in stored else "without") + " a division by date",
                code="other_partitions",
            )
        for name, type_ in self._wanted.items():
            if stored.get(name, type_) != type_:
                raise InvalidRequestError(
                    f"the column {name!r} is {stored[name]} in the directory, not {type_}", code="other_column_type"
                )


# A batch table of events as they were written, with their places in the stream.

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
