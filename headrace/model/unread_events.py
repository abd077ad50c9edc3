"""How many events a range of a segment has, from what the segment store knows. Pure rules.

A store counts the events of a segment since its creation, those included that were truncated. It does not know the
count at each offset.
"""

from __future__ import annotations

from typing import NamedTuple


class EventCount(NamedTuple):
    """A number of events. An estimate assumes that all events of the segment have the same size."""

    events: int
    is_estimate: bool


def events_between(start: int, end: int, *, length: int, events_total: int) -> EventCount:
    """The events in the bytes `[start, end)` of a segment that got `events_total` events in `length` bytes.

    The count is exact for the whole segment and for no bytes. A range with bytes has at least one event.
    """
    if start >= end:
        return EventCount(0, is_estimate=False)
    if start == 0 and end == length and events_total > 0:
        return EventCount(events_total, is_estimate=False)
    mean = round((end - start) * max(0, events_total) / max(length, end))
    return EventCount(max(1, mean), is_estimate=True)
