"""Iterators that are objects, not generators: a call that fails, is cancelled or runs out of time does not end them.

A generator ends with the first exception that it raises. Its next call then says that there are no more events, as at
the end of a sealed stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class ObjectIterator(Iterator[T]):
    """Returns what `read` returns, until that is None."""

    def __init__(self, read: Callable[[], T | None]) -> None:
        self._read = read

    def __next__(self) -> T:
        item = self._read()
        if item is None:
            raise StopIteration
        return item


class AsyncObjectIterator(AsyncIterator[T]):
    """As `ObjectIterator`."""

    def __init__(self, read: Callable[[], Awaitable[T | None]]) -> None:
        self._read = read

    async def __anext__(self) -> T:
        item = await self._read()
        if item is None:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """Does nothing, as the reader is closed by itself. `contextlib.aclosing` calls it."""


class EventSource(Protocol[T]):
    """A reader for an iterator over single events. It takes those of the newest batch without a call for each."""

    _unreturned: Iterator[T]
    """Those of the newest batch that were not returned."""

    def _next_event(self) -> T | None:
        """Returns the next event, None at the end; after the newest batch it reads another one."""
        ...


class EventIterator(ObjectIterator[T]):
    """Returns the events of a reader."""

    def __init__(self, source: EventSource[T]) -> None:
        super().__init__(source._next_event)
        self._source = source

    def __next__(self) -> T:
        for event in self._source._unreturned:
            return event
        return super().__next__()


class AsyncEventSource(Protocol[T]):
    """As `EventSource`."""

    _unreturned: Iterator[T]

    async def _next_event(self) -> T | None: ...


class AsyncEventIterator(AsyncObjectIterator[T]):
    """As `EventIterator`."""

    def __init__(self, source: AsyncEventSource[T]) -> None:
        super().__init__(source._next_event)
        self._source = source

    async def __anext__(self) -> T:
        for event in self._source._unreturned:
            return event
        return await super().__anext__()
