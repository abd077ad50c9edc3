"""Tier 2 on S3: objects created once, read by range, listed and deleted in batches.

botocore blocks, so every request runs on a small pool of threads of its own, never on the loop's default one. There is
no multipart upload: an object is at most a few dozen MiB, and one PUT is one request, one price, one outcome.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

from botocore.exceptions import BotoCoreError, ClientError

from headrace.adapters.aws_refusals import code_of
from headrace.adapters.s3.client import CONNECTIONS_MAX_DEFAULT
from headrace.adapters.s3.failures import PRECONDITION_FAILED, failure, failure_of_key
from headrace.adapters.s3.object_body import ObjectBody
from headrace.model.errors import InvalidRequestError, NotFoundError, UnavailableError
from headrace.ports.chunk_storage import StoredObject

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from typing_extensions import Buffer

PUT_BYTES_MAX = 5 * 1024**3
"""S3's limit for one PUT."""

NAME_BYTES_MAX = 1024
DELETES_PER_REQUEST_MAX = 1000
LISTED_PER_REQUEST_MAX = 1000
READ_ATTEMPTS_MAX = 3
"""Of a ranged read whose body breaks off: botocore repeats requests, but not once the headers have arrived."""

_PUT_ID = "headrace-put-id"
_PUT_ID_BYTES = 12

T = TypeVar("T")


class S3ChunkStorage:
    """`ports.chunk_storage.ChunkStorage` over one bucket; at most `concurrency` reads and as many others at a time.

    Reads that are slow never keep a PUT waiting, on which the memory for new data depends.

    A cancelled call stops waiting, but its request runs on to its end. `close` when done.
    """

    def __init__(self, bucket: str, client: S3Client, *, concurrency: int = CONNECTIONS_MAX_DEFAULT // 2) -> None:
        self._bucket = bucket
        self._client = client
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="s3-chunks")
        self._reading_threads = ThreadPoolExecutor(concurrency, thread_name_prefix="s3-reads")

    def close(self) -> None:
        """Wait for the requests under way and end the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._reading_threads.shutdown(wait=True, cancel_futures=True)

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        _check_name(name)
        await self._run(lambda: self._put(name, parts))

    async def read(self, name: str, position: int, length: int) -> bytes:
        _check_name(name)
        if position < 0 or length < 0:
            raise InvalidRequestError(f"cannot read {length} bytes at {position} of {name}")
        if length == 0:
            return b""
        read = asyncio.get_running_loop().run_in_executor
        return await read(self._reading_threads, self._read, name, position, length)

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            _check_name(name)
        for first in range(0, len(names), DELETES_PER_REQUEST_MAX):
            batch = names[first : first + DELETES_PER_REQUEST_MAX]
            await self._run(lambda batch=batch: self._delete(batch))  # type: ignore[misc]

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[StoredObject]:
        if limit < 1:
            raise InvalidRequestError(f"a listing needs a limit of at least 1, not {limit}")
        return await self._run(lambda: self._list(prefix, after, limit))

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _put(self, name: str, parts: Sequence[Buffer]) -> None:
        body = ObjectBody(parts)  # not on the event loop: it takes a millisecond for some thousand parts
        if body.length > PUT_BYTES_MAX:
            raise InvalidRequestError(f"object {name} has {body.length} bytes, S3 takes at most {PUT_BYTES_MAX}")
        put_id = secrets.token_urlsafe(_PUT_ID_BYTES)
        try:
            self._client.put_object(
                Bucket=self._bucket,
                Key=name,
                Body=cast("IO[bytes]", body),
                ContentLength=body.length,
                ChecksumCRC32C=body.crc32c_base64(),
                Metadata={_PUT_ID: put_id},
                IfNoneMatch="*",
            )
        except (ClientError, BotoCoreError) as error:
            if not self._was_ours(name, put_id, error):
                raise failure(f"creating object {name}", error) from error

    def _was_ours(self, name: str, put_id: str, error: Exception) -> bool:
        """Whether "it exists already" is the echo of an attempt that succeeded and whose answer was lost."""
        if not isinstance(error, ClientError) or code_of(error) != PRECONDITION_FAILED:
            return False
        if not error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0):
            return False
        try:
            head = self._client.head_object(Bucket=self._bucket, Key=name)
        except (ClientError, BotoCoreError) as lost:
            raise UnavailableError(f"object {name} may or may not have been created: {lost}") from lost
        return head["Metadata"].get(_PUT_ID) == put_id

    def _read(self, name: str, position: int, length: int) -> bytes:
        what = f"reading {length} bytes at {position} of object {name}"
        asked = f"bytes={position}-{position + length - 1}"
        for attempt in range(1, READ_ATTEMPTS_MAX + 1):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=name, Range=asked)
                with answer["Body"] as body:
                    if answer["ContentLength"] == length:
                        data = body.read()
                        if len(data) == length:
                            return data
            except ClientError as error:
                raise failure(what, error) from error
            except BotoCoreError as error:
                if attempt == READ_ATTEMPTS_MAX:
                    raise failure(what, error) from error
                continue
            if answer["ContentLength"] < length:
                raise NotFoundError(f"{what}: the object ends {length - answer['ContentLength']} bytes earlier")
        raise UnavailableError(f"{what}: S3 sent another number of bytes {READ_ATTEMPTS_MAX} times")

    def _delete(self, names: Sequence[str]) -> None:
        what = f"deleting {len(names)} objects"
        try:
            answer = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": name} for name in names], "Quiet": True}
            )
        except (ClientError, BotoCoreError) as error:
            raise failure(what, error) from error
        failed = answer.get("Errors", [])
        if failed:
            first = failed[0]
            raise failure_of_key(
                f"{what}: {len(failed)} remain, among them {first.get('Key')}",
                first.get("Code", ""),
                first.get("Message", ""),
            )

    def _list(self, prefix: str, after: str, limit: int) -> Sequence[StoredObject]:
        found: list[StoredObject] = []
        try:
            for entry in self._listed(prefix, after, limit):
                modified_ms = int(entry["LastModified"].timestamp() * 1000)
                found.append(StoredObject(entry["Key"], entry["Size"], modified_ms))
        except (ClientError, BotoCoreError) as error:
            raise failure(f"listing objects under {prefix!r}", error) from error
        return found

    def _listed(self, prefix: str, after: str, limit: int) -> Iterator[Any]:
        left = limit
        while left:
            page_items = min(left, LISTED_PER_REQUEST_MAX)
            start: dict[str, Any] = {"StartAfter": after} if after else {}
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, MaxKeys=page_items, **start)
            entries = answer.get("Contents", [])
            yield from entries
            if not answer["IsTruncated"] or not entries:
                return
            left -= len(entries)
            after = entries[-1]["Key"]


def _check_name(name: str) -> None:
    if not 1 <= len(name.encode(errors="replace")) <= NAME_BYTES_MAX:
        raise InvalidRequestError(f"an object name takes 1 to {NAME_BYTES_MAX} bytes, not {name[:100]!r}")
