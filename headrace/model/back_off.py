"""The pause before something that failed is tried again: doubled with each failure in a row, up to a bound."""

from __future__ import annotations

from typing import Final

_DOUBLINGS_MAX: Final = 16
"""Keeps the power small; every bound in use is reached before."""


def doubled_pause_s(failures: int, first_s: float, most_s: float) -> float:
    """The pause after so many failures in a row, at least one."""
    return min(first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), most_s)
