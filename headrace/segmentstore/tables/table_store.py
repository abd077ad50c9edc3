"""The tables of one container, with one limit on the memory of all: access, creation, removal, and maintenance.

All access is through `use`. Within its block the table stays in memory, so that there are never two states of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from headrace.model.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    ThrottledError,
    UnavailableError,
)
from headrace.model.limits import TABLE_KEY_BYTES_MAX
from headrace.model.segment_attributes import SEGMENT_TYPE, TABLE_KEY_LENGTH, TABLE_SEGMENT
from headrace.ports.chunk_storage import ChunkStorage
from headrace.segmentstore.containers.backfill import Backfill
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.periodic_task import NO_REST, PeriodicTask, Rest
from headrace.segmentstore.tables.index_store import IndexReader, IndexStore
from headrace.segmentstore.tables.table import Table
from headrace.segmentstore.tables.table_limits import LARGE_BATCHES_AT_ONCE_MAX, TableLimits
from headrace.segmentstore.tables.upkeep import TableUpkeep
from headrace.segmentstore.tiering.storage_reader import StorageReader

# The tables of all containers of a process that are in memory, with one limit on the memory of all of them.
#
# A table that is not in use may be evicted at any time. The next request for it loads it again.

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


_log = logging.getLogger(__name__)


class TableStore:
    """The tables of `container`. `reader` reads its bytes in tier 2; all containers of a process share `memory`."""

    def __init__(
        self,
        container: SegmentContainer,
        reader: StorageReader,
        index_store: IndexStore,
        memory: TableMemory,
        backfill: Backfill,
    ) -> None:
        self._container = container
        self._reader = reader
        self._index_store = index_store
        self._memory = memory
        self._backfill = backfill
        self._stopped = False

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Table]:
        """The table of this name, ready and in memory until the block ends.

        Raises:
            NotFoundError: there is no such segment.
            InvalidRequestError: the segment is not a table.
            UnavailableError: the table is being removed, or must be loaded again.
            ThrottledError, UnavailableError, CorruptError: as `Table.ready`.
        """
        await self._backfill.wait()
        segment = await self._segment(name)
        resident = self._memory.get(self._container.container, name)
        if resident is None or resident.table.segment is not segment:
            resident = self._new(segment)
            if self._stopped:
                resident.table.fail(self._not_served())
            self._memory.put(self._container.container, name, resident)
        table = resident.table
        table.check_stays()
        table.users += 1
        try:
            await table.ready()
            if not table.has_room:
                # An update would wait for the upkeep inside of the block. If tier 2 has all entries of a table that was
                # just loaded, nothing else starts it.
                self._start_upkeep(resident)
            yield table
        except HeadraceError:
            table.check_current()  # else a condition may have failed that holds, or a segment is missing that exists
            raise
        finally:
            table.users -= 1
            # Before `recount`, which may evict the table: an evicted table must not get a task that changes its index.
            self._start_upkeep(resident)
            self._memory.recount(self._container.container, name)

    async def create(self, name: str, key_length: int, created: tuple[tuple[int, int], ...]) -> None:
        """Create a table. `created` has further attributes of its segment.

        Raises:
            InvalidRequestError: keys cannot have this length.
            AlreadyExistsError: there is a segment of this name.
        """
        if not 0 <= key_length <= TABLE_KEY_BYTES_MAX:
            raise InvalidRequestError(f"table keys must have at most {TABLE_KEY_BYTES_MAX} bytes, not {key_length}")
        kind = (
            (SEGMENT_TYPE, TABLE_SEGMENT),
            (TABLE_KEY_LENGTH, key_length),
        )
        await self._container.create(name, created + kind)

    async def delete(self, name: str, *, must_be_empty: bool = False) -> None:
        """Remove a table.

        The index is removed first, because without the segment no process would find it again. After a crash between
        the two steps the table still exists, and is loaded from its whole segment.

        Raises:
            NotFoundError: there is no such segment.
            InvalidRequestError: the segment is not a table.
            IllegalStateError: the table has entries, and `must_be_empty` is set (code "table_not_empty").
            ThrottledError, UnavailableError, CorruptError: as `Table.find`, and as `IndexRecord.remove`.
        """
        try:
            await self._delete(name, must_be_empty=must_be_empty)
        except CorruptError:
            if must_be_empty:
                raise
            # The table can be removed without its content, so a damaged index must not prevent it.
            await self._index_store.forget(await self._segment(name))
            await self._container.delete(name)

    async def _delete(self, name: str, *, must_be_empty: bool) -> None:
        async with self.use(name) as table, table.order:
            table.check_stays()  # the table may have been removed, or evicted by `cancel`, while this waited
            if must_be_empty:
                async for _ in table.walk(b"", None):
                    await self._container.log.durable()
                    raise IllegalStateError(f"table {name} is not empty", code="table_not_empty")
                table.check_stays()  # again: what was walked may not be the table any more
            resident = self._memory.get(self._container.container, name)
            # Until the end of the block the table must not be loaded: that would remove what its upkeep is writing, or
            # find an index that is being removed. If the removal fails half-way, the next request loads it.
            table.begin_removal()
            if resident is not None and resident.task is not None:
                await asyncio.wait([resident.task])
            await table.record.remove()
            await self._container.delete(name)

    def forget(self, segment: Segment) -> bool:
        """Evict a table, because its segment is about to be evicted; return False while the table is in use."""
        resident = self._memory.get(self._container.container, segment.name)
        if resident is not None and resident.table.segment is segment:
            if resident.table.users:
                return False
            self._memory.drop(self._container.container, segment.name)
        return True

    async def stop(self) -> None:
        """Evict all tables, cancel their maintenance tasks, and wait for the end of these.

        A table that is being loaded or removed is evicted when that ends.
        """
        tasks = self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def resume(self) -> None:
        """Serve tables again after `stop`. They are loaded on their next use, those too that were read meanwhile."""
        self._stopped = False
        for _, resident in self._memory.of_container(self._container.container):
            resident.table.retire(self._not_served())

    def cancel(self) -> list[asyncio.Task[None]]:
        """As `stop`, without waiting; return the tasks that are ending."""
        self._stopped = True
        tasks = []
        for name, resident in self._memory.of_container(self._container.container):
            table = resident.table
            if not table.is_being_removed:
                table.retire(self._not_served())  # updates that wait for room would wait forever
            # A removal and a load remove objects that the index does not name, so no other load may begin before the
            # end of them: its table would write such objects.
            if not table.users or (table.is_ready and not table.is_being_removed):
                self._memory.drop(self._container.container, name)
            if resident.task is not None:
                resident.task.cancel()
                tasks.append(resident.task)
        return tasks

    def continue_upkeep(self) -> None:
        """Continue upkeep that waited for tier 2. Call it when tier 2 has received more bytes of the container."""
        for _, resident in self._memory.of_container(self._container.container):
            self._start_upkeep(resident)
            resident.table.hurry()

    # Inside

    async def _segment(self, name: str) -> Segment:
        segment = await self._container.find(name)
        if segment is None or not segment.is_table:
            await self._container.log.durable()
            if segment is None:
                raise NotFoundError(f"there is no table {name}", details={"segment": name})
            raise InvalidRequestError(f"segment {name} is not a table")
        return segment

    def _not_served(self) -> HeadraceError:
        number = self._container.container
        return self._container.failure or FencedError(f"container {number} is not served here: look up its owner again")

    def _new(self, segment: Segment) -> Resident:
        memory = self._memory
        table = Table(self._container, self._reader, segment, memory.index, self._index_store, memory.limits)
        return Resident(table, TableUpkeep(table, self._index_store, memory.index, memory.limits))

    def _start_upkeep(self, resident: Resident) -> None:
        table = resident.table
        idle = resident.task is None and not self._stopped and table.is_ready
        if idle and table.failure is None and not table.segment.accepted.removed and resident.upkeep.due:
            table.users += 1
            resident.task = asyncio.ensure_future(self._run_upkeep(resident))
            # Of a task that is cancelled before its first step nothing runs, no `finally` either.
            resident.task.add_done_callback(partial(self._upkeep_ended, resident))

    async def _run_upkeep(self, resident: Resident) -> None:
        task, limits = asyncio.current_task(), self._memory.limits
        try:
            await PeriodicTask(
                partial(self._run_step, resident),
                partial(self._step_failed, resident.table),
                retry_first_s=limits.retry_first_s,
                retry_max_s=limits.retry_max_s,
            ).run()
        finally:
            self._upkeep_ended(resident, task)

    def _upkeep_ended(self, resident: Resident, task: asyncio.Task[None] | None) -> None:
        if resident.task is task:
            resident.task = None
            resident.table.users -= 1
            self._memory.recount(self._container.container, resident.table.segment.name)

    async def _run_step(self, resident: Resident) -> Rest | None:
        if resident.table.failure is not None or resident.table.segment.accepted.removed:
            return None
        async with self._memory.upkeep_slots:
            return NO_REST if await resident.upkeep.run_step() else None

    def _step_failed(self, table: Table, error: Exception, _retry_s: float) -> bool:
        match error:
            case ThrottledError() | UnavailableError():
                if self._container.failure is not None:
                    return False
                _log.warning("event=table_upkeep_retry segment=%r error=%r", table.segment.name, error.message)
                return True
            case FencedError():
                self._container.log.fail(error)
            case ConflictError():
                _log.warning("event=table_loaded_again segment=%r error=%r", table.segment.name, error.message)
                table.retire(UnavailableError(f"table {table.segment.name} must be loaded again: {error.message}"))
            case _:  # without upkeep updates would fill the memory, so reject them
                if self._container.failure is None and not table.segment.accepted.removed:
                    _log.error("event=table_upkeep_failed segment=%r", table.segment.name, exc_info=error)
                    if not isinstance(error, HeadraceError):
                        error = HeadraceError(f"table upkeep failed: {error!r}")
                    table.fail(error)
        return False
