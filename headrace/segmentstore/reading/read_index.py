"""Where the bytes of one segment lie in memory: entries sorted by offset, one per append, with holes where tier 2 is.

Appends enter at the end. Bytes leave when the pool takes them back, when a truncation or deletion makes them
pointless, or when a merge makes them part of another segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from headrace.segmentstore.reading.block_pool import Block, BlockPool, Reservation, slice_parts

PARTS_PER_READ_MAX: Final = 64
"""A read of more pieces than this is joined: sending many tiny buffers costs more than copying them."""


WriterMark = tuple[int, int, int]
"""Of an append: writer id, the writer's event number before it, number of events in it."""


class CacheEntry:
    """One append in memory. `ledger_entry` is the log entry that holds it; `mark` is None once tier 2 has it."""

    __slots__ = ("ledger_entry", "mark", "offset", "reservation")

    def __init__(self, offset: int, reservation: Reservation, ledger_entry: int, mark: WriterMark | None) -> None:
        self.offset = offset
        self.reservation = reservation
        self.ledger_entry = ledger_entry
        self.mark = mark

    @property
    def end(self) -> int:
        return self.offset + self.reservation.length


class ReadIndex:
    """The entries of one segment."""

    __slots__ = ("_entries", "_offsets", "_pool")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._offsets: list[int] = []
        self._entries: list[CacheEntry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, offset: int, reservation: Reservation, ledger_entry: int, mark: WriterMark | None = None) -> None:
        """Enter an append behind all others."""
        entry = CacheEntry(offset, reservation, ledger_entry, mark)
        reservation.on_drop = lambda: self._forget(entry)
        self._offsets.append(offset)
        self._entries.append(entry)

    def entries_from(self, offset: int, end: int) -> Iterator[CacheEntry]:
        """The entries from the one that covers `offset` on that end at or before `end`, as long as there is no hole.

        Nothing if `offset` itself is not in memory.
        """
        position = self._position(offset)
        if position is None:
            return
        expected = self._entries[position].offset
        for index in range(position, len(self._entries)):
            entry = self._entries[index]
            if entry.offset != expected or entry.end > end:
                return
            yield entry
            expected = entry.end

    def entries_behind(self, offset: int) -> Iterator[CacheEntry]:
        """All entries that start at or behind `offset`, in order, whatever lies between them."""
        for index in range(bisect_left(self._offsets, offset), len(self._entries)):
            yield self._entries[index]

    def read(self, offset: int, length: int) -> tuple[list[memoryview], list[Block]]:
        """Up to `length` bytes from `offset` on: the parts, and the blocks to pin while the parts are in use.

        No parts if the first byte is not in memory.
        """
        parts: list[memoryview] = []
        blocks: list[Block] = []
        position = self._position(offset)
        while position is not None and position < len(self._entries) and length > 0:
            entry = self._entries[position]
            if entry.offset > offset:
                break
            entry_skip = offset - entry.offset
            sliced = slice_parts(entry.reservation.parts, entry_skip, length)
            taken = sum(map(len, sliced))
            parts.extend(sliced)
            blocks.extend(entry.reservation.blocks)
            offset += taken
            length -= taken
            position += 1
        if len(parts) > PARTS_PER_READ_MAX:
            return [memoryview(b"".join(parts))], []
        return parts, blocks

    def boundary_from(self, offset: int) -> int | None:
        """The nearest start of an append at or behind `offset` that memory knows; None if it knows none."""
        position = bisect_left(self._offsets, offset)
        return self._offsets[position] if position < len(self._offsets) else None

    def entry_start(self, offset: int) -> int:
        """The start of the append that covers `offset`, or `offset` if it is not in memory."""
        position = self._position(offset)
        return offset if position is None else self._entries[position].offset

    def next_in_memory(self, offset: int) -> int | None:
        """The first offset at or behind `offset` that is in memory."""
        if self._position(offset) is not None:
            return offset
        return self.boundary_from(offset)

    def mark_stored(self, start: int, end: int) -> None:
        """Tier 2 has the appends in [start, end)."""
        # A copy: the pool may hand the room to somebody who waits, and make more by dropping entries of this index.
        for entry in self._entries[bisect_left(self._offsets, start) : bisect_left(self._offsets, end)]:
            entry.mark = None
            self._pool.mark_stored(entry.reservation)

    def release_before(self, offset: int) -> None:
        """Forget the appends that end at or before `offset`."""
        position = bisect_left(self._offsets, offset)
        if position and self._entries[position - 1].end > offset:
            position -= 1
        released = self._entries[:position]
        del self._offsets[:position]
        del self._entries[:position]
        for entry in released:
            self._pool.release(entry.reservation)

    def release_all(self) -> None:
        released, self._entries, self._offsets = self._entries, [], []
        for entry in released:
            self._pool.release(entry.reservation)

    def move_to(self, other: ReadIndex, shift: int) -> None:
        """Make all entries those of `other`, `shift` bytes further; the writers of this segment are none of `other`."""
        moved, self._entries, self._offsets = self._entries, [], []
        for entry in moved:
            other.add(entry.offset + shift, entry.reservation, entry.ledger_entry)

    def _position(self, offset: int) -> int | None:
        position = bisect_right(self._offsets, offset) - 1
        if position < 0 or self._entries[position].end <= offset:
            return None
        return position

    def _forget(self, entry: CacheEntry) -> None:
        position = bisect_left(self._offsets, entry.offset)
        while position < len(self._entries) and self._entries[position].offset == entry.offset:
            if self._entries[position] is entry:
                del self._offsets[position]
                del self._entries[position]
                return
            position += 1
