"""The offset -1 in stream cuts: which segments were read to their ends.

Readers of Pravega's Java client write -1 for a segment that they have read to its end, because they do not know the
length of a sealed segment. Some write -1 also for a segment that they have not reached: a predecessor of it is unread.
The other positions of the cut tell these apart. If the cut names an older segment in a part of the key range, the
group has not reached the newer one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_cuts import END_OF_SEGMENT

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
            read = (one for one in predecessors_of(segment) if one.segment_id not in offsets)
            ended |= {one.segment_id: one for one in read if not oldest.is_before(one)}
        else:
            ended[segment.segment_id] = segment
    return [ended[identifier] for identifier in sorted(ended)]


class _OldestNamed:
    """The epoch of the oldest segment that a cut names, for each part of the key space."""

    def __init__(self, named: Sequence[StreamSegment]) -> None:
        self._bounds = sorted({bound for one in named for bound in (one.key_range.low, one.key_range.high)})
        self._epochs = [_NONE_NAMED] * (len(self._bounds) - 1)
        for segment in sorted(named, key=lambda one: one.epoch, reverse=True):
            first, last = self._parts(segment.key_range)
            self._epochs[first:last] = [segment.epoch] * (last - first)

    def is_before(self, segment: StreamSegment) -> bool:
        """Whether the cut names an older segment in a part of the key range of this one."""
        first, last = self._parts(segment.key_range)
        return min(self._epochs[first:last]) < segment.epoch

    def _parts(self, key_range: KeyRange) -> tuple[int, int]:
        return max(0, bisect_right(self._bounds, key_range.low) - 1), bisect_left(self._bounds, key_range.high)
