"""Notes of segments that are about to be created: golden value, key and order."""

from __future__ import annotations

import pytest
from golden_records import GoldenRecords

from headrace.metadata.orphan_segments import (
    Creation,
    creation_body,
    creation_key,
    creation_sort,
    creations_last,
    creations_partition,
    decode_creation,
    decode_leftovers,
    leftovers_body,
    leftovers_key,
)
from headrace.model.errors import CorruptError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.segments import segment_id
from headrace.ports.metadata_store import Key

CREATION = Creation("s", "t", 5, (segment_id(1, 7), segment_id(1, 8), segment_id(1, 10), segment_id(2, 11)))


class TestCreation(GoldenRecords):
    shapes = {
        "creation": (
            CREATION,
            creation_body,
            decode_creation,
            {
                "format": 1,
                "scope": "s",
                "stream": "t",
                "first_number": 5,
                "segments": [[1, 7, 8], [1, 10, 10], [2, 11, 11]],
            },
        )
    }


def test_notes_sort_by_the_time_when_they_are_checked():
    assert creations_partition(3) == "creations/0003"
    assert creation_key(CREATION, 7) == Key("creations/0000", "00000000000000000007/s/t/0000000005/0000000001")
    assert creation_sort(CREATION, 7) <= creations_last(7) < creation_sort(CREATION, 8)


def test_the_segments_of_two_large_epochs_fit():
    large = Creation(
        "s", "t", 0, tuple(segment_id(epoch, number) for epoch in (7, 8) for number in range(SEGMENTS_PER_STREAM_MAX))
    )
    assert decode_creation(creation_body(large)) == large


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ([], "names 0 segments, not 1 to 2000"),
        ([[1, 8, 7]], "ends before it begins"),
        ([[1, 0, 4_999], [1, 7_000, 3_000]], "ends before it begins"),
        ([[1, 0, 2_000]], "names 2001 segments"),
        ([[1, 0, 999], [2, 0, 999], [3, 0, 0]], "names 2001 segments"),
        ([[1, 0, (1 << 62) - 1]], "names 4611686018427387904 segments"),
    ],
)
def test_note_of_too_many_segments_is_corrupt(ranges: list[list[int]], reason: str):
    with pytest.raises(CorruptError, match=reason):
        decode_creation({**creation_body(CREATION), "segments": ranges})


class TestLeftovers(GoldenRecords):
    shapes = {"leftovers": ((7, 8), leftovers_body, decode_leftovers, {"format": 1, "segments": [7, 8]})}


def test_key():
    assert leftovers_key("s", "t") == Key("stream/s/t", "leftovers")
