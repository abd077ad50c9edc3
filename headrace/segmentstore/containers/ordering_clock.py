"""The numbers that order the data frames of a store in time."""

from __future__ import annotations

from headrace.ports.clock import Clock


class OrderingClock:
    """One per store, shared by its containers. Numbers are wall time in microseconds where that goes up, and go up by
    one where it does not: they never stand still and never go back."""

    __slots__ = ("_clock", "_last")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def next(self) -> int:
        """A number above all those before."""
        self._last = self.upcoming
        return self._last

    @property
    def upcoming(self) -> int:
        """What `next` would answer now: above all numbers so far, not above any later one."""
        return max(self._last + 1, self._clock.now_ms() * 1000)

    def observe(self, ordering: int) -> None:
        """A recovery has found this number: `next` stays above it."""
        self._last = max(self._last, ordering)
