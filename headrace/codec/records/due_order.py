"""The order of indexes by time: a sort key begins with the time, padded, so that text order is the order of times."""

from __future__ import annotations

_TIME_DIGITS = 20


def time_prefix(time_ms: int) -> str:
    """The beginning of a sort key of what is due at this time."""
    return f"{time_ms:0{_TIME_DIGITS}d}"


def moved_to(sort: str, time_ms: int) -> str:
    """The sort key of the same entry at another time."""
    return f"{time_prefix(time_ms)}{sort[_TIME_DIGITS:]}"
