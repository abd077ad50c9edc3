"""The pause before an operation that failed is retried: it doubles with each consecutive failure, up to a bound."""

from __future__ import annotations

from typing import Final

_DOUBLINGS_MAX: Final = 16
"""Bounds the exponent, so that the power cannot overflow. Every bound in use is reached with fewer doublings."""


def doubled_pause_s(failures: int, first_s: float, most_s: float) -> float:
    """The pause in seconds after this number of consecutive failures; `failures` is at least 1."""
    return min(first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), most_s)
