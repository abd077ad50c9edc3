"""Tier 2 on S3: objects created once, read by range, listed and deleted in batches.

botocore blocks, so every request runs on a small pool of threads of its own, never on the loop's default one. There is
no multipart upload: an object is at most a few dozen MiB, and one PUT is one request, one price, one outcome.
"""

from __future__ import annotations

import asyncio
import base64
import io
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar, cast

from botocore.exceptions import BotoCoreError, ClientError
from crc32c import crc32c

from headrace.adapters.aws_refusals import AnswerKind, answer_kind, code_of, status_of
from headrace.adapters.s3.client import CONNECTIONS_MAX_DEFAULT
from headrace.model.errors import (
    AlreadyExistsError,
    HeadraceError,
    InvalidRequestError,
    NotFoundError,
    ThrottledError,
    UnavailableError,
)
from headrace.ports.chunk_storage import CHUNK_STORAGE_REFUSED, StoredObject

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from typing_extensions import Buffer

# An object's parts as the seekable body that botocore uploads, without joining them first.
#
# A packed object has thousands of parts and up to 64 MiB; joined, it would be in memory twice for as long as S3 takes.

READ_BYTES_MIN: Final = 256 << 10
"""Small parts are joined to so many bytes. urllib3 sends each result of `read` by a call of its own, and asks for only
16 KiB. With these pieces a PUT of 32 MiB takes a third less processor time (`benchmarks/results/upload-reads.json`)."""


class ObjectBody:
    """Reads the concatenation of `parts`, which must not change before the end of the upload; `length` in bytes.

    Unlike a file, `read` returns more than was asked for, and views of the parts where it can.
    """

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._parts = [view for view in (memoryview(part).cast("B") for part in parts) if view.nbytes]
        self._starts = [0, *accumulate(part.nbytes for part in self._parts)]
        self._position = 0

    @property
    def length(self) -> int:
        return self._starts[-1]

    def crc32c_base64(self) -> str:
        """The CRC-32C of all bytes in the form of S3's checksum header."""
        checksum = 0
        for part in self._parts:
            checksum = crc32c(part, checksum)
        return base64.b64encode(checksum.to_bytes(4, "big")).decode()

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.length}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}, before the start")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1, /) -> bytes | memoryview:
        """The next whole parts: all that are left, or those up to READ_BYTES_MIN and at least `size` bytes."""
        wanted = self.length if size is None or size < 0 else max(size, READ_BYTES_MIN)
        stop = min(self.length, self._position + wanted)
        pieces: list[memoryview] = []
        index = bisect_right(self._starts, self._position) - 1
        while self._position < stop:
            piece = self._parts[index][self._position - self._starts[index] :]
            pieces.append(piece)
            self._position += piece.nbytes
            index += 1
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# What S3 and botocore raise, as errors of our tree: one table, and nothing of the cause is lost.

PRECONDITION_FAILED = "PreconditionFailed"

_KINDS: dict[str, type[HeadraceError]] = {
    PRECONDITION_FAILED: AlreadyExistsError,
    "NoSuchKey": NotFoundError,
    "InvalidRange": NotFoundError,
    # Another conditional write of the same key is under way: S3 asks to try again, which is not to say it exists.
    "ConditionalRequestConflict": ThrottledError,
    "OperationAborted": ThrottledError,
}
"""What only S3 answers; the rest is in `headrace.adapters.aws_refusals`."""


def failure(what: str, error: ClientError | BotoCoreError) -> HeadraceError:
    """The error to raise, `from error`, when doing `what` ended in `error`."""
    if not isinstance(error, ClientError):
        return UnavailableError(f"{what}: S3 did not answer: {error}")
    return _answered(what, code_of(error), str(error.response.get("Error", {}).get("Message", "")), status_of(error))


def failure_of_key(what: str, code: str, message: str) -> HeadraceError:
    """The error to raise when one key of a batch failed with S3's `code`."""
    return _answered(what, code, message, 0)


def _answered(what: str, code: str, message: str, status: int) -> HeadraceError:
    text, details = f"{what}: S3 answered {code}: {message}", {"cause": code}
    if code in _KINDS:
        return _KINDS[code](text, details=details)
    match answer_kind(code, status):
        case AnswerKind.THROTTLED:
            return ThrottledError(text, details=details)
        case AnswerKind.ITEM:
            return InvalidRequestError(text, details=details)
        case AnswerKind.UNAVAILABLE:
            return UnavailableError(text, details=details)
        case AnswerKind.REFUSED:
            return UnavailableError(text, details=details, code=CHUNK_STORAGE_REFUSED)


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
        objects: list[StoredObject] = []
        try:
            for entry in self._listed(prefix, after, limit):
                modified_ms = int(entry["LastModified"].timestamp() * 1000)
                objects.append(StoredObject(entry["Key"], entry["Size"], modified_ms))
        except (ClientError, BotoCoreError) as error:
            raise failure(f"listing objects under {prefix!r}", error) from error
        return objects

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
