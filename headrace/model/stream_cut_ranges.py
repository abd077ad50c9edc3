"""The byte ranges between two stream cuts: a walk over the epochs, from the oldest to the newest one of the cuts.

Each segment is before, in or after a cut. In a walk from epoch to epoch the side of a segment follows from the sides of
its predecessors. So the walk keeps one side per segment. The result for two given cuts never changes.

A cut can be the checkpoint of a group of Pravega's Java readers. It names only the segments that a reader owns or can
acquire. A part of the key space is left out if its segments are read to their ends and nothing follows them, or only a
segment that also follows one that is not read to its end. The segments of such a part are before the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from headrace.model.epochs import Epoch
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import PIECES_PER_RANGE_MAX, SEGMENTS_BETWEEN_MAX
from headrace.model.segments import KeyRange, StreamSegment, covers_key_space_once
from headrace.model.stream_cuts import StreamCut, invalid_cut

# Ranges of bytes split into pieces that begin and end between two events.


def pieces_at_best(start: int, end: int, bytes_max: int | None) -> int:
    """The number of pieces if each is split where it is best; boundaries that are far apart make fewer."""
    return 1 if bytes_max is None else min(-(-(end - start) // bytes_max), PIECES_PER_RANGE_MAX)


def split_targets(start: int, end: int, bytes_max: int | None) -> list[int]:
    """Where the range is split at best, ascending: it then has pieces of equal size, none above `bytes_max`.

    A range gets at most PIECES_PER_RANGE_MAX pieces. None means one piece.
    """
    length = end - start
    pieces = pieces_at_best(start, end, bytes_max)
    return [start + length * piece // pieces for piece in range(1, pieces)]


def split_pieces(
    start: int, end: int, bytes_max: int | None, boundary: Callable[[int], int]
) -> Iterator[tuple[int, int]]:
    """Contiguous pieces of about equal size, not much above `bytes_max` where boundaries are known.

    `boundary` is called for some of the `split_targets`. It returns an event boundary at or after a target. If it
    returns `end` or more, the piece ends with the range.
    """
    begin = start
    for target in split_targets(start, end, bytes_max):
        if target <= begin:
            continue  # the last boundary was further away than a whole piece
        stop = boundary(target)
        if stop >= end:
            break
        yield begin, stop
        begin = stop
    yield begin, end


SealedSizes = Callable[[Sequence[int]], Mapping[int, int]]
"""Returns the lengths in bytes of sealed segments, by segment id."""

CheckFinished = Callable[[Sequence[int]], None]
"""Raises InvalidRequestError unless these segments can have been read to their ends."""


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
    """The sides of one cut on which the segments seen so far are. A checkpoint may leave out parts of the key space.

    `waiting` are the segments that follow a part which a checkpoint leaves out, and another one.
    """

    name: str
    offsets: dict[int, int]
    is_checkpoint: bool = False
    waiting: list[int] = field(default_factory=list)
    sides: dict[int, _Side] = field(default_factory=dict)
    ranges: list[KeyRange] = field(default_factory=list)

    def start(self, segment: StreamSegment) -> None:
        """Add a segment of the first epoch of the walk: it is before the cut unless the cut names it."""
        self._note(segment, _Side.IN if segment.segment_id in self.offsets else _Side.BEFORE)

    def advance(self, segment: StreamSegment, predecessors: Iterable[StreamSegment]) -> None:
        """Add a segment of a later epoch: it is after the cut if its predecessors are in or after the cut.

        With a checkpoint it is also after the cut if only some of them are: the readers wait for these.
        """
        passed = {self.sides[predecessor.segment_id] is not _Side.BEFORE for predecessor in predecessors}
        if segment.segment_id in self.offsets:
            if passed != {False}:
                raise invalid_cut(f"{self.name!r} names segment {segment.segment_id} and a predecessor of it")
            self._note(segment, _Side.IN)
        elif len(passed) != 1 and not self.is_checkpoint:
            raise invalid_cut(f"{self.name!r} is both before and after segment {segment.segment_id}")
        else:
            self._note(segment, _Side.AFTER if True in passed else _Side.BEFORE)
            if len(passed) > 1:
                self.waiting.append(segment.segment_id)

    def finish(self) -> None:
        unknown = sorted(self.offsets.keys() - self.sides.keys())
        if unknown:
            raise invalid_cut(
                f"{self.name!r} names segment {unknown[0]}, which is not between these cuts or not in the stream"
            )
        if not self.is_checkpoint and not covers_key_space_once(self.ranges):
            raise invalid_cut(f"the segments of {self.name!r} do not cover the key space exactly once")

    def _note(self, segment: StreamSegment, side: _Side) -> None:
        self.sides[segment.segment_id] = side
        if side is _Side.IN:
            self.ranges.append(segment.key_range)


def epochs_between(from_cut: StreamCut, to_cut: StreamCut, first_epoch: int | None = None) -> range:
    """The numbers of the epochs that `segments_between` walks.

    The walk may begin with any epoch in which no segment is after `from_cut`. It begins with the oldest epoch of the
    cut's segments, unless `first_epoch` names a newer one.

    Raises:
        InvalidRequestError: code "invalid_stream_cut": `to_cut` ends before `from_cut` does.
    """
    if to_cut.last_epoch < from_cut.last_epoch:
        raise invalid_cut("'to' is before 'from'")
    return range(from_cut.first_epoch if first_epoch is None else first_epoch, to_cut.last_epoch + 1)


def check_checkpoint(cut: StreamCut, end: StreamCut | None, epochs: Iterable[Epoch]) -> None:
    """Check that a group of readers can start at a cut that may leave out parts of the key space.

    The readers read up to `end`, or to the end of the stream. They do not know what was left out. So they would wait
    forever for a segment that follows such a part and one that they read.

    `epochs` are in ascending order, and read one by one. No segment of the first one is after a cut. The last one is
    that of the end.

    Raises:
        InvalidRequestError: code "invalid_stream_cut": a cut names unknown segments, or a segment and its predecessor;
            or readers would wait forever.
    """
    start = _CutWalk("start", cut.offsets, is_checkpoint=True)
    upper = None if end is None else _CutWalk("end", end.offsets)
    walks = (start,) if upper is None else (start, upper)
    for index, epoch in enumerate(epochs):
        for segment in epoch.created if index else epoch.segments:
            _visit(walks, segment, epoch.predecessors_of(segment) if index else None)
    for walk in walks:
        walk.finish()
    waiting = [each for each in start.waiting if upper is None or upper.sides[each] is not _Side.AFTER]
    if waiting:
        raise invalid_cut(f"'start' leaves out a predecessor of segment {waiting[0]}, for which readers would wait")


def segments_between(
    from_cut: StreamCut,
    to_cut: StreamCut,
    epochs: Iterable[Epoch],
    sealed_sizes: SealedSizes,
    check_finished: CheckFinished | None = None,
) -> list[SegmentRange]:
    """Every segment with bytes between the cuts (empty ranges too), predecessors first.

    `epochs` are those of `epochs_between`, in ascending order; they are read one by one and not kept.

    With `check_finished`, `from_cut` may be a checkpoint that leaves out parts of the key space. It is called with the
    segments of `to_cut` in these parts, if there are any; what it raises is not caught.

    Raises:
        InvalidRequestError: code "invalid_stream_cut": a cut names unknown segments, does not cover the key space once,
            holds a segment and its predecessor, or `to_cut` is before `from_cut`; or the answer would be too large.
    """
    lower = _CutWalk("from", from_cut.offsets, is_checkpoint=check_finished is not None)
    upper = _CutWalk("to", to_cut.offsets)
    segments: dict[int, StreamSegment] = {}
    predecessors: dict[int, tuple[int, ...]] = {}
    for index, epoch in enumerate(epochs):
        for segment in epoch.created if index else epoch.segments:
            before = epoch.predecessors_of(segment) if index else None
            _visit((lower, upper), segment, before)
            if _is_between(lower, upper, segment.segment_id):
                segments[segment.segment_id] = segment
                predecessors[segment.segment_id] = tuple(segment.segment_id for segment in before or ())
        if len(segments) > SEGMENTS_BETWEEN_MAX:
            raise InvalidRequestError(
                f"there are more than {SEGMENTS_BETWEEN_MAX} segments between: choose closer cuts"
            )
    lower.finish()
    upper.finish()
    _check_order(lower, upper)
    finished = [identifier for identifier in upper.offsets if lower.sides[identifier] is _Side.BEFORE]
    if finished and check_finished is not None:
        check_finished(finished)
    return _ranges(lower, upper, segments, predecessors, sealed_sizes)


def _visit(walks: Iterable[_CutWalk], segment: StreamSegment, before: Sequence[StreamSegment] | None) -> None:
    """Add a segment with its predecessors; None for a segment of the first epoch."""
    for walk in walks:
        if before is None:
            walk.start(segment)
        else:
            walk.advance(segment, before)


def _is_between(lower: _CutWalk, upper: _CutWalk, identifier: int) -> bool:
    return lower.sides[identifier] is not _Side.BEFORE and upper.sides[identifier] is not _Side.AFTER


def _check_order(lower: _CutWalk, upper: _CutWalk) -> None:
    """Raises InvalidRequestError unless every position of `from` is at or before that of `to`."""
    for identifier, offset in lower.offsets.items():
        end = upper.offsets.get(identifier, offset)
        if upper.sides[identifier] is _Side.AFTER or offset > end:
            at = f" at {end}" if end < offset else ""
            raise invalid_cut(f"'to' is before 'from'{at}, which is at {offset} of segment {identifier}")


def _ranges(
    lower: _CutWalk,
    upper: _CutWalk,
    segments: Mapping[int, StreamSegment],
    predecessors: Mapping[int, tuple[int, ...]],
    sealed_sizes: SealedSizes,
) -> list[SegmentRange]:
    successors: dict[int, list[int]] = {identifier: [] for identifier in segments}
    for identifier in sorted(segments):
        for before in predecessors[identifier]:
            if before in segments:
                successors[before].append(identifier)
    sizes = sealed_sizes([identifier for identifier in segments if identifier not in upper.offsets])
    ranges = []
    for identifier in sorted(segments):  # An id starts with its epoch, so predecessors come first.
        start = lower.offsets.get(identifier, 0)
        end = upper.offsets[identifier] if identifier in upper.offsets else sizes[identifier]
        if start > end:
            raise invalid_cut(f"'from' is at {start} of segment {identifier}, which ends at {end}")
        inside = tuple(predecessor for predecessor in predecessors[identifier] if predecessor in segments)
        ranges.append(SegmentRange(segments[identifier], start, end, inside, tuple(successors[identifier])))
    return ranges
