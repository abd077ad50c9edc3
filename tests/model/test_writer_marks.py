"""Marks of writers: what the next one may say after the last one."""

from __future__ import annotations

import pytest

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX, WRITER_NAME_CHARACTERS_MAX
from headrace.model.segments import KeyRange, StreamSegment, segment_id
from headrace.model.writer_marks import (
    TIME_MAX,
    TIME_MIN,
    WriterMark,
    check_offsets,
    check_time,
    check_writer_name,
    noted,
    positions_of,
    shut_down,
)

OLD_LEFT = StreamSegment(segment_id(0, 0), KeyRange(0.0, 0.5))
OLD_RIGHT = StreamSegment(segment_id(0, 1), KeyRange(0.5, 1.0))
NEW = StreamSegment(segment_id(1, 2), KeyRange(0.0, 1.0))


def _mark(time: int, **offsets: int) -> WriterMark:
    segments = {"left": OLD_LEFT, "right": OLD_RIGHT, "new": NEW}
    return WriterMark("w", time, positions_of({segments[name]: offset for name, offset in offsets.items()}))


@pytest.mark.parametrize(
    "after",
    [
        _mark(10, left=5, right=5),
        _mark(11, left=6, right=5),
        _mark(11, right=9),
        _mark(11, new=0),
        _mark(11, left=5, new=0),
    ],
)
def test_marks_that_are_taken(after: WriterMark):
    assert noted(_mark(10, left=5, right=5), after) == after


@pytest.mark.parametrize(
    ("after", "code"),
    [
        (_mark(9, left=6, right=6), "invalid_time"),
        (_mark(11, left=4, right=6), "invalid_position"),
        (_mark(11, left=4, new=0), "invalid_position"),
        (_mark(11, left=5, right=4), "invalid_position"),
        (_mark(11, left=9), "invalid_position"),
    ],
)
def test_marks_that_go_back_are_refused(after: WriterMark, code: str):
    with pytest.raises(InvalidRequestError) as refused:
        noted(_mark(10, left=5, right=5), after)
    assert refused.value.specific_code == code


def test_the_first_mark_is_always_taken():
    assert noted(None, _mark(-7, left=0)) == _mark(-7, left=0)


def test_a_writer_is_alive_again_with_a_mark_after_its_shutdown():
    gone = shut_down(_mark(10, left=5))
    assert not gone.is_alive
    assert noted(gone, _mark(10, left=5)).is_alive


@pytest.mark.parametrize("name", ["", "_w", "a/b", "w" * (WRITER_NAME_CHARACTERS_MAX + 1), "ü"])
def test_names_that_no_writer_has(name: str):
    with pytest.raises(InvalidRequestError) as refused:
        check_writer_name(name)
    assert refused.value.specific_code == "invalid_name"


def test_names_that_writers_have():
    assert check_writer_name("170141183460469231731687303715884105727") == "170141183460469231731687303715884105727"
    assert check_writer_name("w" * WRITER_NAME_CHARACTERS_MAX)


@pytest.mark.parametrize("time", [TIME_MIN - 1, TIME_MAX + 1])
def test_times_that_are_none(time: int):
    with pytest.raises(InvalidRequestError):
        check_time(time)


@pytest.mark.parametrize(
    "offsets",
    [{}, {-1: 0}, {0: -1}, {0: 1 << 63}, {0: 0, 1: -1}, dict.fromkeys(range(SEGMENTS_PER_STREAM_MAX + 1), 0)],
)
def test_positions_that_cannot_be(offsets: dict[int, int]):
    with pytest.raises(InvalidRequestError) as refused:
        check_offsets(offsets)
    assert refused.value.specific_code == "invalid_position"


@pytest.mark.parametrize("offsets", [{0: 0}, {0: (1 << 63) - 1}, dict.fromkeys(range(SEGMENTS_PER_STREAM_MAX), 0)])
def test_positions_at_their_bounds_are_allowed(offsets: dict[int, int]):
    check_offsets(offsets)


@pytest.mark.parametrize("time", [TIME_MIN, -1, 0, TIME_MAX])
def test_times_at_their_bounds_are_allowed(time: int):
    assert check_time(time) == time
