"""Watermarks: bounds of event time at a stream cut, computed from the times that all writers note.

Every active writer has noted at least the lower bound, and no writer has noted more than the upper bound. The events
before the cut were written up to these times. The cut covers the key space exactly once and never moves back.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX, WRITER_NAME_CHARACTERS_MAX
from headrace.model.names import refuse_dot_segment
from headrace.model.segments import KeyRange, StreamSegment

# Writer marks: the time that a writer notes, and the position in the stream up to which it has written.
#
# Times are chosen by the application (64 bits, signed): event times, sequence numbers or other numbers that only grow.
# A position has an offset in bytes in each segment to which the writer writes. It need not cover the key space.

TIME_MIN, TIME_MAX = -(1 << 63) + 1, (1 << 63) - 1
"""Bounds of an application's time. In Pravega's protocol the number below TIME_MIN means that there is no time."""

_OFFSET_MAX = (1 << 63) - 1
_WRITER_NAME = re.compile(r"[A-Za-z0-9.\-]+")


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
            "a-z, the digits, '.' and '-'",
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
    ordered = sorted(offsets.items(), key=lambda one: one[0].segment_id)
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
    before = {one.segment.segment_id: one.offset for one in previous.positions}
    after = {one.segment.segment_id: one.offset for one in mark.positions}
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


SegmentsOfEpoch = Callable[[int], Sequence[StreamSegment]]
"""The segments of an epoch by its number, sorted by key range."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """A stream cut with its bounds of time, in the application's unit. `cut` is sorted by segment id."""

    lower_time: int
    upper_time: int
    cut: Positions


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """The progress of a stream's watermarks, in the incarnation with this `first_segment_number`.

    `last` is at `last_offset` of the mark segment; the next watermark is written at `end_offset`. `silent_since` has
    the writers for which the watermark waits, with the time since which each has been behind, in milliseconds since
    1970.
    """

    first_segment_number: int
    last: Watermark | None = None
    last_offset: int = 0
    end_offset: int = 0
    silent_since: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WatermarkStep:
    """The result of one computation over the marks of a stream.

    `watermark` is the next watermark, or None if it cannot be computed yet. `inactive` are the marks of writers for
    which the watermark no longer waits. `silent_since` has the other writers that are behind, with the time since which
    each has been behind, in milliseconds since 1970.
    """

    watermark: Watermark | None
    inactive: tuple[WriterMark, ...]
    silent_since: Mapping[str, int]


def next_watermark_step(
    last: Watermark | None,
    marks: Iterable[WriterMark],
    silent_since: Mapping[str, int],
    *,
    timeout_ms: int,
    now_ms: int,
    segments_of_epoch: SegmentsOfEpoch,
) -> WatermarkStep:
    """The next watermark, as soon as every active writer has passed the lower bound of the last one.

    A writer is active if it has passed that bound, or if it is alive and has been behind for less than `timeout_ms`.
    """
    participating: list[WriterMark] = []
    inactive: list[WriterMark] = []
    waiting: dict[str, int] = {}
    for mark in marks:
        if last is None or mark.time > last.lower_time:
            participating.append(mark)
            continue
        since_ms = silent_since.get(mark.writer, now_ms)
        if mark.is_alive and now_ms - since_ms < timeout_ms:
            waiting[mark.writer] = since_ms
        else:
            inactive.append(mark)
    watermark = None
    if participating and not waiting:
        times = [mark.time for mark in participating]
        cut = upper_bound([mark.positions for mark in participating], last, segments_of_epoch)
        watermark = Watermark(min(times), max(times), cut)
    return WatermarkStep(watermark, tuple(inactive), waiting)


def upper_bound(
    positions: Iterable[Positions], last: Watermark | None, segments_of_epoch: SegmentsOfEpoch
) -> Positions:
    """The lowest stream cut that is at or after all of these positions and the last watermark's cut.

    In key ranges without a position, the cut has the start of segments of the newest epoch in the cut.
    """
    furthest: dict[StreamSegment, int] = {}
    for position in itertools.chain(*positions, last.cut if last is not None else ()):
        furthest[position.segment] = max(position.offset, furthest.get(position.segment, 0))
    cut: dict[StreamSegment, int] = {}
    for segment in sorted(furthest, key=lambda one: one.segment_id):  # a successor has a higher id
        _add(cut, segment, furthest[segment])
    while gaps := _gaps(cut):
        newest = segments_of_epoch(max(segment.epoch for segment in cut))
        for segment in newest:
            if any(segment.key_range.overlaps(gap) for gap in gaps):
                _add(cut, segment, 0)
    return positions_of(cut)


def is_at_or_behind(position: Positions, cut: Positions) -> bool:
    """Whether `position` is at or after `cut` in all key ranges that both cover."""
    return all(
        one.segment.segment_id > other.segment.segment_id
        or (one.segment.segment_id == other.segment.segment_id and one.offset >= other.offset)
        for one in position
        for other in cut
        if one.segment.key_range.overlaps(other.segment.key_range)
    )


def _add(cut: dict[StreamSegment, int], segment: StreamSegment, offset: int) -> None:
    """Add a segment to the cut in place of its predecessors, unless the cut has it or a successor of it."""
    overlapping = [one for one in cut if one.key_range.overlaps(segment.key_range)]
    if any(one.segment_id >= segment.segment_id for one in overlapping):
        return
    for one in overlapping:
        del cut[one]
    cut[segment] = offset


def _gaps(cut: Iterable[StreamSegment]) -> list[KeyRange]:
    """The parts of the key space that no segment of the cut covers."""
    gaps: list[KeyRange] = []
    reached = 0.0
    for key_range in sorted(segment.key_range for segment in cut):
        if key_range.low > reached:
            gaps.append(KeyRange(reached, key_range.low))
        reached = key_range.high
    if reached < 1.0:
        gaps.append(KeyRange(reached, 1.0))
    return gaps
