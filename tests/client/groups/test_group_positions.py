"""The lag of a reader group in bytes and events: exact where that is cheap, else an estimate that says so."""

from __future__ import annotations

import pytest
from real_cluster import WorkingQueue

from functions import wiring
from headrace.client import (
    GroupStream,
    Headrace,
    NotFoundError,
    ReaderGroup,
    ReaderGroupConfiguration,
    ScalingPolicy,
    StreamSegmentName,
    TruncatedError,
)
from headrace.client.groups.group_positions import READ_BYTES_MAX

MANY = READ_BYTES_MAX // 8
"""Events of 8 to 18 bytes each, so many that their range is not read."""


@pytest.fixture
def headrace(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """With the streams `orders` (two segments) and `returns` (one)."""
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2))
    headrace.admin.create_stream("shop", "returns", scaling=ScalingPolicy.fixed(1))
    return headrace


def _group(headrace: Headrace, *streams: GroupStream) -> ReaderGroup:
    configuration = ReaderGroupConfiguration(streams, automatic_checkpoint_interval_ms=0)
    headrace.admin.reader_groups.create("shop", "billing", configuration)
    return headrace.reader_group("shop", "billing")


def _write(headrace: Headrace, count: int, stream: str = "returns", event: bytes = b"event") -> None:
    with headrace.writer("shop", stream) as writer:
        writer.write_batch([event] * count, [f"key-{number % 16}" for number in range(count)])


def _read(group: ReaderGroup, count: int) -> None:
    """Reads so many events, and leaves the group."""
    with group.reader() as reader:
        for number, _ in enumerate(reader, 1):
            if number == count:
                break


def test_small_lags_are_counted(headrace: Headrace) -> None:
    group = _group(headrace, GroupStream("shop", "orders"), GroupStream("shop", "returns"))
    assert (group.lag().events_unread, group.lag().segments) == (0, ())
    _write(headrace, 40, "orders")
    _write(headrace, 7)
    lag = group.lag()
    assert (lag.events_unread, lag.events_are_estimated) == (47, False)
    assert lag.events_by_stream == {"shop/orders": 40, "shop/returns": 7}
    assert lag.bytes_by_stream == {"shop/orders": 40 * 13, "shop/returns": 7 * 13}
    assert {segment.segment for segment in lag.segments} == {
        StreamSegmentName("shop", "orders", 0), StreamSegmentName("shop", "orders", 1),
        StreamSegmentName("shop", "returns", 0),
    }  # fmt: skip
    assert sum(segment.bytes_unread for segment in lag.segments) == lag.bytes_unread == 47 * 13
    _read(group, 30)
    assert group.lag().events_unread == 17


def test_a_segment_that_was_not_read_is_counted_by_its_store(headrace: Headrace) -> None:
    group = _group(headrace, GroupStream("shop", "returns"))
    _write(headrace, MANY)
    lag = group.lag()
    assert lag.bytes_unread > READ_BYTES_MAX
    assert (lag.events_unread, lag.events_are_estimated) == (MANY, False)


def test_the_rest_of_a_large_segment_is_estimated(headrace: Headrace) -> None:
    group = _group(headrace, GroupStream("shop", "returns"))
    _write(headrace, MANY)
    _read(group, 100)
    lag = group.lag()
    assert (lag.events_unread, lag.events_are_estimated) == (MANY - 100, True)  # all have the same size
    _write(headrace, MANY, event=b"larger event...")
    lag = group.lag()
    assert lag.events_are_estimated
    assert 2 * MANY - 100 < lag.events_unread <= 2 * MANY
    group.reset("latest")
    assert (group.lag().events_unread, group.lag().events_are_estimated) == (0, False)


def test_lags_reach_over_scales_and_up_to_the_end(headrace: Headrace) -> None:
    _write(headrace, 20, "orders")
    segments = [segment.segment_id for segment in headrace.admin.segments("shop", "orders")]
    headrace.admin.update_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    headrace.admin.scale_stream("shop", "orders", seal=segments, ranges=[(0.0, 1.0)])
    _write(headrace, 5, "orders")
    end = headrace.admin.stream_cut("shop", "orders")
    _write(headrace, MANY, "orders")
    group = _group(headrace, GroupStream("shop", "orders", end=end))
    lag = group.lag()
    assert (lag.events_unread, lag.events_are_estimated, len(lag.segments)) == (25, False, 3)


def test_a_lag_behind_truncated_events_is_refused(headrace: Headrace) -> None:
    group = _group(headrace, GroupStream("shop", "returns"))
    _write(headrace, 10)
    headrace.admin.truncate_stream("shop", "returns", headrace.admin.stream_cut("shop", "returns"))
    _write(headrace, 3)
    with pytest.raises(TruncatedError):
        group.lag()


def test_a_group_can_be_opened_without_writing_its_state(headrace: Headrace) -> None:
    reads = ReaderGroupConfiguration((GroupStream("shop", "returns"),))
    headrace.admin.reader_groups.create("shop", "billing", reads)
    for _ in range(2):
        with pytest.raises(NotFoundError) as missing:
            headrace.reader_group("shop", "billing", initialize=False)
        assert missing.value.specific_code == "group_state_not_found"
    headrace.reader_group("shop", "billing")
    assert headrace.reader_group("shop", "billing", initialize=False).readers() == {}
