"""Watermarks: what all writers together say about time, as a stream cut with bounds.

Every active writer has noted at least the lower bound, and none has noted more than the upper one; what lies before the
cut was written up to these times. The cut covers the key space exactly once and never goes back.
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
    """The times are the application's; `cut` is sorted by segment id."""

    lower_time: int
    upper_time: int
    cut: Positions


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """How far the watermarks of a stream have come, in the life of it that begins at `first_segment_number`.

    `last` begins at `last_offset` of the mark segment; the next one goes to `end_offset`. `silent_since` says since
    when a writer that others wait for has been behind, in milliseconds since 1970.
    """

    first_segment_number: int
    last: Watermark | None = None
    last_offset: int = 0
    end_offset: int = 0
    silent_since: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WatermarkRound:
    """What one look at the marks of a stream leads to.

    `watermark` is the next one, if there is one now; `inactive` are the marks of writers that nobody waits for any
    more; `silent_since` says since when each other writer that is behind has been so, in milliseconds since 1970.
    """

    watermark: Watermark | None
    inactive: tuple[WriterMark, ...]
    silent_since: Mapping[str, int]


def next_round(
    last: Watermark | None,
    marks: Iterable[WriterMark],
    silent_since: Mapping[str, int],
    *,
    timeout_ms: int,
    now_ms: int,
    segments_of_epoch: SegmentsOfEpoch,
) -> WatermarkRound:
    """The next watermark, as soon as every active writer has passed the lower bound of the last one.

    A writer is active that has passed it, or that is alive and has not been behind for `timeout_ms` yet.
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
    return WatermarkRound(watermark, tuple(inactive), waiting)


def upper_bound(
    positions: Iterable[Positions], last: Watermark | None, segments_of_epoch: SegmentsOfEpoch
) -> Positions:
    """The least stream cut that lies behind all of these positions and behind the last watermark's cut.

    Where no writer has been, the cut begins the newest segments that are known to any of them.
    """
    furthest: dict[StreamSegment, int] = {}
    for position in itertools.chain(*positions, last.cut if last is not None else ()):
        furthest[position.segment] = max(position.offset, furthest.get(position.segment, 0))
    cut: dict[StreamSegment, int] = {}
    for segment in sorted(furthest, key=lambda one: one.segment_id):  # what follows a segment comes after it
        _add(cut, segment, furthest[segment])
    while gaps := _gaps(cut):
        newest = segments_of_epoch(max(segment.epoch for segment in cut))
        for segment in newest:
            if any(segment.key_range.overlaps(gap) for gap in gaps):
                _add(cut, segment, 0)
    return positions_of(cut)


def is_at_or_behind(position: Positions, cut: Positions) -> bool:
    """Whether `position` has reached `cut` wherever both speak of the same keys."""
    return all(
        one.segment.segment_id > other.segment.segment_id
        or (one.segment.segment_id == other.segment.segment_id and one.offset >= other.offset)
        for one in position
        for other in cut
        if one.segment.key_range.overlaps(other.segment.key_range)
    )


def _add(cut: dict[StreamSegment, int], segment: StreamSegment, offset: int) -> None:
    """A segment replaces those it follows; one that is in the cut, or followed by one in it, is not added."""
    overlapping = [one for one in cut if one.key_range.overlaps(segment.key_range)]
    if any(one.segment_id >= segment.segment_id for one in overlapping):
        return
    for one in overlapping:
        del cut[one]
    cut[segment] = offset


def _gaps(cut: Iterable[StreamSegment]) -> list[KeyRange]:
    """The parts of the key space that no segment of the cut owns."""
    gaps: list[KeyRange] = []
    reached = 0.0
    for key_range in sorted(segment.key_range for segment in cut):
        if key_range.low > reached:
            gaps.append(KeyRange(reached, key_range.low))
        reached = key_range.high
    if reached < 1.0:
        gaps.append(KeyRange(reached, 1.0))
    return gaps
