"""The segments of a transaction that are created on demand: before the first append to each of them.

Appenders that begin at the same time share one request. It names all segments that have events by then, so a batch of
events costs one request, however many segments it touches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

CreateSegments = Callable[[Sequence[int]], Awaitable[object]]


class SegmentsOnDemand:
    """Requests the segments of one transaction. Used on one event loop.

    `create` is the request, which may be repeated. `written` returns the ids of the segments that have events.
    """

    def __init__(self, create: CreateSegments, written: Callable[[], Iterable[int]]) -> None:
        self._create = create
        self._written = written
        self._created: set[int] = set()
        self._request: asyncio.Task[None] | None = None

    async def ensure(self, segment_id: int) -> None:
        """Returns when the segment exists. Raises the error of the request, also to the others that wait for it."""
        while segment_id not in self._created:
            if self._request is None or self._request.done():
                self._request = asyncio.get_running_loop().create_task(self._create_all(segment_id))
            await asyncio.shield(self._request)

    async def close(self) -> None:
        """Cancels a request."""
        if self._request is not None:
            self._request.cancel()
            await asyncio.gather(self._request, return_exceptions=True)

    async def _create_all(self, wanted: int) -> None:
        segments = sorted({wanted, *self._written()} - self._created)
        await self._create(segments)
        self._created.update(segments)
