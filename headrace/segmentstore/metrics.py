"""Counters and histograms of a segment store. To record a value is one addition, without locks or new objects.

Every counter and histogram has one writing thread. Readers on other threads see consistent single numbers, but not all
numbers of the same moment. Values that the metrics page can read directly, as queue lengths, are not counted here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

LATENCY_BOUNDS_S: Final = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
SIZE_BOUNDS_BYTES: Final = tuple(1 << shift for shift in range(10, 28, 2))


class Histogram:
    """The number of values up to each of the ascending `bounds`, last the number above all of them, and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def record(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class RequestMetrics:
    """The durations of all requests to one service, and the number of failed requests by error code."""

    __slots__ = ("errors", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(LATENCY_BOUNDS_S)
        self.errors: dict[str, int] = {}

    def count_error(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1


class ContainerMetrics:
    """The metrics of one container since it was opened."""

    __slots__ = (
        "append_bytes",
        "append_events",
        "appends",
        "compacted_bytes",
        "evicted_segments",
        "flushed_bytes",
        "flushes",
        "recovery_s",
        "storage_refusals",
        "storage_retries",
    )

    def __init__(self) -> None:
        self.appends = 0
        self.append_bytes = 0
        self.append_events = 0
        self.compacted_bytes = 0
        self.evicted_segments = 0
        self.flushes = 0
        self.flushed_bytes = 0
        self.storage_refusals = 0
        self.storage_retries = 0
        self.recovery_s = 0.0


class StoreMetrics:
    """The metrics that the containers of a store share. `connections` is the current number; the rest are totals.

    `connections_refused` counts by the bound that was reached, and `tokens_refused` by the code of the error. `reads`
    counts reads answered with data, `storage_reads` those of them that needed tier 2.
    """

    __slots__ = (
        "append_seconds",
        "connections",
        "connections_refused",
        "protocol_errors",
        "read_bytes",
        "reads",
        "storage_read_bytes",
        "storage_reads",
        "throttled_s",
        "tokens_refused",
    )

    def __init__(self) -> None:
        self.append_seconds = Histogram(LATENCY_BOUNDS_S)
        self.connections = 0
        self.connections_refused: Counter[str] = Counter()
        self.protocol_errors = 0
        self.reads = 0
        self.read_bytes = 0
        self.storage_reads = 0
        self.storage_read_bytes = 0
        self.throttled_s = 0.0
        self.tokens_refused: Counter[str] = Counter()


class JournalMetrics:
    """The metrics of the journal, written by its thread."""

    __slots__ = ("commit_bytes", "commit_seconds")

    def __init__(self) -> None:
        self.commit_seconds = Histogram(LATENCY_BOUNDS_S)
        self.commit_bytes = Histogram(SIZE_BOUNDS_BYTES)
