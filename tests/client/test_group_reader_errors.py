"""Errors of single segments in a reader of a group: whom they stop, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from real_cluster import RealCluster, WorkingQueue

from functions import wiring
from headrace.api.segments import Successors
from headrace.client import (
    GroupReader,
    GroupReaderOptions,
    GroupStream,
    Headrace,
    NotFoundError,
    ReaderGroup,
    ReaderGroupConfiguration,
    ReaderOptions,
    ScalingPolicy,
    TruncatedError,
    UnavailableError,
)
from headrace.client.administration.admin import AsyncAdmin


@pytest.fixture
def headrace(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """With the streams `orders` (two segments) and `returns` (one)."""
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2))
    headrace.admin.create_stream("shop", "returns", scaling=ScalingPolicy.fixed(1))
    return headrace


def create(headrace: Headrace, stream: str = "returns") -> ReaderGroup:
    reads = ReaderGroupConfiguration((GroupStream("shop", stream),), automatic_checkpoint_interval_ms=0)
    headrace.admin.reader_groups.create("shop", "billing", reads)
    return headrace.reader_group("shop", "billing")


def write(headrace: Headrace, *events: bytes, stream: str = "returns") -> None:
    with headrace.writer("shop", stream) as writer:
        writer.write_batch(events, [event.decode() for event in events])


def truncated(headrace: Headrace) -> ReaderGroup:
    """A group that begins before the events of `returns` that were truncated; one event was written after them."""
    write(headrace, b"old")
    group = create(headrace)
    headrace.admin.truncate_stream("shop", "returns", headrace.admin.stream_cut("shop", "returns"))
    write(headrace, b"new")
    return group


def read(reader: GroupReader, count: int) -> list[bytes]:
    events: list[bytes] = []
    while len(events) < count:
        batch = reader.read_batch(timeout_s=10)
        assert batch is not None
        events += batch.events
    return events


def read_after_outage(reader: GroupReader) -> list[bytes]:
    """If the store takes longer to start than an attempt to read on lasts, its error is raised first."""
    with contextlib.suppress(UnavailableError):
        return read(reader, 1)
    return read(reader, 1)


def test_segment_is_read_on_after_an_outage(headrace: Headrace, real: RealCluster) -> None:
    write(headrace, b"one")
    group = create(headrace)
    options = GroupReaderOptions(lease_s=60, reading=ReaderOptions(give_up_after_s=0.2))
    with group.reader("r1", options) as reader:
        assert read(reader, 1) == [b"one"]
        real.kill_store()
        with pytest.raises(UnavailableError):
            reader.read_batch(timeout_s=20)
        real.start_store()
        write(headrace, b"two")
        assert read_after_outage(reader) == [b"two"]


def test_deleted_group_is_named_in_the_error(headrace: Headrace) -> None:
    group = create(headrace)
    reader = group.reader("r1")
    headrace.admin.reader_groups.delete(headrace.admin.reader_groups.get("shop", "billing"))
    for call in (lambda: reader.read_batch(timeout_s=20), reader.close):
        with pytest.raises(NotFoundError, match=r"^reader group shop/billing was deleted$"):
            call()


def test_final_error_is_raised_until_a_reset(headrace: Headrace) -> None:
    group = truncated(headrace)
    with group.reader("r1") as reader:
        for _ in range(3):
            with pytest.raises(TruncatedError):
                reader.read_batch(timeout_s=10)
        group.reset("earliest")
        assert read(reader, 1) == [b"new"]


def test_final_error_leaves_with_its_segment(headrace: Headrace) -> None:
    group = truncated(headrace)
    with group.reader("r1") as reader:
        with pytest.raises(TruncatedError):
            reader.read_batch(timeout_s=10)
        assert reader.release(reader.segments[0])
        assert reader.read_batch(timeout_s=0.1) is None


def test_error_from_before_a_reset_is_dropped(headrace: Headrace) -> None:
    group = truncated(headrace)
    with group.reader("r1") as reader:
        core = reader._core
        headrace._thread.run(core._member.take_part())  # the first half of `read_batch`: the segment is being read
        while core._segments._queue.empty():
            time.sleep(0.01)
        group.reset("earliest")
        assert read(reader, 1) == [b"new"]


def scaled(headrace: Headrace) -> ReaderGroup:
    """A group of `orders`, of which one segment was replaced."""
    group = create(headrace, "orders")
    first = headrace.admin.segments("shop", "orders")[0]
    middle = (first.key_range.low + first.key_range.high) / 2
    ranges = [(first.key_range.low, middle), (middle, first.key_range.high)]
    headrace.admin.scale_stream("shop", "orders", seal=[first.segment_id], ranges=ranges)
    return group


def test_slow_successors_delay_no_other_segment(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    group = scaled(headrace)
    answers = asyncio.Event()
    ask = AsyncAdmin.successors

    async def slow(
        admin: AsyncAdmin, scope: str, stream: str, segment: int, *, as_recorded: bool = False
    ) -> Successors:
        await answers.wait()
        return await ask(admin, scope, stream, segment, as_recorded=as_recorded)

    monkeypatch.setattr(AsyncAdmin, "successors", slow)
    events = [b"%d" % number for number in range(40)]
    write(headrace, *events, stream="orders")
    found: list[bytes] = []
    with group.reader("r1") as reader:
        while not found:
            batch = reader.read_batch(timeout_s=10)
            assert batch is not None
            found += batch.events
        assert not answers.is_set()
        assert reader.read_batch(timeout_s=0.2) is None  # it would not return if it waited for them
        headrace._thread.run(_set(answers))
        assert sorted(found + read(reader, 40 - len(found))) == sorted(events)


def test_failed_successors_are_asked_for_again(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    group = scaled(headrace)
    failures = [UnavailableError("the controller does not answer")]
    ask = AsyncAdmin.successors

    async def fails(
        admin: AsyncAdmin, scope: str, stream: str, segment: int, *, as_recorded: bool = False
    ) -> Successors:
        if failures:
            raise failures.pop()
        return await ask(admin, scope, stream, segment, as_recorded=as_recorded)

    monkeypatch.setattr(AsyncAdmin, "successors", fails)
    with group.reader("r1") as reader:
        with pytest.raises(UnavailableError):
            reader.read_batch(timeout_s=10)
        events = [b"%d" % number for number in range(40)]
        write(headrace, *events, stream="orders")
        assert sorted(read(reader, 40)) == sorted(events)


async def _set(event: asyncio.Event) -> None:
    event.set()
