"""The positions of one segment's bytes in memory: entries sorted by offset, one per append.

A gap between entries means that only tier 2 has the bytes. Appends enter at the end. An entry leaves the index when
the pool evicts its bytes, when a truncation or deletion removes them, or when a merge moves them to another segment.

Entries are in short lists. Removing a few of a million entries then takes only as long as scanning a few hundred.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Block, Reservation, WriterMark, gather, slice_parts

PARTS_PER_READ_MAX: Final = 64
"""A read with more parts is joined into one: sending many tiny buffers costs more than copying them."""

ENTRIES_PER_LIST_MAX: Final = 512


class ReadIndex:
    """The entries of one segment."""

    __slots__ = ("_lists", "_pool")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._lists: list[list[Reservation]] = []  # none is empty

    def __len__(self) -> int:
        return sum(map(len, self._lists))

    @property
    def first_offset(self) -> int | None:
        """The first offset in memory; None if no byte is in memory."""
        return self._lists[0][0].offset if self._lists else None

    def add(self, offset: int, reservation: Reservation, ledger_entry: int, mark: WriterMark | None = None) -> None:
        """Add an append after all others."""
        reservation.offset = offset
        reservation.ledger_entry = ledger_entry
        reservation.owner = self
        if mark is not None:
            reservation.writer_id, reservation.previous_number, reservation.event_count = mark
        lists = self._lists
        if not lists or len(lists[-1]) >= ENTRIES_PER_LIST_MAX:
            lists.append([reservation])
        else:
            lists[-1].append(reservation)

    def entries_from(self, offset: int, end: int) -> Iterator[Reservation]:
        """The entries from the one that covers `offset` on, up to `end` or the first gap.

        An entry that ends after `end` is left out. If `offset` itself is not in memory, there are no entries.
        """
        expected: int | None = None
        for entry in self._from(offset):
            start = entry.offset
            if start > offset if expected is None else start != expected:
                return
            expected = start + entry.length
            if expected > end:
                return
            yield entry

    def entries_behind(self, offset: int) -> Iterator[Reservation]:
        """All entries that start at or after `offset`, in order, regardless of gaps between them."""
        return filter(lambda entry: entry.offset >= offset, self._from(offset))

    def read(self, offset: int, length: int) -> tuple[list[memoryview], list[Block]]:
        """Up to `length` bytes from `offset` on, as parts, and the blocks to pin while the parts are in use.

        There are no parts if the byte at `offset` is not in memory.
        """
        entries: list[Reservation] = []
        expected, end = offset, offset + length
        for entry in self._from(offset):
            if entry.offset > expected or expected >= end:
                break
            entries.append(entry)
            expected = entry.end
        if not entries:
            return [], []
        parts, blocks = gather(entries)
        parts = slice_parts(parts, offset - entries[0].offset, length)
        if len(parts) > PARTS_PER_READ_MAX:
            return [memoryview(b"".join(parts))], []
        return parts, blocks

    def boundary_from(self, offset: int) -> int | None:
        """The first start of an append at or after `offset` in memory; None if there is none."""
        entry = next(self.entries_behind(offset), None)
        return None if entry is None else entry.offset

    def entry_start(self, offset: int) -> int:
        """The start of the append that covers `offset`, or `offset` if it is not in memory."""
        entry = next(self._from(offset), None)
        return offset if entry is None else min(offset, entry.offset)

    def next_in_memory(self, offset: int) -> int | None:
        """The first offset at or after `offset` that is in memory; None if there is none."""
        entry = next(self._from(offset), None)
        return None if entry is None else max(offset, entry.offset)

    def mark_tiered(self, start: int, end: int) -> None:
        """Mark the appends in [start, end) as tiered."""
        # Collect them before the call: the pool may evict entries of this index at once, to serve a waiting receiver.
        tiered: list[Reservation] = []
        for entry in self.entries_behind(start):
            if entry.offset >= end:
                break
            tiered.append(entry)
        self._pool.mark_tiered(tiered)

    def drop_tiered(self) -> Iterator[list[Reservation]]:
        """Remove the appends that are tiered, in one list after the other. Yields the others of each list."""
        position = 0
        while position < len(self._lists):
            entries = self._lists[position]
            for entry in entries:
                if entry.tiered:
                    self._pool.release(entry)
            kept = [entry for entry in entries if entry.live]
            if kept:
                self._lists[position] = kept
                position += 1
            else:
                del self._lists[position]
            yield kept

    def release_before(self, offset: int) -> None:
        """Remove the appends that end at or before `offset`."""
        released: list[Reservation] = []
        while self._lists and self._lists[0][0].end <= offset:
            oldest = self._lists[0]
            count = bisect_right(oldest, offset, key=_end_of)
            released += oldest[:count]
            if count == len(oldest):
                del self._lists[0]
            else:
                del oldest[:count]
        for entry in released:
            self._pool.release(entry)

    def release_all(self) -> None:
        released, self._lists = self._lists, []
        for entries in released:
            for entry in entries:
                self._pool.release(entry)

    def move_to(self, other: ReadIndex, shift: int) -> None:
        """Move all entries to `other`, with offsets greater by `shift`.

        The entries lose their writers, because writers of this segment are unknown in the other one.
        """
        moved, self._lists = self._lists, []
        for entries in moved:
            for entry in entries:
                entry.writer_id = None
                other.add(entry.offset + shift, entry, entry.ledger_entry)

    def forget(self, reservations: Sequence[Reservation]) -> None:
        """Remove reservations that the pool has evicted. Those in the same list are removed in one step."""
        first = last = -1
        for reservation in reservations:
            if first <= reservation.offset <= last:
                continue  # removed with an earlier one of the same list
            position = bisect_right(self._lists, reservation.offset, key=_first_offset_of) - 1
            if position < 0:
                continue
            entries = self._lists[position]
            first, last = entries[0].offset, entries[-1].offset
            entries[:] = [entry for entry in entries if entry.live]
            if not entries:
                del self._lists[position]

    def _from(self, offset: int) -> Iterator[Reservation]:
        """The entries in order, from the one that covers `offset` or the next one on."""
        number = max(bisect_right(self._lists, offset, key=_first_offset_of) - 1, 0)
        if number >= len(self._lists):
            return
        entries = self._lists[number]
        yield from entries[bisect_right(entries, offset, key=_end_of) :]
        for entries in self._lists[number + 1 :]:
            yield from entries


def _end_of(entry: Reservation) -> int:
    return entry.offset + entry.length


def _first_offset_of(entries: list[Reservation]) -> int:
    return entries[0].offset
