"""What keeps one container's tier 2 in order beside its storage writer, and must never be in the writer's way."""

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


class Chore(Protocol):
    """Something that is done piece by piece."""

    async def round(self) -> bool:
        """One bounded piece of work; whether there may be more to do at once.

        Raises:
            ThrottledError, UnavailableError: tier 2 does not answer; try again later.
            FencedError: the container has another owner.
            CorruptError: tier 2 contradicts itself.
        """
        ...


class Chores:
    """Runs the chores of one container in turn, from `start` to `stop`."""

    def __init__(self, container: SegmentContainer, chores: Sequence[Chore], limits: StorageLimits) -> None:
        self._container = container
        self._chores = chores
        self._limits = limits
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def round(self) -> bool:
        """A piece of each chore; returns and raises as `Chore.round`."""
        return any([await chore.round() for chore in self._chores])

    async def _run(self) -> None:
        retry_s = self._limits.retry_first_s
        while self._container.failure is None:
            try:
                more = await self.round()
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
            except Exception as error:  # noqa: BLE001 - as in the storage writer: a defect must not be silent
                _log.exception("event=chores_failed container=%d", self._container.container)
                self._container.log.fail(HeadraceError(f"the chores of tier 2 failed: {error!r}"))
