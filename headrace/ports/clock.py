"""Time, injected."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall clock for what is stored and shown, monotonic clock for intervals."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...
