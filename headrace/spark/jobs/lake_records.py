"""The rows of a lake in any format: columns of the job, the date of a row, and passes until no field is new."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from headrace.spark.jobs.json_records import (
    classified,
    extended,
    fields_without_column,
    good_rows,
    has_new_fields,
    with_strict_names,
)
from headrace.spark.jobs.time_ranges import DAY_MS, YEAR_1_MS, YEAR_10000_MS

PLACE_COLUMNS = {"_segment_id": "bigint", "_offset": "bigint"}
"""Where the event of a row is in the stream; the two together identify it."""
DATE_COLUMN = "_date"
RESERVED = (*PLACE_COLUMNS, DATE_COLUMN, "version")
"""Names that a field cannot have. `version` is the name of the directories."""


@dataclass(slots=True)
class LakeCounts:
    """What a run has added to the lake."""

    rows: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True)
class WrittenPass:
    """The last pass over a batch: the columns of its fields, the classified records, and what is among them."""

    fields: Mapping[str, str]
    records: DataFrame
    has_good: bool
    has_bad: bool


def write_with_new_fields(
    events: DataFrame,
    fields: Mapping[str, str],
    reserved: Collection[str],
    write: Callable[[DataFrame, Mapping[str, str]], None],
) -> WrittenPass:
    """Give the classified records and the columns to `write`, again as long as records have fields without a column.

    A pass replaces the one before. A batch without news takes one pass, new fields cost two more.
    """
    while True:
        records = strictly_classified(events, fields, reserved)
        seen = Observation()
        observed = records.observe(
            seen,
            F.count(F.when(has_new_fields(fields), True)).alias("with_new_fields"),
            F.count("reason").alias("bad"),
            F.count(F.when(F.col("reason").isNull(), True)).alias("good"),
        )
        write(observed, fields)
        grown = fields
        if seen.get["with_new_fields"]:
            grown = extended(fields, fields_without_column(records, fields), reserved)
        if grown == fields:
            return WrittenPass(fields, records, bool(seen.get["good"]), bool(seen.get["bad"]))
        fields = grown


def strictly_classified(events: DataFrame, fields: Mapping[str, str], reserved: Collection[str]) -> DataFrame:
    """The events with `record` and `reason`, for columns that are `fields` and the reserved ones."""
    return with_strict_names(classified(events, fields), fields, reserved)


def lake_rows(records: DataFrame, fields: Mapping[str, str], date_field: str | None) -> DataFrame:
    """The good records as rows with their places and, if the rows are divided by date, the date as text."""
    rows = good_rows(records, fields, keep={"segment_id": "_segment_id", "offset": "_offset"})
    if date_field is None:
        return rows
    return rows.withColumn(DATE_COLUMN, _date(rows, date_field, fields.get(date_field)))


def _date(rows: DataFrame, field: str, type_: str | None) -> Column:
    """The date as text, like 2026-11-23; null if the field has none of the years 1 to 9999."""
    if type_ is None:
        return F.lit(None).cast("string")
    value = rows[f"`{field}`"]
    if type_ == "bigint":
        in_range = value.between(YEAR_1_MS, YEAR_10000_MS - 1)  # others are not milliseconds, or overflow an int
        days = F.floor(F.when(in_range, value) / DAY_MS).cast("int")
        return F.date_from_unix_date(days).cast("string")
    date = F.regexp_extract(value.cast("string"), r"^(\d{4}-\d{2}-\d{2})", 1)
    return F.when(date != "", date)
