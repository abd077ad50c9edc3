"""A clock whose time changes only by a call of `advance`, for simulations and tests."""

from __future__ import annotations


class ManualClock:
    """`ports.clock.Clock` that only `advance` moves."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = now_ms
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return (self._now_ms - self._start_ms) / 1000

    def advance(self, ms: int) -> None:
        """Move on; time does not go back."""
        self._now_ms += max(0, ms)
