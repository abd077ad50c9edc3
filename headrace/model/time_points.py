"""The times at which the bytes of a segment were appended: the numbers of their data frames, by offset.

A point covers the bytes from its offset up to the next point. The numbers of their frames are between the first and the
last number of the point. A point of one frame is exact: its two numbers are equal. If there are too many points,
several are joined into one. Joined points are safe: a byte may look older than it is, but never newer. A search for a
time may find an offset that is too early, but never one that is too late. Numbers are in microseconds, from the
ordering clock of the store; 0 means unknown.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

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
