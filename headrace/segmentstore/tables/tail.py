"""The newest entries of a stretch of a table, by key, in memory: what no index object has yet."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from headrace.codec.table_entries import Place, entry_bytes

KEY_CHARGE_BYTES: Final = 300
"""What a key costs in Python objects beside its own bytes."""


class TailAddition:
    """Entries that are to enter `tail`, which stays as it is until then, and by how much they change its sizes.

    Many are put together in steps, while readers of the tail see none of them.
    """

    __slots__ = ("live", "live_bytes", "memory_bytes", "places", "tail")

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.places: dict[bytes, Place] = {}
        self.memory_bytes = 0
        self.live = 0
        self.live_bytes = 0

    def put(self, key: bytes, place: Place) -> None:
        """Add an entry that is behind all others."""
        former = self.places.get(key) or self.tail.places.get(key)
        if former is None:
            self.memory_bytes += len(key) + KEY_CHARGE_BYTES
        elif not former.removed:
            self.live -= 1
            self.live_bytes -= entry_bytes(key, former)
        self.places[key] = place
        if not place.removed:
            self.live += 1
            self.live_bytes += entry_bytes(key, place)


class Tail:
    """The stretch from `start` on. Sizes are in bytes: `memory_bytes` here, `live_bytes` in the segment."""

    __slots__ = ("_sorted", "live", "live_bytes", "memory_bytes", "places", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.places: dict[bytes, Place] = {}
        self.memory_bytes = 0
        self.live = 0
        self.live_bytes = 0
        self._sorted: list[bytes] | None = None

    def enter(self, addition: TailAddition) -> None:
        """Enter entries that are behind all others, all at once."""
        self.places.update(addition.places)
        self.memory_bytes += addition.memory_bytes
        self.live += addition.live
        self.live_bytes += addition.live_bytes
        if addition.memory_bytes:
            self._sorted = None

    def keys(self, first: bytes, end: bytes | None) -> list[bytes]:
        """Keys from `first` on and before `end` (None has no end) in order of their bytes, removed ones too."""
        if self._sorted is None:
            self._sorted = sorted(self.places)
        begin = bisect_left(self._sorted, first)
        return self._sorted[begin : None if end is None else bisect_left(self._sorted, end)]
