"""However a batch is cut into tasks, it is the same bytes in the same order, and every core gets some."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.model.stream_cut_ranges import split_pieces
from headrace.spark.partitions import PARTITION_BYTES_MAX_DEFAULT, Partition, pack_pieces, piece_bytes
from headrace.spark.stream_access import PlannedRange

STREAM = "weather", "stations"
BOUNDARY = 30
MIB = 1024 * 1024


def next_boundary(target: int) -> int:
    return -(-target // BOUNDARY) * BOUNDARY


def partitions(parts: list[SegmentRange], tasks: int | None, bytes_max: int) -> list[Partition]:
    """As they are planned, with pieces as the controller makes them."""
    total = sum(part.length_bytes for part in parts)
    most = piece_bytes(total, tasks, bytes_max)
    pieces = [
        PlannedRange(replace(part, start=start, end=end))
        for part in parts
        for start, end in split_pieces(part.start, part.end, most, next_boundary)
    ]
    return pack_pieces(pieces, total, tasks, most)


ranges = st.builds(
    lambda identifier, start, length: SegmentRange(
        *STREAM, identifier, 0.0, 1.0, start * BOUNDARY, (start + length) * BOUNDARY
    ),
    st.integers(0, 99),
    st.integers(0, 50),
    st.integers(1, 400),
)


@given(
    st.lists(ranges, max_size=20, unique_by=lambda part: part.segment_id),
    st.none() | st.integers(1, 16),
    st.integers(1, 20_000),
)
def test_every_byte_is_in_one_partition(parts: list[SegmentRange], tasks: int | None, bytes_max: int) -> None:
    groups = partitions(parts, tasks, bytes_max)
    pieces = sorted(
        (planned.part for group in groups for planned in group), key=lambda piece: (piece.segment_id, piece.start)
    )
    for part in parts:
        mine = [piece for piece in pieces if piece.segment_id == part.segment_id]
        assert [piece.start for piece in mine] == [part.start, *(piece.end for piece in mine[:-1])]
        assert mine[-1].end == part.end
    order = {part.segment_id: place for place, part in enumerate(parts)}
    for group in groups:
        places = [(order[planned.part.segment_id], planned.part.start) for planned in group]
        assert places == sorted(places)


def test_small_ranges_share_a_task_and_large_ones_do_not() -> None:
    parts = [SegmentRange(*STREAM, identifier, 0.0, 1.0, 0, 100 * 1024) for identifier in range(25)]
    parts.append(SegmentRange(*STREAM, 99, 0.0, 1.0, 0, 5 * MIB))
    assert [len(group) for group in partitions(parts, None, 64 * MIB)] == [11, 11, 1, 3]


@pytest.mark.parametrize(
    ("length_mib", "tasks", "pieces"),
    [(256, 8, 8), (40, 8, 3), (10, 8, 1), (4096, 8, 32), (256, None, 2)],
    ids=["one per core", "at least 16 MiB", "small", "at most the limit", "unknown cores"],
)
def test_one_busy_segment_uses_every_core(length_mib: int, tasks: int | None, pieces: int) -> None:
    part = SegmentRange(*STREAM, 1, 0.0, 1.0, 0, length_mib * MIB)
    groups = partitions([part], tasks, PARTITION_BYTES_MAX_DEFAULT)
    assert len(groups) == pieces
    assert max(planned.length_bytes for (planned,) in groups) <= length_mib * MIB / pieces + BOUNDARY


def test_many_small_ranges_make_one_task_per_core() -> None:
    parts = [SegmentRange(*STREAM, identifier, 0.0, 1.0, 0, MIB // 2) for identifier in range(400)]
    groups = partitions(parts, 8, PARTITION_BYTES_MAX_DEFAULT)
    assert 8 <= len(groups) <= 17
    assert sum(map(len, groups)) == 400
