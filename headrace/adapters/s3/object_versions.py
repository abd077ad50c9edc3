"""The versions of the objects in a bucket: listed in the order of names, and brought back after a deletion.

Only a restore uses it. Its principal needs `s3:ListBucketVersions` and, to bring objects back,
`s3:DeleteObjectVersion`, which the bucket's policy allows to the role of the setting `restore_role` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from headrace.adapters.s3.chunk_storage import DELETES_PER_REQUEST_MAX, failure, failure_of_key
from headrace.model.restore_plan import ObjectVersion

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

LISTED_PER_REQUEST: Final = 1000


class BucketVersions:
    """The versions in one bucket. Its methods block."""

    def __init__(self, bucket: str, client: S3Client) -> None:
        self._bucket = bucket
        self._client: Any = client

    def is_versioned(self) -> bool:
        """Whether the bucket keeps deleted objects as versions. Raises as `under`."""
        try:
            return bool(self._client.get_bucket_versioning(Bucket=self._bucket).get("Status") == "Enabled")
        except (ClientError, BotoCoreError) as error:
            raise failure(f"reading the versioning of {self._bucket}", error) from error

    def under(self, prefix: str) -> Iterator[tuple[ObjectVersion, ...]]:
        """All versions of each name that begins with `prefix`, a name at a time, in the order of names.

        Raises:
            ThrottledError, UnavailableError: S3 does not answer, or refuses.
        """
        for _, versions in groupby(self._listed(prefix), key=lambda version: version.name):
            yield tuple(versions)

    def of(self, name: str) -> tuple[ObjectVersion, ...]:
        """All versions of one name; empty if there is none. Raises as `under`."""
        versions = next(self.under(name), ())
        return versions if versions and versions[0].name == name else ()

    def remove_markers(self, markers: Sequence[ObjectVersion]) -> None:
        """Remove delete markers, and nothing else. A marker that is gone is fine.

        Raises:
            ThrottledError, UnavailableError: S3 does not answer, or refuses. Some may be removed.
        """
        if any(not each.is_marker for each in markers):
            raise AssertionError("a version that is an object would be lost")
        left = iter(markers)
        while batch := list(islice(left, DELETES_PER_REQUEST_MAX)):
            self._remove(batch)

    def _remove(self, markers: Sequence[ObjectVersion]) -> None:
        what = f"removing {len(markers)} delete markers"
        named = [{"Key": each.name, "VersionId": each.version_id} for each in markers]
        try:
            answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": named, "Quiet": True})
        except (ClientError, BotoCoreError) as error:
            raise failure(what, error) from error
        for first in answer.get("Errors", [])[:1]:
            raise failure_of_key(f"{what}, {first.get('Key')}", first.get("Code", ""), first.get("Message", ""))

    def _listed(self, prefix: str) -> Iterator[ObjectVersion]:
        """All versions in the order of names. Each page has a range of names and versions without gaps."""
        start: dict[str, str] = {}
        while True:
            try:
                page = self._client.list_object_versions(
                    Bucket=self._bucket, Prefix=prefix, MaxKeys=LISTED_PER_REQUEST, **start
                )
            except (ClientError, BotoCoreError) as error:
                raise failure(f"listing versions under {prefix!r}", error) from error
            versions = [_version(each, is_marker=False) for each in page.get("Versions", ())]
            versions += [_version(each, is_marker=True) for each in page.get("DeleteMarkers", ())]
            yield from sorted(versions, key=lambda version: version.name.encode())
            if not page.get("IsTruncated"):
                return
            start = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}


def _version(entry: Any, *, is_marker: bool) -> ObjectVersion:
    modified_ms = int(entry["LastModified"].timestamp() * 1000)
    length = 0 if is_marker else int(entry["Size"])
    return ObjectVersion(entry["Key"], entry["VersionId"], is_marker, bool(entry["IsLatest"]), length, modified_ms)
