"""Bounds what the members that catch up with the logs of a process take from it, all together."""

from __future__ import annotations

import asyncio

from headrace.ports.clock import Clock
from headrace.replication.bounds import CATCH_UPS_MAX
from headrace.replication.copy_lags import AppendRate, catch_up_bytes_per_s


class CatchUps:
    """One per process. A catch-up holds one of `slots` while it has a window in memory.

    The copies of a recovery have `takeovers` of their own: its container is not served meanwhile, and a bulk copy holds
    its slot for as long as the common rate says.
    """

    def __init__(self, clock: Clock) -> None:
        self.slots = asyncio.Semaphore(CATCH_UPS_MAX)
        self.takeovers = asyncio.Semaphore(CATCH_UPS_MAX)
        self._clock = clock
        self._free_from_s = clock.monotonic_s()
        self._appended = AppendRate(self._free_from_s)

    def appended(self, length: int) -> None:
        """Count an entry that was appended to a log of the process. Catching up must be faster than appending."""
        self._appended.count(length)

    def delay_s(self, sent_bytes: int) -> float:
        """How long to wait after sending so many bytes, before the next window of any member."""
        now_s = self._clock.monotonic_s()
        rate = catch_up_bytes_per_s(self._appended.look(now_s))
        self._free_from_s = max(now_s, self._free_from_s) + sent_bytes / rate
        return self._free_from_s - now_s
