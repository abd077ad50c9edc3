"""Errors of single segments in a reader of a group: whom they stop, and for how long."""

from __future__ import annotations

import time

import pytest
from real_cluster import RealCluster, WorkingQueue

from functions import wiring
from headrace.client import (
    GroupReader,
    GroupReaderOptions,
    GroupStream,
    Headrace,
    ReaderGroup,
    ReaderGroupConfiguration,
    ReaderOptions,
    ScalingPolicy,
    TruncatedError,
    UnavailableError,
)


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
    found: list[bytes] = []
    while len(found) < count:
        batch = reader.read_batch(timeout_s=10)
        assert batch is not None
        found += batch.events
    return found


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
        assert read(reader, 1) == [b"two"]


def test_final_error_is_raised_until_a_reset(headrace: Headrace) -> None:
    group = truncated(headrace)
    with group.reader("r1") as reader:
        for _ in range(3):
            with pytest.raises(TruncatedError):
                reader.read_batch(timeout_s=10)
        group.reset("head")
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
        group.reset("head")
        assert read(reader, 1) == [b"new"]
