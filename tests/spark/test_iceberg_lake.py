"""A stream as an Iceberg table: each event once after crashes, compaction and expiry, and never silently twice."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from iceberg_support import SPARK_VERSION, IcebergRuns, needs_iceberg
from spark_store_double import StoreDouble

from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.spark.jobs import iceberg_lake
from headrace.spark.jobs.iceberg_lake import CommittedBatch, IcebergTable, StagedBatch
from headrace.spark.jobs.lake_records import LakeCounts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
    needs_iceberg,
]


@pytest.fixture
def lake(spark: SparkSession, store: StoreDouble, tmp_path: Path) -> IcebergRuns:
    return IcebergRuns(spark, store, tmp_path)


class Crashed(Exception):
    """The process ended here."""


def test_a_batch_is_stored_once_also_after_expiry(lake: IcebergRuns, tmp_path: Path):
    lake.write({"n": 1}, {"n": 2, "a.b `c": 1.5}, b"not json")
    assert lake.run() == LakeCounts(rows=2, quarantined=1)
    shutil.copytree(lake.checkpoint, tmp_path / "old")
    lake.write({"n": 3, "in": {"deep": [1]}}, {"n": "four"}, {"n": 5, "_pos": 1})
    assert lake.run() == LakeCounts(rows=1, quarantined=2)
    rows = [(1, None, None), (2, 1.5, None), (3, None, '{"deep":[1]}')]
    refused = [
        (b"not json", "not_a_json_object"), (b'{"n": "four"}', "field_type"), (b'{"n": 5, "_pos": 1}', "field_name"),
    ]  # fmt: skip
    for name in (lake.table, lake.quarantine_table):
        table = lake.opened(name)
        lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='1')")
        table._table.refresh()
        rewritten = table._actions().rewriteDataFiles(table._table).option("min-input-files", "2").execute()
        assert rewritten.rewrittenDataFilesCount() >= 2
        table.expire_snapshots(int(time.time() * 1000) + 1)
        lake.spark.catalog.refreshTable(name)
        (left,) = lake.spark.sql(f"SELECT operation, summary FROM {name}.snapshots").collect()
        assert left["operation"] == "replace"
        assert not [key for key in left["summary"] if key.startswith("headrace")], "the snapshots know no batch"
    lake.forget_last_commit()
    assert lake.run() == LakeCounts()
    assert lake.rows("n", "a.b `c", "in") == sorted(rows, key=repr)
    assert lake.refused() == sorted(refused)
    lake.checkpoint = tmp_path / "old"
    lake.forget_last_commit()
    # Plans of batches in a checkpoint of Spark 3.5 name its directory, so a copy elsewhere fails even earlier.
    on_3_5, refusal = SPARK_VERSION.startswith("3."), "has already committed batch 1, and now runs batch 0"
    with pytest.raises(Exception, match="Wrong basePath" if on_3_5 else refusal):
        lake.run()
    assert lake.rows("n", "a.b `c", "in") == sorted(rows, key=repr)
    assert lake.refused() == sorted(refused)


def test_a_crash_between_the_tables_loses_nothing(lake: IcebergRuns, monkeypatch: pytest.MonkeyPatch):
    """Compaction, expiry and a new column come before the repetition: the rows say how they were classified."""
    lake.write({"n": 1}, {"n": "x", "s": "t"}, {"later": 1})
    stage = IcebergTable.stage

    def crash(table: IcebergTable, rows: DataFrame, query_id: str, batch_id: int) -> str:
        if table.name == lake.quarantine_table:
            raise Crashed("between the tables")
        return stage(table, rows, query_id, batch_id)

    monkeypatch.setattr(IcebergTable, "stage", crash)
    with pytest.raises(Exception, match="between the tables"):
        lake.run(columns="n bigint")
    monkeypatch.undo()
    assert lake.refused() == []
    assert lake.batches(lake.quarantine_table) == []
    table = lake.opened(lake.table)
    table.add_columns({"unused": "bigint"})
    table.compact()
    table.expire_snapshots(int(time.time() * 1000) + 1)
    assert lake.run(columns="n bigint") == LakeCounts(rows=0, quarantined=1)
    assert lake.rows("n", "later") == [(1, None), (None, 1)]
    assert lake.refused() == [(b'{"n": "x", "s": "t"}', "field_type")]
    assert [json.loads(text)["batch"] for text in lake.batches(lake.table)] == [0]


def test_two_runs_of_a_checkpoint_add_a_batch_once(lake: IcebergRuns, monkeypatch: pytest.MonkeyPatch):
    lake.write({"n": 1}, {"n": 2})
    publish = IcebergTable._publish

    def publish_twice(table: IcebergTable, query_id: str, batch_id: int, staged: StagedBatch) -> int | None:
        """The other run publishes between the staging and the commit of this one."""
        other = IcebergTable(table._spark, table.name)
        rows = table._spark.sql("SELECT 9L AS n, 9L AS _segment_id, 9L AS _offset")
        staging = other.stage(rows, query_id, batch_id)
        assert publish(other, query_id, batch_id, StagedBatch(staging, staged.schema_id)) == 1
        monkeypatch.undo()
        return publish(table, query_id, batch_id, staged)

    monkeypatch.setattr(IcebergTable, "_publish", publish_twice)
    assert lake.run() == LakeCounts()
    assert lake.rows("n") == [(9,)]


def test_other_writers_make_a_batch_staged_again(lake: IcebergRuns, monkeypatch: pytest.MonkeyPatch):
    lake.write({"n": 1})
    assert lake.run() == LakeCounts(rows=1)
    lake.write({"n": 2})
    publish, interrupted = IcebergTable._publish, list[str | None]()

    def interrupt(table: IcebergTable, query_id: str, batch_id: int, staged: StagedBatch) -> int | None:
        if len(interrupted) < iceberg_lake.ATTEMPTS_MAX - 1:
            interrupted.append(staged.staging)
            table._spark.sql(f"DELETE FROM {table.name} WHERE n = {len(interrupted)}")
            table._spark.sql(f"INSERT INTO {table.name} BY NAME SELECT 1L AS n, 0L AS _segment_id, 0L AS _offset")
        return publish(table, query_id, batch_id, staged)

    monkeypatch.setattr(IcebergTable, "_publish", interrupt)
    assert lake.run() == LakeCounts(rows=1)
    assert len(set(interrupted)) == iceberg_lake.ATTEMPTS_MAX - 1
    assert lake.rows("n").count((2,)) == 1


def test_rows_are_divided_by_date_and_maintained(lake: IcebergRuns):
    for day in range(1, 6):
        lake.write({"at": f"2026-11-0{day}T10:00:00Z", "n": day}, {"at": "2026-11-09", "n": day})
        lake.run(date_field="at", compact_every="5", keep_snapshots_h="1")
    lake.write({"at": "2026-02-30", "n": 10}, {"n": 11})
    lake.run(date_field="at", columns="n bigint")
    dates = {(row[0], str(row[1])) for row in lake.rows("n", "_date")}
    assert dates == {(10, "None"), (11, "None")} | {(day, f"2026-11-0{day}") for day in range(1, 6)} | {
        (day, "2026-11-09") for day in range(1, 6)
    }  # fmt: skip
    files = lake.spark.sql(f"SELECT count(*) AS n FROM {lake.table}.files WHERE partition._date_day = DATE'2026-11-09'")
    assert files.collect()[0]["n"] == 1, "five were combined"
    with pytest.raises(InvalidRequestError, match="with a division by date"):
        lake.run()
    with pytest.raises(InvalidRequestError, match="'n' is bigint"):
        lake.run(date_field="at", columns="n string")


def test_a_table_of_other_columns_is_refused(lake: IcebergRuns):
    lake.spark.sql(f"CREATE TABLE {lake.table} (n bigint, at timestamp) USING iceberg")
    with pytest.raises(InvalidRequestError, match="no column '_segment_id' of type long"):
        lake.run()
    lake.spark.sql(f"ALTER TABLE {lake.table} ADD COLUMNS (_segment_id bigint, _offset bigint)")
    with pytest.raises(InvalidRequestError, match=r"'at' of .* is timestamp"):
        lake.run()


def test_a_removed_schema_is_an_error(lake: IcebergRuns):
    lake.write({"n": 1})
    lake.run()
    with pytest.raises(HeadraceError, match="no longer has its schema 77"):
        lake.opened(lake.table).schema(77)
    (text,) = lake.batches(lake.table)
    assert CommittedBatch.from_json(text).batch == 0


def test_a_batch_without_good_records_is_no_error(lake: IcebergRuns):
    lake.write(b"not json", b"nor this")
    assert lake.run(date_field="day") == LakeCounts(quarantined=2)
    assert [event for event, _ in lake.refused()] == [b"nor this", b"not json"]
