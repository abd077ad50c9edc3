"""Which bytes lie between two stream cuts: a pure walk over epochs, from the oldest one the cuts know to the newest.

Each segment is before, in or after a cut. Going from epoch to epoch that follows from its predecessors alone, so a walk
holds one verdict per segment and nothing else; the answer for two given cuts never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from headrace.model.epochs import Epoch
from headrace.model.errors import InvalidRequestError
from headrace.model.key_ranges import covers_key_space_once
from headrace.model.limits import SEGMENTS_BETWEEN_MAX
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_cuts import StreamCut, invalid_cut

SealedSizes = Callable[[Sequence[int]], Mapping[int, int]]
"""Asks for the lengths in bytes of sealed segments, by segment id."""


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Bytes [start_offset, end_offset) of a segment, and its neighbours within the same answer."""

    segment: StreamSegment
    start_offset: int
    end_offset: int
    predecessors: tuple[int, ...]
    successors: tuple[int, ...]


class _Side(Enum):
    BEFORE = "before"
    IN = "in"
    AFTER = "after"


@dataclass(slots=True)
class _CutWalk:
    """The verdicts for one cut on the segments seen so far."""

    name: str
    offsets: dict[int, int]
    sides: dict[int, _Side] = field(default_factory=dict)
    ranges: list[KeyRange] = field(default_factory=list)

    def start(self, segment: StreamSegment) -> None:
        """A segment of the epoch in which the walk starts: what is not in the cut was there before it."""
        self._note(segment, _Side.IN if segment.segment_id in self.offsets else _Side.BEFORE)

    def go_on(self, segment: StreamSegment, predecessors: Iterable[StreamSegment]) -> None:
        """A segment created later: it is after the cut if what it follows is in or after it."""
        passed = {self.sides[one.segment_id] is not _Side.BEFORE for one in predecessors}
        if segment.segment_id in self.offsets:
            if passed != {False}:
                raise invalid_cut(f"{self.name!r} holds segment {segment.segment_id} and one that comes before it")
            self._note(segment, _Side.IN)
        elif len(passed) != 1:
            raise invalid_cut(f"{self.name!r} lies on both sides of segment {segment.segment_id}")
        else:
            self._note(segment, _Side.AFTER if passed == {True} else _Side.BEFORE)

    def finish(self) -> None:
        unknown = sorted(self.offsets.keys() - self.sides.keys())
        if unknown:
            raise invalid_cut(
                f"{self.name!r} names segment {unknown[0]}, which lies outside of these cuts or the stream"
            )
        if not covers_key_space_once(self.ranges):
            raise invalid_cut(f"the segments of {self.name!r} do not cover the key space exactly once")

    def _note(self, segment: StreamSegment, side: _Side) -> None:
        self.sides[segment.segment_id] = side
        if side is _Side.IN:
            self.ranges.append(segment.key_range)


def epochs_between(from_cut: StreamCut, to_cut: StreamCut, first_epoch: int | None = None) -> range:
    """The numbers of the epochs that `segments_between` walks.

    It may begin with any epoch in which no segment lies behind `from_cut`: the oldest one of its segments unless
    `first_epoch` names a newer one.

    Raises:
        InvalidRequestError: code "invalid_stream_cut": `to_cut` ends before `from_cut` does.
    """
    if to_cut.last_epoch < from_cut.last_epoch:
        raise invalid_cut("'to' lies before 'from'")
    return range(from_cut.first_epoch if first_epoch is None else first_epoch, to_cut.last_epoch + 1)


def segments_between(
    from_cut: StreamCut, to_cut: StreamCut, epochs: Iterable[Epoch], sealed_sizes: SealedSizes
) -> list[SegmentRange]:
    """Every segment with bytes between the cuts (empty ranges too), predecessors first.

    `epochs` are those of `epochs_between`, ascending; they are taken one by one and not kept.

    Raises:
        InvalidRequestError: code "invalid_stream_cut": a cut names unknown segments, does not cover the key space once,
            holds a segment and its predecessor, or `to_cut` is before `from_cut`; or the answer would be too large.
    """
    lower, upper = _CutWalk("from", from_cut.offsets), _CutWalk("to", to_cut.offsets)
    found: dict[int, StreamSegment] = {}
    predecessors: dict[int, tuple[int, ...]] = {}
    for index, epoch in enumerate(epochs):
        for segment in epoch.created if index else epoch.segments:
            before = epoch.predecessors_of(segment) if index else ()
            for walk in (lower, upper):
                if index:
                    walk.go_on(segment, before)
                else:
                    walk.start(segment)
            if _is_between(lower, upper, segment.segment_id):
                found[segment.segment_id] = segment
                predecessors[segment.segment_id] = tuple(one.segment_id for one in before)
        if len(found) > SEGMENTS_BETWEEN_MAX:
            raise InvalidRequestError(f"more than {SEGMENTS_BETWEEN_MAX} segments lie between: ask for less at once")
    lower.finish()
    upper.finish()
    _check_order(lower, upper)
    return _ranges(lower, upper, found, predecessors, sealed_sizes)


def _is_between(lower: _CutWalk, upper: _CutWalk, identifier: int) -> bool:
    return lower.sides[identifier] is not _Side.BEFORE and upper.sides[identifier] is not _Side.AFTER


def _check_order(lower: _CutWalk, upper: _CutWalk) -> None:
    """Every position of `from` is at or before the one of `to`."""
    for identifier, offset in lower.offsets.items():
        if upper.sides[identifier] is _Side.AFTER or offset > upper.offsets.get(identifier, offset):
            raise invalid_cut(f"'to' lies before 'from' at segment {identifier}")


def _ranges(
    lower: _CutWalk,
    upper: _CutWalk,
    found: Mapping[int, StreamSegment],
    predecessors: Mapping[int, tuple[int, ...]],
    sealed_sizes: SealedSizes,
) -> list[SegmentRange]:
    successors: dict[int, list[int]] = {identifier: [] for identifier in found}
    for identifier in sorted(found):
        for before in predecessors[identifier]:
            if before in found:
                successors[before].append(identifier)
    sizes = sealed_sizes([identifier for identifier in found if identifier not in upper.offsets])
    ranges = []
    for identifier in sorted(found):  # An id starts with its epoch, so predecessors come first.
        start = lower.offsets.get(identifier, 0)
        end = upper.offsets[identifier] if identifier in upper.offsets else sizes[identifier]
        if start > end:
            raise invalid_cut(f"'from' is at {start} of segment {identifier}, which ends at {end}")
        inside = tuple(one for one in predecessors[identifier] if one in found)
        ranges.append(SegmentRange(found[identifier], start, end, inside, tuple(successors[identifier])))
    return ranges
