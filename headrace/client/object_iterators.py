"""Iterators that are objects, not generators: a call that fails, is cancelled or runs out of time does not end them.

A generator ends with the first exception that it raises. Its next call then says that there are no more events, as at
the end of a sealed stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

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
