"""Links open exactly the range they were made for, on S3 over real HTTP and in memory."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.config import Config
from botocore.session import get_session
from request_counter import RequestCounter

from headrace.adapters.memory.chunk_storage import MemoryChunkLinks, MemoryChunkStorage
from headrace.adapters.s3.chunk_links import EXPIRES_S_MAX, S3ChunkLinks, signed_headers
from headrace.model.errors import InvalidRequestError, NotFoundError, UnauthorizedError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

DATA = bytes(range(256))


class FixedClock:
    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


def get(url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return answer.status, answer.read()


@pytest.mark.parametrize(("position", "length"), [(0, 1), (10, 20), (255, 1), (0, 256)])
def test_a_link_returns_exactly_its_range(
    s3_links: S3ChunkLinks, s3: S3Client, bucket: str, position: int, length: int
):
    s3.put_object(Bucket=bucket, Key="containers/1/a b+c.run", Body=DATA)
    link = s3_links.link("containers/1/a b+c.run", position, length)
    assert get(link.url, link.headers) == (206, DATA[position : position + length])


def test_the_range_is_part_of_the_signature(s3_links: S3ChunkLinks):
    first, second = s3_links.link("a", 0, 10), s3_links.link("a", 0, 11)
    assert signed_headers(first.url) == {"host", "range"}
    assert first.headers == {"Range": "bytes=0-9"}
    signatures = [parse_qs(urlsplit(link.url).query)["X-Amz-Signature"] for link in (first, second)]
    assert signatures[0] != signatures[1]


def test_a_link_says_when_it_dies(s3: S3Client):
    link = S3ChunkLinks("bucket", s3, 90, FixedClock()).link("a", 0, 1)
    assert link.expires_at_ms == 1_800_000_090_000
    assert parse_qs(urlsplit(link.url).query)["X-Amz-Expires"] == ["90"]


def test_making_a_link_makes_no_request(s3: S3Client):
    counter = RequestCounter(s3)
    with counter.counting() as calls:
        S3ChunkLinks("bucket", s3, 90, FixedClock()).link("a", 0, 1)
    assert calls == {}


def test_a_client_that_would_not_sign_the_range_is_refused():
    old: Any = get_session().create_client("s3", config=Config(signature_version="s3"), region_name="us-east-1")
    with pytest.raises(UnauthorizedError, match="s3v4"):
        S3ChunkLinks("bucket", old, 90, FixedClock()).link("a", 0, 1)


@pytest.mark.parametrize("expires_s", [0, -1, EXPIRES_S_MAX + 1])
def test_lives_that_s3_does_not_grant(s3: S3Client, expires_s: int):
    with pytest.raises(InvalidRequestError):
        S3ChunkLinks("bucket", s3, expires_s, FixedClock())


@pytest.mark.parametrize(("position", "length"), [(-1, 1), (0, 0), (0, -5)])
def test_ranges_that_are_none_get_no_link(
    s3_links: S3ChunkLinks, memory_links: tuple[MemoryChunkStorage, MemoryChunkLinks], position: int, length: int
):
    for links in (s3_links, memory_links[1]):
        with pytest.raises(InvalidRequestError):
            links.link("a", position, length)


@pytest.mark.anyio
async def test_links_in_memory_are_as_strict():
    storage, clock = MemoryChunkStorage(), FixedClock()
    await storage.put("a", [DATA])
    links = MemoryChunkLinks(storage, 60, clock)
    link = links.link("a", 10, 20)
    assert links.get(link.url, link.headers) == DATA[10:30]
    for url, headers in [(link.url, {}), (link.url, {"Range": "bytes=10-30"}), ("memory://chunks/a", link.headers)]:
        with pytest.raises(UnauthorizedError):
            links.get(url, headers)
    beyond = links.link("a", 250, 20)
    with pytest.raises(NotFoundError):
        links.get(beyond.url, beyond.headers)
    clock.ms = link.expires_at_ms
    with pytest.raises(UnauthorizedError):
        links.get(link.url, link.headers)
