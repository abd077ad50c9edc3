"""Segments merged by time: complete, in order, and held back only as long as something may come before."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.time_merge import TimeMerge


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
