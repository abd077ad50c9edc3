"""Calls of asynchronous writers and transactions queue their events in the order in which they began."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal

import httpx
import pytest
from scripted_cluster import Cluster
from scripted_transactions import Transactions

from headrace.client import AsyncEventWriter, AsyncHeadrace, AsyncTransaction, WriterOptions
from headrace.client.writing import ordered_calls

ONE_EVENT = WriterOptions(block_bytes=10, buffer_bytes=10)
"""The buffer is full with a single event."""

EVENTS = [b"event %d" % number for number in range(20)]

SMALL_BLOCKS = WriterOptions(block_bytes=10)
"""Each event gives the event loop a turn."""


Writer = AsyncEventWriter | AsyncTransaction
Target = tuple[Writer, Callable[[], list[bytes]]]
"""What writes events, and what tells the stored ones."""


def _client(cluster: Cluster) -> AsyncHeadrace:
    return AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle))


@asynccontextmanager
async def _stream(cluster: Cluster, options: WriterOptions) -> AsyncIterator[Target]:
    async with _client(cluster) as headrace, await headrace.writer("s", "t", options) as writer:
        yield writer, cluster.all_events


@asynccontextmanager
async def _transaction(cluster: Cluster, options: WriterOptions) -> AsyncIterator[Target]:
    controller = Transactions(cluster)
    async with (
        AsyncHeadrace("http://controller", transport=httpx.MockTransport(controller.handle)) as headrace,
        headrace.transactional_writer("s", "t", options) as writer,
    ):
        transaction = await writer.begin()
        yield transaction, lambda: controller.events(transaction.id)


in_both = pytest.mark.parametrize("opened", [_stream, _transaction])
Opened = Callable[[Cluster, WriterOptions], AbstractAsyncContextManager[Target]]


async def _finish(writer: Writer, calls: list[asyncio.Future[Any]], more: Iterable[bytes]) -> None:
    """Begins further calls when there is room already, and the call that has waited for it has not gone on yet."""
    left = deque(more)

    def begin_one() -> None:
        if left:
            calls.append(asyncio.ensure_future(writer.write(left.popleft(), "key")))

    writer._calls._accumulator._listeners.insert(0, begin_one)
    while left or not all(call.done() for call in calls):
        await asyncio.wait(calls)
    await writer.flush()


@pytest.mark.anyio
@in_both
async def test_later_calls_do_not_overtake_one_that_waits_for_room(cluster: Cluster, opened: Opened) -> None:
    async with opened(cluster, ONE_EVENT) as (writer, stored):
        calls: list[asyncio.Future[Any]] = [asyncio.ensure_future(writer.write(event, "key")) for event in EVENTS[:3]]
        await _finish(writer, calls, EVENTS[3:])
        assert stored() == EVENTS


def _batch(writer: Writer, events: list[bytes]) -> Coroutine[Any, Any, Any]:
    return writer.write_batch(events, "key")


def _columns(writer: Writer, events: list[bytes]) -> Coroutine[Any, Any, Any]:
    return writer.write_many(events, "key")


@pytest.mark.anyio
@in_both
@pytest.mark.parametrize("options", [ONE_EVENT, SMALL_BLOCKS], ids=["one event", "small blocks"])
@pytest.mark.parametrize("write", [_batch, _columns])
async def test_later_calls_do_not_come_between_the_slices_of_one(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    opened: Opened,
    options: WriterOptions,
    write: Callable[..., Coroutine[Any, Any, Any]],
) -> None:
    column_writes = pytest.importorskip("headrace.client.writing.column_writes")
    monkeypatch.setattr(ordered_calls, "BATCH_SLICE_EVENTS", 1)
    monkeypatch.setattr(column_writes, "SLICE_EVENTS", 1)
    async with opened(cluster, options) as (writer, stored):
        calls: list[asyncio.Future[Any]] = [asyncio.ensure_future(write(writer, EVENTS))]
        calls += [asyncio.ensure_future(writer.write(b"later", "key")) for _ in range(3)]
        await _finish(writer, calls, [b"latest"])
        assert stored() == [*EVENTS, b"later", b"later", b"later", b"latest"]


@pytest.mark.anyio
async def test_a_cancelled_call_lets_later_ones_go_on(cluster: Cluster) -> None:
    cluster.stop_store()
    async with _client(cluster) as headrace, await headrace.writer("s", "t", ONE_EVENT) as writer:
        calls = [asyncio.create_task(writer.write(b"event %d" % number, "key")) for number in range(4)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        calls[1].cancel()
        cluster.start_store()
        await asyncio.wait(calls)
    assert cluster.all_events() == [b"event 0", b"event 2", b"event 3"]


@pytest.mark.anyio
@in_both
async def test_a_call_that_goes_on_wakes_one_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    """Thousands may wait for room. If each one woke all others, they would take the square of their number."""
    waits, wait = list[asyncio.Event](), asyncio.Event.wait

    async def counted(event: asyncio.Event) -> Literal[True]:
        waits.append(event)
        return await wait(event)

    async with opened(cluster, ONE_EVENT) as (writer, stored):
        monkeypatch.setattr(asyncio.Event, "wait", counted)
        events = [b"%03d" % number for number in range(200)]
        await asyncio.gather(*(writer.write(event, "key") for event in events))
        assert len(waits) < 10 * len(events)
        await writer.flush()
        assert stored() == events
