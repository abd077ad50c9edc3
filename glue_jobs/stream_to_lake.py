"""Stores a stream of JSON objects as Parquet files or in an Iceberg table, each event exactly once.

    python glue_jobs/stream_to_lake.py --controller URL --scope S --stream T --checkpoint DIR --output DIR
    ... --checkpoint DIR --format iceberg --table catalog.database.table

It runs on Glue and on a laptop, reads up to the tail and stops; the next run from the same checkpoint continues there.
With `--trigger_s` it runs until it is stopped. New fields become columns (or name them with `--columns`). Events that
are not JSON objects, or have a value of another type than their column, go to the quarantine. docs/using/jobs.md
explains the arguments.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.model.errors import InvalidRequestError
from headrace.spark.job_arguments import job_arguments
from headrace.spark.jobs.iceberg_lake import IcebergLake
from headrace.spark.jobs.json_records import parse_columns
from headrace.spark.jobs.lake_records import LakeCounts
from headrace.spark.jobs.parquet_lake import ParquetLake
from headrace.spark.jobs.run_stream import (
    SOURCE_OPTIONAL,
    SOURCE_REQUIRED,
    run_stream,
    source_options,
    trigger_seconds,
)

EVENT_COLUMNS = {"columns": "event,segment_id,offset"}


FORMATS = ("parquet", "iceberg")
PARQUET_ONLY = ("output",)
ICEBERG_ONLY = ("table", "quarantine_table", "compact_every", "keep_snapshots_h")


def run(spark: SparkSession, arguments: dict[str, str | None]) -> LakeCounts:
    """Store the events; what this run has added."""
    options, trigger_s = source_options(arguments) | EVENT_COLUMNS, trigger_seconds(arguments)
    lake = _lake(spark, arguments)
    run_stream(spark, options, lake.write, str(arguments["checkpoint"]), trigger_s=trigger_s)
    return lake.counts


def _lake(spark: SparkSession, arguments: dict[str, str | None]) -> ParquetLake | IcebergLake:
    given, format_ = arguments.get("columns"), arguments.get("format") or "parquet"
    columns = parse_columns(given) if given else None
    if format_ not in FORMATS:
        raise InvalidRequestError(f"--format is one of {', '.join(FORMATS)}, not {format_!r}", code="invalid_argument")
    needed, others = ("table", PARQUET_ONLY) if format_ == "iceberg" else ("output", ICEBERG_ONLY)
    if not arguments.get(needed):
        raise InvalidRequestError(f"--format {format_} needs --{needed}", code="missing_argument")
    if wrong := [f"--{name}" for name in others if arguments.get(name)]:
        raise InvalidRequestError(f"--format {format_} does not take {', '.join(wrong)}", code="invalid_argument")
    date_field = arguments.get("date_field")
    if format_ == "parquet":
        return ParquetLake(spark, str(arguments["output"]), columns=columns, date_field=date_field)
    return IcebergLake(
        spark,
        str(arguments["table"]),
        quarantine_table=arguments.get("quarantine_table"),
        columns=columns,
        date_field=date_field,
        compact_every=_number(arguments, "compact_every"),
        keep_snapshots_h=_number(arguments, "keep_snapshots_h"),
    )


def _number(arguments: dict[str, str | None], name: str) -> int | None:
    text = arguments.get(name)
    if text is not None and not (text.isascii() and text.isdecimal()):
        raise InvalidRequestError(f"--{name} is a whole number, not {text!r}", code="invalid_argument")
    return None if text is None else int(text)


def main() -> None:
    arguments = job_arguments(
        [*SOURCE_REQUIRED, "checkpoint"],
        [*SOURCE_OPTIONAL, "format", *PARQUET_ONLY, *ICEBERG_ONLY, "columns", "date_field", "trigger_s", "metrics"],
    )
    spark = SparkSession.builder.appName("stream-to-lake").getOrCreate()
    counts = run(spark, arguments)
    spark.stop()
    print(f"rows added in this run: {counts.rows}, events in quarantine: {counts.quarantined}")
    if metrics := arguments["metrics"]:
        Path(metrics).write_text(json.dumps(asdict(counts)) + "\n")


if __name__ == "__main__":
    main()
