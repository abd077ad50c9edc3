"""Notices that a copy of a log does not catch up, so that the throttle slows its writers down."""

from __future__ import annotations

import logging

from headrace.ports.clock import Clock
from headrace.replication.copy_lags import lag_fill
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.member_states import MemberState

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
