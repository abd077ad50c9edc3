"""The tables of all containers of a process that are in memory, with one limit on the memory of all of them.

A table that is not in use may be evicted at any time. The next request for it loads it again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from headrace.ports.chunk_storage import ChunkStorage
from headrace.segmentstore.tables.index_reader import IndexReader
from headrace.segmentstore.tables.limits import LARGE_BATCHES_AT_ONCE_MAX, TableLimits
from headrace.segmentstore.tables.table import Table
from headrace.segmentstore.tables.upkeep import TableUpkeep

UPKEEPS_AT_ONCE_MAX: Final = 2
"""Maintenance tasks that run at the same time. Each may have an index object in memory while it writes it."""

TABLE_CHARGE_BYTES: Final = 8 << 10
"""The memory of a table in addition to its tails."""


@dataclass(slots=True, eq=False)
class Resident:
    """A table in memory, its upkeep, and the task that runs the upkeep while there is work."""

    table: Table
    upkeep: TableUpkeep
    task: asyncio.Task[None] | None = None
    counted_bytes: int = 0

    @property
    def is_useless(self) -> bool:
        """Whether the table has failed and is not in use: the next request must load it again."""
        return self.table.failure is not None and not self.table.users


class TableMemory:
    """The tables in memory, least recently used first. `objects` is the chunk storage of the index objects."""

    def __init__(self, objects: ChunkStorage, limits: TableLimits) -> None:
        self.limits = limits
        self.index = IndexReader(objects, limits.cached_blocks_bytes)
        self.large_batches = asyncio.Semaphore(LARGE_BATCHES_AT_ONCE_MAX)
        self.upkeep_slots = asyncio.Semaphore(UPKEEPS_AT_ONCE_MAX)
        self.used_bytes = 0
        self._residents: OrderedDict[tuple[int, str], Resident] = OrderedDict()

    def get(self, container: int, name: str) -> Resident | None:
        resident = self._residents.get((container, name))
        if resident is not None:
            self._residents.move_to_end((container, name))
        return resident

    def put(self, container: int, name: str, resident: Resident) -> None:
        self.drop(container, name)
        self._residents[container, name] = resident

    def drop(self, container: int, name: str) -> None:
        """Evict a table. Callers that use it keep their reference."""
        resident = self._residents.pop((container, name), None)
        if resident is not None:
            resident.table.is_evicted = True
            self.used_bytes -= resident.counted_bytes
            resident.counted_bytes = 0

    def of_container(self, container: int) -> list[tuple[str, Resident]]:
        return [(name, resident) for (owner, name), resident in self._residents.items() if owner == container]

    def recount(self, container: int, name: str) -> None:
        """Update the size of a table that may have grown, or evict it if it is useless.

        Also evict least recently used tables beyond the limit.
        """
        resident = self._residents.get((container, name))
        if resident is not None and resident.is_useless:
            self.drop(container, name)
        elif resident is not None:
            counted_bytes = TABLE_CHARGE_BYTES + resident.table.memory_bytes
            self.used_bytes += counted_bytes - resident.counted_bytes
            resident.counted_bytes = counted_bytes
        if self.used_bytes > self.limits.all_tails_memory_bytes:
            for owner, each in [key for key, held in self._residents.items() if not held.table.users]:
                self.drop(owner, each)
                if self.used_bytes <= self.limits.all_tails_memory_bytes:
                    break
