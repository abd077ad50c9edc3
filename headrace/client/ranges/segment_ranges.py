"""Ranges of bytes of segments between two stream cuts, as values that other processes can read. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.api.segments import RangesBetween


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
            part.segment_id,
            part.low,
            part.high,
            part.start_offset,
            part.end_offset,
            part.predecessors,
            part.successors,
        )
        for part in found.ranges
    ]


def joined_ranges(ranges: Iterable[SegmentRange]) -> list[SegmentRange]:
    """The ranges of consecutive batches as those between the first cut and the last one, in the order of their ids."""
    joined: dict[int, SegmentRange] = {}
    for part in ranges:
        before = joined.get(part.segment_id)
        if before is not None:
            part = replace(
                part,
                start=before.start,
                predecessors=before.predecessors or part.predecessors,
                successors=before.successors or part.successors,
            )
        joined[part.segment_id] = part
    return [joined[identifier] for identifier in sorted(joined)]


def ranges_to_read(ranges: Iterable[SegmentRange]) -> list[SegmentRange]:
    """The ranges that hold bytes, predecessors before successors."""
    return sorted((part for part in ranges if part.length_bytes > 0), key=lambda part: part.segment_id)
