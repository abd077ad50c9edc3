"""Timers that run when a test advances the clock."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from headrace.adapters.memory.manual_clock import ManualClock

TURNS = 20
"""More turns of the event loop than a task takes between two timers."""


@dataclass(order=True)
class ManualTimer:
    """A call at a time of the clock, unless it is cancelled."""

    due_s: float
    number: int
    call: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class ManualTimers:
    """`call_later` by a manual clock. `pending` are the seconds until the timers that wait now."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._timers: list[ManualTimer] = []
        self._numbers = count()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(self.clock.monotonic_s() + delay_s, next(self._numbers), call)
        heapq.heappush(self._timers, timer)
        return timer

    @property
    def pending(self) -> list[float]:
        now_s = self.clock.monotonic_s()
        return [round(each.due_s - now_s, 6) for each in sorted(self._timers) if not each.cancelled]

    async def advance(self, seconds: float) -> None:
        """Move the clock, run the timers that are due, and let the tasks run until they wait again."""
        await self.turn()
        self.clock.advance(round(seconds * 1000))
        while self._timers and self._timers[0].due_s <= self.clock.monotonic_s():
            timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.call()
                await self.turn()
        await self.turn()

    async def turn(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
