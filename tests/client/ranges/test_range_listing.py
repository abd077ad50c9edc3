"""Segment ranges with few requests: batches joined, and ranges split by plans."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_cluster import RealCluster

from headrace.api.segments import RangesBetween
from headrace.client import Headrace, ScalingPolicy, SegmentRange, TruncatedError
from headrace.client.ranges.range_listing import plan_requests
from headrace.client.ranges.segment_ranges import ranges_to_read, segment_ranges
from headrace.controller.services import next_cuts
from headrace.model.limits import PIECES_PER_PLAN_MAX, PIECES_PER_RANGE_MAX, RANGES_PER_PLAN_MAX


@pytest.fixture
def requests_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The last parts of the paths that were requested since the last call."""
    seen: list[str] = []
    send = httpx.AsyncClient.send

    async def counted(client: httpx.AsyncClient, request: httpx.Request, **options: object) -> httpx.Response:
        seen.append(request.url.path.rpartition("/")[2])
        return await send(client, request, **options)  # type: ignore[arg-type]

    def taken() -> list[str]:
        found = list(seen)
        seen.clear()
        return found

    monkeypatch.setattr(httpx.AsyncClient, "send", counted)
    return taken


def test_many_ranges_and_pieces_take_two_requests(headrace: Headrace, requests_of: Callable[[], list[str]]) -> None:
    segments = 40
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(segments))
    with headrace.writer("shop", "orders") as writer:
        for number in range(40):
            writer.write_batch([b"%d" % each for each in range(100)], str(number))
            writer.flush()
        for number in range(40):
            writer.write_batch([b"%d" % each for each in range(100)], str(number))
    requests_of()
    pieces = headrace.segment_ranges("shop", "orders", bytes_max=1_000)
    assert requests_of() == ["next-cut", "range-plans"]
    whole = headrace.segment_ranges("shop", "orders")
    assert requests_of() == ["next-cut"]
    assert len(pieces) > len(whole)
    assert sum(part.length_bytes for part in pieces) == sum(part.length_bytes for part in whole)


def test_batches_are_joined_to_whole_ranges(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that answers with few segments at a time gives the same ranges."""
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    start = headrace.admin.stream_cut("shop", "orders", at="head")
    bounds = [0.0, 0.5, 1.0]
    for _ in range(4):
        with headrace.writer("shop", "orders") as writer:
            writer.write_batch([b"event"] * 50, "key")
        active = [one.segment_id for one in headrace.admin.segments("shop", "orders")]
        headrace.admin.scale_stream("shop", "orders", seal=active, ranges=list(itertools.pairwise(bounds)))
        bounds = [0.0, 1.0] if len(bounds) == 3 else [0.0, 0.3, 1.0]
    expected = ranges_to_read(segment_ranges(headrace.admin.segments_between("shop", "orders")))
    monkeypatch.setattr(next_cuts, "SEGMENTS_PER_CUT_MAX", 1)
    assert not headrace.admin.next_cut("shop", "orders").reached_end
    assert headrace.segment_ranges("shop", "orders", start) == expected


def test_next_cuts_of_the_client(headrace: Headrace, real: RealCluster) -> None:
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    head = headrace.admin.stream_cut("shop", "orders", at="head")
    with headrace.writer("shop", "orders") as writer:
        for number in range(10):
            writer.write(b"%d" % number, "key")
            writer.flush()
    first = headrace.admin.next_cut("shop", "orders", bytes_max=40)
    assert (first.start, first.end.offsets, first.length_bytes) == (head, {0: 45}, 45)
    assert (first.reached_end, first.left_bytes) == (False, 45)
    assert first.part(RangesBetween) == headrace.admin.segments_between("shop", "orders", first.start, first.end)
    headrace.admin.truncate_stream("shop", "orders", first.end)
    with pytest.raises(TruncatedError) as failed:
        headrace.admin.next_cut("shop", "orders", head)
    assert failed.value.details["lostBytes"] == 45
    skipped = headrace.admin.next_cut("shop", "orders", head, on_truncation="skip")
    assert (skipped.start, skipped.lost_bytes, skipped.reached_end) == (first.end, 45, True)
    assert [(one.segment_id, one.offset, one.length) for one in skipped.lost] == [(0, 0, 45)]


@given(st.lists(st.integers(1, 3_000_000), max_size=60), st.integers(1, 5_000))
def test_requests_for_plans_stay_within_their_limits(lengths: list[int], piece_bytes: int) -> None:
    ranges = [SegmentRange("s", "t", one, 0.0, 1.0, 0, length) for one, length in enumerate(lengths)]
    requests = list(plan_requests(ranges, piece_bytes))
    assert [part for parts in requests for part in parts] == ranges
    for parts in requests:
        assert len(parts) <= RANGES_PER_PLAN_MAX
        pieces = [min(-(-part.length_bytes // piece_bytes), PIECES_PER_RANGE_MAX) for part in parts]
        assert 0 < sum(pieces) <= PIECES_PER_PLAN_MAX


def test_small_ranges_are_planned_by_the_thousand() -> None:
    ranges = [SegmentRange("s", "t", one, 0.0, 1.0, 0, 9) for one in range(RANGES_PER_PLAN_MAX + 1)]
    assert [len(parts) for parts in plan_requests(ranges, 10)] == [RANGES_PER_PLAN_MAX, 1]
