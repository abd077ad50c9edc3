"""The record of a writer's mark: golden value and key."""

from __future__ import annotations

import pytest
from golden_records import GoldenRecords

from headrace.metadata.watermark_state import WATERMARK_SORT
from headrace.metadata.writer_mark import (
    WRITER_MARKS_FIRST,
    WRITER_MARKS_LAST,
    decode_writer_mark,
    writer_mark_body,
    writer_mark_key,
    writer_mark_sort,
)
from headrace.model.errors import CorruptError
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.writer_marks import WriterMark, positions_of
from headrace.ports.metadata_store import Key

POSITIONS = positions_of(
    {StreamSegment(1 << 32 | 3, KeyRange(1 / 3, 1.0)): 2**62, StreamSegment(0, KeyRange(0.0, 1 / 3)): 5}
)
MARK = WriterMark("w-1", -(2**62), POSITIONS, is_alive=False)
GOLDEN = {
    "format": 1,
    "writer": "w-1",
    "time": -(2**62),
    "positions": [[0, 0.0, 0.3333333333333333, 5], [1 << 32 | 3, 0.3333333333333333, 1.0, 2**62]],
    "alive": False,
    "first_number": 7,
}


class TestWriterMark(GoldenRecords):
    shapes = {"writer mark": ((MARK, 7), lambda value: writer_mark_body(*value), decode_writer_mark, GOLDEN)}


def test_key():
    assert writer_mark_key("s", "t", "w-1") == Key("stream/s/t", "writer-mark/w-1")
    assert WRITER_MARKS_FIRST < writer_mark_sort("-") < writer_mark_sort("z" * 250) < WRITER_MARKS_LAST
    assert not WRITER_MARKS_FIRST <= WATERMARK_SORT <= WRITER_MARKS_LAST


def test_a_position_without_an_offset_is_refused():
    with pytest.raises(CorruptError):
        decode_writer_mark({**GOLDEN, "positions": [[0, 0.0]]})
