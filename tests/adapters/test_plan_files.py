"""Directories of plans, on this machine and in S3: files that are created once, and seen whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.model.errors import InvalidRequestError, UnavailableError
from headrace.spark.plan_files import PlanFiles, plan_files


@pytest.fixture(params=["path", "url", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> PlanFiles:
    if request.param == "s3":
        return plan_files(f"s3://{request.getfixturevalue('bucket')}/plans/of a query/")
    return plan_files(str(tmp_path / "new directory") if request.param == "path" else f"file://{tmp_path}/new%20one")


def test_a_file_is_created_once(files: PlanFiles) -> None:
    assert files.names() == []
    assert files.read("1.json") is None
    assert files.create("1.json", b"one")
    assert not files.create("1.json", b"two")
    assert files.read("1.json") == b"one"
    assert files.names() == ["1.json"]


def test_a_file_can_be_replaced_and_deleted(files: PlanFiles) -> None:
    files.create("1.json", b"one")
    files.create("2.json", b"two")
    files.replace("1.json", b"three")
    assert files.read("1.json") == b"three"
    files.delete("1.json")
    files.delete("1.json")
    assert files.names() == ["2.json"]


def test_a_local_directory_is_named_as_spark_names_it(tmp_path: Path) -> None:
    assert plan_files(f"file://{tmp_path}/new%20one").url == f"file:{tmp_path}/new one"
    assert plan_files(f"{tmp_path}/").url == f"file:{tmp_path}"
    assert plan_files(f"{tmp_path}/a/../b").url == f"file:{tmp_path}/b"


def test_a_directory_in_s3_is_named_as_spark_names_it() -> None:
    assert plan_files("s3://bucket/checkpoint/plans/").url == "s3://bucket/checkpoint/plans"


@pytest.mark.usefixtures("_endpoint_variable")
def test_a_bucket_that_is_missing_is_named() -> None:
    files = plan_files("s3a://there-is-no-such-bucket/plans")
    for call in (files.names, lambda: files.create("1.json", b""), lambda: files.replace("1.json", b"")):
        with pytest.raises(UnavailableError, match="s3a://there-is-no-such-bucket/plans"):
            call()


@pytest.mark.parametrize("url", ["hdfs://name/plans", "s3:///plans", "file://host/plans"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="s3://bucket/prefix"):
        plan_files(url)
