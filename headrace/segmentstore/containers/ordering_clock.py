"""Increasing numbers that order the data frames of a store by time."""

from __future__ import annotations

from headrace.ports.clock import Clock


class OrderingClock:
    """One per store, shared by its containers.

    A number is the wall time in microseconds, or the last number plus one if the time has not increased since.
    """

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
        """The number that `next` would return now: above all earlier ones, at most all later ones."""
        return max(self._last + 1, self._clock.now_ms() * 1000)

    def observe(self, ordering: int) -> None:
        """Note a number that a recovery has found, so that `next` returns greater ones."""
        self._last = max(self._last, ordering)
