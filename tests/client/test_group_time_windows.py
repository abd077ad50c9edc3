"""Time windows at the position of a reader group: they move with its slowest reader, and back with a reset."""

from __future__ import annotations

import time

import pytest
from real_cluster import WorkingQueue

from functions import wiring
from headrace import topology
from headrace.client import (
    GroupReader,
    GroupReaderOptions,
    GroupStream,
    Headrace,
    InvalidRequestError,
    ReaderGroup,
    ReaderGroupConfiguration,
    ScalingPolicy,
    TimeWindow,
)

EVENTS = 150
SOON = GroupReaderOptions(lease_s=1.0)


@pytest.fixture
def group(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> ReaderGroup:
    """A group that reads a stream of two segments with three watermarks."""
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2))
    with headrace.writer("shop", "orders") as writer:
        for noted in (10, 20, 30):
            for number in range(EVENTS // 3):
                writer.write(b"%d" % number, str(number))
            writer.note_time(noted)
            for bucket in range(topology.BUCKET_COUNT):
                wiring.watermark_ticks().run(bucket)
    reads = ReaderGroupConfiguration((GroupStream("shop", "orders"),), automatic_checkpoint_interval_ms=0)
    headrace.admin.reader_groups.create("shop", "billing", reads)
    return headrace.reader_group("shop", "billing")


def read_all(reader: GroupReader) -> None:
    """The last events are processed, too."""
    count = 0
    while count < EVENTS:
        batch = reader.read_batch(timeout_s=10)
        assert batch is not None
        count += len(batch.events)
    assert reader.read_batch(timeout_s=0.05) is None


def test_window_moves_with_the_group_and_back(group: ReaderGroup) -> None:
    with group.reader("r1") as reader:
        assert reader.time_window("shop", "orders") == TimeWindow(None, 10)
        read_all(reader)
        assert reader.time_window("shop", "orders") == TimeWindow(30, None)
        group.reset("earliest")
        assert reader.read_batch(timeout_s=10) is not None
        assert reader.time_window("shop", "orders") == TimeWindow(None, 10)
        with pytest.raises(InvalidRequestError):
            reader.time_window("shop", "returns")


def test_window_covers_the_segments_of_all_readers(group: ReaderGroup) -> None:
    """Each reader has one segment, and learns of the other one's position within a part of the lease."""
    with group.reader("r1", SOON) as first, group.reader("r2", SOON) as second:
        count, deadline_s = 0, time.monotonic() + 30
        while count < EVENTS or not (first.segments and second.segments):
            for reader in (first, second):
                batch = reader.read_batch(timeout_s=0.05)
                count += len(batch.events) if batch else 0
            assert time.monotonic() < deadline_s
        for reader in (first, second):
            assert reader.read_batch(timeout_s=0.05) is None
        while first.time_window("shop", "orders") != TimeWindow(30, None):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
