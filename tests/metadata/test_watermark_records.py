"""The record of how far watermarks have come: golden values and key."""

from __future__ import annotations

from dataclasses import replace

import pytest
from golden_records import GoldenRecords

from headrace.metadata.watermark_records import (
    WATERMARK_SORT,
    WRITER_MARKS_FIRST,
    WRITER_MARKS_LAST,
    decode_watermark_state,
    decode_writer_mark,
    watermark_key,
    watermark_state_body,
    writer_mark_body,
    writer_mark_key,
    writer_mark_sort,
)
from headrace.metadata.watermark_schedule import (
    ScheduledStream,
    decode_watermark_schedule,
    watermark_schedule_body,
    watermark_schedule_key,
    watermark_schedule_partition,
)
from headrace.model.errors import CorruptError
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.watermarks import Watermark, WatermarkState
from headrace.model.writer_marks import WriterMark, positions_of
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


SCHEDULED = ScheduledStream("s", "t", 7, 3)
WATERMARK_SCHEDULE_GOLDEN = {"format": 1, "scope": "s", "stream": "t", "first_number": 7, "writers": 3}


class TestWatermarkSchedule(GoldenRecords):
    shapes = {
        "watermark schedule": (
            SCHEDULED,
            watermark_schedule_body,
            decode_watermark_schedule,
            WATERMARK_SCHEDULE_GOLDEN,
        ),
    }


def test_failures_are_stored_if_there_were_any():
    failed = replace(SCHEDULED, failures=2, not_before_ms=5)
    assert watermark_schedule_body(failed) == WATERMARK_SCHEDULE_GOLDEN | {"failures": 2, "not_before": 5}
    assert decode_watermark_schedule(watermark_schedule_body(failed)) == failed


def test_key_of_watermark_schedule():
    assert watermark_schedule_key("s", "t") == Key("watermarks/0000", "s/t")
    assert watermark_schedule_partition(3) == "watermarks/0003"


MARK = WriterMark("w-1", -(2**62), POSITIONS, is_alive=False)
WRITER_MARK_GOLDEN = {
    "format": 1,
    "writer": "w-1",
    "time": -(2**62),
    "positions": [[0, 0.0, 0.3333333333333333, 5], [1 << 32 | 3, 0.3333333333333333, 1.0, 2**62]],
    "alive": False,
    "first_number": 7,
}


class TestWriterMark(GoldenRecords):
    shapes = {
        "writer mark": ((MARK, 7), lambda value: writer_mark_body(*value), decode_writer_mark, WRITER_MARK_GOLDEN)
    }


def test_key_of_writer_mark():
    assert writer_mark_key("s", "t", "w-1") == Key("stream/s/t", "writer-mark/w-1")
    assert WRITER_MARKS_FIRST < writer_mark_sort("-") < writer_mark_sort("z" * 250) < WRITER_MARKS_LAST
    assert not WRITER_MARKS_FIRST <= WATERMARK_SORT <= WRITER_MARKS_LAST


def test_a_position_without_an_offset_is_refused():
    with pytest.raises(CorruptError):
        decode_writer_mark({**WRITER_MARK_GOLDEN, "positions": [[0, 0.0]]})
