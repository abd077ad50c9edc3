"""The shutdown of a store: its deadline, and the flushes that have until then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any

from headrace.segmentstore.owned_container import OwnedContainer
from headrace.segmentstore.tiering.storage_writer import StorageWriter

_log = logging.getLogger(__name__)


class Shutdown:
    """`begin` sets the deadline."""

    def __init__(self) -> None:
        self._ends: float | None = None  # in the time of the event loop

    def begin(self, deadline_s: float) -> None:
        self._ends = asyncio.get_running_loop().time() + deadline_s

    @property
    def has_begun(self) -> bool:
        return self._ends is not None

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self._ends is not None and asyncio.get_running_loop().time() >= self._ends

    async def drain(self, writer: StorageWriter, deadline_s: float) -> bool:
        """Drain a container that is handed over; as `StorageWriter.drain`.

        If only the outcome of the last write is missing at the deadline, a shutdown lends its time.

        Raises:
            TimeoutError: the deadline has passed.
        """
        drain = asyncio.ensure_future(writer.drain())
        try:
            await asyncio.wait([drain], timeout=deadline_s)
            if self._ends is not None and not writer.may_resume:
                await asyncio.wait([drain], timeout=self._ends - asyncio.get_running_loop().time())
            async with asyncio.timeout(0):
                return await drain
        finally:
            drain.cancel()


async def flush_by(
    deadline_s: float, flushes: Mapping[asyncio.Future[bool], OwnedContainer], others: Collection[asyncio.Future[Any]]
) -> list[int]:
    """Wait until flushes and others have ended, or cancel those flushes that are late.

    Returns the containers of which tier 2 has everything.
    """
    if not (flushes or others):
        return []
    _, late = await asyncio.wait([*others, *flushes], timeout=deadline_s)
    for flush in late.intersection(flushes):
        flush.cancel()
    ended = await asyncio.gather(*flushes, return_exceptions=True)
    flushed = []
    for each, result in zip(flushes.values(), ended, strict=True):
        if result is True:
            flushed.append(each.container.container)
        else:  # the next start needs the log, or loses the data that is not in tier 2
            _log.warning("event=close_incomplete container=%d error=%r", each.container.container, result)
    return flushed
