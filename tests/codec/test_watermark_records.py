"""Records of marks and watermarks: golden values, keys, and refusal of what does not decode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.codec.records.watermark_record import WATERMARK_SORT, watermark_state_body, watermark_state_of_body
from headrace.codec.records.watermark_schedule_record import (
    ScheduledStream,
    watermark_schedule_body,
    watermark_schedule_of_body,
    watermark_schedule_partition,
)
from headrace.codec.records.writer_mark_record import (
    WRITER_MARKS_FIRST,
    WRITER_MARKS_LAST,
    writer_mark_body,
    writer_mark_of_body,
    writer_mark_sort,
)
from headrace.model.errors import CorruptError
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.watermarks import Watermark, WatermarkState
from headrace.model.writer_marks import WriterMark, positions_of

POSITIONS = positions_of(
    {StreamSegment(1 << 32 | 3, KeyRange(1 / 3, 1.0)): 2**62, StreamSegment(0, KeyRange(0.0, 1 / 3)): 5}
)
ROWS = [[0, 0.0, 0.3333333333333333, 5], [1 << 32 | 3, 0.3333333333333333, 1.0, 2**62]]
MARK = WriterMark("w-1", -(2**62), POSITIONS, is_alive=False)
STATE = WatermarkState(7, Watermark(-1, 2**62, POSITIONS), 10, 99, {"w-1": 1_700_000_000_000})
SCHEDULED = ScheduledStream("s", "t", 7, 3)

BODIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mark": (
        writer_mark_body(MARK, 7),
        {"format": 1, "writer": "w-1", "time": -(2**62), "positions": ROWS, "alive": False, "first_number": 7},
    ),
    "state": (
        watermark_state_body(STATE),
        {
            "format": 1,
            "first_number": 7,
            "last": [-1, 2**62, ROWS],
            "last_offset": 10,
            "end_offset": 99,
            "silent_since": {"w-1": 1_700_000_000_000},
        },
    ),
    "no watermark yet": (
        watermark_state_body(WatermarkState(0)),
        {"format": 1, "first_number": 0, "last": None, "last_offset": 0, "end_offset": 0, "silent_since": {}},
    ),
    "schedule": (
        watermark_schedule_body(SCHEDULED),
        {"format": 1, "scope": "s", "stream": "t", "first_number": 7, "writers": 3},
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_golden(name: str):
    made, golden = BODIES[name]
    assert made == golden


def test_what_was_written_is_read():
    assert writer_mark_of_body(writer_mark_body(MARK, 7)) == (MARK, 7)
    assert watermark_state_of_body(watermark_state_body(STATE)) == STATE
    assert watermark_state_of_body(watermark_state_body(WatermarkState(0))) == WatermarkState(0)
    assert watermark_schedule_of_body(watermark_schedule_body(SCHEDULED)) == SCHEDULED


def test_keys():
    assert writer_mark_sort("w-1") == "writer-mark/w-1"
    assert WRITER_MARKS_FIRST < writer_mark_sort("-") < writer_mark_sort("z" * 250) < WRITER_MARKS_LAST
    assert not WRITER_MARKS_FIRST <= WATERMARK_SORT <= WRITER_MARKS_LAST
    assert watermark_schedule_partition(3) == "watermarks/0003"


@pytest.mark.parametrize("decode", [writer_mark_of_body, watermark_state_of_body, watermark_schedule_of_body])
@pytest.mark.parametrize(
    "body", [{}, {"format": 2}, {"format": 1}, {"format": 1, "positions": [[0, 0.0]], "last": [1]}]
)
def test_what_does_not_decode_is_corrupt(decode: Callable[[dict[str, Any]], Any], body: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode(body)
