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
    """A reader of which an iterator returns single events."""

    _unreturned: Iterator[T]
    """Those of the newest batch that were not returned. Other calls of the reader drop them."""

    def _following(self) -> Iterator[T] | None:
        """Reads the next batch. Returns its events, None at the end."""
        ...


class EventIterator(Iterator[T]):
    """As `ObjectIterator`, for single events: those of a batch need no call each."""

    def __init__(self, source: EventSource[T]) -> None:
        self._source = source

    def __next__(self) -> T:
        source = self._source
        while True:
            for event in source._unreturned:
                return event
            following = source._following()
            if following is None:
                raise StopIteration
            source._unreturned = following


class AsyncEventSource(Protocol[T]):
    """As `EventSource`."""

    _unreturned: Iterator[T]

    async def _following(self) -> Iterator[T] | None: ...


class AsyncEventIterator(AsyncIterator[T]):
    """As `EventIterator`."""

    def __init__(self, source: AsyncEventSource[T]) -> None:
        self._source = source

    async def __anext__(self) -> T:
        source = self._source
        while True:
            for event in source._unreturned:
                return event
            following = await source._following()
            if following is None:
                raise StopAsyncIteration
            source._unreturned = following

    async def aclose(self) -> None:
        """Does nothing, as `AsyncObjectIterator.aclose`."""
