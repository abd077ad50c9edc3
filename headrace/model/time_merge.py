"""Merges segments by the time at which their bytes were stored (Pravega's PDP 28). No I/O.

Each segment hands in its items in its own order. An item is released when no segment can still hand in one that belongs
before it: an open segment without items holds back all items that are later than its lower bound. Items of one time
come in the order of their segment ids, and then of their offsets. Times are in microseconds, by the clocks of the
segment stores.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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
        if self._first is None or any(self.awaited_until(one) is not None for one in self._segments):
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
