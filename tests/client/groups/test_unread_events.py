from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.groups.group_positions import EventCount, events_between


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.data())
def test_counts_are_exact_or_called_estimates(sizes: list[int], data: st.DataObject) -> None:
    """Of a segment with events of these sizes, between any two of its events."""
    first = data.draw(st.integers(0, len(sizes)))
    last = data.draw(st.integers(first, len(sizes)))
    start, end = sum(sizes[:first]), sum(sizes[:last])
    count = events_between(start, end, length=sum(sizes), events_total=len(sizes))
    if not count.is_estimate:
        assert count.events == last - first
    assert count.is_estimate == (first < last and (first, last) != (0, len(sizes)))
    if first < last:
        assert 1 <= count.events <= len(sizes)


@given(st.integers(1, 1000), st.integers(1, 100), st.data())
def test_estimates_are_right_for_events_of_one_size(events: int, size: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, events))
    last = data.draw(st.integers(first, events))
    count = events_between(first * size, last * size, length=events * size, events_total=events)
    assert count.events == last - first


def test_a_store_that_counted_nothing_gives_an_estimate() -> None:
    assert events_between(0, 100, length=100, events_total=-(1 << 63)) == EventCount(1, is_estimate=True)
