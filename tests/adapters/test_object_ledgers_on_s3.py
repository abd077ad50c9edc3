"""Logs in S3 over real HTTP: what S3 refuses, answers late or never, and how many requests a recovery takes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ReadTimeoutError
from botocore.httpsession import URLLib3Session
from ledger_worlds import ObjectWorld, Reports, read_back
from request_counter import RequestCounter

from headrace.adapters.s3.chunk_storage import S3ChunkStorage
from headrace.adapters.s3.client import ATTEMPTS_MAX, s3_client
from headrace.codec.log_objects import container_log_prefix
from headrace.model.errors import FencedError
from headrace.ports.ledger import LedgerStore

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = pytest.mark.anyio

CONTAINER = 3
SLOW_S = 0.05


class Body:
    """The body of an answer that this test makes."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self._content


class FaultyPuts:
    """S3 between client and emulator. Each PUT meets the next of `faults`; without any it arrives.

    `most` is the largest number of PUTs that were under way at a time. A PUT that meets "held" sets `is_held`, and
    waits for `let_go`.
    """

    def __init__(self, client: S3Client) -> None:
        self.faults: deque[str] = deque()
        self.most = 0
        self.is_held, self.let_go = threading.Event(), threading.Event()
        self._under_way = 0
        self._lock = threading.Lock()
        client.meta.events.register("before-send.s3.PutObject", self._send)

    def _send(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse | None:
        with self._lock:
            fault = self.faults.popleft() if self.faults else ""
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        try:
            return self._meet(fault, request)
        finally:
            with self._lock:
                self._under_way -= 1

    def _meet(self, fault: str, request: AWSPreparedRequest) -> AWSResponse | None:
        match fault:
            case "":
                return None
            case "held":
                self.is_held.set()
                self.let_go.wait()
                return None
            case "slow":
                time.sleep(SLOW_S)
                return URLLib3Session().send(request)
            case "no answer":
                raise ReadTimeoutError(endpoint_url=request.url)
            case "answer lost":
                assert URLLib3Session().send(request).status_code in (200, 412)
                raise ReadTimeoutError(endpoint_url=request.url)
        status, _, code = fault.partition(" ")
        content = f"<Error><Code>{code}</Code><Message>so</Message></Error>".encode()
        return AWSResponse(request.url, int(status), {"content-type": "application/xml"}, Body(content))


@pytest.fixture
def client(s3: S3Client, no_pauses: None) -> S3Client:
    """A client of this test alone, which repeats requests without a pause; `s3` has set the endpoint."""
    return s3_client()


@pytest.fixture
def world(bucket: str, client: S3Client) -> Iterator[ObjectWorld]:
    storage = S3ChunkStorage(bucket, client, concurrency=8)
    yield ObjectWorld(storage)
    storage.close()


async def owner(world: ObjectWorld) -> tuple[LedgerStore, Any]:
    store = world.start()
    return store, await store.open(CONTAINER, world.claim(CONTAINER))


@pytest.mark.parametrize(
    "fault",
    ["503 SlowDown", "500 InternalError", "409 ConditionalRequestConflict", "no answer", "answer lost", "403 Expired"],
)
async def test_refused_put_is_repeated_and_acknowledged_once(world: ObjectWorld, client: S3Client, fault: str):
    """More often than the client repeats a request by itself. What has arrived is there once."""
    faulty, reports = FaultyPuts(client), Reports()
    _, ledger = await owner(world)
    faulty.faults.extend([fault] * (2 * ATTEMPTS_MAX + 1))
    for number in range(3):
        reports.append(ledger, b"entry %d" % number)
        await reports.all()
    assert reports.outcomes == [(number, None) for number in range(3)]
    assert not faulty.faults
    _, taker = await owner(world)
    assert await read_back(taker) == {number: b"entry %d" % number for number in range(3)}


async def test_entries_stay_in_order_under_all_faults_at_once(world: ObjectWorld, client: S3Client):
    kinds = ["503 SlowDown", "500 InternalError", "409 ConditionalRequestConflict", "no answer", "answer lost", "slow"]
    faulty, reports, random = FaultyPuts(client), Reports(), Random(7)
    world.limits = type(world.limits)(gather_s=0.0, object_bytes=100, retry_first_s=0.0, retry_most_s=0.0)
    _, ledger = await owner(world)
    faulty.faults.extend(random.choice(kinds) for _ in range(200))
    payloads = [b"%03d" % number + bytes(60) for number in range(60)]
    reports.append(ledger, *payloads)
    assert await reports.all() == [(number, None) for number in range(60)]
    assert sorted(reports.released) == list(range(60))
    assert faulty.most <= world.limits.puts_in_flight
    _, taker = await owner(world)
    assert await read_back(taker) == dict(enumerate(payloads))


async def test_put_under_way_during_a_takeover_is_fenced(world: ObjectWorld, client: S3Client):
    """It arrives when the tombstone is at its place."""
    faulty, reports = FaultyPuts(client), Reports()
    _, old = await owner(world)
    reports.append(old, b"acknowledged")
    await reports.all()
    faulty.faults.append("held")
    reports.append(old, b"too late")
    await asyncio.to_thread(faulty.is_held.wait)
    _, new = await owner(world)
    faulty.let_go.set()
    assert [type(error) for _, error in await reports.all()] == [type(None), FencedError]
    assert await read_back(new) == {0: b"acknowledged"}


async def test_recovery_takes_two_reads_for_an_object(world: ObjectWorld, client: S3Client):
    _, ledger = await owner(world)
    reports, counter = Reports(), RequestCounter(client)
    count = 40
    with counter.counting() as calls:
        for number in range(count):
            reports.append(ledger, b"%d" % number)
            await reports.all()
    assert calls == {"PutObject": count}
    with counter.counting() as calls:
        _, taker = await owner(world)
        entries = await read_back(taker)
    assert entries == {number: b"%d" % number for number in range(count)}
    # Closing reads the newest header before and after the tombstone; each time and twice more, the objects are listed.
    assert calls == {"PutObject": 1, "GetObject": 2 * count + 2, "ListObjectsV2": 4}
    reports.append(taker, b"next")
    await reports.all()
    taker.truncate(count)
    with counter.counting() as calls:
        reports.append(taker, b"carries the truncation point")
        await reports.all()
        await taker.settle()
    assert calls == {"PutObject": 1, "DeleteObjects": 1}
    left = await world.chunks.list(container_log_prefix(CONTAINER))
    assert [each.length > 0 for each in left] == [False, True, True]
