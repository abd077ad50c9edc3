"""A histogram of durations in a fixed amount of memory: percentiles to 1.6 percent, however many values there are."""

from __future__ import annotations

from typing import Final

_SUB_BITS: Final = 6
_SUB_BUCKETS: Final = 1 << _SUB_BITS
"""Buckets per power of two, which give the precision."""

_BITS_MAX: Final = 42
MICROSECONDS_MAX: Final = (1 << _BITS_MAX) - 1
"""Fifty days. Longer durations count as this one."""


class LatencyHistogram:
    """Counts durations in microseconds. One thread records at a time."""

    def __init__(self) -> None:
        self.count = 0
        self.max_us = 0
        self._counts = [0] * (_bucket(MICROSECONDS_MAX) + 1)

    def record(self, microseconds: int, count: int = 1) -> None:
        """Counts a duration `count` times. Negative ones, of a clock that was set, count as 0."""
        value = min(max(0, microseconds), MICROSECONDS_MAX)
        self._counts[_bucket(value)] += count
        self.count += count
        self.max_us = max(self.max_us, value)

    def percentile_us(self, percent: float) -> int | None:
        """The duration that so many percent of the values do not exceed, by nearest rank; None without values."""
        if not self.count:
            return None
        rank = max(1, -(-self.count * percent // 100))
        passed = 0
        for bucket, count in enumerate(self._counts):
            passed += count
            if passed >= rank:
                return min(_highest(bucket), self.max_us)
        return self.max_us


def _bucket(value: int) -> int:
    """Values below 128 have a bucket each; above, 64 buckets share a power of two."""
    shift = max(0, value.bit_length() - _SUB_BITS - 1)
    return (shift << _SUB_BITS) + (value >> shift)


def _highest(bucket: int) -> int:
    """The highest value of a bucket."""
    shift = max(0, (bucket >> _SUB_BITS) - 1)
    return ((bucket - (shift << _SUB_BITS) + 1) << shift) - 1
