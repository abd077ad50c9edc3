"""One change of a log's ensemble at a time, and the joint rule while its outcome is not known.

A write of the log record whose outcome is unknown is written again under the same version. A read that still shows the
old version proves nothing: the first write may yet arrive. So the joint rule ends only when a record with a higher
version has been seen.
"""

from __future__ import annotations

from enum import Enum

from headrace.model.container_logs import ContainerLog, Ensemble
from headrace.replication.bounds import WriterBounds
from headrace.replication.effects import ReadRecord, WriteRecord, WriterEffect


class ChangePhase(Enum):
    """NONE: no change. WAITING: decided, not written. WRITING, READING: a request is under way. UNKNOWN: to repeat."""

    NONE = "none"
    WAITING = "waiting"
    WRITING = "writing"
    READING = "reading"
    UNKNOWN = "unknown"


class EnsembleChange:
    """The record as the owner knows it, and the change of its members that is in progress."""

    def __init__(self, log: ContainerLog, version: int, epoch: int, bounds: WriterBounds) -> None:
        self.log = log
        self.version = version
        self.phase = ChangePhase.NONE
        self.wanted: Ensemble | None = None
        self._epoch = epoch
        self._bounds = bounds
        self._to_write: Ensemble | None = None
        self._written: ContainerLog | None = None
        self._since_ms = 0
        self._retry_at_ms = 0

    @property
    def current(self) -> Ensemble:
        return self.log.ensemble

    @property
    def is_asking(self) -> bool:
        """Whether a request to the metadata store is under way."""
        return self.phase in (ChangePhase.WRITING, ChangePhase.READING)

    def begin(self, wanted: Ensemble, now_ms: int) -> None:
        """Decide a change. From here on both ensembles count."""
        assert self.phase is ChangePhase.NONE
        self.wanted = self._to_write = wanted
        self.phase = ChangePhase.WAITING
        self._since_ms = now_ms

    def advance(
        self, wanted_position: int, acknowledged_entry: int, truncated_before: int, now_ms: int, *, stalls: bool
    ) -> list[WriterEffect]:
        """Write the record as soon as the new ensemble has all that is acknowledged; repeat unknown writes.

        `stalls`: the new ensemble holds less than the current one, so that it holds up acknowledgements.
        """
        if self.phase is ChangePhase.WAITING:
            if self._has_reached(wanted_position, acknowledged_entry):
                assert self._to_write is not None
                self._written = self.log.with_members(self._to_write.members, truncated_before)
                return self._write()
            if now_ms - self._since_ms >= self._bounds.change_patience_ms:
                self.phase, self.wanted = ChangePhase.NONE, None
        elif self.phase is ChangePhase.UNKNOWN and now_ms >= self._retry_at_ms:
            if stalls and now_ms - self._since_ms >= self._bounds.change_patience_ms:
                self._withdraw(truncated_before, now_ms)
            return self._write()
        return []

    def written(self, version: int) -> None:
        """The record that was written last is in force."""
        assert self._written is not None
        self._end(self._written, version)

    def unknown(self, now_ms: int) -> None:
        """The outcome of a request is not known."""
        self.phase = ChangePhase.UNKNOWN
        self._retry_at_ms = now_ms + self._bounds.record_retry_ms

    def conflict(self) -> list[WriterEffect]:
        """The record has another version: one of the earlier writes may have arrived."""
        self.phase = ChangePhase.READING
        return [ReadRecord()]

    def record_read(self, log: ContainerLog, version: int, now_ms: int) -> None:
        """The record as DynamoDB has it."""
        if self._ends_change(version):
            self._end(log, version)
        else:
            self.unknown(now_ms)

    # Decisions that the simulator replaces.

    def _has_reached(self, wanted_position: int, acknowledged_entry: int) -> bool:
        return wanted_position >= acknowledged_entry

    def _ends_change(self, version: int) -> bool:
        return version > self.version

    # Steps.

    def _withdraw(self, truncated_before: int, now_ms: int) -> None:
        """Write the old ensemble: only a higher version proves that the change can no longer arrive."""
        self._written = self.log.with_members(self.current.members, truncated_before)
        self._since_ms = now_ms

    def _write(self) -> list[WriterEffect]:
        assert self._written is not None
        self.phase = ChangePhase.WRITING
        return [WriteRecord(self._written, self.version, self._epoch)]

    def _end(self, log: ContainerLog, version: int) -> None:
        self.log, self.version = log, version
        self.phase, self.wanted, self._written = ChangePhase.NONE, None, None
