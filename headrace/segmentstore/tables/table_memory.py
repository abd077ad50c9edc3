"""The tables that are in memory, of all containers of a process, within one bound on what they take.

A table that nobody uses may leave at any time: whoever asks for it next reads it again.
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
"""Each may hold an index object that it writes."""

TABLE_CHARGE_BYTES: Final = 8 << 10
"""What a table takes beside its tails."""


@dataclass(slots=True, eq=False)
class Resident:
    """A table in memory, its upkeep, and the task that does it while there is something to do."""

    table: Table
    upkeep: TableUpkeep
    task: asyncio.Task[None] | None = None
    counted_bytes: int = 0

    @property
    def is_useless(self) -> bool:
        """Whether the table has failed, so that whoever asks next had better read it anew."""
        return self.table.failure is not None and not self.table.users


class TableMemory:
    """`objects` is where index objects are."""

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
        """Let a table go; whoever uses it still has it."""
        resident = self._residents.pop((container, name), None)
        if resident is not None:
            self.used_bytes -= resident.counted_bytes
            resident.counted_bytes = 0

    def of_container(self, container: int) -> list[tuple[str, Resident]]:
        return [(name, resident) for (owner, name), resident in self._residents.items() if owner == container]

    def recount(self, container: int, name: str) -> None:
        """A table may have grown: count it anew, and let those go that were used least recently if that is too much."""
        resident = self._residents.get((container, name))
        if resident is not None:
            counted_bytes = TABLE_CHARGE_BYTES + resident.table.memory_bytes
            self.used_bytes += counted_bytes - resident.counted_bytes
            resident.counted_bytes = counted_bytes
        if self.used_bytes > self.limits.all_tails_memory_bytes:
            for owner, each in [key for key, held in self._residents.items() if not held.table.users]:
                self.drop(owner, each)
                if self.used_bytes <= self.limits.all_tails_memory_bytes:
                    break
