"""The record of how far watermarks have come: golden values and key."""

from __future__ import annotations

import pytest
from golden_records import GoldenRecords

from headrace.metadata.watermark_state import decode_watermark_state, watermark_key, watermark_state_body
from headrace.model.errors import CorruptError
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.watermarks import Watermark, WatermarkState
from headrace.model.writer_marks import positions_of
from headrace.ports.metadata_store import Key

POSITIONS = positions_of(
    {StreamSegment(1 << 32 | 3, KeyRange(1 / 3, 1.0)): 2**62, StreamSegment(0, KeyRange(0.0, 1 / 3)): 5}
)
ROWS = [[0, 0.0, 0.3333333333333333, 5], [1 << 32 | 3, 0.3333333333333333, 1.0, 2**62]]
GOLDEN = {
    "format": 1,
    "first_number": 7,
    "last": [-1, 2**62, ROWS],
    "last_offset": 10,
    "end_offset": 99,
    "silent_since": {"w-1": 1_700_000_000_000},
}


class TestWatermarkState(GoldenRecords):
    shapes = {
        "watermark": (
            WatermarkState(7, Watermark(-1, 2**62, POSITIONS), 10, 99, {"w-1": 1_700_000_000_000}),
            watermark_state_body,
            decode_watermark_state,
            GOLDEN,
        )
    }


def test_golden_value_before_the_first_watermark():
    body = {"format": 1, "first_number": 0, "last": None, "last_offset": 0, "end_offset": 0, "silent_since": {}}
    assert watermark_state_body(WatermarkState(0)) == body
    assert decode_watermark_state(body) == WatermarkState(0)


def test_key():
    assert watermark_key("s", "t") == Key("stream/s/t", "watermark")


def test_a_watermark_of_one_number_is_refused():
    with pytest.raises(CorruptError):
        decode_watermark_state({**GOLDEN, "last": [1]})
