"""Notes of segments that are about to be created: the golden value, and their order."""

from __future__ import annotations

from golden_records import GoldenRecords

from headrace.codec.records.creation_record import (
    Creation,
    creation_body,
    creation_of_body,
    creation_sort,
    creations_last,
    creations_partition,
)
from headrace.model.segments import segment_id

CREATION = Creation("s", "t", 5, (segment_id(1, 7), segment_id(1, 8), segment_id(1, 10), segment_id(2, 11)))


class TestCreationRecords(GoldenRecords):
    shapes = {
        "creation": (
            CREATION,
            creation_body,
            creation_of_body,
            {
                "format": 1,
                "scope": "s",
                "stream": "t",
                "first_number": 5,
                "segments": [[1, 7, 8], [1, 10, 10], [2, 11, 11]],
            },
        )
    }


def test_they_are_sorted_by_the_time_when_they_are_looked_at():
    assert creations_partition(3) == "creations/0003"
    assert creation_sort(CREATION, 7) == "00000000000000000007/s/t/0000000005/0000000001"
    assert creation_sort(CREATION, 7) <= creations_last(7) < creation_sort(CREATION, 8)
