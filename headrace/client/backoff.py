"""The wait before a retry, and the time after which retries stop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from headrace.model.backoff import doubled_pause, half_jitter
from headrace.model.errors import HeadraceError

FIRST_WAIT_S = 0.02
LONGEST_WAIT_S = 5.0


class Backoff:
    """Exponential back-off with jitter, from `first_wait_s` to LONGEST_WAIT_S. Progress resets it.

    After `give_up_after_s` without progress, the next wait raises the error that caused it. The first wait after
    progress is short, because most often a container has moved and its new address works at once.
    """

    def __init__(
        self, give_up_after_s: float, *, jitter: Callable[[], float] = random.random, first_wait_s: float = FIRST_WAIT_S
    ) -> None:
        self._give_up_after_s = give_up_after_s
        self._jitter = jitter
        self._first_wait_s = first_wait_s
        self._failures = 0
        self._since_s: float | None = None

    def progress(self) -> None:
        self._failures = 0
        self._since_s = None

    async def wait(self, problem: HeadraceError) -> None:
        """Sleeps before a retry. Raises `problem` if there has been no progress for `give_up_after_s`."""
        now_s = asyncio.get_running_loop().time()
        if self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= self._give_up_after_s:
            raise problem
        self._failures += 1
        pause_s = doubled_pause(self._failures, self._first_wait_s, LONGEST_WAIT_S)
        await asyncio.sleep(half_jitter(pause_s, self._jitter()))
