"""Removed segments of a container whose names are not free yet, because tier 2 still has something of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.model.errors import segment_quarantined
from headrace.segmentstore.containers.operation_log import resolve


class Removals:
    """The creations that wait for such names. `expect` makes a future that fails when the log does."""

    def __init__(self, expect: Callable[[], asyncio.Future[None]]) -> None:
        self._expect = expect
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._refused: set[str] = set()

    @property
    def refused(self) -> frozenset[str]:
        """The names that tier 2 refuses to free for good."""
        return frozenset(self._refused)

    async def done(self, name: str) -> None:
        """Wait until tier 2 has nothing of a removed segment any more.

        Raises:
            IllegalStateError: tier 2 refuses the removal for good (code "segment_quarantined").
            UnavailableError, FencedError: the container has stopped.
        """
        if name in self._refused:
            raise segment_quarantined(name)
        future = self._expect()
        self._waiters.setdefault(name, []).append(future)
        await future

    def note_stored(self, name: str) -> None:
        """Note that tier 2 has nothing of it any more."""
        for waiter in self._waiters.pop(name, []):
            resolve(waiter)

    def refuse(self, name: str) -> None:
        """Note that tier 2 refuses the removal for good. No segment can get the name until the container is opened
        again."""
        self._refused.add(name)
        for waiter in self._waiters.pop(name, []):
            if not waiter.done():
                waiter.set_exception(segment_quarantined(name))

    def forget_waiters(self) -> None:
        """Forget the creations, since the log has failed, and they with it."""
        self._waiters.clear()
