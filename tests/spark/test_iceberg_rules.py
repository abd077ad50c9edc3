"""Rules of the Iceberg lake, arguments of its job, and the pinned jar, without Spark."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.spark.jobs.iceberg_lake import (
    CommittedBatch,
    checked_table_name,
    create_statement,
    field_columns,
)
from scripts.fetch_iceberg import RUNTIMES, jar_path, keep

JOB_COLUMNS = {"_segment_id": "long", "_offset": "long"}


def test_a_committed_batch_is_read_back() -> None:
    assert CommittedBatch(7, 3).to_json() == '{"batch": 7, "schema": 3}'
    assert CommittedBatch.from_json('{"batch": 7, "schema": 3, "later": 1}') == CommittedBatch(7, 3)


@pytest.mark.parametrize(
    "text", ["7", "", "[]", '{"batch": 7}', '{"batch": "7", "schema": 3}', '{"batch": -1, "schema": 0}']
)
def test_a_damaged_property_is_an_error(text: str) -> None:
    with pytest.raises(CorruptError, match=r"headrace\.batch"):
        CommittedBatch.from_json(text)


@pytest.mark.parametrize(
    "name", ["orders", "shop.orders", "lake.shop.orders; DROP TABLE x", "lake..orders", "lake.shop.`o`"]
)
def test_a_name_that_is_no_table_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="give catalog") as raised:
        checked_table_name(name)
    assert raised.value.specific_code == "invalid_table"


def test_names_of_nested_databases_are_tables() -> None:
    assert checked_table_name("lake.shop.eu_1.orders") == "lake.shop.eu_1.orders"


def test_columns_of_fields_get_the_types_of_spark() -> None:
    columns = JOB_COLUMNS | {"n": "long", "s": "string", "d": "double", "b": "boolean"}
    assert field_columns("t", columns, JOB_COLUMNS) == {"n": "bigint", "s": "string", "d": "double", "b": "boolean"}


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"_segment_id": "long"}, "other_table"),
        ({"_segment_id": "long", "_offset": "string"}, "other_table"),
        (JOB_COLUMNS | {"at": "timestamptz"}, "other_column_type"),
    ],
)
def test_a_table_of_another_kind_is_refused(columns: dict[str, str], code: str) -> None:
    with pytest.raises(InvalidRequestError, match="t") as raised:
        field_columns("lake.shop.orders", columns, JOB_COLUMNS)
    assert raised.value.specific_code == code


def test_a_table_is_created_for_staged_snapshots() -> None:
    assert create_statement("a.b.c", {"n`": "bigint", "_date": "date"}, partitions="days(_date)") == (
        "CREATE TABLE IF NOT EXISTS a.b.c (`n``` bigint, `_date` date) USING iceberg PARTITIONED BY (days(_date))"
        " TBLPROPERTIES ('format-version'='2', 'write.wap.enabled'='true')"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "delta"}, "one of parquet, iceberg, not 'delta'"),
        ({}, "--format parquet needs --output"),
        ({"output": "x", "table": "a.b.c"}, "--format parquet does not take --table"),
        ({"format": "iceberg"}, "--format iceberg needs --table"),
        ({"format": "iceberg", "table": "a.b.c", "output": "x"}, "--format iceberg does not take --output"),
        ({"format": "iceberg", "table": "a.b.c", "compact_every": "-1"}, "--compact_every is a whole number, not '-1'"),
        ({"format": "iceberg", "table": "a.b.c", "compact_every": "0"}, "compact_every must be at least 1"),
        ({"format": "iceberg", "table": "a.b.c", "keep_snapshots_h": "5"}, "keep_snapshots_h needs compact_every"),
        ({"format": "iceberg", "table": "a.b.c", "quarantine_table": "a.b.C"}, "must be another table"),
        ({"format": "iceberg", "table": "a.b.c", "quarantine_table": "c"}, "'c' is not a table"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(given: dict[str, str | None], message: str) -> None:
    pytest.importorskip("pyspark")
    from glue_jobs import stream_to_lake

    with pytest.raises(InvalidRequestError, match=message):
        stream_to_lake.run(None, given)  # type: ignore[arg-type]  # refused before the session is used


def test_only_the_pinned_jar_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "iceberg.jar"
    with pytest.raises(ValueError, match="sha256"):
        keep(path, b"other bytes", hashlib.sha256(b"the jar").hexdigest())
    assert not path.exists()
    assert keep(path, b"the jar", hashlib.sha256(b"the jar").hexdigest()).read_bytes() == b"the jar"
    assert [file.name for file in path.parent.iterdir()] == ["iceberg.jar"]


def test_versions_of_spark_have_their_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert jar_path("4.1.1") == Path("/cache/headrace/jars/iceberg-spark-runtime-4.1_2.13-1.11.0.jar")
    assert jar_path("4.3.0") is None
    assert set(RUNTIMES) == {"3.5", "4.0", "4.1"}
