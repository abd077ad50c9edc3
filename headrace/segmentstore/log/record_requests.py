"""Requests of one owner for its log record. A request without an answer in time has an unknown outcome."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from headrace.metadata.container_log import ContainerLogRecords, LogWriteOutcome, StoredLog
from headrace.model.container_logs import LEDGERS_MAX, LEDGERS_REPORTED_FROM, ContainerLog
from headrace.model.errors import ThrottledError, UnavailableError
from headrace.ports.metadata_store import ItemRefusedError

_log = logging.getLogger(__name__)

ANSWER_PATIENCE_S: Final = 5.0


def report_long_chain(container: int, log: ContainerLog) -> None:
    """Report a log whose owners have changed so often without a truncation that a limit is near."""
    if len(log.ledgers) >= LEDGERS_REPORTED_FROM:
        _log.error(
            "event=log_chain_long container=%d ledgers=%d ledgers_max=%d", container, len(log.ledgers), LEDGERS_MAX
        )


class RecordRequests:
    """Of the log of one container, under the claim with `epoch`."""

    def __init__(self, records: ContainerLogRecords, container: int, epoch: int) -> None:
        self._records = records
        self._container = container
        self._epoch = epoch
        self._known: StoredLog | None = None  # as it was read or written last
        self.past_before = 0
        """Ledgers of lower epochs are the past of a container that has no record: a later owner wrote its snapshot."""

    async def read(self) -> StoredLog | None:
        """The record; None if the metadata store does not answer. Raises CorruptError if it is not that of a log."""
        try:
            async with asyncio.timeout(ANSWER_PATIENCE_S):
                self._known = await asyncio.to_thread(self._records.read, self._container)
                if self._known.log is None:
                    self.past_before = await asyncio.to_thread(self._records.snapshot_epoch, self._container)
        except (ThrottledError, UnavailableError, ItemRefusedError, TimeoutError) as error:
            _log.warning("event=log_record_not_read container=%d error=%r", self._container, error)
            return None
        return self._known

    async def write(self, log: ContainerLog, version: int) -> LogWriteOutcome:
        """Replace the record of this version. Raises as `ContainerLogRecords.write` does."""
        try:
            async with asyncio.timeout(ANSWER_PATIENCE_S):
                outcome = await asyncio.to_thread(
                    self._records.write, self._container, log, version, self._epoch, self._known
                )
        except TimeoutError:
            _log.warning("event=log_record_not_written container=%d version=%d", self._container, version)
            return LogWriteOutcome.UNKNOWN
        if outcome is LogWriteOutcome.WRITTEN:
            report_long_chain(self._container, log)
            self._known = StoredLog(log, version + 1)
        return outcome
