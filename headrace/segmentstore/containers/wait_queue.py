"""A queue of callers that wait for the same thing, and go on in the order of their calls.

A future resumes who awaits it only in the next turn of the event loop. A caller that comes in between would find the
thing there already, and go before those who waited: it joins the queue instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitQueue(Generic[T]):
    """`is_empty`: all who have joined have gone on. `is_settled`: who joins now waits only for those before it."""

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[T], None] = {}
        self._settle: Callable[[asyncio.Future[T]], None] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._futures

    @property
    def is_settled(self) -> bool:
        return self._settle is not None

    async def join(self, future: asyncio.Future[T]) -> T:
        """Await a new future behind all that are in the queue. Returns and raises what it was settled with."""
        self._futures[future] = None
        if self._settle is not None:
            future.get_loop().call_soon(self._settle, future)  # behind the resumptions of all before it
        try:
            return await future
        finally:
            del self._futures[future]

    def settle(self, settle: Callable[[asyncio.Future[T]], None]) -> None:
        """Have `settle` end the waits of all who are in the queue, and of those who join it later."""
        self._settle = settle
        for future in self._futures:
            settle(future)
