"""Ranges of bytes of segments between two stream cuts, as values that other processes can read. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from headrace.api.segments import RangesBetween

PIECES_PER_RANGE_MAX = 1_000

EventBoundary = Callable[[int, int, int], int]
"""(segment id, target, stop) -> an event boundary in [target, stop]."""


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The bytes `[start, end)` of a segment between two stream cuts; `start == end` when it has none there.

    Both are offsets between two events. `[low, high)` is the segment's key range. `predecessors` and `successors` name
    segments between the same two cuts; a segment with successors is sealed and ends at `end`: if its range
    was split, at that of the last piece.

    The value can be pickled: another process reads it with `Headrace.range_reader`.
    """

    scope: str
    stream: str
    segment_id: int
    low: float
    high: float
    start: int
    end: int
    predecessors: tuple[int, ...] = ()
    successors: tuple[int, ...] = ()

    @property
    def length_bytes(self) -> int:
        return self.end - self.start


def segment_ranges(found: RangesBetween) -> list[SegmentRange]:
    """The ranges of an answer of the controller, also those without bytes."""
    return [
        SegmentRange(
            found.start.scope,
            found.start.stream,
            part.segment.segment_id,
            part.segment.key_range.low,
            part.segment.key_range.high,
            part.start_offset,
            part.end_offset,
            part.predecessors,
            part.successors,
        )
        for part in found.ranges
    ]


def ranges_to_read(ranges: Iterable[SegmentRange]) -> list[SegmentRange]:
    """The ranges that hold bytes, predecessors before successors."""
    return sorted((part for part in ranges if part.length_bytes > 0), key=lambda part: part.segment_id)


def split_range(part: SegmentRange, bytes_max: int, event_boundary: EventBoundary) -> Iterator[SegmentRange]:
    """Contiguous pieces of about equal size, not much above `bytes_max` where boundaries are known."""
    pieces = min(-(-part.length_bytes // bytes_max), PIECES_PER_RANGE_MAX)
    start = part.start
    for piece in range(1, pieces):
        target = part.start + part.length_bytes * piece // pieces
        if target <= start:
            continue  # the last boundary was further away than a whole piece
        stop = event_boundary(part.segment_id, target, part.end)
        if stop >= part.end:
            break
        yield replace(part, start=start, end=stop)
        start = stop
    yield replace(part, start=start)
