"""Time points against a plain list of appends: exact while there are few, on the safe side when there are many."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.time_points import POINTS_MAX, UNKNOWN_ORDERING, TimePoint, TimePoints

STEPS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 1000)), min_size=1, max_size=120)


def appends_of(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(offset, number) of appends, whose lengths and steps in time these are; a step of 0 stays in the frame."""
    offset, ordering, appends = 0, 1000, []
    for length, step in steps:
        ordering += step
        appends.append((offset, ordering))
        offset += length
    return appends


def noted(appends: list[tuple[int, int]]) -> TimePoints:
    points = TimePoints()
    for offset, ordering in appends:
        points.note(offset, ordering)
    return points


@given(STEPS)
def test_few_appends_are_exact(steps: list[tuple[int, int]]) -> None:
    appends = appends_of(steps)
    points = noted(appends)
    assert points.newest == appends[-1][1]
    assert points.oldest == appends[0][1]
    for index, (offset, ordering) in enumerate(appends):
        assert points.ordering_at(offset) == points.ordering_at(offset + steps[index][0] - 1) == ordering
    for ordering in {number + delta for _, number in appends for delta in (-1, 0, 1)}:
        expected = bisect_left([number for _, number in appends], ordering)
        found = points.find(ordering)
        assert (found and found.offset) == (appends[expected][0] if expected < len(appends) else None)


@given(STEPS, st.integers(1, 20))
def test_joined_points_are_never_too_new_and_within_their_bounds(steps: list[tuple[int, int]], count_max: int) -> None:
    appends = appends_of(steps)
    points = noted(appends)
    frames = len(points)
    points.thin_out(count_max)
    assert len(points) <= count_max
    assert len(points) == frames or frames > count_max
    span_max = (appends[-1][1] - appends[0][1]) * 4 / count_max
    assert all(point.last - point.first <= span_max for point in points)
    for offset, ordering in appends:
        assert ordering - span_max <= points.ordering_at(offset) <= ordering
        found = points.find(ordering)
        assert found is not None
        assert found.offset <= offset
        assert found.first >= ordering - span_max
    assert points.find(appends[-1][1] + 1) is None


@given(STEPS, st.data())
def test_a_range_knows_of_its_bytes_what_the_whole_knows(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    appends = appends_of(steps)
    whole = noted(appends)
    start = data.draw(st.integers(0, appends[-1][0]))
    end = data.draw(st.integers(start + 1, appends[-1][0] + 1))
    inside = TimePoints(whole.between(start, end))
    for offset in range(start, end):
        assert inside.ordering_at(offset) == whole.ordering_at(offset)
    assert all(start <= point.offset < end for point in inside)


@given(STEPS, st.data())
def test_forgetting_keeps_the_points_after_the_offset(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    appends = appends_of(steps)
    whole, points = noted(appends), noted(appends)
    offset = data.draw(st.integers(0, appends[-1][0] + 10))
    points.forget_before(offset)
    assert [point.offset for point in points][1:] == [each.offset for each in whole if each.offset > offset][:]
    assert points.ordering_at(offset) == whole.ordering_at(offset)
    points.note(10_000, points.newest + 5)
    assert points.ordering_at(10_000) == whole.newest + 5


def test_the_number_of_points_is_bounded() -> None:
    points = noted([(offset, 10 * offset + 1) for offset in range(20 * POINTS_MAX)])
    assert POINTS_MAX / 4 < len(points) <= POINTS_MAX
    span_max = 10 * 20 * POINTS_MAX * 4 / POINTS_MAX
    assert all(point.last - point.first <= span_max for point in points)
    assert points.find(1) == TimePoint(0, 1, next(iter(points)).last)


def test_nothing_is_known_of_what_came_before_the_first_point() -> None:
    points = TimePoints()
    assert (points.newest, points.oldest, points.ordering_at(0), len(points)) == (UNKNOWN_ORDERING,) * 4
    assert points.find(1) is None
    assert points.boundary_from(0) is None
    points.note(10, 500)
    assert points.ordering_at(9) == UNKNOWN_ORDERING
    assert points.between(0, 10) == []
    assert points.between(0, 11) == [TimePoint(10, 500, 500)]


@pytest.mark.parametrize(("offset", "boundary"), [(0, 10), (10, 10), (11, 20), (21, None)])
def test_points_are_starts_of_appends(offset: int, boundary: int | None) -> None:
    assert noted([(10, 500), (20, 501)]).boundary_from(offset) == boundary


def test_the_newest_number_outlives_a_join_at_the_end() -> None:
    points = TimePoints()
    for number in range(1, 8):
        points.note(number, 1_000 + number)
    points.thin_out(6)
    assert len(points) < 7
    assert points.newest == list(points)[-1].last == 1_007
