"""Bounds what the members that catch up with the logs of a process take from it, all together."""

from __future__ import annotations

import asyncio
import logging

from headrace.ports.clock import Clock
from headrace.replication.bounds import CATCH_UPS_MAX
from headrace.replication.copy_lags import AppendRate, catch_up_bytes_per_s, lag_fill
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.member_states import MemberState

# Notices that a copy of a log does not catch up, so that the throttle slows its writers down.

_log = logging.getLogger(__name__)


class LaggingCopies:
    """Of the log of one writer."""

    def __init__(self, writer: LedgerWriter, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._lacking_since_s: float | None = None
        self._is_slowed = False

    def fill(self) -> float:
        """As `Ledger.lag_fill`. It is measured at each call."""
        if MemberState.CATCHING_UP not in self._writer.member_states().values():
            self._lacking_since_s = None
            self._note(slowed=False)
            return 0.0
        now_s = self._clock.monotonic_s()
        if self._lacking_since_s is None:
            self._lacking_since_s = now_s
        found = lag_fill(now_s - self._lacking_since_s)
        self._note(slowed=found > 0.0)
        return found

    def _note(self, *, slowed: bool) -> None:
        if slowed != self._is_slowed:
            self._is_slowed = slowed
            _log.warning("event=log_lacks_copy container=%d slowed=%s", self._writer.container, slowed)


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
