"""Opens the containers that the map assigns to this store, each independently and step by step, until it is served.

A failed step is retried with a back-off of its own, under the same claim. A container with a damaged log or damaged
data in tier 2 is quarantined: it is retried rarely, and other containers do not wait for it. If the claim is lost or
refused, the opening ends. The next check of the map decides what happens then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

from headrace.metadata.cluster_records import ContainerState
from headrace.model.containers import OpeningProgress, OpeningStep
from headrace.model.errors import FencedError, HeadraceError
from headrace.ports.clock import Clock
from headrace.segmentstore.owned_container import ContainerOpening
from headrace.segmentstore.store import SegmentStore
from segmentstore_fargate.registration import UnansweredClaimError

_log = logging.getLogger(__name__)

Claim = Callable[[ContainerState | int], Awaitable[int | None]]
"""Claims a container as it was looked at, or after another look (its number); the epoch, or None if it is not free."""

STOPPED_FORGOTTEN_S: Final = 600.0
"""A container that stops after having been served for longer than this is opened again without a pause."""

OPENINGS_SHARE: Final = 0.25
"""Of the time for a stop, at most, to open containers that were claimed before. The other ones are served meanwhile."""

FINISHING_RETRY_S: Final = 0.5
"""The longest pause before a failed step is repeated during a shutdown, which has little time."""

STOP_S: Final = 2.0
"""To stop openings that could not be finished before a shutdown. Those that take longer end with the process."""


class ContainerOpenings:
    """`on_end` is called when an opening has ended, whether its container is served or not.

    Before that `on_doubt` is called if it has ended without a claim, but one may take effect later.
    """

    def __init__(
        self,
        store: SegmentStore,
        clock: Clock,
        claim: Claim,
        confirm: Callable[[int, int], Awaitable[None]],
        on_end: Callable[[], None],
        on_doubt: Callable[[int], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._claim = claim
        self._confirm = confirm
        self._on_end = on_end
        self._on_doubt = on_doubt
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._finishing = asyncio.Event()
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
            task = self._tasks[state.container] = asyncio.ensure_future(self._run(opening, state))
            # Not in a `finally` block of the task: that would also run when a loop is dropped with its tasks.
            task.add_done_callback(partial(self._end, opening))

    def note_failure(self, container: int, error: HeadraceError) -> None:
        """Note that a served container has stopped. If it stops again soon, it is opened after longer pauses."""
        now_s = self._clock.monotonic_s()
        former, failed_s = self._stopped.get(container, (OpeningProgress(), -STOPPED_FORGOTTEN_S))
        if now_s - failed_s >= STOPPED_FORGOTTEN_S:
            former = OpeningProgress()
        self._stopped[container] = former.failed(error), now_s

    async def first_attempts(self) -> None:
        """Return when every container is served or has failed once."""
        while any(
            not each.progress.failures for each in self._store.openings.values() if each.container in self._tasks
        ):
            self._tried.clear()
            await self._tried.wait()

    async def finish(self, patience_s: float) -> None:
        """End all openings before a shutdown: after at most `patience_s`, those that are left are stopped.

        A container that this store has claimed counts as its own: the log here may be the only copy of acknowledged
        data, and other stores wait for it even if it is empty. So its opening continues until it is served, and the
        shutdown flushes it like the others. A claim that had no answer may have been written, so it is looked up.
        Without a claim, or with damaged data, nothing is gained by continuing.
        """
        self._finishing.set()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=patience_s)
        left = list(self._tasks.values())
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=STOP_S)

    async def _run(self, opening: ContainerOpening, state: ContainerState) -> None:
        seen: ContainerState | int = state
        may_have_claim = False
        while True:
            try:
                if opening.progress.retry_s:
                    seen = opening.container  # the claim may have been written: read it again
                    await self._pause(opening.progress.retry_s)
                may_have_claim |= opening.epoch is not None
                if self._finishing.is_set() and (not may_have_claim or opening.progress.quarantined):
                    return
                if not await self._advance(opening, seen):
                    if may_have_claim and opening.epoch is None:
                        self._on_doubt(opening.container)
                    return
            except FencedError as error:
                _log.warning("event=opening_ended container=%d error=%r", opening.container, error.message)
                return
            except Exception as error:  # noqa: BLE001 - a defect with one container must not stop the others
                may_have_claim |= isinstance(error, UnansweredClaimError)
                await self._note_failed(opening, error)

    def _end(self, opening: ContainerOpening, _task: asyncio.Task[None]) -> None:
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

    async def _pause(self, retry_s: float) -> None:
        """Wait before a step is repeated. A shutdown ends the pause."""
        if self._finishing.is_set():
            await asyncio.sleep(min(retry_s, FINISHING_RETRY_S))
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(retry_s):
                    await self._finishing.wait()

    async def _note_failed(self, opening: ContainerOpening, error: Exception) -> None:
        step = opening.progress.step
        await self._store.opening_failed(opening, error)
        progress = opening.progress
        fields = (opening.container, opening.epoch, step, progress.failures[step], progress.retry_s, progress.error)
        if progress.quarantined:
            _log.critical(
                "event=container_quarantined container=%d epoch=%s step=%s failures=%d retry_s=%.1f error=%r", *fields
            )
        else:
            _log.warning("event=opening_retry container=%d epoch=%s step=%s failures=%d retry_s=%.1f error=%r", *fields)
        self._tried.set()
