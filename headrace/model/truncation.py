"""The head of a stream: the cut before which its bytes were truncated, and the progress of a running truncation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.model.epochs import Epoch, overlapping
from headrace.model.segments import StreamSegment
from headrace.model.stream_cuts import PlacedCut, Side, StreamCut, side_of


@dataclass(frozen=True, slots=True)
class Truncation:
    """The head of a stream that was truncated.

    `first_epoch` is the newest epoch in which no segment is after the cut; a walk from the head begins there.
    `size_bytes` counts the bytes before the cut, from the creation of the stream on.
    """

    head: PlacedCut
    first_epoch: int
    size_bytes: int

    @property
    def cut(self) -> StreamCut:
        return self.head.cut


@dataclass(frozen=True, slots=True)
class RunningTruncation:
    """A running truncation from `before` (None: the beginning of the stream) to `target`.

    First the bytes between them are counted. Then the target becomes the head (`is_recorded`), and the segments of the
    target are truncated; the first `positions_done` of them are done. At last the segments between are deleted.
    `next_epoch` is the progress of the count, and later of the deletion. `size_bytes` is the count so far.
    `by_retention` is True if retention has requested it.
    """

    target: PlacedCut
    first_epoch: int
    before: Truncation | None
    next_epoch: int
    size_bytes: int = 0
    is_recorded: bool = False
    positions_done: int = 0
    by_retention: bool = False

    @property
    def epochs(self) -> range:
        """The epochs that may have replaced segments to be deleted."""
        start = self.before.first_epoch if self.before else 0
        return range(start + 1, self.target.cut.last_epoch + 1)

    @property
    def truncation(self) -> Truncation:
        """The head that is recorded once all bytes are counted."""
        return Truncation(self.target, self.first_epoch, self.size_bytes)


def running_truncation(
    target: PlacedCut, first_epoch: int, before: Truncation | None, *, by_retention: bool = False
) -> RunningTruncation:
    """The truncation at its start."""
    start = before.first_epoch if before else 0
    return RunningTruncation(target, first_epoch, before, next_epoch=start + 1, by_retention=by_retention)


def segments_that_go(running: RunningTruncation, epoch: Epoch) -> list[StreamSegment]:
    """The segments to delete: those that `epoch` replaced and that are before the new head, not before the old one."""
    old = running.before.head if running.before else None
    return [
        segment
        for segment in epoch.replaced
        if side_of(segment, running.target) is Side.BEFORE and (old is None or side_of(segment, old) is not Side.BEFORE)
    ]


def segments_left(segments: Iterable[StreamSegment], truncation: Truncation | None) -> list[StreamSegment]:
    """The segments that no truncation has deleted."""
    return [
        segment for segment in segments if truncation is None or side_of(segment, truncation.head) is not Side.BEFORE
    ]


def superimposed(segments: Iterable[StreamSegment], truncation: Truncation) -> dict[StreamSegment, int | None]:
    """The segments of an epoch that readers can still read. The head's segments replace those before the head.

    They are ordered by key range. Each has the offset in bytes at which it starts, or None if it is after the head.
    """
    offsets = truncation.cut.offsets
    left: set[StreamSegment] = set()
    for segment in segments:
        if side_of(segment, truncation.head) is Side.BEFORE:
            left.update(overlapping(truncation.head.segments, segment.key_range))
        else:
            left.add(segment)
    return {segment: offsets.get(segment.segment_id) for segment in sorted(left, key=lambda segment: segment.key_range)}


def bytes_that_go(running: RunningTruncation, lengths: Mapping[int, int]) -> int:
    """The bytes after the old head in the segments to delete. `lengths` are in bytes by segment id."""
    starts = running.before.cut.offsets if running.before else {}
    return sum(length - starts.get(identifier, 0) for identifier, length in lengths.items())


def bytes_cut_off(running: RunningTruncation) -> int:
    """The bytes that the truncation removes from the segments in which the new head is."""
    starts = running.before.cut.offsets if running.before else {}
    return sum(offset - starts.get(identifier, 0) for identifier, offset in running.target.cut.positions)


def is_very_beginning(cut: StreamCut) -> bool:
    """Whether no byte of the stream was ever before the cut."""
    return cut.last_epoch == 0 and not any(offset for _, offset in cut.positions)


def very_beginning(scope: str, stream: str, first_epoch: Epoch) -> StreamCut:
    """The cut at which reading starts if the stream was never truncated."""
    return StreamCut(scope, stream, tuple((segment.segment_id, 0) for segment in first_epoch.segments))
