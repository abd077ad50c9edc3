"""Files of plans in S3: created once, also when S3 says that two requests met."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.model.errors import UnavailableError
from headrace.spark import plan_files
from headrace.spark.plan_files import S3Files


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
