"""The order of stream cuts, and the side of a cut on which a segment is.

Two segments that share key space are never active at the same time, so the one of the older epoch is the older one. So
positions can be compared for each part of the key space without the epochs between them. This is true for valid cuts.
The check that a cut is valid needs the epochs (`stream_cut_ranges`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
            raise invalid_cut("its segments are not those of its positions")
        if not covers_key_space_once([segment.key_range for segment in self.segments]):
            raise invalid_cut("its segments do not cover the key space exactly once")

    def within(self, lengths: Mapping[int, int]) -> PlacedCut:
        """The cut with the ends of segments of these lengths in bytes, by id, instead of offsets after them."""
        positions = tuple((one, min(offset, lengths.get(one, offset))) for one, offset in self.cut.positions)
        return replace(self, cut=replace(self.cut, positions=positions))


class CutOrder(Enum):
    """The position of one cut relative to another.

    BEFORE: before it in some part of the key space, after it in none. EQUAL_OR_AFTER: before it in no part. OVERLAPS:
    before it in one part and after it in another.
    """

    BEFORE = "before"
    EQUAL_OR_AFTER = "equal or after"
    OVERLAPS = "overlaps"


class Side(Enum):
    """The side of a cut on which a segment is.

    BEFORE: all bytes of the segment are before the cut. IN: the cut has a position in it. AFTER: all bytes are after
    it.
    """

    BEFORE = "before"
    IN = "in"
    AFTER = "after"


def compare_cuts(one: PlacedCut, other: PlacedCut) -> CutOrder:
    """The position of `one` relative to `other`, both valid cuts of one stream."""
    return compare_positions(one.segments, one.cut.offsets, other)


def compare_positions(segments: Iterable[StreamSegment], mine: Mapping[int, int], other: PlacedCut) -> CutOrder:
    """As `compare_cuts`, for offsets by segment id. Parts of the key space that they leave out are not compared."""
    is_before = is_after = False
    theirs = other.cut.offsets
    for segment in segments:
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


def later_cut(one: PlacedCut, other: PlacedCut) -> PlacedCut:
    """The first cut that is in no part of the key space before one of two valid cuts of a stream."""
    offsets: dict[StreamSegment, int] = {}
    for cut, against in ((one, other), (other, one)):
        positions = cut.cut.offsets
        for segment in cut.segments:
            if side_of(segment, against) is not Side.BEFORE:
                offsets[segment] = max(offsets.get(segment, 0), positions[segment.segment_id])
    positions = {segment.segment_id: offset for segment, offset in offsets.items()}
    return PlacedCut(StreamCut.of(one.cut.scope, one.cut.stream, positions), tuple(offsets))


def side_of(segment: StreamSegment, cut: PlacedCut) -> Side:
    """The side of a valid cut of its stream on which a segment is."""
    sharing = overlapping(cut.segments, segment.key_range)[0]
    if sharing == segment:
        return Side.IN
    return Side.BEFORE if segment.epoch < sharing.epoch else Side.AFTER
