"""Keeps Python's cycle collector from stopping the event loop while appends wait.

The index of cached appends is hundreds of thousands of long-lived objects. A full collection looks at all of them and
took 75 to 160 ms here, which is what the slowest acknowledgements waited for. They are freed by reference counts;
cycles come from closed connections and from exceptions only, and can wait for a quiet moment.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

LOOK_EVERY_S: Final = 1.0
WORTH_COLLECTING_OBJECTS: Final = 20_000
BUSY_OBJECTS_MAX: Final = 2_000_000
"""So many new objects are collected even in the middle of work; those that are known from before are left out then."""


class QuietCollector:
    """Collects when `work_done` has not changed between two looks. One per process, since the collector is."""

    def __init__(self, work_done: Callable[[], int]) -> None:
        self._work_done = work_done
        self._seen = -1
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take over from the automatic collector; what is alive now will stay so and is not looked at again."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._schedule()

    def stop(self) -> None:
        """Hand over to the automatic collector."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.unfreeze()
            gc.enable()

    def look(self) -> None:
        """Collect if it is worth it and nobody waits."""
        new_objects, done = gc.get_count()[0], self._work_done()
        quiet, self._seen = done == self._seen, done
        if quiet and new_objects >= WORTH_COLLECTING_OBJECTS:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        elif new_objects >= BUSY_OBJECTS_MAX:
            gc.collect()
            gc.freeze()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._tick)

    def _tick(self) -> None:
        self.look()
        self._schedule()
