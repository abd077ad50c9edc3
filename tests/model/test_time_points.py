"""Time points against a plain list of appends: exact while there are few, on the safe side when there are many."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.time_points import POINTS_MAX, UNKNOWN_ORDERING, TimeMerge, TimePoint, TimePoints

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
    assert points.begin == 0
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


@given(STEPS, st.integers(1, 20), st.data())
def test_a_range_knows_of_its_bytes_what_the_whole_knows(
    steps: list[tuple[int, int]], count_max: int, data: st.DataObject
) -> None:
    appends = appends_of(steps)
    whole = noted(appends)
    whole.thin_out(count_max)
    start = data.draw(st.integers(0, appends[-1][0]))
    end = data.draw(st.integers(start + 1, appends[-1][0] + 1))
    inside = TimePoints(whole.between(start, end))
    for offset in range(start, end):
        assert inside.ordering_at(offset) == whole.ordering_at(offset)
    ends = [*(point.offset for point in whole), end][1:]
    parts = [
        point._replace(offset=max(point.offset, start))
        for point, after in zip(whole, ends, strict=True)
        if after > start
    ]
    assert list(inside) == [point for point in parts if point.offset < end]


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


def test_all_appends_of_a_frame_share_a_point() -> None:
    assert list(noted([(0, 500), (5, 500), (7, 501)])) == [TimePoint(0, 500, 500), TimePoint(7, 501, 501)]


def test_forgetting_what_came_before_all_points_changes_nothing() -> None:
    points = noted([(10, 500), (20, 501), (30, 502)])
    points.forget_before(5)
    assert (points.begin, len(points)) == (10, 3)


def test_points_are_joined_within_their_span_and_no_further() -> None:
    points = TimePoints(TimePoint(offset, 500 + offset, 500 + offset) for offset in range(9))
    points.thin_out(8)
    assert list(points) == [TimePoint(0, 500, 504), TimePoint(5, 505, 508)]


def test_points_of_one_number_are_joined() -> None:
    points = TimePoints(TimePoint(offset, 500, 500) for offset in range(9))
    points.thin_out(5)
    assert list(points) == [TimePoint(0, 500, 500)]


def test_at_no_time_there_are_more_points_than_allowed() -> None:
    points = noted([(offset, offset + 1) for offset in range(POINTS_MAX)])
    assert len(points) == POINTS_MAX
    points.note(POINTS_MAX, POINTS_MAX + 1)
    assert len(points) < POINTS_MAX


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
    assert points.begin == 0
    points.note(10, 500)
    assert points.begin == 10
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


class Item(NamedTuple):
    time_us: int
    segment_id: int
    offset: int


TIMES = st.lists(st.integers(0, 3), max_size=12).map(lambda steps: list(accumulate(steps)))


def drained(merge: TimeMerge[Item]) -> list[Item]:
    found = []
    while (item := merge.next()) is not None:
        found.append(item)
    return found


@given(st.lists(TIMES, min_size=1, max_size=5), st.data())
def test_any_interleaving_comes_out_complete_and_in_order(times: list[list[int]], data: st.DataObject) -> None:
    """Segments hand in items, promises and ends in any interleaving; the merge is drained at any moments."""
    merge: TimeMerge[Item] = TimeMerge()
    left = {
        segment_id: [Item(time, segment_id, at) for at, time in enumerate(of)] for segment_id, of in enumerate(times)
    }
    everything = sorted(item for items in left.values() for item in items)
    ends = {segment_id: Item(0, segment_id, -1) for segment_id in left}
    for segment_id in left:
        merge.open(segment_id)
    released: list[Item] = []
    while left:
        segment_id = data.draw(st.sampled_from(sorted(left)))
        items, promises = left[segment_id], data.draw(st.booleans())
        if items and promises:
            merge.nothing_before(segment_id, items[0].time_us)
        elif items:
            item = items.pop(0)
            merge.add(segment_id, item.time_us, item)
        else:
            del left[segment_id]
            merge.end(segment_id, ends[segment_id])
        if data.draw(st.booleans()):
            released += drained(merge)
    released += drained(merge)
    assert [item for item in released if item.offset >= 0] == everything
    assert sorted(item for item in released if item.offset < 0) == sorted(ends.values())
    for segment_id, last in ends.items():
        assert [item for item in released if item.segment_id == segment_id][-1] == last
    assert merge.awaited() == []


@given(st.lists(TIMES, min_size=2, max_size=5))
def test_only_segments_that_may_come_first_hold_back(times: list[list[int]]) -> None:
    """After each awaited segment has promised what it is asked for, exactly one item more is released."""
    merge: TimeMerge[Item] = TimeMerge()
    for segment_id, of in enumerate(times):
        merge.open(segment_id)
        for at, time in enumerate(of):
            merge.add(segment_id, time, Item(time, segment_id, at))
    released: list[Item] = []
    while (item := merge.next()) is not None or merge.awaited():
        if item is not None:
            released.append(item)
            continue
        for segment_id in merge.awaited():
            until_us = merge.awaited_until(segment_id)
            assert until_us is not None
            merge.nothing_before(segment_id, until_us)
        assert merge.awaited() == []
    assert released == sorted(released)
    assert len(released) == sum(map(len, times))


@pytest.mark.parametrize(("quiet", "until_us"), [(1, 8), (3, 7)])
def test_a_tie_goes_to_the_lower_segment_id(quiet: int, until_us: int) -> None:
    merge: TimeMerge[str] = TimeMerge()
    merge.open(2)
    merge.open(quiet)
    merge.add(2, 7, "an event")
    assert merge.next() is None
    assert (merge.awaited(), merge.awaited_until(quiet)) == ([quiet], until_us)
    merge.nothing_before(quiet, until_us - 1)
    assert merge.next() is None
    merge.nothing_before(quiet, until_us)
    assert merge.next() == "an event"


def test_times_that_seem_to_go_back_keep_the_offsets_order() -> None:
    merge: TimeMerge[str] = TimeMerge()
    for segment_id in (0, 1):
        merge.open(segment_id)
    for time_us, item in ((5, "first"), (3, "second"), (9, "fourth")):
        merge.add(0, time_us, item)
    for time_us, item in ((5, "third"), (20, "fifth")):
        merge.add(1, time_us, item)
    merge.end(0, "end of 0")
    merge.end(1, "end of 1")
    released = [merge.next() for _ in range(7)]
    assert released == ["first", "second", "third", "fourth", "end of 0", "fifth", "end of 1"]


def test_a_segment_that_is_opened_later_holds_back_at_once() -> None:
    merge: TimeMerge[str] = TimeMerge()
    merge.open(0)
    merge.open(1)
    merge.end(0, "end of 0")
    merge.add(1, 4, "of 1")
    assert merge.next() == "end of 0"
    merge.open(2)
    assert (merge.next(), merge.awaited(), merge.awaited_until(2)) == (None, [2], 4)
    merge.add(2, 3, "of 2")
    assert [merge.next(), merge.next()] == ["of 2", None]


def test_an_ended_segment_holds_nothing_back() -> None:
    merge: TimeMerge[str] = TimeMerge()
    for segment_id in (0, 1, 2):
        merge.open(segment_id)
    merge.add(1, 4, "of 1")
    merge.end(2, "end of 2")
    assert merge.awaited() == [0]
    assert merge.next() == "end of 2", "whatever the others wait for"
    assert merge.awaited_until(2) is None, "it is gone"
    merge.end(0, "end of 0")
    assert merge.awaited() == []
    assert [merge.next(), merge.next(), merge.next()] == ["end of 0", "of 1", None]
