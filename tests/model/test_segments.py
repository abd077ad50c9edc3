"""Segment ids, key ranges, and which segment owns a position."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidRequestError
from headrace.model.segments import (
    KeyRange,
    StreamSegment,
    check_same_space,
    covers_key_space_once,
    equal_ranges,
    merged,
    segment_epoch,
    segment_id,
    segment_number,
)

HALF = st.integers(0, 2**31 - 1)


@given(epoch=HALF, number=HALF)
def test_ids_hold_epoch_and_number(epoch: int, number: int):
    identifier = segment_id(epoch, number)
    assert (segment_epoch(identifier), segment_number(identifier)) == (epoch, number)
    assert 0 <= identifier < 2**63
    segment = StreamSegment(identifier, KeyRange(0.0, 1.0))
    assert (segment.epoch, segment.number) == (epoch, number)


@pytest.mark.parametrize(("epoch", "number"), [(-1, 0), (0, -1), (2**31, 0), (0, 2**31)])
def test_ids_are_bounded(epoch: int, number: int):
    with pytest.raises(InvalidRequestError):
        segment_id(epoch, number)


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (0.6, 0.5), (-0.1, 0.5), (0.5, 1.1), (float("nan"), 1.0)])
def test_ranges_are_inside_the_key_space(low: float, high: float):
    with pytest.raises(InvalidRequestError):
        KeyRange(low, high)


@pytest.mark.parametrize(("low", "high"), [("0", 1.0), (0.0, "1"), (None, 1.0), (0.0, None), ([], 1.0)])
def test_bounds_of_ranges_are_numbers(low: Any, high: Any):
    with pytest.raises(InvalidRequestError):
        KeyRange(low, high)


def test_touching_ranges_do_not_overlap():
    assert not KeyRange(0.0, 0.5).overlaps(KeyRange(0.5, 1.0))
    assert KeyRange(0.0, 0.5).overlaps(KeyRange(0.4, 0.6))
    assert KeyRange(0.0, 1.0).overlaps(KeyRange(0.4, 0.6))


BOUNDS = st.lists(st.floats(0.0, 1.0), unique=True, min_size=2, max_size=12).map(sorted)


def _ranges(bounds: list[float]) -> list[KeyRange]:
    return [KeyRange(low, high) for low, high in itertools.pairwise(bounds)]


@given(count=st.integers(1, 1000))
def test_equal_ranges_cover_the_key_space(count: int):
    ranges = equal_ranges(count)
    assert len(ranges) == count
    assert covers_key_space_once(ranges)
    assert (ranges[0].low, ranges[-1].high) == (0.0, 1.0)
    assert all(abs(key_range.high - key_range.low - 1 / count) < 1e-12 for key_range in ranges)


def test_the_bounds_of_equal_ranges():
    assert [key_range.high for key_range in equal_ranges(3)] == [1 / 3, 2 / 3, 1.0]


@given(bounds=BOUNDS, data=st.data())
def test_neighbours_merge_in_any_order(bounds: list[float], data: st.DataObject):
    ranges = data.draw(st.permutations(_ranges(bounds)))
    assert merged(ranges) == (KeyRange(bounds[0], bounds[-1]),)


@given(bounds=st.lists(st.floats(0.0, 1.0), unique=True, min_size=4, max_size=12).map(sorted), data=st.data())
def test_a_hole_is_seen(bounds: list[float], data: st.DataObject):
    ranges = _ranges(bounds)
    hole = data.draw(st.integers(1, len(ranges) - 2))
    left = [*ranges[:hole], *ranges[hole + 1 :]]
    assert merged(left) == (KeyRange(bounds[0], bounds[hole]), KeyRange(bounds[hole + 1], bounds[-1]))
    assert not covers_key_space_once(left)
    with pytest.raises(InvalidRequestError) as refused:
        check_same_space(ranges, left)
    assert refused.value.specific_code == "invalid_key_ranges"


@given(bounds=BOUNDS, low=st.floats(0.0, 1.0), high=st.floats(0.0, 1.0))
def test_an_overlap_is_seen(bounds: list[float], low: float, high: float):
    ranges = _ranges(bounds)
    if low >= high or not any(key_range.overlaps(KeyRange(low, high)) for key_range in ranges):
        return
    with pytest.raises(InvalidRequestError) as refused:
        merged([*ranges, KeyRange(low, high)])
    assert refused.value.specific_code == "invalid_key_ranges"


@given(old=BOUNDS, inner=st.lists(st.floats(0.0, 1.0), max_size=5))
def test_any_other_partition_of_the_same_space_fits(old: list[float], inner: list[float]):
    bounds = sorted({old[0], old[-1], *(bound for bound in inner if old[0] < bound < old[-1])})
    check_same_space(_ranges(old), _ranges(bounds))


def test_nothing_covers_nothing():
    assert not covers_key_space_once([])
    assert merged([]) == ()
