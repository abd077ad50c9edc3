"""Iterators of readers: a call that runs out of time, is cancelled or fails does not end them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from real_cluster import RealCluster, WorkingQueue, transport_to
from scripted_cluster import Cluster

from functions import wiring
from headrace.client import (
    AsyncHeadrace,
    GroupStream,
    Headrace,
    ReaderGroupConfiguration,
    ReaderOptions,
    ReadOrder,
    ScalingPolicy,
    TruncatedError,
)

FIRST, SECOND = [b"a", b"b"], [b"c", b"d", b"e"]
WAIT_S = 0.02


def asynchronous(cluster: Cluster) -> AsyncHeadrace:
    return AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle), retry_s=1.0)


async def times_out(iterator: AsyncIterator[Any]) -> None:
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(iterator), WAIT_S)


@pytest.mark.parametrize("order", ReadOrder)
def test_a_time_out_does_not_end_the_iterator(cluster: Cluster, order: ReadOrder):
    async def read() -> list[bytes]:
        async with asynchronous(cluster) as client:
            reader = await client.reader("s", "t", options=ReaderOptions(order=order))
            async with reader:
                events = aiter(reader)
                await times_out(events)
                await asyncio.to_thread(cluster.put, 0, *FIRST)
                found = [(await anext(events)).event for _ in FIRST]
                await times_out(events)
                await asyncio.to_thread(cluster.put, 0, *SECOND)
                found.append((await anext(events)).event)
                while len(found) < len(FIRST + SECOND):
                    batch = await reader.read_batch(10)
                    assert batch is not None
                    found += batch.events
                return found

    assert asyncio.run(read()) == FIRST + SECOND


def test_arrow_batches_go_on_after_a_time_out(cluster: Cluster):
    async def read() -> list[bytes]:
        async with (
            asynchronous(cluster) as client,
            await client.reader("s", "t") as reader,
            aclosing(reader.arrow_batches()) as batches,  # type: ignore[type-var]
        ):
            await times_out(batches)
            await asyncio.to_thread(cluster.put, 0, *FIRST)
            events: list[bytes] = (await anext(batches))["event"].to_pylist()
            return events

    assert asyncio.run(read()) == FIRST


def test_the_end_of_a_stream_ends_the_iterator(cluster: Cluster):
    cluster.put(0, *FIRST)
    cluster.seal_stream()

    async def read() -> list[bytes]:
        async with asynchronous(cluster) as client, await client.reader("s", "t") as reader:
            events = aiter(reader)
            found = [read.event async for read in events]
            assert [event async for event in events] == []
            return found

    assert asyncio.run(read()) == FIRST
    with cluster.client() as client, client.reader("s", "t") as reader:
        assert [read.event for read in reader] == FIRST
        assert list(reader) == []


def test_an_error_is_raised_again_and_is_no_end(cluster: Cluster):
    cluster.put(0, *FIRST)
    cut = {0: 0, 1: 0}
    cluster.segments[0].start = 9

    async def read() -> None:
        async with asynchronous(cluster) as client:
            cut = await client.admin.stream_cut("s", "t", at="earliest")
            old = type(cut).of("s", "t", dict.fromkeys(cut.offsets, 0))
            async with await client.reader("s", "t", old) as reader:
                for iterator in (aiter(reader), aiter(reader)):
                    for _ in range(2):
                        with pytest.raises(TruncatedError):
                            await anext(iterator)

    asyncio.run(read())
    with cluster.client() as client:
        stream_cut = client.admin.stream_cut("s", "t", at="earliest")
        with client.reader("s", "t", type(stream_cut).of("s", "t", cut)) as reader:
            events = iter(reader)
            for _ in range(2):
                with pytest.raises(TruncatedError):
                    next(events)


def test_iterators_of_one_reader_share_its_position(cluster: Cluster):
    cluster.put(0, *FIRST, *SECOND)
    with cluster.client() as client, client.reader("s", "t") as reader:
        first, second = iter(reader), iter(reader)
        assert [next(each).event for each in (first, second, first)] == [b"a", b"b", b"c"]
        batch = reader.read_batch(10)
        assert batch is not None
        assert batch.events == [b"d", b"e"]
        cluster.put(0, b"f")
        assert next(first).event == b"f"


@pytest.fixture
def group(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    configuration = ReaderGroupConfiguration((GroupStream("shop", "orders"),))
    headrace.admin.reader_groups.create("shop", "g", configuration)
    return headrace


def write(headrace: Headrace, events: list[bytes]) -> None:
    with headrace.writer("shop", "orders") as writer:
        writer.write_batch(events, "key")


@pytest.mark.parametrize("form", ["events", "arrow"])
def test_a_time_out_does_not_end_that_of_a_group(group: Headrace, real: RealCluster, form: str):
    async def read() -> list[bytes]:
        client = AsyncHeadrace("http://controller", transport=transport_to(real))
        async with client, await client.reader_group("shop", "g") as opened, await opened.reader("r") as reader:
            iterator: AsyncIterator[Any] = aiter(reader) if form == "events" else reader.arrow_batches()
            events: list[bytes] = []
            for written in (FIRST, SECOND):
                await times_out(iterator)
                await asyncio.to_thread(write, group, written)
                while not set(written) <= set(events):
                    item = await anext(iterator)
                    events += [item.event] if form == "events" else item["event"].to_pylist()
            return events

    assert asyncio.run(read()) == FIRST + SECOND


@pytest.mark.parametrize("form", ["events", "arrow"])
def test_a_cancelled_call_does_not_end_that_of_a_range(group: Headrace, real: RealCluster, form: str):
    write(group, FIRST + SECOND)
    (part,) = group.segment_ranges("shop", "orders")

    async def read() -> list[bytes]:
        client = AsyncHeadrace("http://controller", transport=transport_to(real))
        async with client, client.range_reader(part) as reader:
            iterator: AsyncIterator[Any] = aiter(reader) if form == "events" else reader.arrow_batches()
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(iterator), 0)
            events: list[bytes] = []
            async for item in iterator:
                events += [item.event] if form == "events" else item["event"].to_pylist()
            return events

    assert asyncio.run(read()) == FIRST + SECOND
