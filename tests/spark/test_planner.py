"""Plans against a plain model of a stream: every byte once, order per key across batches, budget, liveness."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from spark_stream_double import StreamDouble

from headrace.client.segment_ranges import SegmentRange, ranges_to_read
from headrace.model.errors import CorruptError
from headrace.spark.planner import NextCut, next_cut

EVENT_BYTES = 20
FRAME_BYTES = EVENT_BYTES + 8


@st.composite
def streams(draw: st.DrawFn) -> StreamDouble:
    """Streams with up to 6 random scales: splits, merges and arbitrary new boundaries, some segments without events."""
    stream = StreamDouble(_tiles(draw, 0.0, 1.0, draw(st.integers(1, 4))))
    for _ in range(draw(st.integers(0, 6))):
        _append(draw, stream)
        by_range = sorted(stream.active, key=lambda identifier: stream.segments[identifier].low)
        first = draw(st.integers(0, len(by_range) - 1))
        sealed = by_range[first : first + draw(st.integers(1, 3))]
        low, high = stream.segments[sealed[0]].low, stream.segments[sealed[-1]].high
        stream.scale(sealed, _tiles(draw, low, high, draw(st.integers(1, 3))))
    _append(draw, stream)
    return stream


def _tiles(draw: st.DrawFn, low: float, high: float, count: int) -> list[tuple[float, float]]:
    """`[low, high)` in pieces; boundaries from a coarse grid so that they often coincide with older ones."""
    grid = [float(Fraction(step, 16)) for step in range(1, 16) if low < step / 16 < high]
    inner = draw(st.lists(st.sampled_from(grid), unique=True, max_size=count - 1)) if grid else []
    bounds = [low, *sorted(inner), high]
    return list(itertools.pairwise(bounds))


def _append(draw: st.DrawFn, stream: StreamDouble) -> None:
    for identifier in stream.active:
        for _ in range(draw(st.integers(0, 5))):
            stream.segments[identifier].append(bytes(EVENT_BYTES))


def plan(
    stream: StreamDouble, current: dict[int, int], budget: int | None, *, strict: bool = False, slack: int = 0
) -> tuple[NextCut, list[SegmentRange]]:
    def locate(identifier: int, target: int) -> int:
        return stream.segments[identifier].boundary_at_or_after(target + slack)

    found = next_cut(
        stream.between(current, stream.tail()), current, budget_bytes=budget, locate=locate, strict_key_order=strict
    )
    return found, ranges_to_read(stream.between(current, found.positions))


def batches(
    stream: StreamDouble, budget: int | None, *, strict: bool = False, slack: int = 0
) -> list[list[SegmentRange]]:
    """All batches from head to tail. Every call but the last moves on, so this ends."""
    current, found = stream.head(), []
    while True:
        upcoming, ranges = plan(stream, current, budget, strict=strict, slack=slack)
        assert upcoming.length_bytes == sum(part.length_bytes for part in ranges)
        found.append(ranges)
        if upcoming.reached_end:
            assert upcoming.positions == stream.tail()
            return found
        assert upcoming.positions != current, "a plan that is not at the end must move on"
        current = upcoming.positions


budgets = st.integers(1, 40 * FRAME_BYTES)


@given(streams(), budgets, st.booleans(), st.integers(0, 2 * FRAME_BYTES))
def test_every_byte_is_in_exactly_one_batch_in_order(
    stream: StreamDouble, budget: int, strict: bool, slack: int
) -> None:
    reached = dict.fromkeys(stream.segments, 0)
    for ranges in batches(stream, budget, strict=strict, slack=slack):
        for part in ranges:
            assert part.start == reached[part.segment_id]
            assert part.end in stream.segments[part.segment_id].boundaries
            reached[part.segment_id] = part.end
    assert reached == {identifier: len(segment.data) for identifier, segment in stream.segments.items()}


@given(streams(), budgets, st.booleans())
def test_successors_come_after_all_that_their_predecessors_hold(
    stream: StreamDouble, budget: int, strict: bool
) -> None:
    last_batch_of = dict.fromkeys(stream.segments, -1)
    first_batch_of: dict[int, int] = {}
    for number, ranges in enumerate(batches(stream, budget, strict=strict)):
        for part in ranges:
            last_batch_of[part.segment_id] = number
            first_batch_of.setdefault(part.segment_id, number)
    for identifier, first in first_batch_of.items():
        for before in _ancestors(stream, identifier):
            assert last_batch_of[before] < first if strict else last_batch_of[before] <= first


def _ancestors(stream: StreamDouble, identifier: int) -> set[int]:
    found: set[int] = set()
    waiting = list(stream.segments[identifier].predecessors)
    while waiting:
        before = waiting.pop()
        if before not in found:
            found.add(before)
            waiting.extend(stream.segments[before].predecessors)
    return found


@given(streams(), budgets, st.booleans())
def test_each_cut_covers_the_key_space_exactly_once(stream: StreamDouble, budget: int, strict: bool) -> None:
    current = stream.head()
    for _ in range(200):
        upcoming, _ranges = plan(stream, current, budget, strict=strict)
        tiles = sorted((stream.segments[one].low, stream.segments[one].high) for one in upcoming.positions)
        assert tiles[0][0] == 0.0
        assert tiles[-1][1] == 1.0
        assert all(left[1] == right[0] for left, right in itertools.pairwise(tiles))
        current = upcoming.positions


@given(streams(), budgets)
def test_the_budget_is_exceeded_by_one_event_per_open_segment(stream: StreamDouble, budget: int) -> None:
    for ranges in batches(stream, budget):
        planned = sum(part.length_bytes for part in ranges)
        assert planned <= budget + FRAME_BYTES * len(ranges)


@given(streams(), budgets)
def test_open_segments_share_the_budget_and_none_is_passed_over(stream: StreamDouble, budget: int) -> None:
    current = stream.head()
    behind = {one for one in current if stream.segments[one].data}
    upcoming, ranges = plan(stream, current, budget)
    assume(budget >= len(behind))
    assert behind <= {part.segment_id for part in ranges}
    unfinished = [part for part in ranges if part.end < len(stream.segments[part.segment_id].data)]
    if unfinished and upcoming.length_bytes:
        assert min(part.length_bytes for part in unfinished) + FRAME_BYTES >= max(
            part.length_bytes for part in unfinished
        )


@given(streams())
def test_a_batch_without_a_budget_reads_all(stream: StreamDouble) -> None:
    def never(identifier: int, target: int) -> int:
        raise AssertionError((identifier, target))

    current = stream.head()
    found = next_cut(stream.between(current, stream.tail()), current, budget_bytes=None, locate=never)
    assert found.positions == stream.tail()
    assert found.reached_end


@given(streams(), budgets, st.booleans())
def test_a_planned_batch_does_not_change_when_the_stream_grows(stream: StreamDouble, budget: int, strict: bool) -> None:
    current = stream.head()
    upcoming, ranges = plan(stream, current, budget, strict=strict)
    stream.append(0.5, b"later")
    stream.scale([stream.active[0]], [_range(stream, stream.active[0])])
    stream.append(0.01, b"later still")
    again = ranges_to_read(stream.between(current, upcoming.positions))
    assert [(part.segment_id, part.start, part.end) for part in again] == [
        (part.segment_id, part.start, part.end) for part in ranges
    ]


def _range(stream: StreamDouble, identifier: int) -> tuple[float, float]:
    return stream.segments[identifier].low, stream.segments[identifier].high


def split_stream() -> StreamDouble:
    stream = StreamDouble([(0.0, 0.5), (0.5, 1.0)])
    for identifier in stream.active:
        stream.segments[identifier].append(bytes(EVENT_BYTES))
    return stream


def test_a_merge_waits_for_all_that_it_merges() -> None:
    stream = split_stream()
    left, right = stream.active
    for _ in range(9):
        stream.segments[right].append(bytes(EVENT_BYTES))
    (merged,) = stream.scale([left, right], [(0.0, 1.0)])
    stream.segments[merged].append(bytes(EVENT_BYTES))
    upcoming, _ = plan(stream, stream.head(), 4 * FRAME_BYTES)
    assert upcoming.positions == {left: FRAME_BYTES, right: 3 * FRAME_BYTES}


def test_strict_order_ends_a_batch_at_a_scale() -> None:
    stream = split_stream()
    opened = stream.scale(stream.active, [(0.0, 0.25), (0.25, 1.0)])
    stream.segments[opened[0]].append(bytes(EVENT_BYTES))
    together = batches(stream, None)
    apart = batches(stream, None, strict=True)
    assert [len(ranges) for ranges in together] == [3]
    assert [len(ranges) for ranges in apart] == [2, 1]


def test_a_store_without_an_index_may_answer_its_end() -> None:
    stream = split_stream()
    upcoming, ranges = plan(stream, stream.head(), 2, slack=10_000)
    assert upcoming.reached_end
    assert len(ranges) == 2


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_must_be_positive(budget: int) -> None:
    stream = split_stream()
    with pytest.raises(ValueError, match="positive"):
        plan(stream, stream.head(), budget)


def test_a_boundary_before_its_target_is_refused() -> None:
    stream = split_stream()
    with pytest.raises(CorruptError, match="at or after"):
        next_cut(
            stream.between(stream.head(), stream.tail()),
            stream.head(),
            budget_bytes=10,
            locate=lambda identifier, target: target - 1,
        )


@pytest.mark.parametrize("breaks", [lambda cut: cut | {77: 0}, lambda cut: dict.fromkeys(cut, 3)])
def test_ranges_that_do_not_start_at_the_cut_are_refused(breaks: Callable[[dict[int, int]], dict[int, int]]) -> None:
    stream = split_stream()
    with pytest.raises(CorruptError, match="do not start"):
        next_cut(
            stream.between(stream.head(), stream.tail()),
            breaks(stream.head()),
            budget_bytes=None,
            locate=lambda identifier, target: target,
        )
