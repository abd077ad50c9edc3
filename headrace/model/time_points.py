"""The times at which the bytes of a segment were appended, by offset, and segments merged by these times.

A point covers the bytes from its offset up to the next point. The numbers of their frames are between the first and the
last number of the point. A point of one frame is exact: its two numbers are equal. If there are too many points,
several are joined into one. Joined points are safe: a byte may look older than it is, but never newer. A search for a
time may find an offset that is too early, but never one that is too late. Numbers are in microseconds, from the
ordering clock of the store; 0 means unknown.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

UNKNOWN_ORDERING: Final = 0

POINTS_MAX: Final = 1024
"""Points of one segment in memory, and of one run in tier 2. So a joined point spans at most 1/256 of their time."""


class TimePoint(NamedTuple):
    """`offset` is the start of an append. The frames from there on have numbers from `first` to `last`."""

    offset: int
    first: int
    last: int


class TimePoints:
    """The points of a range of one segment in ascending order, in 24 bytes each. `newest` is the last number."""

    __slots__ = ("_firsts", "_lasts", "_offsets", "newest")

    def __init__(self, points: Iterable[TimePoint] = ()) -> None:
        self.newest = UNKNOWN_ORDERING
        self._offsets = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        for point in points:
            self.add(*point)

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[TimePoint]:
        return map(TimePoint, self._offsets, self._firsts, self._lasts)

    @property
    def begin(self) -> int:
        """The offset of the first point; 0 if there are no points."""
        return self._offsets[0] if self._offsets else 0

    @property
    def oldest(self) -> int:
        """The first number; UNKNOWN_ORDERING if there are no points."""
        return self._firsts[0] if self._firsts else UNKNOWN_ORDERING

    def note(self, offset: int, ordering: int) -> None:
        """Add an append at `offset` in the frame with this number. All appends of one frame share one point."""
        if ordering == self.newest:
            return
        self.add(offset, ordering, ordering)
        if len(self._offsets) > POINTS_MAX:
            self.thin_out(POINTS_MAX)

    def add(self, offset: int, first: int, last: int) -> None:
        """Add a point after all others; its numbers must not be lower than theirs."""
        self._offsets.append(offset)
        self._firsts.append(first)
        self._lasts.append(last)
        self.newest = last

    def ordering_at(self, offset: int) -> int:
        """The number of the byte at `offset`, or a lower number of its point; UNKNOWN_ORDERING before all points."""
        offsets = self._offsets
        if not offsets or offset < offsets[0]:
            return UNKNOWN_ORDERING
        if offset >= offsets[-1]:
            return self._firsts[-1]
        return self._firsts[bisect_right(offsets, offset) - 1]

    def find(self, ordering: int) -> TimePoint | None:
        """The first point that may have bytes with this number or a higher one; None if all numbers are lower."""
        index = bisect_left(self._lasts, ordering)
        return TimePoint(self._offsets[index], self._firsts[index], self._lasts[index]) if index < len(self) else None

    def boundary_from(self, offset: int) -> int | None:
        """The offset of the first point at or after `offset`, the start of an append; None if there is none."""
        index = bisect_left(self._offsets, offset)
        return self._offsets[index] if index < len(self) else None

    def between(self, start: int, end: int) -> list[TimePoint]:
        """The points of the bytes from `start` up to `end`; the first one is cut to begin at `start`."""
        index = max(bisect_right(self._offsets, start) - 1, 0)
        stop = bisect_left(self._offsets, end)
        points = [TimePoint(self._offsets[each], self._firsts[each], self._lasts[each]) for each in range(index, stop)]
        if points and points[0].offset < start:
            points[0] = points[0]._replace(offset=start)
        return points

    def forget_before(self, offset: int) -> None:
        """Drop the points whose bytes are all before `offset`."""
        count = bisect_right(self._offsets, offset) - 1
        if count > 0:
            del self._offsets[:count], self._firsts[:count], self._lasts[:count]

    def thin_out(self, count_max: int) -> None:
        """Join neighbours until at most `count_max` points are left, if there are more.

        A joined point spans at most 4/`count_max` of the time from the first number to the last.
        """
        if len(self) <= count_max:
            return
        # Two adjacent points that are not joined span more than this together, which bounds the number of points.
        span_max = (self._lasts[-1] - self._firsts[0]) * 4 // count_max
        points = list(self)
        self._offsets, self._firsts, self._lasts = array("q"), array("q"), array("q")
        for offset, first, last in points:
            if len(self) and last - self._firsts[-1] <= span_max:
                self._lasts[-1] = self.newest = last
            else:
                self.add(offset, first, last)


# Merges segments by the time at which their bytes were stored (Pravega's PDP 28). No I/O.
#
# Each segment hands in its items in its own order. An item is released when no segment can still hand in one that
# belongs before it: an open segment without items holds back all items that are later than its lower bound. Items of
# one time come in the order of their segment ids, and then of their offsets. Times are in microseconds, by the clocks
# of the segment stores.

T = TypeVar("T")


@dataclass(slots=True)
class _Segment(Generic[T]):
    """`bound_us` is a time before which the segment hands in nothing more. `last` is what ends it."""

    bound_us: int = 0
    items: deque[tuple[int, T]] = field(default_factory=deque)
    last: T | None = None


class TimeMerge(Generic[T]):
    """The merge of the segments that one reader has open."""

    def __init__(self) -> None:
        self._segments: dict[int, _Segment[T]] = {}
        self._first: tuple[int, int] | None = None
        """The time and the segment of the first item."""

    def open(self, segment_id: int) -> None:
        """Adds a segment. It holds all others back until it hands in an item or promises something."""
        self._segments[segment_id] = _Segment()

    def add(self, segment_id: int, time_us: int, item: T) -> None:
        """Hands in the next item of a segment. A time before the segment's earlier ones counts as the latest of them.

        Within a segment the offset decides the order. Its times only seem to go back where the time index is coarse.
        """
        segment = self._segments[segment_id]
        segment.bound_us = max(segment.bound_us, time_us)
        segment.items.append((segment.bound_us, item))
        key = (segment.items[0][0], segment_id)
        self._first = key if self._first is None else min(self._first, key)

    def nothing_before(self, segment_id: int, time_us: int) -> None:
        """Records the promise of a segment that it hands in nothing more before this time."""
        segment = self._segments[segment_id]
        segment.bound_us = max(segment.bound_us, time_us)

    def end(self, segment_id: int, last: T) -> None:
        """Ends a segment. `last` is released as soon as all its items have been, and the segment is gone then."""
        self._segments[segment_id].last = last

    def next(self) -> T | None:
        """Releases the next item; None if there is none, or if a segment holds it back."""
        for segment_id, segment in self._segments.items():
            if segment.last is not None and not segment.items:
                del self._segments[segment_id]
                return segment.last
        if self._first is None or any(self.awaited_until(segment) is not None for segment in self._segments):
            return None
        item = self._segments[self._first[1]].items.popleft()[1]
        self._first = min(
            ((segment.items[0][0], segment_id) for segment_id, segment in self._segments.items() if segment.items),
            default=None,
        )
        return item

    def awaited(self) -> list[int]:
        """Returns the segments that hold the next item back; none if there is no item."""
        return [segment_id for segment_id in self._segments if self.awaited_until(segment_id) is not None]

    def awaited_until(self, segment_id: int) -> int | None:
        """The time up to which a segment must promise that it hands in nothing; None if it holds no item back."""
        segment = self._segments.get(segment_id)
        if self._first is None or segment is None or segment.items or segment.last is not None:
            return None
        if (segment.bound_us, segment_id) > self._first:
            return None
        time_us, of_segment = self._first
        return time_us if segment_id > of_segment else time_us + 1
