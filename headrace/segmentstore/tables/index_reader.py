"""Look-ups and walks in index runs. Blocks are read from chunk storage and kept in a bounded cache."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from headrace.codec.table_entries import IndexBlock, Place, decode_index_block, decode_sparse_index, find_in_index_block
from headrace.metadata.bounded_cache import BoundedCache
from headrace.model.errors import CorruptError
from headrace.model.table_indexes import IndexObject, IndexRun
from headrace.ports.chunk_storage import ChunkStorage

SPARSE_INDEX_FACTOR = 4
"""The memory of a decoded sparse index in Python objects, as a multiple of its encoded size."""


class Window(NamedTuple):
    """The newest place of each key in a range of keys, which ends before `end` (None: at the last key)."""

    places: dict[bytes, Place]
    end: bytes | None


class _SparseIndex(NamedTuple):
    blocks: list[IndexBlock]
    weight: int


class IndexReader:
    """The index objects of one container's tables."""

    def __init__(self, objects: ChunkStorage, cached_bytes: int) -> None:
        self._objects = objects
        self._blocks: BoundedCache[tuple[str, int], bytes] = BoundedCache(cached_bytes, len)
        self._sparse: BoundedCache[str, _SparseIndex] = BoundedCache(cached_bytes, lambda index: index.weight)

    async def find(self, runs: Sequence[IndexRun], key: bytes) -> Place | None:
        """The newest place of a key, which may be a removal; None if no run has one.

        Raises:
            NotFoundError: an object was removed, so the table has other runs by now.
            CorruptError: an object does not have the bytes that were written.
            ThrottledError, UnavailableError: chunk storage does not answer.
        """
        for run in runs:
            block, _ = await self._block(run, key)
            place = find_in_index_block(block, key)
            if place is not None:
                return place
        return None

    async def window(self, runs: Sequence[IndexRun], first: bytes) -> Window:
        """The keys from `first` to the end of the first block that ends, of one block per run. Raises as `find`."""
        places: dict[bytes, Place] = {}
        end: bytes | None = None
        found: list[list[tuple[bytes, Place]]] = []
        for run in runs:
            block, block_end = await self._block(run, first)
            found.append(decode_index_block(block))
            if block_end is not None and (end is None or block_end < end):
                end = block_end
        for entries in reversed(found):  # the newest run last, because its places replace older ones
            for key, place in entries:
                if first <= key and (end is None or key < end):
                    places[key] = place
        return Window(places, end)

    async def walk(self, runs: Sequence[IndexRun]) -> AsyncIterator[tuple[bytes, Place]]:
        """The newest place of each key, in the order of keys. Raises as `find`."""
        first: bytes | None = b""
        while first is not None:
            window = await self.window(runs, first)
            for key in sorted(window.places):
                yield key, window.places[key]
            first = window.end
            await asyncio.sleep(0)  # cached blocks do not suspend the task, so let other tasks run here

    async def _block(self, run: IndexRun, key: bytes) -> tuple[bytes, bytes | None]:
        """The only block of a run that may have the key, and the first key of the next block."""
        number = max(bisect_right(run, key, key=lambda each: each.first_key) - 1, 0)
        found = run[number]
        blocks = (await self._sparse_index(found)).blocks
        at = max(bisect_right(blocks, key, key=lambda each: each.first_key) - 1, 0)
        if at + 1 < len(blocks):
            end: bytes | None = blocks[at + 1].first_key
        else:
            end = run[number + 1].first_key if number + 1 < len(run) else None
        return await self._read_block(found, blocks[at]), end

    async def _sparse_index(self, found: IndexObject) -> _SparseIndex:
        sparse = self._sparse.get(found.name)
        if sparse is None:
            data = await self._read(found, found.data_bytes, found.sparse_bytes, found.checksum)
            sparse = _SparseIndex(decode_sparse_index(data), SPARSE_INDEX_FACTOR * len(data))
            self._sparse.put(found.name, sparse)
        return sparse

    async def _read_block(self, found: IndexObject, block: IndexBlock) -> bytes:
        key = (found.name, block.position)
        data = self._blocks.get(key)
        if data is None:
            data = await self._read(found, block.position, block.length, block.checksum)
            self._blocks.put(key, data)
        return data

    async def _read(self, found: IndexObject, position: int, length: int, checksum: int) -> bytes:
        if position + length > found.data_bytes + found.sparse_bytes:
            raise CorruptError(f"index object {found.name} refers to {length} bytes at {position}, after its end")
        data = await self._objects.read(found.name, position, length)
        if crc32c(data) != checksum:
            raise CorruptError(f"{length} bytes at {position} of index object {found.name} fail their checksum")
        return data
