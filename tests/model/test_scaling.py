"""Plans of automatic scaling: the key space stays covered, and a stream stays between its minimum and the maximum."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.errors import IllegalStateError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.rates import ScalingReport
from headrace.model.scaling import (
    COLD_VALID_MS,
    REPORT_VALID_MS,
    ColdMark,
    ScalePlan,
    check_segments_left,
    cold_mark,
    growth_plan,
    is_too_old,
    merge_plan,
    neighbours,
    replacement_plan,
    split_plan,
    split_range,
)
from headrace.model.segments import KeyRange, StreamSegment, covers_key_space_once, equal_ranges, segment_id
from headrace.model.stream_configuration import ScalingPolicy, ScalingType
from headrace.model.streams import follows

FOUR = Epoch.first(4, 0, 1)
FULL = Epoch.first(SEGMENTS_PER_STREAM_MAX, 0, 1)


@st.composite
def epochs(draw: st.DrawFn) -> Epoch:
    """Segments of any widths, numbered out of order."""
    bounds = draw(st.sets(st.floats(0, 1, exclude_min=True, exclude_max=True), max_size=12))
    ranges = [KeyRange(low, high) for low, high in itertools.pairwise(sorted({0.0, 1.0, *bounds}))]
    numbers = draw(st.permutations(range(len(ranges))))
    return Epoch(3, 1_000, tuple(StreamSegment(number, part) for number, part in zip(numbers, ranges, strict=True)))


def after(epoch: Epoch, plan: ScalePlan) -> Epoch:
    """The epoch that the plan leads to, checked as every write of a stream is."""
    following = scaled_epoch(epoch, plan.sealed, plan.new_ranges, 2_000)
    assert follows(epoch, following)
    assert covers_key_space_once([segment.key_range for segment in following.segments])
    return following


@given(epoch=epochs(), data=st.data(), wanted=st.integers(0, 2_000), factor=st.integers(2, 1_000))
def test_a_split_covers_the_same_space_within_the_allowed_parts(epoch, data, wanted, factor):
    segment = data.draw(st.sampled_from(epoch.segments))
    plan = split_plan(epoch, segment.segment_id, wanted, factor)
    if plan is None:
        assert split_range(segment.key_range, min(max(2, wanted), factor, 1_001 - len(epoch.segments))) == ()
        return
    assert len(plan.new_ranges) == min(max(2, wanted), factor, SEGMENTS_PER_STREAM_MAX - len(epoch.segments) + 1)
    assert plan.new_ranges[0].low == segment.key_range.low
    assert plan.new_ranges[-1].high == segment.key_range.high
    assert len(after(epoch, plan).segments) <= SEGMENTS_PER_STREAM_MAX


@pytest.mark.parametrize(
    ("wanted", "factor", "parts"), [(0, 2, 2), (2, 5, 2), (3, 5, 3), (9, 5, 5), (9, 2, 2), (1, 1, 2)]
)
def test_the_number_of_splits_is_bounded_by_the_factor(wanted, factor, parts):
    plan = split_plan(FOUR, 1, wanted, factor)
    assert plan is not None
    assert plan.sealed == (1,)
    widths = [part.high - part.low for part in plan.new_ranges]
    assert widths == pytest.approx([0.25 / parts] * parts)


def test_a_stream_of_the_maximum_is_not_split():
    assert split_plan(FULL, 7, 2, 2) is None
    almost = Epoch.first(SEGMENTS_PER_STREAM_MAX - 1, 0, 1)
    plan = split_plan(almost, 7, 4, 4)
    assert plan is not None
    assert len(after(almost, plan).segments) == SEGMENTS_PER_STREAM_MAX


def test_a_range_that_holds_no_further_number_is_not_split():
    low, high = 0.5, 0.5 + 2**-53
    narrow = Epoch(0, 1, (StreamSegment(0, KeyRange(0.0, low)), StreamSegment(1, KeyRange(low, high))))
    assert low < high
    assert split_plan(narrow, 1, 2, 2) is None


@given(epoch=epochs(), data=st.data(), minimum=st.integers(1, 14))
def test_a_merge_takes_cold_neighbours_and_keeps_the_minimum(epoch, data, minimum):
    segment = data.draw(st.sampled_from(epoch.segments))
    cold = data.draw(st.sets(st.sampled_from([segment.segment_id for segment in epoch.segments])))
    plan = merge_plan(epoch, segment.segment_id, cold, minimum)
    around = [
        neighbour.segment_id for neighbour in neighbours(epoch, segment.segment_id) if neighbour.segment_id in cold
    ]
    if plan is None:
        assert not around or len(epoch.segments) <= minimum
        return
    assert set(plan.sealed) <= {segment.segment_id, *around}
    assert len(plan.new_ranges) == 1
    following = after(epoch, plan)
    assert len(following.segments) >= minimum
    assert len(plan.sealed) == min(1 + len(around), len(epoch.segments) - minimum + 1)


def test_of_three_cold_ones_the_first_two_merge_when_one_may_go():
    assert merge_plan(FOUR, 1, {0, 2}, 3) == ScalePlan((0, 1), (KeyRange(0.0, 0.5),))
    assert merge_plan(FOUR, 1, {0, 2}, 2) == ScalePlan((0, 1, 2), (KeyRange(0.0, 0.75),))
    assert merge_plan(FOUR, 1, {0, 2}, 4) is None
    assert merge_plan(FOUR, 1, {0, 2}, 9) is None
    assert merge_plan(FOUR, 1, {2}, 3) == ScalePlan((1, 2), (KeyRange(0.25, 0.75),))


def test_only_direct_neighbours_merge():
    assert merge_plan(FOUR, 0, {2, 3}, 1) is None
    assert merge_plan(FOUR, 0, {0}, 1) is None
    assert merge_plan(FOUR, 3, {0}, 1) is None
    assert merge_plan(Epoch.first(1, 0, 1), 0, {0}, 1) is None


@given(epoch=epochs(), minimum=st.integers(1, 40))
def test_growth_reaches_the_minimum_and_splits_the_widest(epoch, minimum):
    plan = growth_plan(epoch, minimum)
    if plan is None:
        assert len(epoch.segments) >= minimum
        return
    following = after(epoch, plan)
    assert len(following.segments) == minimum
    kept = [segment for segment in epoch.segments if segment.segment_id not in plan.sealed]
    narrowest_split = min(
        epoch.by_id[identifier].key_range.high - epoch.by_id[identifier].key_range.low for identifier in plan.sealed
    )
    assert all(segment.key_range.high - segment.key_range.low <= narrowest_split for segment in kept)


def test_growing_splits_the_largest_first_and_evenly():
    assert growth_plan(Epoch.first(1, 0, 1), 3) == ScalePlan((0,), equal_ranges(3))
    uneven = Epoch(0, 1, (StreamSegment(0, KeyRange(0.0, 0.25)), StreamSegment(1, KeyRange(0.25, 1.0))))
    assert growth_plan(uneven, 4) == ScalePlan((1,), (KeyRange(0.25, 0.5), KeyRange(0.5, 0.75), KeyRange(0.75, 1.0)))
    assert growth_plan(Epoch.first(2, 0, 1), 4) == ScalePlan((0, 1), equal_ranges(4))
    thirds = Epoch(0, 1, (StreamSegment(0, KeyRange(0.0, 0.25)), StreamSegment(1, KeyRange(0.25, 1.0))))
    assert growth_plan(thirds, 3) == ScalePlan((1,), (KeyRange(0.25, 0.625), KeyRange(0.625, 1.0)))
    high = Epoch(0, 1, (StreamSegment(0, KeyRange(0.0, 0.6)), StreamSegment(1, KeyRange(0.6, 1.0))))
    assert growth_plan(high, 3) == ScalePlan((0,), (KeyRange(0.0, 0.3), KeyRange(0.3, 0.6)))
    assert growth_plan(FOUR, 4) is None
    assert growth_plan(FOUR, 1) is None
    plan = growth_plan(Epoch.first(1, 0, 1), SEGMENTS_PER_STREAM_MAX)
    assert plan is not None
    assert len(plan.new_ranges) == SEGMENTS_PER_STREAM_MAX


def test_reports_and_marks_have_their_time():
    report = ScalingReport("s/t/0.#epoch.0", "cold", 1_000)
    assert not is_too_old(report, 1_000 + REPORT_VALID_MS)
    assert is_too_old(report, 1_001 + REPORT_VALID_MS)
    mark = cold_mark(report)
    assert mark.until_ms is not None
    assert mark == ColdMark(1_000, 1_000 + COLD_VALID_MS)
    assert mark.counts(mark.until_ms - 1)
    assert not mark.counts(mark.until_ms)
    assert cold_mark(ScalingReport("s/t/0.#epoch.0", "cold", 1_000, silent=True)).counts(2**60)


def test_a_replacement_has_the_range_of_what_it_replaces():
    plan = replacement_plan(FOUR, 2)
    assert plan == ScalePlan((2,), (KeyRange(0.5, 0.75),))
    assert [segment.segment_id for segment in after(FOUR, plan).segments] == [0, 1, segment_id(1, 4), 3]


@pytest.mark.parametrize("minimum", [1, 3, 4])
def test_as_many_segments_as_the_policy_requires_are_enough(minimum):
    check_segments_left(FOUR, ScalingPolicy(ScalingType.FIXED_NUM_SEGMENTS, min_segments=minimum))


def test_fewer_segments_than_the_policy_requires_are_refused():
    with pytest.raises(IllegalStateError) as refused:
        check_segments_left(FOUR, ScalingPolicy(ScalingType.FIXED_NUM_SEGMENTS, min_segments=5))
    assert refused.value.specific_code == "too_few_segments"
    assert refused.value.details == {"segments": 4, "min": 5}
