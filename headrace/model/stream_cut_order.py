"""The order of stream cuts, and on which side of a cut a segment lies.

Two segments that share key space are never there at once, so that the older one is the one of the older epoch. That is
all it takes to compare positions part by part of the key space, without the history between them. It holds for valid
cuts: whether a cut is valid needs the history (`stream_cut_ranges`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.model.epochs import overlapping
from headrace.model.key_ranges import covers_key_space_once
from headrace.model.segments import StreamSegment
from headrace.model.stream_cuts import StreamCut, invalid_cut


@dataclass(frozen=True, slots=True)
class PlacedCut:
    """A stream cut together with its segments, which are sorted by key range.

    Raises:
        InvalidRequestError: code "invalid_stream_cut": the segments are not those of the cut, or do not cover the key
            space exactly once.
    """

    cut: StreamCut
    segments: tuple[StreamSegment, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", tuple(sorted(self.segments, key=lambda segment: segment.key_range)))
        if {segment.segment_id for segment in self.segments} != self.cut.offsets.keys():
            raise invalid_cut("its segments are not the ones that it names")
        if not covers_key_space_once([segment.key_range for segment in self.segments]):
            raise invalid_cut("its segments do not cover the key space exactly once")


class CutOrder(Enum):
    """How one cut lies to another.

    BEFORE: nowhere behind it and somewhere before it. EQUAL_OR_AFTER: nowhere before it. OVERLAPS: before it in one
    part of the key space, after it in another.
    """

    BEFORE = "before"
    EQUAL_OR_AFTER = "equal or after"
    OVERLAPS = "overlaps"


class Side(Enum):
    """Where a segment lies: all of its bytes before the cut, the cut within it, or all of its bytes after the cut."""

    BEFORE = "before"
    IN = "in"
    AFTER = "after"


def compare_cuts(one: PlacedCut, other: PlacedCut) -> CutOrder:
    """How `one` lies to `other`: two valid cuts of one stream."""
    is_before = is_after = False
    mine, theirs = one.cut.offsets, other.cut.offsets
    for segment in one.segments:
        for against in overlapping(other.segments, segment.key_range):
            if against == segment:
                gap = mine[segment.segment_id] - theirs[segment.segment_id]
            else:
                gap = segment.epoch - against.epoch
            is_before = is_before or gap < 0
            is_after = is_after or gap > 0
    if is_before:
        return CutOrder.OVERLAPS if is_after else CutOrder.BEFORE
    return CutOrder.EQUAL_OR_AFTER


def side_of(segment: StreamSegment, cut: PlacedCut) -> Side:
    """On which side of a valid cut of its stream a segment lies."""
    sharing = overlapping(cut.segments, segment.key_range)[0]
    if sharing == segment:
        return Side.IN
    return Side.BEFORE if segment.epoch < sharing.epoch else Side.AFTER
