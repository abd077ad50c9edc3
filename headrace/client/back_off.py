"""How long to wait before trying again, and when to stop trying."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from headrace.model.errors import HeadraceError

FIRST_WAIT_S = 0.02
LONGEST_WAIT_S = 5.0


class BackOff:
    """Waits that double, with jitter, from FIRST_WAIT_S to LONGEST_WAIT_S; progress starts them over.

    After `give_up_after_s` without progress the next wait raises the problem that led to it. The first repetition
    after progress comes almost at once: most often a store moved and the new address works.
    """

    def __init__(
        self, give_up_after_s: float, *, jitter: Callable[[], float] = random.random, first_wait_s: float = FIRST_WAIT_S
    ) -> None:
        self._give_up_after_s = give_up_after_s
        self._jitter = jitter
        self._first_wait_s = first_wait_s
        self._next_wait_s = first_wait_s
        self._since_s: float | None = None

    def progress(self) -> None:
        self._next_wait_s = self._first_wait_s
        self._since_s = None

    async def wait(self, problem: HeadraceError) -> None:
        """Sleeps, or raises `problem` when there has been none but problems for too long."""
        now_s = asyncio.get_running_loop().time()
        if self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= self._give_up_after_s:
            raise problem
        await asyncio.sleep(self._next_wait_s * (0.5 + self._jitter() / 2))
        self._next_wait_s = min(self._next_wait_s * 2, LONGEST_WAIT_S)
