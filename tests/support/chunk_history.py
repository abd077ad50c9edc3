"""A chunk directory, a bucket and a history service in memory, with every metadata query counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.adapters.memory.chunk_storage import MemoryChunkLinks, MemoryChunkStorage
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.api.plans import Chunks
from headrace.controller.services.history import HistoryService
from headrace.model.chunks import ChunkRun, chunk_body, chunk_partition, chunk_sort
from headrace.model.names import segment_name
from headrace.ports.metadata_store import Create, Delete, Key, MetadataStore, Page
from headrace.ports.segment_stores import SegmentScaleRate

SEGMENT_ID = 7


class FixedClock:
    def now_ms(self) -> int:
        return 1_800_000_000_000

    def monotonic_s(self) -> float:
        return 0.0


class CountingStore:
    """Counts every call of the store behind it."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._store, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            return operation(*arguments, **options)

        return call


class History:
    """One segment whose bytes are given as runs; `service` lists it, `fetch` follows the links of a page."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore(TornReads(0))
        self.storage = MemoryChunkStorage()
        self.links = MemoryChunkLinks(self.storage, 60, FixedClock())
        self.counting: Any = CountingStore(self.store)
        self.segment_stores = MemorySegmentStores()
        self.name = segment_name("s", "t", SEGMENT_ID)
        self.segment_stores.create_segment(self.name, SegmentScaleRate())
        self.service = HistoryService(self.counting, self.segment_stores, self.links)
        self.partition = chunk_partition(self.name)
        self._objects = 0

    def add(self, offset: int, data: bytes, *, padding: int = 5, segment: str | None = None) -> ChunkRun:
        """Store `data` between other streams' bytes in a new object, and its run in the directory."""
        self._objects += 1
        run = ChunkRun(offset, len(data), f"containers/0/{self._objects}", padding)
        asyncio.run(self.storage.put(run.object_name, [b"#" * padding, data, b"#" * padding]))
        self.record(run, segment)
        return run

    def record(self, run: ChunkRun, segment: str | None = None) -> None:
        self.store.write(Create(self._key(run.offset, segment), chunk_body(run)))

    def forget(self, offset: int, segment: str | None = None) -> None:
        self.store.write(Delete(self._key(offset, segment), 0))

    def _key(self, offset: int, segment: str | None) -> Key:
        return Key(self.partition if segment is None else chunk_partition(segment), chunk_sort(offset))

    def chunks(self, from_offset: int = 0, to_offset: int | None = None, limit: int = 100) -> Chunks:
        return self.service.chunks("s", "t", SEGMENT_ID, from_offset, to_offset, limit)

    def fetch(self, page: Chunks) -> bytes:
        return b"".join(self.links.get(chunk.url, chunk.headers) for chunk in page.chunks)

    def put_record(self, sort: str, body: dict[str, Any]) -> None:
        self.store.write(Create(Key(self.partition, sort), body))

    def query(self) -> Page:
        return self.store.query(self.partition, limit=1000)
