"""Calls of an asynchronous writer queue their events in the order in which they began, however long each waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from scripted_cluster import Cluster

from headrace.client import AsyncEventWriter, AsyncHeadrace, WriterOptions, event_writer

ONE_EVENT = WriterOptions(block_bytes=10, buffer_bytes=10)
"""The buffer is full with a single event."""

SMALL_BLOCKS = WriterOptions(block_bytes=10)
"""Each event gives the event loop a turn."""


def _client(cluster: Cluster) -> AsyncHeadrace:
    return AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle))


@pytest.mark.anyio
async def test_later_calls_do_not_overtake_one_that_waits_for_room(cluster: Cluster) -> None:
    """One begins when there is room already, and the call that has waited for it has not gone on yet."""
    calls: list[asyncio.Future[Any]] = []

    def begin(writer: AsyncEventWriter) -> None:
        calls.append(asyncio.ensure_future(writer.write(b"event %d" % len(calls), "key")))

    async with _client(cluster) as headrace, await headrace.writer("s", "t", ONE_EVENT) as writer:
        writer._accumulator._listeners.insert(0, lambda: begin(writer) if len(calls) < 20 else None)
        for _ in range(3):
            begin(writer)
        while len(calls) < 20 or not calls[-1].done():
            await asyncio.wait(calls)
    assert cluster.all_events() == [b"event %d" % number for number in range(20)]


def _batch(writer: AsyncEventWriter, events: list[bytes]) -> Coroutine[Any, Any, Any]:
    return writer.write_batch(events, "key")


def _columns(writer: AsyncEventWriter, events: list[bytes]) -> Coroutine[Any, Any, Any]:
    return writer.write_many(events, "key")


@pytest.mark.anyio
@pytest.mark.parametrize("write", [_batch, _columns])
async def test_later_calls_do_not_come_between_the_slices_of_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, write: Callable[..., Coroutine[Any, Any, Any]]
) -> None:
    column_writes = pytest.importorskip("headrace.client.column_writes")
    monkeypatch.setattr(event_writer, "BATCH_SLICE_EVENTS", 1)
    monkeypatch.setattr(column_writes, "SLICE_EVENTS", 1)
    events = [b"event %d" % number for number in range(20)]
    async with _client(cluster) as headrace, await headrace.writer("s", "t", SMALL_BLOCKS) as writer:
        await asyncio.gather(write(writer, events), *(writer.write(b"later", "key") for _ in range(3)))
    assert cluster.all_events() == [*events, b"later", b"later", b"later"]


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
