"""When each epoch of a stream began: sorted by time, so that one read finds the epoch of a time."""

from __future__ import annotations

from typing import Any

from headrace.metadata.record_layout import decoded, stream_partition, time_prefix, versioned
from headrace.ports.metadata_store import Body, Key, Record

_PREFIX = "history/"
HISTORY_FIRST = _PREFIX
"""Lower bound of the sort keys of all entries."""


def history_sort(time_ms: int) -> str:
    """Sorts as the times do; also the upper bound of a query for what was at `time_ms`."""
    return f"{_PREFIX}{time_prefix(time_ms)}"


def history_time(sort: str) -> int:
    """When the epoch of this record began, in milliseconds since the Unix epoch."""
    return int(sort.removeprefix(_PREFIX))


def history_key(scope: str, stream: str, time_ms: int) -> Key:
    return Key(stream_partition(scope, stream), history_sort(time_ms))


def history_body(epoch_number: int) -> dict[str, Any]:
    return versioned(epoch=epoch_number)


def decode_history(body: Body) -> int:
    """The number of the epoch."""
    return decoded("history", body, lambda fields: int(fields["epoch"]))


def read_history(record: Record) -> int:
    """The number of the epoch."""
    return decode_history(record.body)
