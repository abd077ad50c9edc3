"""The newest entries of a part of a table, by key, in memory: the entries that no index object has yet."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from headrace.codec.table_entries import Place, entry_bytes

KEY_CHARGE_BYTES: Final = 300
"""The memory of a key in Python objects, in addition to its own bytes."""


class TailAddition:
    """Entries to add to `tail`, and the changes of its sizes.

    A large addition is built in steps. Readers of the tail see no entry of it before `Tail.enter`.
    """

    __slots__ = ("live", "live_bytes", "memory_bytes", "places", "tail")

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.places: dict[bytes, Place] = {}
        self.memory_bytes = 0
        self.live = 0
        self.live_bytes = 0

    def put(self, key: bytes, place: Place) -> None:
        """Add an entry that follows all others in the segment."""
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
    """The entries from the offset `start` on, up to the next tail.

    Sizes are in bytes: `memory_bytes` counts memory, `live_bytes` the entries in the segment that are not removals.
    """

    __slots__ = ("_sorted", "live", "live_bytes", "memory_bytes", "places", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.places: dict[bytes, Place] = {}
        self.memory_bytes = 0
        self.live = 0
        self.live_bytes = 0
        self._sorted: list[bytes] | None = None

    def enter(self, addition: TailAddition) -> None:
        """Add entries that follow all others in the segment, all at once."""
        self.places.update(addition.places)
        self.memory_bytes += addition.memory_bytes
        self.live += addition.live
        self.live_bytes += addition.live_bytes
        if addition.memory_bytes:
            self._sorted = None

    def keys(self, first: bytes, end: bytes | None) -> list[bytes]:
        """The keys from `first` on and before `end` (None: all), in the order of their bytes, with removed ones."""
        if self._sorted is None:
            self._sorted = sorted(self.places)
        begin = bisect_left(self._sorted, first)
        return self._sorted[begin : None if end is None else bisect_left(self._sorted, end)]
