"""Runs the maintenance tasks of one container in tier 2: garbage collection, compaction, eviction, writer expiry.

They run next to the storage writer, in a task of their own, so that flushes never wait for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from headrace.model.errors import HeadraceError, ThrottledError, UnavailableError
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.tiering.limits import StorageLimits
from headrace.segmentstore.tiering.retries import reported_as_refusal

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


class MaintenanceTasks:
    """Runs the maintenance tasks of one container in turn, from `start` to `stop`."""

    def __init__(self, container: SegmentContainer, tasks: Sequence[MaintenanceTask], limits: StorageLimits) -> None:
        self._container = container
        self._tasks = tasks
        self._limits = limits
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def run_pass(self) -> bool:
        """Run one pass of each task; returns and raises as `MaintenanceTask.run_pass`."""
        return any([await task.run_pass() for task in self._tasks])

    async def _run(self) -> None:
        retry_s = self._limits.retry_first_s
        while self._container.failure is None:
            try:
                more = await self.run_pass()
                retry_s = self._limits.retry_first_s
                await asyncio.sleep(0 if more else self._limits.tick_s)
            except (UnavailableError, ThrottledError) as error:
                if not reported_as_refusal(self._container, error, retry_s):
                    _log.warning(
                        "event=chore_retry container=%d retry_s=%.1f error=%r",
                        self._container.container,
                        retry_s,
                        error.message,
                    )
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, self._limits.retry_max_s)
            except HeadraceError as error:
                self._container.log.fail(error)
            except Exception as error:  # noqa: BLE001 - a defect must stop the container, not only this task
                _log.exception("event=chores_failed container=%d", self._container.container)
                self._container.log.fail(HeadraceError(f"the maintenance of tier 2 failed: {error!r}"))
