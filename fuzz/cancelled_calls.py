"""Calls that a random program cancels sometimes, as a caller that does not wait any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from fuzz.randomness import Random

T = TypeVar("T")


class CallCancelledError(Exception):
    """The program has cancelled the call."""


async def sometimes_cancelled(
    call: Coroutine[Any, Any, T], random: Random, share: float, pauses_s: Sequence[float]
) -> T:
    """Await a call. So often, cancel it after one of these pauses, unless it has ended by then.

    Raises:
        CallCancelledError: it was cancelled. If its caller is cancelled, that is raised as always.
    """
    running = asyncio.ensure_future(call)
    if random.random() < share:
        await asyncio.sleep(random.choice(pauses_s))
        running.cancel()
    try:
        return await running
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            running.cancel()
            raise
        raise CallCancelledError from None
