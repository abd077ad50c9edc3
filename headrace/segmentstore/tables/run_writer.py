"""Writes a run of a table's index: sorted keys in, immutable objects out. One object is in memory at a time."""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from headrace.codec.table_entries import Place, entry_bytes
from headrace.codec.table_index import IndexBlock, encode_index_entry, encode_sparse_index, separator
from headrace.model.table_indexes import IndexObject, IndexRun
from headrace.segmentstore.tables.index_store import IndexRecord, IndexStore
from headrace.segmentstore.tables.limits import TableLimits

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
