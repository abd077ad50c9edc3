"""The record of a cold segment: golden value and key."""

from __future__ import annotations

from golden_records import GoldenRecords

from headrace.metadata.cold_mark import (
    COLD_MARKS_FIRST,
    COLD_MARKS_LAST,
    cold_mark_body,
    cold_mark_key,
    decode_cold_mark,
    segment_of_cold_mark,
)
from headrace.model.scaling import ColdMark
from headrace.ports.metadata_store import Key

SECOND_EPOCH = 1 << 32


class TestColdMark(GoldenRecords):
    shapes = {
        "cold mark": (
            ColdMark(5, 600_005),
            cold_mark_body,
            decode_cold_mark,
            {"format": 1, "reported": 5, "until": 600_005},
        )
    }


def test_key():
    key = cold_mark_key("s", "t", SECOND_EPOCH | 7)
    assert key == Key("stream/s/t", "cold/00000000004294967303")
    assert segment_of_cold_mark(key.sort) == SECOND_EPOCH | 7
    assert COLD_MARKS_FIRST < key.sort < COLD_MARKS_LAST
