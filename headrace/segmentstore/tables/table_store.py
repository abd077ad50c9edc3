"""The tables of one container: which of them are in memory, and their life.

A table that nobody uses may leave memory at any time: whoever asks next reads it again. `use` is how to get at one;
while it lasts the table stays, so that there are never two states of one table.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from headrace.model.errors import IllegalStateError, InvalidRequestError, NotFoundError
from headrace.model.limits import TABLE_KEY_BYTES_MAX
from headrace.segmentstore.containers import attributes
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.storage.storage_reader import StorageReader
from headrace.segmentstore.tables.table import Table

TABLES_IN_MEMORY_MAX: Final = 1_000


class TableStore:
    """The tables of `container`, whose bytes `reader` finds in tier 2."""

    def __init__(self, container: SegmentContainer, reader: StorageReader) -> None:
        self._container = container
        self._reader = reader
        self._tables: OrderedDict[int, Table] = OrderedDict()

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Table]:
        """The table of this name, in memory until the block ends.

        Raises:
            NotFoundError: there is no such segment.
            InvalidRequestError: it is a segment but no table.
        """
        segment = self._container.metadata.segments.get(name)
        if segment is None or not segment.is_table:
            await self._container.log.durable()
            if segment is None:
                raise NotFoundError(f"there is no table {name}", details={"segment": name})
            raise InvalidRequestError(f"segment {name} is no table")
        table = self._tables.get(segment.number)
        if table is None:
            table = self._tables[segment.number] = Table(self._container, self._reader, segment)
        self._tables.move_to_end(segment.number)
        table.users += 1
        try:
            yield table
        finally:
            table.users -= 1
            if segment.removed and not table.users:
                self._tables.pop(segment.number, None)
            self._make_room()

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

        Raises:
            NotFoundError: there is no such segment.
            InvalidRequestError: it is no table.
            IllegalStateError: it has entries and must not (code "table_not_empty").
        """
        async with self.use(name) as table, table.order:
            if must_be_empty:
                async for _ in table.walk(b"", None):
                    await self._container.log.durable()
                    raise IllegalStateError(f"table {name} is not empty", code="table_not_empty")
            await self._container.delete(name)

    def forget(self, segment: Segment) -> bool:
        """Let go of what memory has of a table, before its segment leaves memory; False while somebody uses it."""
        table = self._tables.get(segment.number)
        if table is not None and table.users:
            return False
        self._tables.pop(segment.number, None)
        return True

    def _make_room(self) -> None:
        """Let the tables go that were used least recently, if there are too many."""
        excess = len(self._tables) - TABLES_IN_MEMORY_MAX
        if excess > 0:
            idle = [number for number, table in self._tables.items() if not table.users]
            for number in idle[:excess]:
                del self._tables[number]
