"""Opens the containers that the map assigns to this store, each independently and step by step, until it is served.

A failed step is retried with a back-off of its own, under the same claim. A container with a damaged log or damaged
data in tier 2 is quarantined: it is retried rarely, and other containers do not wait for it. If the claim is lost or
refused, the opening ends. The next check of the map decides what happens then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from headrace.metadata.cluster_records import ContainerState
from headrace.model.container_opening import OpeningProgress, OpeningStep
from headrace.model.errors import FencedError, HeadraceError
from headrace.ports.clock import Clock
from headrace.segmentstore.container_opening import ContainerOpening
from headrace.segmentstore.store import SegmentStore

_log = logging.getLogger(__name__)

Claim = Callable[[ContainerState | int], Awaitable[int | None]]
"""Claims a container as it was looked at, or after another look (its number); the epoch, or None if it is not free."""

STOPPED_FORGOTTEN_S: Final = 600.0
"""A container that stops after having been served for longer than this is opened again without a pause."""

STOP_S: Final = 2.0
"""To undo openings at a shutdown. Those that take longer end with the process."""


class ContainerOpenings:
    """`on_end` is called when an opening has ended, whether its container is served or not."""

    def __init__(
        self,
        store: SegmentStore,
        clock: Clock,
        claim: Claim,
        confirm: Callable[[int, int], Awaitable[None]],
        on_end: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._claim = claim
        self._confirm = confirm
        self._on_end = on_end
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._tried = asyncio.Event()
        self._stopped: dict[int, tuple[OpeningProgress, float]] = {}

    @property
    def any(self) -> bool:
        """Whether there are containers to be served that are not served yet."""
        return bool(self._tasks)

    def begin(self, state: ContainerState) -> None:
        """Open a container in the background, if nothing of it is left here from before."""
        if self._store.is_free(state.container):
            stopped = self._stopped.get(state.container)
            opening = self._store.begin_opening(state.container, stopped[0] if stopped else None)
            self._tasks[state.container] = asyncio.ensure_future(self._run(opening, state))

    def note_failure(self, container: int, error: HeadraceError) -> None:
        """Note that a served container has stopped. If it stops again soon, it is opened after longer pauses."""
        now_s = self._clock.monotonic_s()
        former, failed_s = self._stopped.get(container, (OpeningProgress(), -STOPPED_FORGOTTEN_S))
        if now_s - failed_s >= STOPPED_FORGOTTEN_S:
            former = OpeningProgress()
        self._stopped[container] = former.failed(error), now_s

    async def first_attempts(self) -> None:
        """Return when every container is served or has failed once."""
        while any(not self._store.openings[each].progress.failures for each in self._tasks):
            self._tried.clear()
            await self._tried.wait()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    async def _run(self, opening: ContainerOpening, state: ContainerState) -> None:
        seen: ContainerState | int = state
        try:
            if opening.progress.retry_s:
                seen = opening.container
                await asyncio.sleep(opening.progress.retry_s)
            while True:
                try:
                    if not await self._advance(opening, seen):
                        return
                except FencedError as error:
                    _log.warning("event=opening_ended container=%d error=%r", opening.container, error.message)
                    return
                except Exception as error:  # noqa: BLE001 - a defect with one container must not stop the others
                    seen = opening.container  # the claim may have been written: read it again
                    await self._pause(opening, error)
        finally:
            del self._tasks[opening.container]
            self._store.cancel_opening(opening)  # unless it is served
            self._tried.set()
            self._on_end()

    async def _advance(self, opening: ContainerOpening, seen: ContainerState | int) -> bool:
        """Do one step. Returns whether there is another one."""
        step = opening.progress.step
        if step is OpeningStep.CLAIM:
            epoch = await self._claim(seen)
            if epoch is None:
                return False  # the next check of the map reads the new owner
            opening.claimed(epoch)
        elif step is OpeningStep.CONFIRM and opening.epoch is not None:
            await self._confirm(opening.container, opening.epoch)
            self._store.serve(opening)
            return False
        else:
            await opening.advance()
        return True

    async def _pause(self, opening: ContainerOpening, error: Exception) -> None:
        step = opening.progress.step
        await self._store.opening_failed(opening, error)
        progress = opening.progress
        found = (opening.container, opening.epoch, step, progress.failures[step], progress.retry_s, progress.error)
        if progress.quarantined:
            _log.critical(
                "event=container_quarantined container=%d epoch=%s step=%s failures=%d retry_s=%.1f error=%r", *found
            )
        else:
            _log.warning("event=opening_retry container=%d epoch=%s step=%s failures=%d retry_s=%.1f error=%r", *found)
        self._tried.set()
        await asyncio.sleep(progress.retry_s)
