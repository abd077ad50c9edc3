"""Watermarks: bounds of event time at a stream cut, computed from the times that all writers note.

Every active writer has noted at least the lower bound, and no writer has noted more than the upper bound. The events
before the cut were written up to these times. The cut covers the key space exactly once and never moves back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.writer_marks import Positions, WriterMark, positions_of

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
    for segment in sorted(furthest, key=lambda segment: segment.segment_id):  # a successor has a higher id
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
        each.segment.segment_id > other.segment.segment_id
        or (each.segment.segment_id == other.segment.segment_id and each.offset >= other.offset)
        for each in position
        for other in cut
        if each.segment.key_range.overlaps(other.segment.key_range)
    )


def _add(cut: dict[StreamSegment, int], segment: StreamSegment, offset: int) -> None:
    """Add a segment to the cut in place of its predecessors, unless the cut has it or a successor of it."""
    overlapping = [each for each in cut if each.key_range.overlaps(segment.key_range)]
    if any(each.segment_id >= segment.segment_id for each in overlapping):
        return
    for each in overlapping:
        del cut[each]
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
