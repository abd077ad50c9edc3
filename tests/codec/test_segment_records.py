"""What is stored of single segments of a stream: sealed ones, cold ones, and those left over."""

from __future__ import annotations

from golden_records import GoldenRecords, Shape

from headrace.codec.records import (
    cold_mark_record,
    leftovers_record,
    sealed_segments_record,
)
from headrace.codec.records.sealed_segments_record import SealedSegment
from headrace.model.scaling import ColdMark

SEALED = {5: SealedSegment(2**62, 1), 6: SealedSegment(0, None)}
SECOND_EPOCH = 1 << 32


SHAPES: dict[str, Shape] = {
    "sealed segments": (
        SEALED,
        sealed_segments_record.sealed_segments_body,
        sealed_segments_record.sealed_segments_of_body,
        {"format": 1, "segments": {"5": [2**62, 1], "6": [0, None]}},
    ),
    "cold mark": (
        ColdMark(5, 600_005),
        cold_mark_record.cold_mark_body,
        cold_mark_record.cold_mark_of_body,
        {"format": 1, "reported": 5, "until": 600_005},
    ),
    "leftovers": (
        (7, 8),
        leftovers_record.leftovers_body,
        leftovers_record.leftovers_of_body,
        {"format": 1, "segments": [7, 8]},
    ),
}


class TestSegmentRecords(GoldenRecords):
    shapes = SHAPES


def test_keys_are_where_they_always_were():
    assert sealed_segments_record.sealed_segments_sort((2, 1)) == "sealed/0000000002/0000000001"
    assert sealed_segments_record.shard_of_segment(SECOND_EPOCH | 1_199) == (2, 0)
    assert sealed_segments_record.shard_of_segment(33 << 32 | 400) == (1, 2)
    assert leftovers_record.LEFTOVERS_SORT == "leftovers"
    assert cold_mark_record.cold_mark_sort(SECOND_EPOCH | 7) == "cold/00000000004294967303"
    assert cold_mark_record.segment_of_cold_mark("cold/00000000004294967303") == SECOND_EPOCH | 7
