"""Stream cuts: a position in a stream, as an offset in each segment at that point, and the order of positions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from numbers import Integral
from typing import Final

from headrace.model.epochs import overlapping
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_HEADER_BYTES, SEGMENTS_PER_STREAM_MAX
from headrace.model.segments import KeyRange, StreamSegment, covers_key_space_once, segment_epoch

END_OF_SEGMENT: Final = -1
"""An offset of cuts by Java readers: the segment is sealed and read to its end (`cut_ends`)."""


class Side(Enum):
    """The side of a cut on which a segment is.

    BEFORE: all bytes of the segment are before the cut. IN: the cut has a position in it. AFTER: all bytes are after
    it.
    """

    BEFORE = "before"
    IN = "in"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class StreamCut:
    """A position in a stream. `positions` are pairs of segment id and offset in bytes, sorted by id.

    An offset may be END_OF_SEGMENT as long as the cut is only stored or sent. Before a cut is compared or walked,
    `PlacedCuts.resolved` replaces it by the length of the segment.

    Raises:
        InvalidRequestError: code "invalid_stream_cut": no, too many or repeated segments, or a negative number other
            than END_OF_SEGMENT.
    """

    scope: str
    stream: str
    positions: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        try:
            ordered = tuple(sorted(self.positions))
            are_pairs = all(
                len(pair) == 2 and all(isinstance(each, (int, Integral)) for each in pair) for pair in ordered
            )
        except TypeError:
            are_pairs = False
        if not are_pairs:
            raise invalid_cut("it has positions that are not pairs of a segment id and an offset")
        object.__setattr__(self, "positions", ordered)
        if not 1 <= len(self.positions) <= SEGMENTS_PER_STREAM_MAX:
            raise invalid_cut(f"it names {len(self.positions)} segments, not 1 to {SEGMENTS_PER_STREAM_MAX}")
        if len(dict(self.positions)) != len(self.positions):
            raise invalid_cut("it names a segment twice")
        if any(identifier < 0 or offset < END_OF_SEGMENT for identifier, offset in self.positions):
            raise invalid_cut("it has a negative segment id or an offset below -1")

    @classmethod
    def of(cls, scope: str, stream: str, offsets: Mapping[int, int]) -> StreamCut:
        """The cut at these offsets, in bytes, by segment id."""
        if not isinstance(offsets, Mapping):
            raise invalid_cut(f"its offsets are a {type(offsets).__name__}, not a mapping from segment ids to offsets")
        return cls(scope, stream, tuple(offsets.items()))

    def check_belongs_to(self, scope: str, stream: str) -> None:
        """Raises InvalidRequestError, code "invalid_stream_cut", if it is a position in another stream."""
        if (self.scope, self.stream) != (scope, stream):
            raise InvalidRequestError(
                f"the stream cut belongs to {self.scope}/{self.stream}, not to {scope}/{stream}",
                code="invalid_stream_cut",
            )

    def check_between_events(self) -> None:
        """Refuses an offset at which no event can begin: the header of the first one is there.

        Raises:
            InvalidRequestError: code "invalid_stream_cut".
        """
        for identifier, offset in self.positions:
            if 0 < offset < EVENT_HEADER_BYTES:
                raise invalid_cut(f"offset {offset} of segment {identifier} is inside the first event")

    @property
    def offsets(self) -> dict[int, int]:
        """Offset in bytes by segment id. Each call makes a new dictionary, so do not call it in a loop."""
        return dict(self.positions)

    @property
    def first_epoch(self) -> int:
        """The oldest epoch of its segments."""
        return min(segment_epoch(identifier) for identifier, _ in self.positions)

    @property
    def last_epoch(self) -> int:
        """The newest epoch of its segments."""
        return max(segment_epoch(identifier) for identifier, _ in self.positions)

    def side_by_epoch(self, identifier: int) -> Side | None:
        """The side of this cut on which a segment is; None if its key range decides (`side_of`)."""
        if any(identifier == named for named, _ in self.positions):
            return Side.IN
        epoch = segment_epoch(identifier)
        if epoch > self.last_epoch:
            return Side.AFTER
        return Side.BEFORE if epoch < self.first_epoch else None


def invalid_cut(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the stream cut is not valid: {reason}", code="invalid_stream_cut")


# The order of stream cuts, and the side of a cut on which a segment is.
#
# Two segments that share key space are never active at the same time, so the one of the older epoch is the older one.
# So positions can be compared for each part of the key space without the epochs between them. This is true for valid
# cuts. The check that a cut is valid needs the epochs (`stream_cut_ranges`).


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
        positions = tuple(
            (identifier, min(offset, lengths.get(identifier, offset))) for identifier, offset in self.cut.positions
        )
        return replace(self, cut=replace(self.cut, positions=positions))


class CutOrder(Enum):
    """The position of one cut relative to another.

    BEFORE: before it in some part of the key space, after it in none. EQUAL_OR_AFTER: before it in no part. OVERLAPS:
    before it in one part and after it in another.
    """

    BEFORE = "before"
    EQUAL_OR_AFTER = "equal or after"
    OVERLAPS = "overlaps"


def compare_cuts(cut: PlacedCut, other: PlacedCut) -> CutOrder:
    """The position of `cut` relative to `other`, both valid cuts of one stream."""
    return compare_positions(cut.segments, cut.cut.offsets, other)


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


def later_cut(first: PlacedCut, second: PlacedCut) -> PlacedCut:
    """The first cut that is in no part of the key space before one of two valid cuts of a stream."""
    offsets: dict[StreamSegment, int] = {}
    for cut, against in ((first, second), (second, first)):
        positions = cut.cut.offsets
        for segment in cut.segments:
            if side_of(segment, against) is not Side.BEFORE:
                offsets[segment] = max(offsets.get(segment, 0), positions[segment.segment_id])
    positions = {segment.segment_id: offset for segment, offset in offsets.items()}
    return PlacedCut(StreamCut.of(first.cut.scope, first.cut.stream, positions), tuple(offsets))


def side_of(segment: StreamSegment, cut: PlacedCut) -> Side:
    """The side of a valid cut of its stream on which a segment is."""
    sharing = overlapping(cut.segments, segment.key_range)[0]
    if sharing == segment:
        return Side.IN
    return Side.BEFORE if segment.epoch < sharing.epoch else Side.AFTER


# The offset -1 in stream cuts: which segments were read to their ends.
#
# Readers of Pravega's Java client write -1 for a segment that they have read to its end, because they do not know the
# length of a sealed segment. Some write -1 also for a segment that they have not reached: a predecessor of it is
# unread. The other positions of the cut tell these apart. If the cut names an older segment in a part of the key range,
# the group has not reached the newer one.

_NONE_NAMED: Final = 1 << 31
"""Later than every epoch."""

Predecessors = Callable[[StreamSegment], Sequence[StreamSegment]]
"""Returns the segments that a segment follows."""


def segments_read_to_end(
    offsets: Mapping[int, int], named: Sequence[StreamSegment], predecessors_of: Predecessors
) -> list[StreamSegment]:
    """The segments at whose ends the cut is. Their lengths replace all offsets of -1, also those not reached.

    `named` are the segments of `offsets`. A segment that is not reached is left out. Instead of it the result has those
    of its predecessors that were read to their ends and that the cut no longer names. The result is sorted by id.
    """
    oldest = _OldestNamed(named)
    ended: dict[int, StreamSegment] = {}
    for segment in named:
        if offsets[segment.segment_id] != END_OF_SEGMENT:
            continue
        if oldest.is_before(segment):
            read = (predecessor for predecessor in predecessors_of(segment) if predecessor.segment_id not in offsets)
            ended |= {segment.segment_id: segment for segment in read if not oldest.is_before(segment)}
        else:
            ended[segment.segment_id] = segment
    return [ended[identifier] for identifier in sorted(ended)]


class _OldestNamed:
    """The epoch of the oldest segment that a cut names, for each part of the key space."""

    def __init__(self, named: Sequence[StreamSegment]) -> None:
        self._bounds = sorted({bound for segment in named for bound in (segment.key_range.low, segment.key_range.high)})
        self._epochs = [_NONE_NAMED] * (len(self._bounds) - 1)
        for segment in sorted(named, key=lambda segment: segment.epoch, reverse=True):
            first, last = self._parts(segment.key_range)
            self._epochs[first:last] = [segment.epoch] * (last - first)

    def is_before(self, segment: StreamSegment) -> bool:
        """Whether the cut names an older segment in a part of the key range of this one."""
        first, last = self._parts(segment.key_range)
        return min(self._epochs[first:last]) < segment.epoch

    def _parts(self, key_range: KeyRange) -> tuple[int, int]:
        return max(0, bisect_right(self._bounds, key_range.low) - 1), bisect_left(self._bounds, key_range.high)
