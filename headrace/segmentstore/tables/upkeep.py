"""The upkeep of a table: it flushes full tails to index runs, merges runs, and compacts dead entries.

The upkeep must not depend on entries that a loss of the log could roll back. So an index run has only entries that
tier 2 has, and the head of a table is truncated only when tier 2 has all entries that replace those in it. No other
code changes the index, and the upkeep runs one step at a time.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from headrace.codec.table_entries import (
    IndexBlock,
    Place,
    decode_entries,
    encode_entry,
    encode_index_entry,
    encode_sparse_index,
    entry_bytes,
    separator,
    value_offset,
)
from headrace.model.errors import CorruptError, HeadraceError, NotFoundError
from headrace.model.table_indexes import IndexObject, IndexRun, TableIndex
from headrace.segmentstore.tables.index_store import IndexReader, IndexRecord, IndexStore
from headrace.segmentstore.tables.table import KEY_CHARGE_BYTES, Table, TailAddition, read_segment
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tables.table_requests import ENTRY_BYTES_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Writes a run of a table's index: sorted keys in, immutable objects out. One object is in memory at a time.

BLOCK_ENTRIES_MIN: Final = 16
"""A block has at least so many entries. Otherwise a sparse index of long keys would hold most of the keys."""


class RunWriter:
    """Writes one run. Add each key once, in the order of keys."""

    def __init__(self, store: IndexStore, record: IndexRecord, limits: TableLimits) -> None:
        self._store = store
        self._record = record
        self._limits = limits
        self._objects: list[IndexObject] = []
        self._last_key: bytes | None = None
        self._draft = _Draft(b"")

    async def add(self, key: bytes, place: Place) -> None:
        """Add a key. After ThrottledError or UnavailableError the run is incomplete: start another one."""
        draft = self._draft
        if draft.block_entries >= BLOCK_ENTRIES_MIN and draft.block_bytes >= self._limits.index_block_bytes:
            first_key = separator(self._last_key or b"", key)
            draft.end_block(first_key)
            if draft.data_bytes >= self._limits.index_object_bytes:
                await self._put(draft)
                self._draft = draft = _Draft(first_key)
        draft.add(key, place)
        self._last_key = key

    async def finish(self) -> IndexRun:
        """Write the last object; return the run, which is empty if no key was added. Raises as `add`."""
        if self._draft.entries:
            self._draft.end_block(b"")
            await self._put(self._draft)
        return tuple(self._objects)

    async def discard(self) -> None:
        """Remove the objects of a run that no record will name."""
        if self._objects:
            await self._store.remove(each.name for each in self._objects)

    async def _put(self, draft: _Draft) -> None:
        sparse = encode_sparse_index(draft.blocks)
        name = await self._store.put(self._record, [*draft.parts, sparse])
        self._objects.append(
            IndexObject(
                name,
                draft.first_key,
                draft.data_bytes,
                len(sparse),
                crc32c(sparse),
                draft.entries,
                draft.live,
                draft.live_bytes,
            )
        )


class _Draft:
    """The object that is being filled."""

    def __init__(self, first_key: bytes) -> None:
        self.first_key = self._block_first_key = first_key
        self.parts: list[bytes] = []
        self.blocks: list[IndexBlock] = []
        self.data_bytes = self.block_bytes = 0
        self.entries = self.live = self.live_bytes = 0
        self._block: list[bytes] = []

    @property
    def block_entries(self) -> int:
        return len(self._block)

    def add(self, key: bytes, place: Place) -> None:
        entry = encode_index_entry(key, place)
        self._block.append(entry)
        self.block_bytes += len(entry)
        self.entries += 1
        if not place.removed:
            self.live += 1
            self.live_bytes += entry_bytes(key, place)

    def end_block(self, next_first_key: bytes) -> None:
        data = b"".join(self._block)
        self.blocks.append(IndexBlock(self._block_first_key, self.data_bytes, len(data), crc32c(data)))
        self.parts.append(data)
        self.data_bytes += len(data)
        self._block, self.block_bytes, self._block_first_key = [], 0, next_first_key


MERGED_SIZE_RATIO: Final = 2
"""An older run is merged with the newer ones if these together have at least its size divided by this ratio.

This keeps the number of runs small. A key is rewritten only when the index has grown by a large part of its size.
"""


class TableUpkeep:
    """The upkeep of one table. `run_step` does one step of it."""

    def __init__(self, table: Table, store: IndexStore, index: IndexReader, limits: TableLimits) -> None:
        self._table = table
        self._store = store
        self._index = index
        self._limits = limits
        self._unsaved: TableIndex | None = None
        self._compacted = 0
        self._truncations: deque[tuple[int, int]] = deque()  # offset, and the length that tier 2 must have first

    @property
    def due(self) -> bool:
        """Whether there is a step to run now."""
        return self._compaction_due or self._other_step_due

    @property
    def _other_step_due(self) -> bool:
        return self._unsaved is not None or self._flush_due or self._merged_runs > 1 or self._truncation_due

    async def run_step(self) -> bool:
        """Run the next step; return whether there may be another one now.

        Raises:
            ThrottledError, UnavailableError: tier 2 does not answer. No entry is lost; call it again.
            FencedError: the container has another owner.
            ConflictError: the table must be loaded again (`IndexRecord.replace`).
            CorruptError: the index does not have the bytes that were written.
        """
        if self._unsaved is not None:
            await self._save(self._unsaved)
        elif self._flush_due:
            await self._flush()
        elif self._merged_runs > 1:
            await self._merge(self._merged_runs)
        elif self._truncation_due:
            await self._truncate()
        else:
            return (self._compaction_due and await self._compact()) or self._other_step_due
        return True

    # The index

    @property
    def _flush_due(self) -> bool:
        table = self._table
        return len(table.tails) > 1 and table.segment.tiered.length >= table.tails[0].start

    @property
    def _merged_runs(self) -> int:
        """The number of runs to merge, from the newest on; 1 if there is nothing to merge."""
        sizes = [sum(each.data_bytes for each in run) for run in self._table.runs]
        count, merged = 1, sum(sizes[:1])
        while count < len(sizes) and sizes[count] <= MERGED_SIZE_RATIO * merged:
            merged += sizes[count]
            count += 1
        return count

    async def _flush(self) -> None:
        table = self._table
        newest, full = table.tails
        writer = RunWriter(self._store, table.record, self._limits)
        try:
            for key in sorted(full.places):
                await self._add(writer, key, full.places[key], oldest=not table.runs)
            run = await writer.finish()
        except BaseException:
            await writer.discard()
            raise
        await self._save(TableIndex(newest.start, _with(run, table.runs)))

    async def _merge(self, count: int) -> None:
        table = self._table
        merged, kept = table.runs[:count], table.runs[count:]
        writer = RunWriter(self._store, table.record, self._limits)
        try:
            async for key, place in self._index.walk(merged):
                await self._add(writer, key, place, oldest=not kept)
            run = await writer.finish()
        except NotFoundError as error:
            await writer.discard()
            raise CorruptError(f"the index of table {table.segment.name} has lost an object: {error}") from error
        except BaseException:
            await writer.discard()
            raise
        await self._save(TableIndex(table.record.index.covered, _with(run, kept)))

    async def _add(self, writer: RunWriter, key: bytes, place: Place, *, oldest: bool) -> None:
        """Add an entry, unless it is truncated, or a removal in the oldest run, where it hides no older entry.

        The start of the segment is the one that tier 2 knows, because a loss of the log may undo a truncation.
        """
        if place.offset >= self._table.segment.tiered.told_start and not (oldest and place.removed):
            await writer.add(key, place)

    async def _save(self, index: TableIndex) -> None:
        self._unsaved = index  # if the write fails it may still have happened, so the same index must be written again
        await self._table.record.replace(index)
        self._unsaved = None
        if len(self._table.tails) > 1 and index.covered >= self._table.tails[0].start:
            self._table.thaw()

    # Compaction

    @property
    def _compaction_due(self) -> bool:
        segment = self._table.segment
        total = segment.accepted.length - max(segment.accepted.start_offset, self._compacted)
        if segment.accepted.sealed or segment.accepted.removed or self._table.container.failure is not None:
            return False
        if not self._table.has_room:  # the copies' keys are in memory until tier 2 has the copies
            return False
        return total > self._limits.compaction_segment_bytes and total > 2 * self._table.live_bytes

    @property
    def _truncation_due(self) -> bool:
        return bool(self._truncations) and self._truncations[0][1] <= self._table.segment.tiered.length

    async def _compact(self) -> bool:
        """Append the live entries at the head again; return False if the cache has no room for them now."""
        table, segment = self._table, self._table.segment
        start = max(segment.accepted.start_offset, self._compacted)
        data = await read_segment(segment, table.reader, start, min(ENTRY_BYTES_MAX, segment.accepted.length - start))
        entries = self._fitting(decode_entries(memoryview(data), start)[0])
        newest = await table.find_all(key for key, _ in entries)
        # No other task runs from here on. Entries newer than those of the look-up can only be in the tails.
        live = [
            (key, place) for key, place in entries if (table.peek(key) or newest[key]) == place and not place.removed
        ]
        if live and not self._append_again(live, memoryview(data), start):
            return False
        last_key, last = entries[-1]
        self._compacted = last.offset + entry_bytes(last_key, last)
        self._truncations.append((self._compacted, segment.accepted.length))
        return True

    def _fitting(self, entries: list[tuple[bytes, Place]]) -> list[tuple[bytes, Place]]:
        """The first entries, up to the one whose key may fill the newest tail."""
        sizes = accumulate(
            (KEY_CHARGE_BYTES + len(key) for key, _ in entries), initial=self._table.tails[0].memory_bytes
        )
        count = sum(2 * size <= self._limits.tail_memory_bytes for size in sizes)
        return entries[: max(count, 1)]

    def _append_again(self, live: list[tuple[bytes, Place]], data: memoryview, start: int) -> bool:
        table = self._table
        parts: list[Buffer] = []
        addition = TailAddition(table.tails[0])
        offset = table.segment.accepted.length
        for key, place in live:
            value_at = value_offset(key, place) - start
            parts.extend(encode_entry(key, data[value_at : value_at + place.value_length], place.version))
            addition.put(key, place._replace(offset=offset))
            offset += entry_bytes(key, place)
        encoded = memoryview(b"".join(parts))
        reservation = table.container.pool.reserve(len(encoded))
        if reservation is None:
            return False
        for part in reservation.parts:
            part[:] = encoded[: len(part)]
            encoded = encoded[len(part) :]
        try:
            table.append(reservation, addition, _unwatched)
        except HeadraceError:
            table.container.pool.release(reservation)
            raise
        return True

    async def _truncate(self) -> None:
        tiered = self._table.segment.tiered.length
        due = [offset for offset, length in self._truncations if length <= tiered]
        await self._table.container.truncate(self._table.segment.name, due[-1])
        for _ in due:  # not before, because the log may have refused it
            self._truncations.popleft()


def _with(run: IndexRun, older: tuple[IndexRun, ...]) -> tuple[IndexRun, ...]:
    return (run, *older) if run else older


def _unwatched(_error: HeadraceError | None) -> None:
    """Ignore the result: no caller waits for the copies, and a failure of the log stops the container anyway."""
