"""Keeps Python's cycle collector from stopping the event loop while appends wait, and garbage from piling up meanwhile.

The index of cached appends is hundreds of thousands of long-lived objects. A full collection looks at all of them and
took 75 to 160 ms here, which is what the slowest acknowledgements waited for. They are freed by reference counts. What
cycles hold together comes from the requests to AWS above all (some hundred small objects each): it dies young, and
what looks at new objects only finds it. Before that was done, five minutes of saturated load left 120,000 of them.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

LOOK_EVERY_S: Final = 0.25
"""New objects are looked at each time: of ten thousand appends a second that is a fifth of a millisecond."""

YOUNG_LOOKS: Final = 10
"""After so many, what stayed is looked at once more: the requests that it served have ended by then."""

MIDDLE_LOOKS_IF_QUIET: Final = 240
"""After so many of those, some ten minutes, all objects are looked at if nobody waits for anything then."""

MIDDLE_LOOKS_MAX: Final = 480
"""After so many even in the middle of work, but for those that a full look found before: the others are few."""


class QuietCollector:
    """Looks at new objects, and now and then at all, if it can when `work_done` stays as it is between two looks.

    One per process, since the collector is.
    """

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
        """Collect what is worth it."""
        _, young_looks, middle_looks = gc.get_count()
        done = self._work_done()
        quiet, self._seen = done == self._seen, done
        if quiet and middle_looks >= MIDDLE_LOOKS_IF_QUIET:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        elif middle_looks >= MIDDLE_LOOKS_MAX:
            gc.collect()
            gc.freeze()
        else:
            gc.collect(1 if young_looks >= YOUNG_LOOKS else 0)

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._tick)

    def _tick(self) -> None:
        self.look()
        self._schedule()
