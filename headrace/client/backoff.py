"""The wait before a retry, and the time after which retries stop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from headrace.model.backoff import doubled_pause, half_jitter
from headrace.model.errors import HeadraceError, ThrottledError

FIRST_WAIT_S = 0.02

LONGEST_WAIT_S = 1.0
"""Another store takes the segments of a lost one over after some seconds, and the next attempt reaches it."""

LONGEST_THROTTLED_WAIT_S = 5.0
"""Attempts cost a throttled service what it has not got."""


def pause_s(problem: HeadraceError, failures: int, first_wait_s: float = FIRST_WAIT_S) -> float:
    """The pause after this number of consecutive failures, the last of which was `problem`."""
    is_throttled = isinstance(problem, ThrottledError)
    return doubled_pause(failures, first_wait_s, LONGEST_THROTTLED_WAIT_S if is_throttled else LONGEST_WAIT_S)


class Backoff:
    """Exponential back-off with jitter, as `pause_s`. Progress resets it.

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
        await asyncio.sleep(half_jitter(pause_s(problem, self._failures, self._first_wait_s), self._jitter()))
