"""A stream as Parquet: each event once, columns that grow, a quarantine, few files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble

from glue_jobs import stream_to_lake
from headrace.model.errors import InvalidRequestError
from headrace.spark.jobs.batch_table import read_table
from headrace.spark.jobs.lake_records import LakeCounts
from headrace.spark.jobs.parquet_lake import ParquetLake
from headrace.spark.jobs.run_stream import run_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]


class Lake:
    """The job, with its directories."""

    def __init__(self, spark: SparkSession, store: StoreDouble, directory: Path) -> None:
        self.spark = spark
        self.store = store
        self.output = directory / "lake"
        self.checkpoint = directory / "checkpoint"

    def write(self, *records: object) -> None:
        for number, record in enumerate(records):
            self.store.stream.append(
                number % 4 / 4, record if isinstance(record, bytes) else json.dumps(record).encode()
            )

    def run(self, **arguments: str) -> LakeCounts:
        where = {"controller": self.store.url, "scope": SCOPE, "stream": STREAM}
        paths = {"output": str(self.output), "checkpoint": str(self.checkpoint)}
        return stream_to_lake.run(self.spark, {**where, **paths, **arguments})

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        rows = read_table(self.spark, str(self.output), "rows").collect()
        return sorted((tuple(row[name] for name in names) for row in rows), key=repr)

    def quarantine(self) -> dict[bytes, str]:
        columns = {"event": "binary", "reason": "string"}
        rows = read_table(self.spark, str(self.output), "quarantine", columns).collect()
        assert len({bytes(row["event"]) for row in rows}) == len(rows)
        return {bytes(row["event"]): row["reason"] for row in rows}

    def forget_last_commit(self) -> None:
        commits = sorted((self.checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
        commits[-1].unlink()
        (commits[-1].parent / f".{commits[-1].name}.crc").unlink()


@pytest.fixture
def lake(spark: SparkSession, store: StoreDouble, tmp_path: Path) -> Lake:
    return Lake(spark, store, tmp_path)


@pytest.mark.nightly
def test_new_fields_become_columns_and_bad_records_are_kept(lake: Lake):
    lake.write({"n": 1, "Name": "ä"}, {"n": 2, "name": "other case"}, b"not json", {"n": 3, "in": {"deep": [1]}})
    assert lake.run() == LakeCounts(rows=2, quarantined=2)
    lake.write({"n": 4, "a.b `c": 1.5}, {"n": "five"}, {"n": 6, "_offset": 1}, {"n": 7, "later": None})
    assert lake.run() == LakeCounts(rows=2, quarantined=2)
    assert lake.rows("n", "in", "a.b `c") == [
        (1, None, None), (3, '{"deep":[1]}', None), (4, None, 1.5), (7, None, None),
    ]  # fmt: skip
    assert lake.quarantine() == {
        b"not json": "not_a_json_object",
        b'{"n": 2, "name": "other case"}': "field_name",
        b'{"n": "five"}': "field_type",
        b'{"n": 6, "_offset": 1}': "field_name",
    }
    places = {(segment, offset) for segment, offset in lake.rows("_segment_id", "_offset")}
    assert len(places) == 4
    assert places <= {
        (segment.identifier, start) for segment in lake.store.stream.segments.values() for start in segment.boundaries
    }


def test_a_batch_that_is_repeated_is_stored_once(lake: Lake):
    lake.write(*({"n": number} for number in range(20)))
    assert lake.run() == LakeCounts(rows=20)
    lake.forget_last_commit()
    assert lake.run() == LakeCounts()
    assert lake.rows("n") == sorted(((number,) for number in range(20)), key=repr)


@pytest.mark.nightly
def test_rows_are_divided_by_date_and_merged(lake: Lake):
    for day in (1, 2, 3):
        lake.write({"at": f"2026-11-0{day}T10:00:00Z", "n": day}, {"n": 10 * day}, {"at": "2026-11-09", "n": day})
        writer = ParquetLake(lake.spark, str(lake.output), date_field="at", merged_at_once=3)
        options = {"controller": lake.store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
        options |= stream_to_lake.EVENT_COLUMNS
        run_stream(lake.spark, options, writer.write, str(lake.checkpoint))
    (part,) = writer.table.version.of_kind("rows")
    dates = {path.name for path in (lake.output / part.directory).iterdir() if path.is_dir()}
    assert dates - {"_date=__HIVE_DEFAULT_PARTITION__"} == {f"_date=2026-11-0{day}" for day in (1, 2, 3, 9)}
    assert lake.rows("n", "_date") == sorted(
        [row for day in (1, 2, 3) for row in ((day, f"2026-11-0{day}"), (10 * day, None), (day, "2026-11-09"))],
        key=repr,
    )
    with pytest.raises(InvalidRequestError, match="with a division by date"):
        lake.run()
    with pytest.raises(InvalidRequestError, match="'n' is bigint"):
        lake.run(date_field="at", columns="n string")


@pytest.mark.nightly
def test_a_batch_of_bad_records_only_is_stored_by_date(lake: Lake):
    lake.write(b"not json")
    assert lake.run(date_field="at") == LakeCounts(quarantined=1)
    lake.write({"at": "2026-11-01", "n": 1})
    assert lake.run(date_field="at") == LakeCounts(rows=1)
    assert lake.rows("n", "_date") == [(1, "2026-11-01")]


@pytest.mark.nightly
def test_a_time_in_nanoseconds_gives_a_row_without_date(lake: Lake):
    lake.write({"at": 0}, {"at": 1_795_000_000_000_000_000}, {"at": -(2**63)}, {"at": 253_402_300_799_999})
    assert lake.run(date_field="at") == LakeCounts(rows=4)
    assert lake.rows("at", "_date") == [
        (-(2**63), None), (0, "1970-01-01"), (1_795_000_000_000_000_000, None), (253_402_300_799_999, "9999-12-31"),
    ]  # fmt: skip


@pytest.mark.nightly
def test_dynamic_overwrites_of_the_session_repeat_no_row(lake: Lake):
    """The second pass, with the column of a new field, replaces the first one, also in partitions that it lacks."""
    lake.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        lake.write({"at": "2026-11-01", "n": 1}, {"at": "2026-11-02", "n": 2})
        assert lake.run(date_field="at") == LakeCounts(rows=2)
    finally:
        lake.spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert lake.rows("n", "_date") == [(1, "2026-11-01"), (2, "2026-11-02")]
