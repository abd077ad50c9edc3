"""A distribution of times, reduced to what is shown of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latencies:
    """Percentiles in milliseconds, by nearest rank."""

    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of_ns(cls, taken_ns: Iterable[int]) -> Latencies:
        """Raises ValueError if there are none."""
        ordered = sorted(taken_ns)
        if not ordered:
            raise ValueError("no latencies were measured")
        return cls(len(ordered), *(_rank(ordered, part) / 1e6 for part in (0.50, 0.95, 0.99, 1.0)))


def _rank(ordered: list[int], part: float) -> int:
    return ordered[max(0, min(len(ordered) - 1, round(part * len(ordered)) - 1))]
