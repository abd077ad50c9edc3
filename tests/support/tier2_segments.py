"""Segments of which memory has no byte, put into tier 2 run by run, and what their reader asks tier 2 for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.codec.time_blocks import encode_time_block
from headrace.model.chunks import ChunkRun, chunk_body, chunk_partition, chunk_sort
from headrace.model.time_points import TimePoint, TimePoints
from headrace.ports.metadata_store import Create, Key, Page
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.segment import AcceptedState, Segment
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.range_cache import RangeCache
from headrace.segmentstore.tiering.storage_reader import StorageReader

SEGMENT = "s/t/0.#epoch.0"


class Tier2:
    """`queries` counts the requests to the directory, and `gets` those for bytes of objects, which are in `ranges`."""

    def __init__(self, read_cache_bytes: int = 1 << 20) -> None:
        self.metadata, self.chunks = MemoryMetadataStore(TornReads(0)), MemoryChunkStorage()
        self.queries, self.ranges = 0, list[tuple[str, int, int]]()
        self._pool = BlockPool(1 << 20, 1 << 16)
        self.segment = self.another(1, SEGMENT)
        directory = ChunkDirectory(self, 0, 0, ManualClock())  # type: ignore[arg-type]
        self.reader = StorageReader(directory, self, RangeCache(self, read_cache_bytes))  # type: ignore[arg-type]

    def another(self, number: int, name: str) -> Segment:
        return Segment(number, name, self._pool, AcceptedState({}, 0))

    @property
    def gets(self) -> int:
        return len(self.ranges)

    def query(self, *args: Any, **fields: Any) -> Page:
        self.queries += 1
        return self.metadata.query(*args, **fields)

    async def read(self, name: str, position: int, length: int) -> bytes:
        self.ranges.append((name, position, length))
        return await self.chunks.read(name, position, length)

    def store(self, runs: Sequence[ChunkRun], segment: Segment | None = None) -> None:
        """Enter the runs into the directory. Their objects are the caller's concern."""
        segment = segment or self.segment
        for first in range(0, len(runs), 50):
            page = runs[first : first + 50]
            self.metadata.write(*(Create(self.key(run, segment.name), chunk_body(run)) for run in page))
        segment.accepted.length = segment.durable.length = segment.tiered.length = runs[-1].end

    def key(self, run: ChunkRun, name: str = SEGMENT) -> Key:
        return Key(chunk_partition(name), chunk_sort(run.offset))

    async def store_block(self, run: ChunkRun, points: Sequence[tuple[int, int, int]]) -> ChunkRun:
        """The run with its block, which is an object of its own here."""
        assert run.times is not None
        block = encode_time_block(TimePoints(TimePoint(*point) for point in points), run.offset)
        await self.chunks.put(run.object_name, [block])
        return replace(run, times=run.times._replace(block_length=len(block)))

    async def offset_from(self, ordering: int) -> int:
        return await self.reader.offset_from(self.segment, ordering)

    async def boundary(self, offset: int) -> int:
        return await self.reader.append_boundary(self.segment, offset)
