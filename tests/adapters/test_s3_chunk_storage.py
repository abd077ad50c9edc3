"""What S3 adds to the contract: prices, lost answers, broken bodies, and its errors as ours."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ClientError, ConnectionClosedError, IncompleteReadError, ReadTimeoutError
from botocore.httpsession import URLLib3Session
from hypothesis import given
from request_counter import RequestCounter

from headrace.adapters.s3.chunk_storage import LISTED_PER_REQUEST_MAX, PUT_BYTES_MAX, ObjectBody, S3ChunkStorage
from headrace.adapters.s3.client import ATTEMPTS_MAX, s3_client
from headrace.model.errors import (
    AlreadyExistsError,
    HeadraceError,
    InvalidRequestError,
    ThrottledError,
    UnavailableError,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = pytest.mark.anyio

DATA = bytes(range(256)) * 100


@pytest.fixture
def client(s3: S3Client) -> S3Client:
    """A client of this test alone, which may be tampered with; `s3` has set the endpoint."""
    return s3_client()


@pytest.fixture
def storage(bucket: str, client: S3Client) -> Iterator[S3ChunkStorage]:
    storage = S3ChunkStorage(bucket, client, concurrency=2)
    yield storage
    storage.close()


def error(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "so"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "X")  # type: ignore[typeddict-item]


def failing(failure: Exception) -> Any:
    """A client whose every operation fails."""

    class Failing:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            def call(**_: Any) -> Any:
                raise failure

            return call

    return Failing()


async def test_each_operation_is_one_request(storage: S3ChunkStorage, client: S3Client):
    counter = RequestCounter(client)
    names = [f"a/{n}" for n in range(3)]
    operations: list[tuple[Callable[[], Awaitable[object]], dict[str, int]]] = [
        (lambda: storage.put(names[0], [b"x"] * 1000), {"PutObject": 1}),
        (lambda: storage.read(names[0], 10, 900), {"GetObject": 1}),
        (lambda: storage.read(names[0], 10, 0), {}),
        (lambda: storage.list("a/"), {"ListObjectsV2": 1}),
        (lambda: storage.delete(names), {"DeleteObjects": 1}),
        (lambda: storage.delete([]), {}),
    ]
    for operation, expected in operations:
        with counter.counting() as calls:
            await operation()
        assert calls == expected


async def test_long_lists_take_pages(storage: S3ChunkStorage, client: S3Client, bucket: str):
    for n in range(5):
        client.put_object(Bucket=bucket, Key=f"{n}", Body=b"")
    asked: list[int] = []

    def two_at_most(params: dict[str, Any], **_: Any) -> None:
        asked.append(params["MaxKeys"])
        params["MaxKeys"] = min(params["MaxKeys"], 2)

    client.meta.events.register("provide-client-params.s3.ListObjectsV2", two_at_most)
    assert [chunk.name for chunk in await storage.list("", limit=5000)] == list("01234")
    assert [chunk.name for chunk in await storage.list("", limit=3)] == list("012")
    assert asked == [LISTED_PER_REQUEST_MAX] * 3 + [3, 1]


async def test_deletes_are_split_into_requests(client: S3Client, storage: S3ChunkStorage):
    counter = RequestCounter(client)
    with counter.counting() as calls:
        await storage.delete([f"{n}" for n in range(1001)])
    assert calls == {"DeleteObjects": 2}


async def test_objects_are_sent_with_a_checksum_for_s3_to_verify(storage: S3ChunkStorage, client: S3Client):
    sent: list[AWSPreparedRequest] = []
    client.meta.events.register("before-send.s3.PutObject", lambda request, **_: sent.append(request))
    await storage.put("a", [b"12345", b"6789"])
    sums = ("4waSgw==", b"4waSgw==")  # 0xE3069283, CRC-32C's check value
    assert sent[0].headers["x-amz-checksum-crc32c"] in sums


async def test_a_put_whose_answer_was_lost_is_no_conflict_with_itself(storage: S3ChunkStorage, client: S3Client):
    lose = LoseFirstAnswer()
    client.meta.events.register("before-send.s3.PutObject", lose)
    counter = RequestCounter(client)
    with counter.counting() as calls:
        await storage.put("a", [DATA])
    assert lose.sent == 1
    assert calls == {"PutObject": 1, "HeadObject": 1}
    assert await storage.read("a", 0, len(DATA)) == DATA


async def test_a_put_that_was_retried_still_loses_against_another(
    storage: S3ChunkStorage, client: S3Client, bucket: str, s3: S3Client
):
    def other_was_faster(request: AWSPreparedRequest, **_: Any) -> None:
        client.meta.events.unregister("before-send.s3.PutObject", other_was_faster)
        s3.put_object(Bucket=bucket, Key="a", Body=b"theirs")
        raise ConnectionClosedError(endpoint_url=request.url)

    client.meta.events.register("before-send.s3.PutObject", other_was_faster)
    with pytest.raises(AlreadyExistsError):
        await storage.put("a", [DATA])
    assert await storage.read("a", 0, 6) == b"theirs"


class LoseFirstAnswer:
    """Sends the first request and then pretends that the connection broke."""

    def __init__(self) -> None:
        self.sent = 0

    def __call__(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse | None:
        if self.sent:
            return None
        self.sent += 1
        assert URLLib3Session().send(request).status_code == 200
        raise ConnectionClosedError(endpoint_url=request.url)


class BrokenBody:
    """A body that ends early, as botocore's does: with an error."""

    def __enter__(self) -> BrokenBody:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def read(self) -> bytes:
        raise IncompleteReadError(actual_bytes=1, expected_bytes=2)


async def test_a_body_that_breaks_off_is_read_again(client: S3Client, bucket: str):
    class Breaking:
        """Breaks the first two bodies."""

        def __init__(self) -> None:
            self.calls = 0

        def get_object(self, **request: Any) -> Any:
            self.calls += 1
            answer = client.get_object(**request)
            return {**answer, "Body": BrokenBody()} if self.calls <= 2 else answer

    client.put_object(Bucket=bucket, Key="a", Body=DATA)
    breaking: Any = Breaking()
    assert await S3ChunkStorage(bucket, breaking).read("a", 1, 100) == DATA[1:101]
    assert breaking.calls == 3


async def test_a_body_that_always_breaks_off_is_unavailable(bucket: str):
    class AlwaysBroken:
        def get_object(self, **_: Any) -> Any:
            return {"ContentLength": 2, "Body": BrokenBody()}

    client: Any = AlwaysBroken()
    with pytest.raises(UnavailableError, match="1 read, but total bytes expected is 2"):
        await S3ChunkStorage(bucket, client).read("a", 0, 2)


async def test_a_server_that_ignores_the_range_is_not_believed(bucket: str):
    class Generous:
        def get_object(self, **_: Any) -> Any:
            return {"ContentLength": 1 << 40, "Body": io.BytesIO(b"all of it")}

    client: Any = Generous()
    with pytest.raises(UnavailableError, match="another number of bytes"):
        await S3ChunkStorage(bucket, client).read("a", 0, 2)


@pytest.mark.parametrize(
    ("failure", "kind", "cause"),
    [
        (error("PreconditionFailed", 412), AlreadyExistsError, "PreconditionFailed"),
        (error("ConditionalRequestConflict", 409), ThrottledError, "ConditionalRequestConflict"),
        (error("SlowDown", 503), ThrottledError, "SlowDown"),
        (error("InternalError", 500), UnavailableError, "InternalError"),
        (error("SomethingNew", 502), UnavailableError, "SomethingNew"),
        (ReadTimeoutError(endpoint_url="http://s3"), UnavailableError, "http://s3"),
    ],
)
async def test_failures_say_what_to_do_and_keep_their_cause(
    bucket: str, failure: Exception, kind: type[HeadraceError], cause: str
):
    storage = S3ChunkStorage(bucket, failing(failure))
    for call in (storage.put("a", [b"x"]), storage.delete(["a"]), storage.list("a"), storage.read("a", 0, 1)):
        with pytest.raises(kind, match=cause) as raised:
            await call
        assert type(raised.value) is kind
        assert raised.value.__cause__ is failure


REFUSALS = [
    *(
        "AccessDenied",
        "BadDigest",
        "ExpiredToken",
        "IncompleteBody",
        "InvalidAccessKeyId",
        "InvalidToken",
        "NoSuchBucket",
    ),
    *("MalformedXML", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "XAmzContentChecksumMismatch", "SomethingNew"),
]


@pytest.mark.parametrize("code", REFUSALS)
async def test_a_refusal_is_repeated_and_is_not_the_callers_fault(bucket: str, code: str):
    storage = S3ChunkStorage(bucket, failing(error(code, 403)))
    for call in (storage.put("a", [b"x"]), storage.delete(["a"]), storage.list("a"), storage.read("a", 0, 1)):
        with pytest.raises(UnavailableError, match=code) as raised:
            await call
        assert raised.value.specific_code == "chunk_storage_refused"
        assert raised.value.details == {"cause": code}
        assert raised.value.retry == "later"


@pytest.mark.parametrize("code", ["EntityTooLarge", "KeyTooLongError"])
async def test_object_that_no_s3_could_store_is_invalid(bucket: str, code: str):
    storage = S3ChunkStorage(bucket, failing(error(code, 400)))
    with pytest.raises(InvalidRequestError, match=code) as raised:
        await storage.put("a", [b"x"])
    assert raised.value.retry == "never"


@pytest.mark.parametrize(
    ("code", "specific"), [("AccessDenied", "chunk_storage_refused"), ("InternalError", "unavailable")]
)
async def test_a_refused_key_of_a_delete_is_repeated(bucket: str, code: str, specific: str):
    class Partly:
        def delete_objects(self, **_: Any) -> Any:
            return {"Errors": [{"Key": "b", "Code": code, "Message": "no"}]}

    client: Any = Partly()
    with pytest.raises(UnavailableError, match="among them b") as raised:
        await S3ChunkStorage(bucket, client).delete(["a", "b"])
    assert raised.value.specific_code == specific


async def test_a_partial_failure_of_a_delete_is_an_error(bucket: str):
    class Partly:
        def delete_objects(self, **_: Any) -> Any:
            return {"Errors": [{"Key": "b", "Code": "SlowDown", "Message": "slow down"}]}

    client: Any = Partly()
    with pytest.raises(ThrottledError, match="1 remain, among them b"):
        await S3ChunkStorage(bucket, client).delete(["a", "b"])


async def test_port_without_a_listener_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, unused_port: int, no_pauses: None
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused_port}")
    client: Any = s3_client()
    sends: list[int] = []
    client.meta.events.register("before-send.s3.*", lambda **_: sends.append(1))
    with pytest.raises(UnavailableError, match="did not answer"):
        await S3ChunkStorage("any-bucket", client).put("a", [b"x"])
    assert len(sends) == ATTEMPTS_MAX


async def test_an_object_is_sent_in_few_pieces(bucket: str, monkeypatch: pytest.MonkeyPatch):
    """Each piece is a call that gives the interpreter up: whole parts of the cache, small ones joined."""
    lengths: list[int] = []
    honest = ObjectBody.read

    def counting(body: ObjectBody, size: int = -1) -> bytes | memoryview:
        piece = honest(body, size)
        lengths.append(len(piece))
        return piece

    large, small = memoryview(bytes(1 << 20)), memoryview(bytes(1 << 10))
    monkeypatch.setattr(ObjectBody, "read", counting)
    await S3ChunkStorage(bucket, s3_client()).put("whole-parts", [large] * 3 + [small] * 300)
    assert lengths == [1 << 20] * 3 + [256 << 10, 44 << 10, 0]


async def test_too_large_objects_are_refused_before_anything_is_sent(bucket: str):
    part = memoryview(bytes(1 << 20))
    with pytest.raises(InvalidRequestError, match="at most"):
        await S3ChunkStorage(bucket, failing(AssertionError())).put("a", [part] * (PUT_BYTES_MAX // len(part) + 1))


@given(
    parts=st.lists(st.binary(max_size=20), max_size=8),
    moves=st.lists(st.tuples(st.integers(0, 170), st.integers(-1, 60)), max_size=6),
)
def test_an_object_body_reads_on_in_the_joined_bytes(parts: list[bytes], moves: list[tuple[int, int]]):
    """A read returns at least what was asked for, as far as there is so much, and ends with a part."""
    body, joined = ObjectBody(parts), b"".join(parts)
    ends = {sum(map(len, parts[:count])) for count in range(len(parts) + 1)}
    assert body.length == len(joined)
    assert body.read() == joined
    for position, size in moves:
        assert body.seek(position) == position
        piece = body.read(size)
        left = max(0, len(joined) - position)
        assert (left if size < 0 else min(size, left)) <= len(piece) <= left
        assert piece == joined[position : position + len(piece)]
        assert body.tell() == position + len(piece)
        assert not piece or body.tell() in ends
    assert body.seek(-body.length, io.SEEK_END) == 0
    with pytest.raises(ValueError, match="before the start"):
        body.seek(-1)
