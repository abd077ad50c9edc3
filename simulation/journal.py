"""The interface between ReplicaLog's durable effects and a journal, and a small journal over a simulated disk.

`ReplicaJournal` is all that the simulated store knows of a journal. The small one below has the record headers, the
checksums and the scan rules of the real format, in one file without recycling. The real journal can take its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from headrace.codec.log_record_header import (
    RECORD_HEADER_BYTES,
    RECORD_MARK,
    RecordHeader,
    RecordKind,
    check_payload,
    decode_record_header,
    encode_record_header,
)
from headrace.codec.replica_messages import Entry
from headrace.model.ensembles import ReplicaId
from headrace.model.errors import CorruptError
from headrace.replication.recovered_logs import RecoveredLog, RunSpans
from simulation.disk import DiskError, SimulatedDisk

_SALT: Final = 0x5EED
_RESERVED_BYTES: Final = 64
"""Where the real file has its header."""


class LostRecordsError(Exception):
    """The journal lost durable records and cannot say which: it is not this replica any longer."""


class ReplicaJournal(Protocol):
    """What a simulated store asks of a journal."""

    replica: ReplicaId

    def recovered(self) -> Mapping[int, RecoveredLog]: ...

    def queue(self, header: RecordHeader, payload: bytes | memoryview) -> None: ...

    def begin_commit(self) -> bool:
        """Write what is queued. False if nothing is. Raises DiskError."""
        ...

    def end_commit(self) -> Mapping[int, int]:
        """Sync. The records that each container has durable now, counted from the start. Raises DiskError."""
        ...

    def read(self, container: int, epoch: int, first: int, last: int, bytes_max: int) -> list[Entry]: ...

    @property
    def is_full(self) -> bool:
        """Whether entries do not fit any more. Promises, truncation points and drops always do."""
        ...


class SimulatedJournal:
    """One file of records over a simulated disk; group commit; a scan at the start."""

    def __init__(self, disk: SimulatedDisk) -> None:
        """Raises LostRecordsError or DiskError."""
        self.disk = disk
        self.replica = disk.replica
        self.last_commit_start = _RESERVED_BYTES
        self._queue: list[tuple[RecordHeader, bytes]] = []
        self._writing: list[tuple[RecordHeader, int]] = []
        self._index: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._counts: dict[int, int] = {}
        self._scanned: dict[int, _ScannedLog] = {}
        self._end = self._commit_start = _RESERVED_BYTES
        self._scan()

    def recovered(self) -> Mapping[int, RecoveredLog]:
        return {container: found.log() for container, found in self._scanned.items()}

    def queue(self, header: RecordHeader, payload: bytes | memoryview) -> None:
        self._queue.append((header, bytes(payload)))

    def begin_commit(self) -> bool:
        if not self._queue:
            return False
        start, parts = self._end, []
        for header, payload in self._queue:
            parts.append(encode_record_header(header._replace(salt=_SALT, commit_start=start)) + payload)
            self._writing.append((header, self._end))
            self._end += RECORD_HEADER_BYTES + header.length
        self._queue.clear()
        self.disk.write(start, b"".join(parts))
        self._commit_start = start
        return True

    def end_commit(self) -> Mapping[int, int]:
        self._sync()
        durable: dict[int, int] = {}
        for header, position in self._writing:
            count = self._counts[header.container] = self._counts.get(header.container, 0) + 1
            durable[header.container] = count
            if header.kind is RecordKind.ENTRY:
                self._index[header.container, header.ledger_epoch, header.entry] = (position, header.length)
        self._writing.clear()
        self.last_commit_start = self._commit_start
        return durable

    @property
    def is_full(self) -> bool:
        return self.disk.is_full

    def entries(self) -> Mapping[tuple[int, int, int], tuple[int, int]]:
        """The place of each intact entry (container, epoch, entry), for the oracle and for faults."""
        return self._index

    def writing(self) -> list[RecordHeader]:
        """The records of the commit that is under way, for the oracle."""
        return [header for header, _ in self._writing]

    def read(self, container: int, epoch: int, first: int, last: int, bytes_max: int) -> list[Entry]:
        """Entries as long as they are here, at least one. Raises DiskError: one of them is damaged."""
        found: list[Entry] = []
        size = 0
        for entry in range(first, last + 1):
            place = self._index.get((container, epoch, entry))
            if place is None or (found and size + place[1] > bytes_max):
                break
            raw = memoryview(bytes(self.disk.content[place[0] : place[0] + RECORD_HEADER_BYTES + place[1]]))
            try:
                header = decode_record_header(raw)
                check_payload(header, raw[RECORD_HEADER_BYTES:])
            except CorruptError as error:
                raise DiskError(str(error)) from error
            found.append(Entry(header._replace(salt=0, commit_start=0), raw[RECORD_HEADER_BYTES:]))
            size += place[1]
        return found

    # Decisions that the simulator replaces.

    def _sync(self) -> None:
        self.disk.sync()

    def _skip_unnamed_damage(self, raw: bytes, position: int) -> int:
        """Where the scan may continue behind a damaged header: nowhere, because it does not say what was lost."""
        raise LostRecordsError(f"replica {self.replica.hex()[:8]}, position {position}")

    def _note_damaged(self, header: RecordHeader) -> None:
        self._log(header.container).spans(header.ledger_epoch).note_damaged(header.entry)

    # The scan.

    def _log(self, container: int) -> _ScannedLog:
        return self._scanned.setdefault(container, _ScannedLog())

    def _scan(self) -> None:
        """Rebuild the state. The bytes behind the last commit are cut, and what the scan found is synced again."""
        raw = bytes(self.disk.content)
        position, commits_seen = _RESERVED_BYTES, _RESERVED_BYTES
        while position < len(raw):
            header, is_whole = _record_at(raw, position)
            if header is None or not is_whole:
                if not self._is_proven_durable(raw, position):
                    break
                if header is None:
                    position = self._skip_unnamed_damage(raw, position)
                    continue
                if header.kind is RecordKind.ENTRY:
                    self._note_damaged(header)
            else:
                self._log(header.container).add(header)
                if header.kind is RecordKind.ENTRY:
                    self._index[header.container, header.ledger_epoch, header.entry] = (position, header.length)
            commits_seen = header.commit_start
            position += RECORD_HEADER_BYTES + header.length
        self.last_commit_start = commits_seen
        self._end = position
        self.disk.truncate(position)

    def _is_proven_durable(self, raw: bytes, position: int) -> bool:
        """Whether a record of a later commit follows: then the one at `position` had been synced."""
        for found in _marks(raw, position + 1):
            header, _ = _record_at(raw, found)
            if header is not None and header.commit_start > position:
                return True
        return False


class _ScannedLog:
    """One container, as the scan proceeds."""

    def __init__(self) -> None:
        self.promise = 0
        self.truncated = 0
        self.confirmed = 0
        self._runs: dict[int, RunSpans] = {}

    def spans(self, epoch: int) -> RunSpans:
        return self._runs.setdefault(epoch, RunSpans())

    def add(self, header: RecordHeader) -> None:
        self.promise = max(self.promise, header.writer_epoch)
        self.truncated = max(self.truncated, header.truncated)
        self.confirmed = max(self.confirmed, header.confirmed)
        if header.kind is RecordKind.ENTRY:
            self.spans(header.ledger_epoch).add(header.entry)
        elif header.kind is RecordKind.DROP:
            self._runs.clear()

    def log(self) -> RecoveredLog:
        runs = (spans.run(epoch, self.truncated) for epoch, spans in sorted(self._runs.items()))
        return RecoveredLog(self.promise, self.truncated, self.confirmed, tuple(run for run in runs if run))


def _record_at(raw: bytes, position: int) -> tuple[RecordHeader | None, bool]:
    """The record's header, if it is intact, and whether its payload is, too."""
    try:
        header = decode_record_header(memoryview(raw)[position : position + RECORD_HEADER_BYTES])
    except CorruptError:
        return None, False
    if header.salt != _SALT:
        return None, False
    start = position + RECORD_HEADER_BYTES
    try:
        check_payload(header, raw[start : start + header.length])
    except CorruptError:
        return header, False
    return header, True


def next_record(raw: bytes, position: int) -> int:
    """The position of the next record whose header is intact, or the end."""
    return next((found for found in _marks(raw, position) if _record_at(raw, found)[0] is not None), len(raw))


def _marks(raw: bytes, position: int) -> Iterator[int]:
    found = raw.find(RECORD_MARK, position)
    while found >= 0:
        yield found
        found = raw.find(RECORD_MARK, found + 1)
