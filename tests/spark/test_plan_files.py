"""Files of plans in S3: created once, also when S3 says that two requests met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.model.errors import UnavailableError
from headrace.spark import plan_files
from headrace.spark.plan_files import PLANS_REFUSED, LocalFiles, S3Files


class Bucket:
    """Answers the first requests to create an object with `statuses`."""

    def __init__(self, statuses: list[int]) -> None:
        self.statuses = statuses
        self.objects: dict[str, bytes] = {}

    def put_object(self, *, Key: str, Body: bytes, IfNoneMatch: str, **_: Any) -> None:
        status = self.statuses.pop(0) if self.statuses else 412 if Key in self.objects else 200
        if status != 200:
            response: Any = {"Error": {"Code": "NoSuchKey"}, "ResponseMetadata": {"HTTPStatusCode": status}}
            raise ClientError(response, "PutObject")
        self.objects[Key] = Body

    def get_object(self, *, Key: str, **_: Any) -> Any:
        raise ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")


def files(monkeypatch: pytest.MonkeyPatch, statuses: list[int]) -> tuple[S3Files, Bucket]:
    bucket = Bucket(statuses)
    monkeypatch.setattr(plan_files, "_s3_client", lambda: bucket)
    monkeypatch.setattr(plan_files, "CONFLICT_WAITS_S", (0.0, 0.0))
    return S3Files("s3", "bucket", "plans"), bucket


def test_a_conflict_is_not_taken_for_another_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    found, bucket = files(monkeypatch, [409, 409])
    assert found.create("0000000000.json", b"plan")
    assert bucket.objects == {"plans/0000000000.json": b"plan"}


def test_conflicts_without_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found, bucket = files(monkeypatch, [409] * 10)
    with pytest.raises(UnavailableError, match=r"creating 0000000000\.json failed"):
        found.create("0000000000.json", b"plan")
    assert not bucket.objects


@pytest.mark.parametrize("url", ["s3://bucket/job//plans", "s3://bucket//job/plans/", "s3://bucket/job/./plans"])
def test_slashes_in_s3_count_once_as_in_spark(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    bucket = Bucket([])
    monkeypatch.setattr(plan_files, "_s3_client", lambda: bucket)
    found = plan_files.plan_files(url)
    assert found.url == "s3://bucket/job/plans"
    found.create("0000000000.json", b"plan")
    assert list(bucket.objects) == ["job/plans/0000000000.json"]


def test_slashes_of_a_path_count_once_as_in_spark(tmp_path: Path) -> None:
    assert plan_files.plan_files(f"file:///{tmp_path}//plans/").url == f"file:{tmp_path}/plans"


@pytest.mark.parametrize(("status", "code"), [(403, PLANS_REFUSED), (404, PLANS_REFUSED), (503, "unavailable")])
def test_what_does_not_pass_has_a_code(monkeypatch: pytest.MonkeyPatch, status: int, code: str) -> None:
    found, _ = files(monkeypatch, [status])
    with pytest.raises(UnavailableError) as raised:
        found.create("0000000000.json", b"plan")
    assert raised.value.specific_code == code


def test_a_file_that_was_created_before_is_recognised(tmp_path: Path) -> None:
    """The answer to the first attempt may be lost on a network file system, too."""
    assert LocalFiles(tmp_path).create("0000000000.json", b"plan")
    assert LocalFiles(tmp_path).create("0000000000.json", b"plan")
    assert not LocalFiles(tmp_path).create("0000000000.json", b"another")
