"""Back-off: the pause before an operation that failed is retried.

The pause doubles with each consecutive failure, up to a bound. Jitter keeps callers that failed together from retrying
together. The functions work in any unit of time.
"""

from __future__ import annotations

from typing import Final, TypeVar

Duration = TypeVar("Duration", int, float)

_DOUBLINGS_MAX: Final = 16
"""Bounds the power of two. Every bound in use is reached with fewer doublings."""


def doubled_pause(failures: int, first: Duration, most: Duration) -> Duration:
    """The pause after this number of consecutive failures: `first` after one failure, and at most `most`."""
    return min(first * (1 << min(max(failures - 1, 0), _DOUBLINGS_MAX)), most)


def full_jitter(pause: float, fraction: float) -> float:
    """A pause between 0 and `pause`, for callers that conflict with each other. `fraction` is uniform in [0, 1)."""
    return fraction * pause


def half_jitter(pause: float, fraction: float) -> float:
    """A pause between half of `pause` and all of it, for callers that wait for something else. `fraction` as above."""
    return pause * (0.5 + fraction / 2)
