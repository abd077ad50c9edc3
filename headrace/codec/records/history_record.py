"""When each epoch began: sorted by time, so that one read finds the epoch of a moment."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned

_PREFIX = "history/"
_TIME_DIGITS = 20
HISTORY_FIRST = _PREFIX
"""Sorts before every history record, and after no other record's sort key that is smaller."""


def history_sort(time_ms: int) -> str:
    """Sorts as the times do; also the upper bound of a query for what was at `time_ms`."""
    return f"{_PREFIX}{time_ms:0{_TIME_DIGITS}d}"


def time_of_history_sort(sort: str) -> int:
    """When the epoch of this record began, in milliseconds since the Unix epoch."""
    return int(sort.removeprefix(_PREFIX))


def history_body(epoch_number: int) -> dict[str, Any]:
    return versioned(epoch=epoch_number)


def history_of_body(body: Body) -> int:
    """The number of the epoch."""
    return decoded("history", body, lambda fields: int(fields["epoch"]))
