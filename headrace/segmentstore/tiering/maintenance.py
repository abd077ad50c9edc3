"""Runs the maintenance tasks of one container in tier 2: garbage collection, compaction, eviction, writer expiry.

They run next to the storage writer, in a task of their own, so that flushes never wait for them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from headrace.model.errors import CorruptError, FencedError, HeadraceError, ThrottledError, UnavailableError
from headrace.ports.chunk_storage import CHUNK_STORAGE_REFUSED
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import METADATA_STORE_REFUSED
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.periodic_task import NO_REST, PeriodicTask, Rest
from headrace.segmentstore.tiering.storage_limits import StorageLimits

# Decides which errors of tier 2 end a container, and reports refusals before an attempt is repeated.

_REFUSED: Final = (CHUNK_STORAGE_REFUSED, METADATA_STORE_REFUSED)


def ends_container(error: HeadraceError) -> bool:
    """Whether the error proves that the container must stop. All other errors of tier 2 are repeated."""
    return isinstance(error, CorruptError | FencedError)


def reported_as_refusal(container: SegmentContainer, error: HeadraceError, retry_s: float) -> bool:
    """Report a refusal by tier 2, which an operator must examine, and count it; False for an outage."""
    if isinstance(error, UnavailableError | ThrottledError) and error.specific_code not in _REFUSED:
        return False
    container.metrics.storage_refusals += 1
    _log.error(
        "event=storage_refused container=%d cause=%s retry_s=%.1f error=%r",
        container.container,
        error.details.get("cause", error.specific_code),
        retry_s,
        error.message,
    )
    return True


_log = logging.getLogger(__name__)


class MaintenanceTask(Protocol):
    """Work that is done in passes."""

    async def run_pass(self) -> bool:
        """Do one bounded piece of the work. Returns whether more work may be due now.

        Raises:
            ThrottledError, UnavailableError: tier 2 does not answer; the caller tries again later.
            FencedError: the container has another owner.
            CorruptError: tier 2 contradicts itself.
        """
        ...


class Sweep:
    """A maintenance task that calls `sweep` every `every_s` seconds, for the first time after that time."""

    def __init__(self, clock: Clock, every_s: float, sweep: Callable[[], Awaitable[object]]) -> None:
        self._clock = clock
        self._every_s = every_s
        self._sweep = sweep
        self._due_s = clock.monotonic_s() + every_s

    async def run_pass(self) -> bool:
        """Sweep if a sweep is due. Always returns False, since nothing is left to do then. Raises as `sweep`."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            await self._sweep()
        return False


class MaintenanceTasks:
    """Runs the maintenance tasks of one container in turn, from `start` to `stop`."""

    def __init__(self, container: SegmentContainer, tasks: Sequence[MaintenanceTask], limits: StorageLimits) -> None:
        self._container = container
        self._tasks = tasks
        self._limits = limits
        self._periodic = PeriodicTask(
            self._run, self._failed, retry_first_s=limits.retry_first_s, retry_max_s=limits.retry_max_s
        )

    def start(self) -> None:
        self._periodic.start()

    async def stop(self) -> None:
        await self._periodic.stop()

    async def run_pass(self) -> bool:
        """Run one pass of each task; returns and raises as `MaintenanceTask.run_pass`.

        Tasks do not wait for one that tier 2 does not answer or refuses, which may last.
        """
        more, failure = False, None
        for task in self._tasks:
            try:
                more |= await task.run_pass()
            except HeadraceError as error:
                if ends_container(error):
                    raise
                failure = failure or error
        if failure is not None:
            raise failure
        return more

    async def _run(self) -> Rest | None:
        if self._container.failure is not None:
            return None
        return NO_REST if await self.run_pass() else Rest.fixed(self._limits.tick_s)

    def _failed(self, error: Exception, retry_s: float) -> bool:
        container = self._container
        match error:
            case HeadraceError() if not ends_container(error):
                if not reported_as_refusal(container, error, retry_s):
                    _log.warning(
                        "event=chore_retry container=%d retry_s=%.1f error=%r",
                        container.container,
                        retry_s,
                        error.message,
                    )
                return True
            case HeadraceError():
                container.log.fail(error)
            case _:  # a defect must stop the container, not only this task
                _log.exception("event=chores_failed container=%d", container.container)
                container.log.fail(HeadraceError(f"the maintenance of tier 2 failed: {error!r}"))
        return False
