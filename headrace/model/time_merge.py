"""Merges segments by the time at which their bytes were stored (Pravega's PDP 28). No I/O.

Each segment hands in its items in its own order. An item is released when no segment can still hand in one that belongs
before it: an open segment without items holds back all items that are later than its lower bound. Items of one time
come in the order of their segment ids, and then of their offsets. Times are in microseconds, by the clocks of the
segment stores.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Awaited(NamedTuple):
    """A segment that holds the next item back until it hands in one, or promises that it has none before `until_us`."""

    segment_id: int
    until_us: int


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
        first = self._first()
        if first is None or self._holding_back(first):
            return None
        return self._segments[first[1]].items.popleft()[1]

    def awaited(self) -> list[Awaited]:
        """Returns the segments that hold the next item back; none if there is no item."""
        first = self._first()
        return [] if first is None else self._holding_back(first)

    def _first(self) -> tuple[int, int] | None:
        """The time and the segment of the first item."""
        return min(
            ((segment.items[0][0], segment_id) for segment_id, segment in self._segments.items() if segment.items),
            default=None,
        )

    def _holding_back(self, first: tuple[int, int]) -> list[Awaited]:
        time_us, of_segment = first
        return [
            Awaited(segment_id, time_us if segment_id > of_segment else time_us + 1)
            for segment_id, segment in self._segments.items()
            if not segment.items and segment.last is None and (segment.bound_us, segment_id) < first
        ]
