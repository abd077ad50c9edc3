"""Runs Python's cycle collector so that it rarely stops the event loop, and garbage does not pile up.

The index of cached appends consists of hundreds of thousands of long-lived objects, which reference counts free. A full
collection visits all of them and took 75 to 160 ms, during which acknowledgements waited. Cycles come mostly from
requests to AWS, with some hundred small objects each. They become garbage soon, so that a collection of new objects
finds them. Without it, five minutes of saturated load left 120,000 such objects.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

from headrace.segmentstore.periodic_task import PeriodicTask, Rest

LOOK_EVERY_S: Final = 0.25
"""The youngest generation is collected each time, in 0.2 ms at ten thousand appends a second."""

YOUNG_LOOKS: Final = 10
"""After so many, the next generation is collected too: the requests of its objects have ended by then."""

MIDDLE_LOOKS_IF_QUIET: Final = 240
"""After so many of those, about ten minutes, all objects are collected if no work is in progress then."""

MIDDLE_LOOKS_MAX: Final = 480
"""After so many, a full collection runs even during work. It skips frozen objects, so that few are visited."""


BULK_OBJECTS: Final = 10_000
"""So many new objects while a container is opened are the index of its log. To visit them would take 6 ms and more."""


class QuietCollector:
    """Collects new objects at intervals, and all objects rarely, if possible when `work_done` has not changed.

    While a container is opened (`opens`), the objects that come in bulk are frozen: with them the garbage of these
    moments remains until all objects are collected.

    There is one per process, since Python has one collector per process.
    """

    def __init__(self, work_done: Callable[[], int], opens: Callable[[], bool]) -> None:
        self._work_done = work_done
        self._opens = opens
        self._seen = -1
        self._looks = PeriodicTask(self._look, retry_first_s=LOOK_EVERY_S)

    def start(self) -> None:
        """Replace the automatic collector. Objects that are alive now are frozen, and not visited again."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._looks.start(Rest.fixed(LOOK_EVERY_S))

    def stop(self) -> None:
        """Enable the automatic collector again."""
        if self._looks.is_running:
            self._looks.cancel()
            gc.unfreeze()
            gc.enable()

    def look(self) -> None:
        """Collect the generations that are due."""
        young_objects, young_looks, middle_looks = gc.get_count()
        done = self._work_done()
        quiet, self._seen = done == self._seen, done
        if young_objects >= BULK_OBJECTS and self._opens():
            gc.freeze()
        elif quiet and middle_looks >= MIDDLE_LOOKS_IF_QUIET:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        elif middle_looks >= MIDDLE_LOOKS_MAX:
            gc.collect()
            gc.freeze()
        else:
            gc.collect(1 if young_looks >= YOUNG_LOOKS else 0)

    async def _look(self) -> Rest:
        self.look()
        return Rest.fixed(LOOK_EVERY_S)
