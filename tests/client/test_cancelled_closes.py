"""A `close` that is cancelled or interrupted, anywhere, leaves no connection open and no task running."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from keyboard_interrupts import is_interrupted
from real_cluster import RealCluster, WorkingQueue, client_of, transport_to

from functions import wiring
from headrace.client import (
    AsyncHeadrace,
    EventReader,
    EventWriter,
    GroupStream,
    Headrace,
    ReaderGroupConfiguration,
    ScalingPolicy,
    loop_thread,
)
from headrace.client import closing as closing_module
from headrace.client.groups.group_member import GroupMember
from headrace.client.loop_thread import cancelling
from headrace.client.synchronous import synchronous_bases
from headrace.wire.connections import asynchronous
from headrace.wire.connections.asynchronous import AsyncConnection

TURNS = (*range(1, 12), 15, 20, 30, 50)
TURNS_TO_END = 1_000


class Opened:
    """All connections to segment stores that were opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connections: list[AsyncConnection] = []
        made = AsyncConnection.connection_made

        def connection_made(connection: AsyncConnection, transport: asyncio.BaseTransport) -> None:
            self.connections.append(connection)
            made(connection, transport)

        monkeypatch.setattr(asynchronous.AsyncConnection, "connection_made", connection_made)

    def left(self) -> list[AsyncConnection]:
        return [connection for connection in self.connections if connection.closed is None]


@pytest.fixture
def opened(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> Opened:
    for queue in ("request_queue", "commit_queue", "abort_queue"):
        monkeypatch.setattr(wiring, queue, lambda: request_queue)
    headrace.admin.create_stream("shop", "returns", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "returns") as writer:
        writer.write_batch([b"event"] * 6, ["key"] * 6)
    headrace.admin.create_stream("shop", "bytes", scaling=ScalingPolicy.fixed(1))
    reads = ReaderGroupConfiguration((GroupStream("shop", "returns"),), automatic_checkpoint_interval_ms=0)
    headrace.admin.reader_groups.create("shop", "billing", reads)
    return Opened(monkeypatch)


async def event_reader(client: AsyncHeadrace, _number: int) -> Any:
    reader = await client.reader("shop", "returns", start="earliest")
    assert await reader.read_batch() is not None
    return reader


async def group_reader(client: AsyncHeadrace, number: int) -> Any:
    group = await client.reader_group("shop", "billing")
    reader = await group.reader(f"reader-{number}")
    await group.close()
    await reader.read_batch(timeout_s=0.05)
    return reader


async def transactional_writer(client: AsyncHeadrace, _number: int) -> Any:
    writer = client.transactional_writer("shop", "returns")
    for _ in range(2):
        transaction = await writer.begin()
        await transaction.write(b"event", "key")
        await transaction.flush()
    return writer


async def byte_stream(client: AsyncHeadrace, _number: int) -> Any:
    stream = await client.byte_stream("shop", "bytes")
    first, second = await stream.writer(), await stream.writer()
    await first.write(b"1")
    await second.write(b"2")
    reader = await stream.reader("latest")
    assert await reader.available() >= 0
    return stream


async def close_and_cancel(opened: Any, turns: int) -> tuple[asyncio.Task[None], bool]:
    """Cancels a close after some turns of the loop, and waits for its end; whether it was still running."""
    closing = asyncio.create_task(opened.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    was_running = closing.cancel()
    with suppress(asyncio.CancelledError):
        await closing
    return closing, was_running


@pytest.mark.parametrize("make", [event_reader, group_reader, transactional_writer, byte_stream])
def test_cancelled_close_leaves_nothing_open(
    real: RealCluster, opened: Opened, make: Callable[[AsyncHeadrace, int], Awaitable[Any]]
) -> None:
    cancelled: list[int] = []

    async def run() -> None:
        async with AsyncHeadrace("http://controller", transport=transport_to(real)) as client:
            before = asyncio.all_tasks()
            for turns in TURNS:
                made = await make(client, turns)
                _, was_running = await close_and_cancel(made, turns)
                if was_running:
                    cancelled.append(turns)
                for _ in range(TURNS_TO_END):
                    await asyncio.sleep(0)
                assert opened.left() == [], turns
                assert asyncio.all_tasks() <= before, turns
                await made.close()

    asyncio.run(run())
    assert cancelled


def test_cancelled_close_of_a_group_reader_leaves_the_group(real: RealCluster, opened: Opened) -> None:
    cancelled: list[int] = []

    async def run() -> None:
        async with (
            AsyncHeadrace("http://controller", transport=transport_to(real)) as client,
            await client.reader_group("shop", "billing") as group,
        ):
            for turns in TURNS:
                reader = await group_reader(client, turns)
                assert await group.readers() == {reader.name: reader.segments}
                closing, was_running = await close_and_cancel(reader, turns)
                if was_running:
                    cancelled.append(turns)
                assert closing.cancelled() == was_running
                assert await group.readers() == {}, turns

    asyncio.run(run())
    assert cancelled


def test_cancelled_close_does_not_wait_for_a_store_that_is_away(
    real: RealCluster, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with AsyncHeadrace("http://controller", transport=transport_to(real)) as client:
            reader = await group_reader(client, 0)
            monkeypatch.setattr(GroupMember, "leave", lambda _: asyncio.Event().wait())
            monkeypatch.setattr(closing_module, "CANCELLED_S", 0.05)
            closing = asyncio.create_task(reader.close())
            await asyncio.sleep(0.01)
            closing.cancel()
            await asyncio.wait({closing}, timeout=30)
            assert closing.cancelled()
            assert opened.left() == []

    asyncio.run(run())


def test_second_close_of_a_group_reader_waits_for_the_first(
    real: RealCluster, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        may_leave = asyncio.Event()
        leave = GroupMember.leave

        async def leave_late(member: GroupMember) -> None:
            await may_leave.wait()
            await leave(member)

        monkeypatch.setattr(GroupMember, "leave", leave_late)
        async with AsyncHeadrace("http://controller", transport=transport_to(real)) as client:
            reader = await group_reader(client, 0)
            closes = [asyncio.create_task(reader.close()) for _ in range(2)]
            await asyncio.sleep(0.01)
            assert not reader.closed
            assert [each.done() for each in closes] == [False, False]
            may_leave.set()
            await asyncio.gather(*closes)
            assert reader.closed
            await reader.close()

    asyncio.run(run())


def test_end_of_the_client_waits_for_a_reader_that_leaves(
    real: RealCluster, headrace: Headrace, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close of a group reader was interrupted, and the client is closed at once."""
    interrupt, leave = threading.Event(), GroupMember.leave

    async def leave_late(member: GroupMember) -> None:
        interrupt.set()
        await asyncio.sleep(0.1)
        await leave(member)

    monkeypatch.setattr(GroupMember, "leave", leave_late)
    monkeypatch.setattr(loop_thread, "LOOP_CHECK_S", 0.01)
    with client_of(real) as client:
        reader = client.reader_group("shop", "billing").reader("one")
        token = cancelling.set(interrupt)
        with pytest.raises(CancelledError):
            reader.close()
        cancelling.reset(token)
    with headrace.reader_group("shop", "billing") as group:
        assert group.readers() == {}


def blocking_reader(client: Headrace) -> EventReader:
    reader = client.reader("shop", "returns", start="earliest")
    assert reader.read_batch() is not None
    return reader


def blocking_writer(client: Headrace) -> EventWriter:
    writer = client.writer("shop", "returns")
    writer.write(b"event", "key").result()
    return writer


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("make", [blocking_reader, blocking_writer])
def test_close_after_an_interrupted_one_closes_the_rest(
    headrace: Headrace, opened: Opened, make: Callable[[Headrace], EventReader | EventWriter]
) -> None:
    for at in count():
        made = make(headrace)
        was_interrupted = is_interrupted(made.close, at, synchronous_bases, loop_thread)
        made.close()
        assert made.closed
        until = time.monotonic() + 20
        while opened.left() and time.monotonic() < until:
            time.sleep(0.001)
        assert opened.left() == [], f"at place {at}"
        if not was_interrupted:
            break
    assert at > 2
