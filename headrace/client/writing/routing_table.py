"""Maps the positions of routing keys to segments in a writer, while segments are replaced one by one.

The table is the view of a single writer. When the writer finds a segment sealed, only that segment's part of the key
space moves to the successors. A neighbour that was merged into the same successor keeps its part until the writer finds
it sealed too, because events in flight to the neighbour must be stored first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.model.errors import CorruptError
from headrace.model.segments import KeyRange

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Route(Generic[T]):
    """A part of the key space and its target."""

    key_range: KeyRange
    target: T


class RoutingTable(Generic[T]):
    """Routes that cover the key space exactly once."""

    def __init__(self, routes: Iterable[Route[T]]) -> None:
        """Raises CorruptError if the routes leave a hole or overlap."""
        self._set(routes)

    def target_of(self, position: float) -> T:
        """Returns the first target whose upper bound is at least the position, as Pravega does."""
        return self._targets[bisect_left(self._highs, position)]

    def bounds(self) -> list[float]:
        """Returns the upper bounds of the parts of the key space, in key order: `targets()[n]` has the part n."""
        return list(self._highs)

    def targets(self) -> list[T]:
        """Returns all targets in key order. A target with several parts appears several times."""
        return list(self._targets)

    def replace(self, target: T, successors: Iterable[Route[T]]) -> None:
        """Moves the parts of `target` to the successors that overlap them.

        Raises:
            CorruptError: the successors do not cover these parts; nothing changed.
        """
        following = list(successors)
        routes: list[Route[T]] = []
        for route in self._routes:
            if route.target is not target:
                routes.append(route)
                continue
            for successor in following:
                if successor.key_range.overlaps(route.key_range):
                    low = max(route.key_range.low, successor.key_range.low)
                    high = min(route.key_range.high, successor.key_range.high)
                    routes.append(Route(KeyRange(low, high), successor.target))
        self._set(routes)

    def _set(self, routes: Iterable[Route[T]]) -> None:
        ordered = sorted(routes, key=lambda route: route.key_range)
        bounds = [0.0, *(route.key_range.high for route in ordered)]
        if [route.key_range.low for route in ordered] != bounds[:-1] or bounds[-1] != 1.0:
            ranges = ", ".join(f"[{route.key_range.low}, {route.key_range.high})" for route in ordered[:20])
            raise CorruptError(f"the segments do not cover the key space exactly once: {ranges or 'none'}")
        self._routes = ordered
        self._highs = bounds[1:]
        self._targets = [route.target for route in ordered]
