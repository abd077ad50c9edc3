"""Requests that wait for a container which this store is opening, or is about to leave to another store.

Without the wait a client gets WrongHost, looks the owner up and finds this store again, until the move is over. Some
clients try only a few times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

MOVE_WAIT_S: Final = 10.0
"""The longest wait of a request. It is less than the 30 s time-out of clients."""

LEFT_S: Final = 1.0
"""How long a container counts as moving after this store has left it: until its next owner has claimed it, which it
tries twice a second. Before that, clients that look up the owner find this store."""


class MovingContainers:
    """`is_busy` tells whether the store is opening, handing over or releasing a container."""

    def __init__(self, is_busy: Callable[[int], bool]) -> None:
        self._is_busy = is_busy
        self._left: dict[int, asyncio.TimerHandle] = {}
        self._news = asyncio.Event()
        self._ended = False

    def is_moving(self, container: int) -> bool:
        """Whether a request may wait for the container."""
        return not self._ended and (container in self._left or self._is_busy(container))

    async def wait(self, container: int) -> None:
        """Return when the container no longer moves, at the latest after `MOVE_WAIT_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MOVE_WAIT_S):
                while self.is_moving(container):
                    await self._news.wait()

    def changed(self) -> None:
        """Wake the requests, because a container may move no longer."""
        self._news.set()
        self._news = asyncio.Event()

    def left(self, container: int) -> None:
        """Note that nothing is left of a container that was served or opened here."""
        if not self._ended:
            self._forget(container)
            self._left[container] = asyncio.get_running_loop().call_later(LEFT_S, self._next_owner_known, container)

    def served(self, container: int) -> None:
        """Note that a container is served here."""
        self._forget(container)
        self.changed()

    def end(self) -> None:
        """Let no request wait any more, because the store shuts down."""
        self._ended = True
        for container in list(self._left):
            self._forget(container)
        self.changed()

    def _next_owner_known(self, container: int) -> None:
        del self._left[container]
        self.changed()

    def _forget(self, container: int) -> None:
        timer = self._left.pop(container, None)
        if timer is not None:
            timer.cancel()
