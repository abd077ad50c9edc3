"""Events of the programs: the index of a key, and a number that no other event has."""

from __future__ import annotations

from typing import Final

from fuzz.checker import WrongStateError

EVENT_BYTES: Final = 5

Event = tuple[int, int]
"""The index of its key, and its number."""


def event_bytes(key: int, event: int) -> bytes:
    """An event: the index of its key, and its number."""
    return bytes([key]) + event.to_bytes(EVENT_BYTES - 1, "big")


def parse_events(data: bytes) -> list[Event]:
    """The events in bytes of a segment. Raises WrongStateError."""
    if len(data) % EVENT_BYTES:
        raise WrongStateError(f"{len(data)} bytes end in the middle of an event")
    starts = range(0, len(data), EVENT_BYTES)
    return [(data[start], int.from_bytes(data[start + 1 : start + EVENT_BYTES], "big")) for start in starts]
