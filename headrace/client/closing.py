"""Closing several things, all of them also when one fails, or when the caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any


async def close_all(*closings: Callable[[], Awaitable[object]]) -> None:
    """Awaits all closings, one after the other. Raises the error of the last one that failed."""
    async with AsyncExitStack() as stack:
        for closing in reversed(closings):
            stack.push_async_callback(closing)


async def stop_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels tasks, and waits for their end. Errors of them are of no interest any more."""
    stopped = list(tasks)
    for task in stopped:
        task.cancel()
    await asyncio.gather(*stopped, return_exceptions=True)
