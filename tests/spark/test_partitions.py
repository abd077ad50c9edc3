"""However a batch is cut into tasks, it is the same bytes in the same order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.segment_ranges import SegmentRange, split_range
from headrace.spark.partitions import partition_ranges

STREAM = "weather", "stations"
BOUNDARY = 30


def next_boundary(segment_id: int, target: int, stop: int) -> int:
    return min(-(-target // BOUNDARY) * BOUNDARY, stop)


ranges = st.builds(
    lambda identifier, start, length: SegmentRange(
        *STREAM, identifier, 0.0, 1.0, start * BOUNDARY, (start + length) * BOUNDARY
    ),
    st.integers(0, 99),
    st.integers(0, 50),
    st.integers(1, 400),
)


@given(st.lists(ranges, max_size=20, unique_by=lambda part: part.segment_id), st.integers(1, 20_000))
def test_every_byte_is_in_one_partition(parts: list[SegmentRange], bytes_max: int) -> None:
    groups = partition_ranges(parts, bytes_max, next_boundary)
    pieces = sorted((piece for group in groups for piece in group), key=lambda piece: (piece.segment_id, piece.start))
    for part in parts:
        mine = [piece for piece in pieces if piece.segment_id == part.segment_id]
        assert [piece.start for piece in mine] == [part.start, *(piece.end for piece in mine[:-1])]
        assert mine[-1].end == part.end
        assert all(piece.start < piece.end for piece in mine)
    order = {part.segment_id: place for place, part in enumerate(parts)}
    for group in groups:
        places = [(order[piece.segment_id], piece.start) for piece in group]
        assert places == sorted(places)


@given(ranges, st.integers(1, 20_000))
def test_pieces_keep_to_the_limit_up_to_one_boundary(part: SegmentRange, bytes_max: int) -> None:
    pieces = list(split_range(part, bytes_max, next_boundary))
    assert all(piece.length_bytes <= bytes_max + BOUNDARY for piece in pieces)
    assert all(piece.end % BOUNDARY == 0 for piece in pieces)


def test_a_range_without_known_boundaries_stays_whole() -> None:
    part = SegmentRange(*STREAM, 1, 0.0, 1.0, 0, 1000)
    assert list(split_range(part, 100, lambda identifier, target, stop: stop)) == [part]


def test_boundaries_more_than_a_piece_apart_are_asked_for_once() -> None:
    asked: list[int] = []

    def far(identifier: int, target: int, stop: int) -> int:
        asked.append(target)
        return 500 if target <= 500 else stop

    pieces = list(split_range(SegmentRange(*STREAM, 1, 0.0, 1.0, 0, 1000), 100, far))
    assert [(piece.start, piece.end) for piece in pieces] == [(0, 500), (500, 1000)]
    assert asked == [100, 600]


def test_small_ranges_share_a_task_and_large_ones_do_not() -> None:
    parts = [SegmentRange(*STREAM, identifier, 0.0, 1.0, 0, 100 * 1024) for identifier in range(25)]
    parts.append(SegmentRange(*STREAM, 99, 0.0, 1.0, 0, 5 * 1024 * 1024))
    groups = partition_ranges(parts, 64 * 1024 * 1024, next_boundary)
    assert [len(group) for group in groups] == [11, 11, 1, 3]
