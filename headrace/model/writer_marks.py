"""Writer marks: the time that a writer notes, and the position in the stream up to which it has written.

Times are chosen by the application (64 bits, signed): event times, sequence numbers or other numbers that only grow. A
position has an offset in bytes in each segment to which the writer writes. It need not cover the key space.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX, WRITER_NAME_CHARACTERS_MAX
from headrace.model.names import refuse_dot_segment
from headrace.model.segments import StreamSegment

TIME_MIN, TIME_MAX = -(1 << 63) + 1, (1 << 63) - 1
"""Bounds of an application's time. In Pravega's protocol the number below TIME_MIN means that there is no time."""

_OFFSET_MAX = (1 << 63) - 1
_WRITER_NAME = re.compile(r"[A-Za-z0-9.\-][A-Za-z0-9._\-]*")


@dataclass(frozen=True, slots=True)
class SegmentPosition:
    """An offset in bytes in a segment."""

    segment: StreamSegment
    offset: int


Positions = tuple[SegmentPosition, ...]
"""Sorted by segment id; each segment at most once."""


@dataclass(frozen=True, slots=True)
class WriterMark:
    """All events that the writer wrote before `time` are before `positions`. It is alive until it was shut down."""

    writer: str
    time: int
    positions: Positions
    is_alive: bool = True


def check_writer_name(name: str) -> str:
    """Returns `name` if it may be a writer's id, else raises InvalidRequestError."""
    if not _WRITER_NAME.fullmatch(name) or len(name) > WRITER_NAME_CHARACTERS_MAX:
        raise InvalidRequestError(
            f"writer id {name[:300]!r} is not allowed: use 1 to {WRITER_NAME_CHARACTERS_MAX} of the letters A-Z and "
            "a-z, the digits, '.', '_' and '-', without a '_' in front",
            details={"kind": "writer", "characters_max": WRITER_NAME_CHARACTERS_MAX},
            code="invalid_name",
        )
    return refuse_dot_segment("writer", name)


def check_time(time: int) -> int:
    """Returns `time` if it is a valid time, else raises InvalidRequestError, code "invalid_time"."""
    if not TIME_MIN <= time <= TIME_MAX:
        raise _invalid_time(f"{time} is not a valid time: expected a number of 64 bits, at least {TIME_MIN}")
    return time


def check_offsets(offsets: Mapping[int, int]) -> None:
    """Raises InvalidRequestError, code "invalid_position", if these offsets cannot be a position of any stream."""
    if not 1 <= len(offsets) <= SEGMENTS_PER_STREAM_MAX:
        raise invalid_position(f"it names {len(offsets)} segments, not 1 to {SEGMENTS_PER_STREAM_MAX}")
    for identifier, offset in offsets.items():
        if identifier < 0 or not 0 <= offset <= _OFFSET_MAX:
            raise invalid_position(f"segment {identifier} cannot have offset {offset}")


def positions_of(offsets: Mapping[StreamSegment, int]) -> Positions:
    """The positions at these offsets, sorted by segment id."""
    ordered = sorted(offsets.items(), key=lambda position: position[0].segment_id)
    return tuple(SegmentPosition(segment, offset) for segment, offset in ordered)


def noted(previous: WriterMark | None, mark: WriterMark) -> WriterMark:
    """The writer's next mark. Its first mark is always accepted.

    Raises:
        InvalidRequestError: code "invalid_time": the time is before the last one; code "invalid_position": the position
            is behind the last one in a segment that both know, or knows only older segments.
    """
    if previous is None:
        return mark
    if mark.time < previous.time:
        raise _invalid_time(
            f"writer {mark.writer} noted {previous.time} before: its time cannot go back to {mark.time}"
        )
    before = {position.segment.segment_id: position.offset for position in previous.positions}
    after = {position.segment.segment_id: position.offset for position in mark.positions}
    if max(after) < max(before):
        raise invalid_position(f"the writer has written to segment {max(before)} before, newer than all that it names")
    for identifier in sorted(before.keys() & after.keys()):
        if after[identifier] < before[identifier]:
            raise invalid_position(
                f"it is at {after[identifier]} of segment {identifier}, the writer was at {before[identifier]} before"
            )
    return mark


def shut_down(mark: WriterMark) -> WriterMark:
    """The mark of a writer that was shut down: watermarks no longer wait for it."""
    return replace(mark, is_alive=False)


def invalid_position(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the writer's position is not valid: {reason}", code="invalid_position")


def _invalid_time(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, code="invalid_time")
