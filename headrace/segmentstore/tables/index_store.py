"""Index records and index objects of one container's tables: written, and read through a bounded cache of blocks.

A record is written in one transaction with a check of the container's claim, so that a fenced owner changes nothing.
An object is written before a record names it, and removed after no record names it any more. If a crash leaves an
unnamed object, the store removes it when it loads the table again, or with the table.

A write without an answer may take effect later (`UnansweredWrites`). Until then no object that it may name is removed,
and no table: its record might be created again, or the next table of its name would be hit.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from crc32c import crc32c

from headrace.codec.object_names import table_indexes_prefix
from headrace.codec.table_entries import IndexBlock, Place, decode_index_block, decode_sparse_index, find_in_index_block
from headrace.metadata.bounded_cache import BoundedCache
from headrace.model.chunks import chunk_partition
from headrace.model.errors import ConflictError, CorruptError, HeadraceError, UnavailableError
from headrace.model.segment_attributes import CREATION_TIME
from headrace.model.table_indexes import TABLE_INDEX_SORT, IndexObject, IndexRun, TableIndex, index_body, table_index
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Create, Delete, Key, MetadataStore, Record, Replace, Write, WriteConflictError
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.containers.settlements import undisturbed
from headrace.segmentstore.containers.unanswered_writes import UnansweredWrites
from headrace.segmentstore.tiering.owner_writes import ClaimedWrites, put_new

if TYPE_CHECKING:
    from typing_extensions import Buffer


_log = logging.getLogger(__name__)

NOTHING: Final = TableIndex(0, ())


class IndexStore:
    """The index records and objects of one container. `epoch` is the version of the container's claim."""

    def __init__(
        self, metadata_store: MetadataStore, chunk_storage: ChunkStorage, container: int, epoch: int, clock: Clock
    ) -> None:
        self.objects = chunk_storage
        self._metadata_store = metadata_store
        self._container = container
        self._epoch = epoch
        self._claimed = ClaimedWrites(metadata_store, container, epoch)
        self._written = 0
        self._writing: dict[Key, asyncio.Future[None]] = {}
        # Apart from those of the container: a flush that has failed must not delay the removal of a table.
        self._unanswered = UnansweredWrites(clock)

    async def load(self, segment: Segment) -> IndexRecord:
        """Read the index record of a table; it has an empty index if none was written yet.

        Waits for a write of it whose caller has gone: that would replace what is read, and name objects that are
        removed here.

        Raises:
            CorruptError: this version cannot decode the record.
            ThrottledError, UnavailableError: the metadata store does not answer.
        """
        key = Key(chunk_partition(segment.name), TABLE_INDEX_SORT)
        await self._settled(key)
        may_change = self._may_change(key)
        stored = await asyncio.to_thread(self._metadata_store.get, key)
        created_ms = segment.attribute(CREATION_TIME)
        try:
            index = table_index(created_ms, stored.body) if stored is not None else None
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"the index record of table {segment.name} does not decode: {error!r}") from error
        record = IndexRecord(
            self, key, created_ms, stored, index or NOTHING, may_exist=may_change or stored is not None
        )
        if index is not None and not may_change:
            await self._remove_orphans(record)
        return record

    async def forget(self, segment: Segment) -> None:
        """Remove the record and the objects of a table without reading them. Raises as `IndexRecord.remove`."""
        key = Key(chunk_partition(segment.name), TABLE_INDEX_SORT)
        await self.delete(key)
        await self.remove_all(self.prefix(key, segment.attribute(CREATION_TIME)))

    async def delete(self, key: Key) -> None:
        """Remove a record. Raises as `write`, and UnavailableError while an earlier write may take effect later."""
        await self._settled(key)
        if self._may_change(key):
            raise UnavailableError(f"a write of the index record {key.partition} may take effect later: try again")
        await self.write(Delete(key, version=None))

    async def remove_all(self, prefix: str) -> None:
        """Remove the objects of a table, except those that a newer owner wrote."""
        while names := [each.name for each in await self.objects.list(prefix) if self.may_remove(each.name)]:
            await self.objects.delete(names)

    async def put(self, record: IndexRecord, parts: Sequence[Buffer]) -> str:
        """Write an object of a table's index; return its name.

        Raises:
            ThrottledError, UnavailableError: call it again, which chooses another name.
        """
        self._written += 1
        name = f"{record.prefix}{self._epoch:010d}-{self._written:010d}"
        await put_new(self.objects, name, parts)
        return name

    async def remove(self, names: Iterable[str]) -> None:
        """Remove objects that no record names. If that fails, a later `load` or `remove_all` removes them."""
        try:
            await self.objects.delete(list(names))
        except HeadraceError as error:
            _log.warning("event=index_objects_left container=%d error=%r", self._container, error.message)

    async def write(self, write: Write) -> None:
        """Write under the container's claim. Raises FencedError, WriteConflictError, UnavailableError.

        The write goes on if the caller is cancelled.
        """
        await self._settled(write.key)
        work = self._writing[write.key] = asyncio.ensure_future(self._write(write))
        work.add_done_callback(lambda _: self._writing.pop(write.key))
        await undisturbed(work)

    async def _write(self, write: Write) -> None:
        with self._unanswered.noted(write.key.partition):
            await self._claimed.write(write)

    def _may_change(self, key: Key) -> bool:
        """Whether a write of this record that had no answer may take effect from now on."""
        return key.partition in self._unanswered.names()

    async def _settled(self, key: Key) -> None:
        """Return when no write of this record is in progress."""
        while (work := self._writing.get(key)) is not None:
            await asyncio.wait([work])

    def prefix(self, key: Key, created_ms: int) -> str:
        """The prefix of a table's index objects. It has a digest, because the segment's name may be too long."""
        digest = hashlib.sha256(key.partition.encode()).hexdigest()[:32]
        return f"{table_indexes_prefix(self._container)}{digest}-{created_ms:013d}/"

    def may_remove(self, name: str) -> bool:
        """Whether no newer owner of the container wrote this object."""
        epoch = name.rpartition("/")[2].partition("-")[0]
        return epoch.isdigit() and int(epoch) <= self._epoch

    async def _remove_orphans(self, record: IndexRecord) -> None:
        """Remove the objects that the record does not name: a crash left them before or after a write of it."""
        named = {each.name for run in record.index.runs for each in run}
        listed = [each.name for each in await self.objects.list(record.prefix)]
        if orphans := [name for name in listed if name not in named and self.may_remove(name)]:
            await self.remove(orphans)


class IndexRecord:
    """The index record of one table. `index` is its current content."""

    def __init__(
        self,
        store: IndexStore,
        key: Key,
        created_ms: int,
        stored: Record | None,
        index: TableIndex,
        *,
        may_exist: bool,
    ) -> None:
        self.index = index
        self.prefix = store.prefix(key, created_ms)
        self._store = store
        self._key = key
        self._created_ms = created_ms
        self._version = None if stored is None else stored.version
        self._may_exist = may_exist

    async def replace(self, index: TableIndex) -> None:
        """Make this the index. Call it again until it succeeds: before that it is unknown which index is stored.

        Raises:
            ConflictError: a write that was on its way when this record was loaded took effect: load it again.
            FencedError: the container has another owner.
            ThrottledError, UnavailableError: try again.
        """
        body: dict[str, Any] = index_body(self._created_ms, index)
        version = self._version
        self._may_exist = True
        try:
            await self._store.write(Create(self._key, body) if version is None else Replace(self._key, body, version))
        except WriteConflictError as error:
            present = error.failed.get(1)
            if present is None or present.body != body:
                raise ConflictError(f"index record {self._key.partition} has changed since it was loaded") from error
            self._version = present.version  # an earlier attempt succeeded, though its answer was lost
        else:
            self._version = 0 if version is None else version + 1
        former, self.index = self.index, index
        kept = {each.name for run in index.runs for each in run}
        gone = [each.name for run in former.runs for each in run if each.name not in kept]
        if gone:
            await self._store.remove(gone)

    async def remove(self) -> None:
        """Remove the record and the objects, which may be there without a record. Raises as `replace`."""
        if self._may_exist:
            await self._store.delete(self._key)
            self._version, self._may_exist = None, False
        await self._store.remove_all(self.prefix)


# Look-ups and walks in index runs. Blocks are read from chunk storage and kept in a bounded cache.

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
        blocks: list[list[tuple[bytes, Place]]] = []
        for run in runs:
            block, block_end = await self._block(run, first)
            blocks.append(decode_index_block(block))
            if block_end is not None and (end is None or block_end < end):
                end = block_end
        for entries in reversed(blocks):  # the newest run last, because its places replace older ones
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
        index_object = run[number]
        blocks = (await self._sparse_index(index_object)).blocks
        at = max(bisect_right(blocks, key, key=lambda each: each.first_key) - 1, 0)
        if at + 1 < len(blocks):
            end: bytes | None = blocks[at + 1].first_key
        else:
            end = run[number + 1].first_key if number + 1 < len(run) else None
        return await self._read_block(index_object, blocks[at]), end

    async def _sparse_index(self, index_object: IndexObject) -> _SparseIndex:
        sparse = self._sparse.get(index_object.name)
        if sparse is None:
            data = await self._read(
                index_object, index_object.data_bytes, index_object.sparse_bytes, index_object.checksum
            )
            sparse = _SparseIndex(decode_sparse_index(data), SPARSE_INDEX_FACTOR * len(data))
            self._sparse.put(index_object.name, sparse)
        return sparse

    async def _read_block(self, index_object: IndexObject, block: IndexBlock) -> bytes:
        key = (index_object.name, block.position)
        data = self._blocks.get(key)
        if data is None:
            data = await self._read(index_object, block.position, block.length, block.checksum)
            self._blocks.put(key, data)
        return data

    async def _read(self, index_object: IndexObject, position: int, length: int, checksum: int) -> bytes:
        if position + length > index_object.data_bytes + index_object.sparse_bytes:
            raise CorruptError(
                f"index object {index_object.name} refers to {length} bytes at {position}, after its end"
            )
        data = await self._objects.read(index_object.name, position, length)
        if crc32c(data) != checksum:
            raise CorruptError(f"{length} bytes at {position} of index object {index_object.name} fail their checksum")
        return data
