from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.writing.routing_table import Route, RoutingTable
from headrace.model.errors import CorruptError
from headrace.model.segments import KeyRange, equal_ranges


def _route(low: float, high: float, target: str) -> Route[str]:
    return Route(KeyRange(low, high), target)


@given(st.integers(1, 50), st.floats(0, 1, exclude_max=True))
def test_the_first_segment_that_reaches_a_position_owns_it(count: int, position: float) -> None:
    """As in Pravega: ranges act as (low, high]."""
    ranges = equal_ranges(count)
    table = RoutingTable([Route(key_range, number) for number, key_range in enumerate(ranges)])
    assert table.target_of(position) == next(
        number for number, key_range in enumerate(ranges) if key_range.high >= position
    )


def test_a_split() -> None:
    table = RoutingTable([_route(0.0, 0.5, "a"), _route(0.5, 1.0, "b")])
    table.replace("a", [_route(0.0, 0.2, "c"), _route(0.2, 0.5, "d")])
    assert [table.target_of(at) for at in (0.0, 0.1, 0.2, 0.3, 0.5, 0.6)] == ["c", "c", "c", "d", "d", "b"]


def test_merged_neighbour_keeps_its_part_until_replaced() -> None:
    table = RoutingTable([_route(0.0, 0.5, "a"), _route(0.5, 1.0, "b")])
    table.replace("a", [_route(0.0, 1.0, "merged")])
    assert table.targets() == ["merged", "b"]
    table.replace("merged", [_route(0.0, 0.7, "c"), _route(0.7, 1.0, "d")])
    assert table.targets() == ["c", "b"]
    table.replace("b", [_route(0.0, 1.0, "merged")])
    table.replace("merged", [_route(0.0, 0.7, "c"), _route(0.7, 1.0, "d")])
    assert table.targets() == ["c", "c", "d"]


@pytest.mark.parametrize(
    "successors",
    [[], [_route(0.0, 0.4, "c")], [_route(0.0, 0.4, "c"), _route(0.3, 0.5, "d")], [_route(0.1, 0.5, "c")]],
)
def test_successors_that_do_not_fit_change_nothing(successors: list[Route[str]]) -> None:
    table = RoutingTable([_route(0.0, 0.5, "a"), _route(0.5, 1.0, "b")])
    with pytest.raises(CorruptError):
        table.replace("a", successors)
    assert table.targets() == ["a", "b"]
    assert table.target_of(0.3) == "a"


def test_no_segments_are_no_table() -> None:
    with pytest.raises(CorruptError, match="none"):
        RoutingTable([])
