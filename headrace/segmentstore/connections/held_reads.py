"""The reads of a process that wait at the tails of segments: how many there may be, and how they are woken.

One append can wake the readers of thousands of connections. They are woken in portions, one in each turn of the event
loop, so that other connections get their turns meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from headrace.ports.clock import Clock

HELD_READS_PER_PROCESS_MAX: Final = 20_000
HELD_READS_PER_SEGMENT_MAX: Final = 2_000
"""Beyond this an earlier read gets an empty reply, after which clients ask again: one of the same connection if there
is any, and otherwise the oldest one."""

WAKES_PER_TURN_MAX: Final = 50
WAKES_TURN_S: Final = 0.002
"""Reads that are woken in one turn of the event loop, and the time for them. Each takes some 60 microseconds."""


class HeldRead(Protocol):
    """A read that waits for a change of its segment."""

    def on_news(self) -> None:
        """Read again, because the segment has changed."""
        ...

    def answer_empty(self) -> None:
        """Send an empty reply, after which the client asks again."""
        ...


class HeldReads:
    """Wakes held reads in the order in which their segments changed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[HeldRead, None] = {}  # the oldest first
        self._ready: deque[HeldRead] = deque()
        self._woken = 0
        self._started_s = 0.0
        self._turn_scheduled = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_full(self) -> bool:
        return len(self._held) >= HELD_READS_PER_PROCESS_MAX

    def add(self, held: HeldRead) -> None:
        self._held[held] = None

    def answer_oldest(self) -> None:
        """Send an empty reply to the read that has waited longest."""
        next(iter(self._held)).answer_empty()

    def remove(self, held: HeldRead) -> None:
        """Forget a read that was answered or whose connection is closed. It may be one of those to be woken."""
        self._held.pop(held, None)

    def wake(self, held: HeldRead) -> None:
        """Call `on_news` of a read in this turn of the event loop or in one of the next."""
        if self._ready or self._turn_is_over:
            self._ready.append(held)
        else:
            self._wake_now(held)
        if not self._turn_scheduled:
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    @property
    def _turn_is_over(self) -> bool:
        if not self._woken:
            self._started_s = self._clock.monotonic_s()
            return False
        return self._woken >= WAKES_PER_TURN_MAX or self._clock.monotonic_s() - self._started_s >= WAKES_TURN_S

    def _next_turn(self) -> None:
        self._woken = 0
        try:
            while self._ready and not self._turn_is_over:
                self._wake_now(self._ready.popleft())
        finally:  # a read that fails keeps no other one from its turn
            self._turn_scheduled = bool(self._ready or self._woken)
            if self._turn_scheduled:
                asyncio.get_running_loop().call_soon(self._next_turn)

    def _wake_now(self, held: HeldRead) -> None:
        if held in self._held:
            self._woken += 1
            held.on_news()
