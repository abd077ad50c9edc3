"""A directory of small files that are created once and never changed: on this machine, or in S3."""

from __future__ import annotations

import os
import posixpath
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from headrace.model.errors import InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PRECONDITION_FAILED = 412
CONFLICT = 409
"""Another request for the same object was running. It is not known whether the object is there: ask again."""

CONFLICT_WAITS_S = (0.1, 0.5, 2.0)

REFUSED = (403, 404)
"""No permission, or no bucket."""

PLANS_REFUSED = "plans_refused"
"""The code of errors that do not pass when the call is repeated."""

_S3_SCHEMES = ("s3", "s3a", "s3n")


class PlanFiles(Protocol):
    """One directory. Errors are UnavailableError in S3, and OSError on this machine."""

    @property
    def url(self) -> str:
        """How Spark names the directory, also in the progress of a query."""
        ...

    def names(self) -> list[str]:
        """The names of all files, sorted."""
        ...

    def read(self, name: str) -> bytes | None:
        """The file's bytes, or None if it does not exist."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Returns False if the file exists already with other data. A reader sees a whole file or none."""
        ...

    def replace(self, name: str, data: bytes) -> None: ...

    def delete(self, name: str) -> None:
        """Does nothing if there is no such file."""
        ...


def plan_files(directory: str, *, create: bool = True) -> PlanFiles:
    """The directory at a path, a file URL or an S3 URL.

    A path that does not exist is created, or without `create` has no files. Slashes count once, as in Spark.

    Raises:
        InvalidRequestError: code "invalid_option": another kind of URL, or S3 without botocore.
    """
    address = urlsplit(directory)
    if address.scheme in _S3_SCHEMES and address.netloc:
        return S3Files(address.scheme, address.netloc, posixpath.normpath(f"/{address.path}").strip("/"))
    if address.scheme in ("", "file") and not address.netloc:
        return LocalFiles(Path(unquote(address.path) if address.scheme else directory), create=create)
    raise InvalidRequestError(
        f"{directory!r} is neither a directory of this machine nor one in S3 (s3://bucket/prefix)",
        code="invalid_option",
    )


class LocalFiles:
    """The files of a directory of this machine."""

    def __init__(self, directory: Path, *, create: bool = True) -> None:
        self._directory = Path("/" + os.path.abspath(directory).lstrip("/"))
        if create:
            self._directory.mkdir(parents=True, exist_ok=True)
        self.url = f"file:{self._directory}"

    def names(self) -> list[str]:
        return sorted(os.listdir(self._directory)) if self._directory.is_dir() else []

    def read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        new = self._written(name, data)
        try:
            os.link(new, self._directory / name)
        except FileExistsError:
            return self.read(name) == data
        finally:
            new.unlink()
        return True

    def replace(self, name: str, data: bytes) -> None:
        os.replace(self._written(name, data), self._directory / name)

    def delete(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    def _written(self, name: str, data: bytes) -> Path:
        """A file that Spark does not see, because its name begins with an underscore."""
        new = self._directory / f"_{secrets.token_hex(8)}-{name}"
        new.write_bytes(data)
        return new


class S3Files:
    """The files under a prefix in S3.

    Credentials and region are those of the standard AWS_* variables or the job's role.
    """

    def __init__(self, scheme: str, bucket: str, prefix: str) -> None:
        self.url = f"{scheme}://{bucket}/{prefix}"
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = _s3_client()

    def names(self) -> list[str]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"
            )
            keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        except (ClientError, BotoCoreError) as error:
            raise self._failure("listing it", error) from error
        return sorted(key.removeprefix(self._prefix) for key in keys)

    def read(self, name: str) -> bytes | None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise self._failure(f"reading {name}", error) from error
        except BotoCoreError as error:
            raise self._failure(f"reading {name}", error) from error

    def create(self, name: str, data: bytes) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        for wait_s in (*CONFLICT_WAITS_S, None):
            try:
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data, IfNoneMatch="*")
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                if status == PRECONDITION_FAILED:
                    # A repetition after a lost answer meets what the first attempt created.
                    return self.read(name) == data
                if status != CONFLICT or wait_s is None:
                    raise self._failure(f"creating {name}", error) from error
                time.sleep(wait_s)
            except BotoCoreError as error:
                raise self._failure(f"creating {name}", error) from error
            else:
                break
        return True

    def replace(self, name: str, data: bytes) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)
        except (ClientError, BotoCoreError) as error:
            raise self._failure(f"replacing {name}", error) from error

    def delete(self, name: str) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)
        except (ClientError, BotoCoreError) as error:
            raise self._failure(f"deleting {name}", error) from error

    def _failure(self, what: str, error: Exception) -> UnavailableError:
        response = getattr(error, "response", {})
        refused = response.get("ResponseMetadata", {}).get("HTTPStatusCode") in REFUSED
        return UnavailableError(
            f"the directory {self.url}: {what} failed: {error}", code=PLANS_REFUSED if refused else None
        )


def _s3_client() -> S3Client:
    from headrace.adapters.s3.client import s3_client

    try:
        return s3_client()
    except ImportError as error:
        raise InvalidRequestError(
            "plans in S3 need botocore: install headrace[spark,aws-auth]", code="invalid_option"
        ) from error
