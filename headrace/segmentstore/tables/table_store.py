"""The tables of one container: how to get at one, their life, and the tasks that keep them up.

`use` is how to get at a table; while it lasts the table stays in memory, so that there are never two states of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.model.errors import (
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
from headrace.segmentstore.containers import attributes
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.containers.unstored_load import UnstoredLoad
from headrace.segmentstore.tables.index_store import IndexStore
from headrace.segmentstore.tables.table import Table
from headrace.segmentstore.tables.table_memory import Resident, TableMemory
from headrace.segmentstore.tables.upkeep import TableUpkeep
from headrace.segmentstore.tiering.storage_reader import StorageReader

_log = logging.getLogger(__name__)


class TableStore:
    """The tables of `container`, whose bytes `reader` finds in tier 2. `memory` is shared by all of a process."""

    def __init__(
        self,
        container: SegmentContainer,
        reader: StorageReader,
        index_store: IndexStore,
        memory: TableMemory,
        unstored: UnstoredLoad,
    ) -> None:
        self._container = container
        self._reader = reader
        self._index_store = index_store
        self._memory = memory
        self._unstored = unstored
        self._stopped = False
        container.on_stored = self._stored

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Table]:
        """The table of this name, ready and in memory until the block ends.

        Raises:
            NotFoundError: there is no such segment.
            InvalidRequestError: it is a segment but no table.
            ThrottledError, UnavailableError, CorruptError: as `Table.ready`.
        """
        await self._unstored.wait()
        segment = await self._segment(name)
        resident = self._memory.get(self._container.container, name)
        if resident is None or resident.table.segment is not segment or resident.is_useless:
            resident = self._new(segment)
            self._memory.put(self._container.container, name, resident)
        table = resident.table
        table.users += 1
        try:
            await table.ready()
            yield table
        finally:
            table.users -= 1
            self._keep_up(resident)  # first: a table that left memory must not be kept up beside a newer state of it
            self._memory.recount(self._container.container, name)

    async def create(self, name: str, key_length: int, created: tuple[tuple[int, int], ...]) -> None:
        """Make a table; `created` are further attributes of its segment.

        Raises:
            InvalidRequestError: no key can have this length.
            AlreadyExistsError: there is a segment of this name.
        """
        if not 0 <= key_length <= TABLE_KEY_BYTES_MAX:
            raise InvalidRequestError(f"keys of a table have up to {TABLE_KEY_BYTES_MAX} bytes, not {key_length}")
        kind = ((attributes.SEGMENT_TYPE, attributes.TABLE_SEGMENT), (attributes.TABLE_KEY_LENGTH, key_length))
        await self._container.create(name, created + kind)

    async def delete(self, name: str, *, must_be_empty: bool = False) -> None:
        """Remove a table.

        Its index goes first: nobody would know of it later. A crash between leaves a table that is read from its
        segment as a whole.

        Raises:
            NotFoundError: there is no such segment.
            InvalidRequestError: it is no table.
            IllegalStateError: it has entries and must not (code "table_not_empty").
            ThrottledError, UnavailableError, CorruptError: as `Table.find`, and as `IndexRecord.remove`.
        """
        try:
            await self._delete(name, must_be_empty=must_be_empty)
        except CorruptError:
            if must_be_empty:
                raise
            await self._index_store.forget(await self._segment(name))  # nobody needs to know what was in it
            await self._container.delete(name)

    async def _delete(self, name: str, *, must_be_empty: bool) -> None:
        async with self.use(name) as table, table.order:
            if must_be_empty:
                async for _ in table.walk(b"", None):
                    await self._container.log.durable()
                    raise IllegalStateError(f"table {name} is not empty", code="table_not_empty")
            resident = self._memory.get(self._container.container, name)
            # Nobody may go on with what is left if this fails half-way: the next one to ask reads the table anew.
            table.give_up(UnavailableError(f"table {name} is being removed"))
            self._memory.drop(self._container.container, name)
            if resident is not None and resident.task is not None:
                await asyncio.wait([resident.task])
            await table.record.remove()
            await self._container.delete(name)

    def forget(self, segment: Segment) -> bool:
        """Let go of what memory has of a table, before its segment leaves memory; False while somebody uses it."""
        resident = self._memory.get(self._container.container, segment.name)
        if resident is not None and resident.table.segment is segment:
            if resident.table.users:
                return False
            self._memory.drop(self._container.container, segment.name)
        return True

    async def stop(self) -> None:
        """Let go of all tables, and end their upkeep where it stands."""
        tasks = self.abandon()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abandon(self) -> list[asyncio.Task[None]]:
        """As `stop`, without waiting for what is returned."""
        self._stopped = True
        tasks = []
        for name, resident in self._memory.of_container(self._container.container):
            self._memory.drop(self._container.container, name)
            if resident.task is not None:
                resident.task.cancel()
                tasks.append(resident.task)
        return tasks

    # Inside

    async def _segment(self, name: str) -> Segment:
        segment = await self._container.find(name)
        if segment is None or not segment.is_table:
            await self._container.log.durable()
            if segment is None:
                raise NotFoundError(f"there is no table {name}", details={"segment": name})
            raise InvalidRequestError(f"segment {name} is no table")
        return segment

    def _new(self, segment: Segment) -> Resident:
        memory = self._memory
        table = Table(self._container, self._reader, segment, memory.index, self._index_store, memory.limits)
        return Resident(table, TableUpkeep(table, self._index_store, memory.index, memory.limits))

    def _stored(self) -> None:
        """Tier 2 has more than before: some tables may have waited for that."""
        for _, resident in self._memory.of_container(self._container.container):
            self._keep_up(resident)
            resident.table.hurry()

    def _keep_up(self, resident: Resident) -> None:
        table = resident.table
        idle = resident.task is None and not self._stopped and table.is_ready
        if idle and table.failure is None and not table.segment.removed and resident.upkeep.due:
            table.users += 1
            resident.task = asyncio.ensure_future(self._keep(resident))

    async def _keep(self, resident: Resident) -> None:
        table = resident.table
        try:
            await self._rounds(resident)
        except FencedError as error:
            self._container.log.fail(error)
        except Exception as error:  # noqa: BLE001 - a defect must stop the updates, not silently what bounds their memory
            if self._container.failure is None and not table.segment.removed:
                _log.error("event=table_upkeep_failed segment=%r", table.segment.name, exc_info=error)
                known = error if isinstance(error, HeadraceError) else HeadraceError(f"its upkeep failed: {error!r}")
                table.give_up(known)
        finally:
            resident.task = None
            table.users -= 1
            self._memory.recount(self._container.container, table.segment.name)

    async def _rounds(self, resident: Resident) -> None:
        limits = self._memory.limits
        retry_s = limits.retry_first_s
        while resident.table.failure is None and not resident.table.segment.removed:
            try:
                async with self._memory.upkeep_slots:
                    more = await resident.upkeep.round()
            except (ThrottledError, UnavailableError) as error:
                if self._container.failure is not None:
                    return
                _log.warning("event=table_upkeep_retry segment=%r error=%r", resident.table.segment.name, error.message)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, limits.retry_max_s)
                continue
            if not more:
                return
            retry_s = limits.retry_first_s
