"""Pieces of a range: contiguous, near their size, and never split where no event boundary is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.limits import PIECES_PER_RANGE_MAX
from headrace.model.stream_cut_ranges import pieces_at_best, split_pieces, split_targets

BOUNDARY = 30


@given(st.integers(0, 50), st.integers(1, 400), st.integers(1, 20_000))
def test_pieces_are_contiguous_and_keep_to_the_limit(start: int, length: int, bytes_max: int) -> None:
    begin, end = start * BOUNDARY, (start + length) * BOUNDARY
    pieces = list(split_pieces(begin, end, bytes_max, lambda target: -(-target // BOUNDARY) * BOUNDARY))
    assert [first for first, _ in pieces] == [begin, *(last for _, last in pieces[:-1])]
    assert pieces[-1][1] == end
    assert all(first < last <= first + bytes_max + BOUNDARY for first, last in pieces)
    assert all(last % BOUNDARY == 0 for _, last in pieces)


def test_a_range_without_known_boundaries_stays_whole() -> None:
    assert list(split_pieces(0, 1000, 100, lambda target: 1000)) == [(0, 1000)]


def test_boundaries_more_than_a_piece_apart_are_asked_for_once() -> None:
    asked: list[int] = []

    def far(target: int) -> int:
        asked.append(target)
        return 500 if target <= 500 else 1000

    assert list(split_pieces(0, 1000, 100, far)) == [(0, 500), (500, 1000)]
    assert asked == [100, 600]


def test_pieces_are_of_equal_size_and_no_more_than_needed() -> None:
    assert split_targets(100, 110, 5) == [105]
    assert split_targets(100, 111, 5) == [103, 107]
    assert pieces_at_best(0, PIECES_PER_RANGE_MAX + 1, 1) == PIECES_PER_RANGE_MAX
    assert list(split_pieces(0, 1000, None, lambda target: target)) == [(0, 1000)]


def test_boundary_just_before_a_target_does_not_skip_it() -> None:
    asked: list[int] = []

    def near(target: int) -> int:
        asked.append(target)
        return 199 if target == 100 else target

    assert list(split_pieces(0, 300, 100, near)) == [(0, 199), (199, 200), (200, 300)]
    assert asked == [100, 200]
