"""A key-value table for programs without an event loop: `AsyncKeyValueTable`, run on the client's background thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from headrace.client.key_value_table import PAGE_ENTRIES, AsyncKeyValueTable
from headrace.client.loop_thread import LoopThread
from headrace.client.table_entries import TableEntry, TableKey

T = TypeVar("T")


class KeyValueTable:
    """Data operations on one table; make it with `Headrace.key_value_table`, use it with `with`. Thread-safe.

    Every method is described at its twin.
    """

    def __init__(self, thread: LoopThread, table: AsyncKeyValueTable) -> None:
        self._run = thread.run
        self._table = table

    def get(self, primary: bytes, secondary: bytes = b"") -> TableEntry | None:
        return self._run(self._table.get(primary, secondary))

    def put(self, primary: bytes, value: bytes, secondary: bytes = b"") -> int:
        return self._run(self._table.put(primary, value, secondary))

    def insert(self, primary: bytes, value: bytes, secondary: bytes = b"") -> int:
        return self._run(self._table.insert(primary, value, secondary))

    def replace(self, primary: bytes, value: bytes, version: int, secondary: bytes = b"") -> int:
        return self._run(self._table.replace(primary, value, version, secondary))

    def remove(self, primary: bytes, secondary: bytes = b"", *, version: int | None = None) -> None:
        self._run(self._table.remove(primary, secondary, version=version))

    def get_all(self, keys: Sequence[TableKey]) -> list[TableEntry | None]:
        return self._run(self._table.get_all(keys))

    def update_all(self, primary: bytes, changes: Mapping[bytes, tuple[bytes, int | None]]) -> dict[bytes, int]:
        return self._run(self._table.update_all(primary, changes))

    def remove_all(self, primary: bytes, conditions: Mapping[bytes, int | None]) -> None:
        self._run(self._table.remove_all(primary, conditions))

    def entries(
        self,
        *,
        primary: bytes | None = None,
        first: bytes | None = None,
        last: bytes | None = None,
        page: int = PAGE_ENTRIES,
    ) -> Iterator[TableEntry]:
        yield from self._all(lambda: self._table.entries(primary=primary, first=first, last=last, page=page), page)

    def keys(
        self,
        *,
        primary: bytes | None = None,
        first: bytes | None = None,
        last: bytes | None = None,
        page: int = PAGE_ENTRIES,
    ) -> Iterator[tuple[TableKey, int]]:
        yield from self._all(lambda: self._table.keys(primary=primary, first=first, last=last, page=page), page)

    @property
    def closed(self) -> bool:
        return self._table.closed

    def close(self) -> None:
        if not self.closed:
            self._run(self._table.close())

    def __enter__(self) -> KeyValueTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _all(self, start: Callable[[], AsyncIterator[T]], page: int) -> Iterator[T]:
        """What the asynchronous iterator gives, a page at a time: crossing over to the loop costs more than an item."""
        found = start()
        while items := self._run(_some(found, page)):
            yield from items


async def _some(source: AsyncIterator[T], most: int) -> list[T]:
    items: list[T] = []
    while len(items) < most:
        try:
            items.append(await anext(source))
        except StopAsyncIteration:
            break
    return items
