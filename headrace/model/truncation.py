"""Where a stream begins: the cut before which its bytes are gone, and what a truncation on its way still has to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.model.epochs import Epoch, overlapping
from headrace.model.segments import StreamSegment
from headrace.model.stream_cut_order import PlacedCut, Side, side_of
from headrace.model.stream_cuts import StreamCut


@dataclass(frozen=True, slots=True)
class Truncation:
    """The head of a stream that was truncated.

    `first_epoch` is the newest epoch in which no segment lies behind the cut: where a walk from the head begins.
    `size_bytes` is what lay before the cut, from the creation of the stream on.
    """

    head: PlacedCut
    first_epoch: int
    size_bytes: int

    @property
    def cut(self) -> StreamCut:
        return self.head.cut


@dataclass(frozen=True, slots=True)
class RunningTruncation:
    """A truncation on its way from `before` (None: the very beginning) to `target`.

    First the bytes between are counted, then the target becomes the head (`is_recorded`), then the segments between are
    deleted. `next_epoch` is how far the count, and later the deletion, has come; `size_bytes` what was counted so far.
    Between the two the segments of the target are cut off, of which the first `positions_done` are done.
    """

    target: PlacedCut
    first_epoch: int
    before: Truncation | None
    next_epoch: int
    size_bytes: int = 0
    is_recorded: bool = False
    positions_done: int = 0

    @property
    def epochs(self) -> range:
        """The epochs whose beginnings replaced segments that go."""
        start = self.before.first_epoch if self.before else 0
        return range(start + 1, self.target.cut.last_epoch + 1)

    @property
    def truncation(self) -> Truncation:
        """What is on record once everything is counted."""
        return Truncation(self.target, self.first_epoch, self.size_bytes)


def running_truncation(target: PlacedCut, first_epoch: int, before: Truncation | None) -> RunningTruncation:
    """A truncation that begins."""
    start = before.first_epoch if before else 0
    return RunningTruncation(target, first_epoch, before, next_epoch=start + 1)


def segments_that_go(running: RunningTruncation, epoch: Epoch) -> list[StreamSegment]:
    """Of the segments that `epoch` replaced, those that lie before the new head and not before the old one."""
    old = running.before.head if running.before else None
    return [
        segment
        for segment in epoch.replaced
        if side_of(segment, running.target) is Side.BEFORE and (old is None or side_of(segment, old) is not Side.BEFORE)
    ]


def segments_left(segments: Iterable[StreamSegment], truncation: Truncation | None) -> list[StreamSegment]:
    """Those that no truncation has deleted."""
    return [one for one in segments if truncation is None or side_of(one, truncation.head) is not Side.BEFORE]


def superimposed(segments: Iterable[StreamSegment], truncation: Truncation) -> dict[StreamSegment, int | None]:
    """The segments of an epoch as they can still be read: those before the head make way for the head's.

    In order of their key ranges, each with the offset in bytes at which it starts; None for those behind the head.
    """
    offsets = truncation.cut.offsets
    left: set[StreamSegment] = set()
    for segment in segments:
        if side_of(segment, truncation.head) is Side.BEFORE:
            left.update(overlapping(truncation.head.segments, segment.key_range))
        else:
            left.add(segment)
    return {one: offsets.get(one.segment_id) for one in sorted(left, key=lambda one: one.key_range)}


def bytes_that_go(running: RunningTruncation, lengths: Mapping[int, int]) -> int:
    """How much of segments that go lay behind the old head; `lengths` in bytes by segment id."""
    starts = running.before.cut.offsets if running.before else {}
    return sum(length - starts.get(identifier, 0) for identifier, length in lengths.items())


def bytes_cut_off(running: RunningTruncation) -> int:
    """How much goes of the segments in which the new head lies."""
    starts = running.before.cut.offsets if running.before else {}
    return sum(offset - starts.get(identifier, 0) for identifier, offset in running.target.cut.positions)


def is_very_beginning(cut: StreamCut) -> bool:
    """Whether nothing of the stream lies before the cut, whatever was truncated."""
    return cut.last_epoch == 0 and not any(offset for _, offset in cut.positions)


def very_beginning(scope: str, stream: str, first_epoch: Epoch) -> StreamCut:
    """Where reading a stream starts that was never truncated."""
    return StreamCut(scope, stream, tuple((segment.segment_id, 0) for segment in first_epoch.segments))
