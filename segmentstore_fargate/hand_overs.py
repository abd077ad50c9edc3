"""Hands containers over to the stores that the map assigns them to, each in a background task of its own.

A container is served while most of it is flushed. If tier 2 does not answer by the deadline, this store continues to
serve it, and makes the next attempt after a back-off. This is also so if tier 2 stops answering after the container was
stopped, unless it may already say that no log is needed: then this store opens the container from its log again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from headrace.model.backoff import doubled_pause
from headrace.ports.clock import Clock
from headrace.segmentstore.store import SegmentStore

_log = logging.getLogger(__name__)

DEADLINE_S: Final = 60.0
RETRY_FIRST_S: Final = DEADLINE_S
"""As long as a failed attempt, so that a container that had to be stopped is served at least half of the time."""
RETRY_MAX_S: Final = 600.0
"""Bounds the delay until a hand-over succeeds after a long outage of tier 2."""


class HandOvers:
    """The hand-overs of one store. `on_end` is called at the end of each: the container, and whether it has gone."""

    def __init__(self, store: SegmentStore, clock: Clock, on_end: Callable[[int, bool], None]) -> None:
        self._store = store
        self._clock = clock
        self._on_end = on_end
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._failed: dict[int, tuple[int, float]] = {}  # how often in a row, and when the pause is over

    def begin(self, container: int) -> None:
        """Hand over a container that is served here."""
        self._tasks[container] = asyncio.ensure_future(self._run(container))

    def may_begin(self, container: int) -> bool:
        """Whether no attempt is in progress, and the pause after a failed one is over."""
        _, retry_at_s = self._failed.get(container, (0, 0.0))
        return container not in self._tasks and self._clock.monotonic_s() >= retry_at_s

    def keep_failures(self, due: Collection[int]) -> None:
        """Forget the failures of containers that need not be handed over any more."""
        self._failed = {container: failed for container, failed in self._failed.items() if container in due}

    async def _run(self, container: int) -> None:
        try:
            handed_over = await self._store.hand_over(container, DEADLINE_S)
        except Exception as error:  # noqa: BLE001 - a defect: the next attempt may succeed
            _log.error("event=hand_over_failed container=%d error=%r", container, error)
            handed_over = False
        if handed_over:
            self._failed.pop(container, None)
        else:
            self._put_off(container)
        del self._tasks[container]
        self._on_end(container, handed_over)

    def _put_off(self, container: int) -> None:
        failures = self._failed.get(container, (0, 0.0))[0] + 1
        pause_s = doubled_pause(failures, RETRY_FIRST_S, RETRY_MAX_S)
        self._failed[container] = failures, self._clock.monotonic_s() + pause_s
        _log.warning("event=hand_over_put_off container=%d failures=%d retry_s=%.0f", container, failures, pause_s)
