"""The versions of objects in a bucket, on the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.adapters.s3 import object_versions
from headrace.adapters.s3.object_versions import BucketVersions
from headrace.model.errors import HeadraceError
from headrace.model.restore_plan import ObjectVersion

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@pytest.fixture
def versions(bucket: str, s3: S3Client) -> BucketVersions:
    """An empty bucket that keeps versions."""
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return BucketVersions(bucket, s3)


def test_bucket_says_whether_it_keeps_versions(versions: BucketVersions, s3: S3Client):
    assert versions.is_versioned()
    s3.create_bucket(Bucket="plain-bucket")
    assert not BucketVersions("plain-bucket", s3).is_versioned()


@pytest.mark.parametrize("per_request", [1, 2, 1000])
def test_names_come_in_order_with_all_their_versions(
    versions: BucketVersions, bucket: str, s3: S3Client, monkeypatch: pytest.MonkeyPatch, per_request: int
):
    monkeypatch.setattr(object_versions, "LISTED_PER_REQUEST", per_request)
    for name in ("p/c", "p/a", "p/b", "q/a"):
        s3.put_object(Bucket=bucket, Key=name, Body=b"12345")
    s3.delete_object(Bucket=bucket, Key="p/b")
    listed = list(versions.under("p/"))
    assert [each[0].name for each in listed] == ["p/a", "p/b", "p/c"]
    assert [sorted(version.is_marker for version in each) for each in listed] == [[False], [False, True], [False]]
    assert [version.length for version in listed[0]] == [5]
    assert {version.is_latest for version in listed[1] if version.is_marker} == {True}


def test_object_is_there_again_without_its_marker(versions: BucketVersions, bucket: str, s3: S3Client):
    s3.put_object(Bucket=bucket, Key="a", Body=b"12345")
    s3.delete_object(Bucket=bucket, Key="a")
    markers = [each for each in versions.of("a") if each.is_marker]
    versions.remove_markers(markers)
    versions.remove_markers(markers)
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"12345"
    assert len(versions.of("a")) == 1


def test_marker_that_s3_does_not_remove_is_reported():
    class Refusing:
        def delete_objects(self, **_: Any) -> dict[str, Any]:
            return {"Errors": [{"Key": "a", "Code": "AccessDenied", "Message": "no"}]}

    client: Any = Refusing()
    marker = ObjectVersion("a", "v", is_marker=True, is_latest=True, length=0, modified_ms=1)
    with pytest.raises(HeadraceError, match="AccessDenied"):
        BucketVersions("bucket", client).remove_markers([marker])


def test_version_that_is_an_object_is_never_removed(versions: BucketVersions, bucket: str, s3: S3Client):
    s3.put_object(Bucket=bucket, Key="a", Body=b"12345")
    with pytest.raises(AssertionError, match="lost"):
        versions.remove_markers(versions.of("a"))
    assert len(versions.of("a")) == 1


def test_longer_name_is_not_taken_for_a_version(versions: BucketVersions, bucket: str, s3: S3Client):
    s3.put_object(Bucket=bucket, Key="ab", Body=b"")
    assert versions.of("a") == ()


def test_missing_bucket_is_reported(s3: S3Client):
    missing = BucketVersions("no-such-bucket", s3)
    with pytest.raises(HeadraceError):
        list(missing.under(""))
    with pytest.raises(HeadraceError):
        missing.is_versioned()
