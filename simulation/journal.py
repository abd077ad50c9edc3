"""The real journal of a simulated process: its commits, files, scan and index on a simulated disk.

`ReplicaJournal` is all that a simulated replica knows of it. A commit is written and synced when it ends. If the
process ends before, the commit is carried out up to a drawn step, as if it had been written meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.codec.log_record_header import RECORD_HEADER_BYTES, Codec, RecordHeader, RecordKind
from headrace.codec.replica_messages import Entry
from headrace.model.container_logs import LedgerChain, ReplicaId
from headrace.model.errors import CorruptError
from headrace.replication.replica_log import RecoveredLog
from headrace.segmentstore.log.journal.file_copies import FileCopy, Portion
from headrace.segmentstore.log.journal.journal_commits import JournalCommits
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES
from headrace.segmentstore.log.journal.journal_reader import JournalReader
from headrace.segmentstore.log.journal.pending_records import PendingRecord, ignore, keep_ledgers
from headrace.segmentstore.log.replicated.replica_sessions import recovered_logs
from simulation.disk import DiskError, SimulatedDisk

if TYPE_CHECKING:
    from typing_extensions import Buffer

COPY_FROM_FILES: Final = 3
_STEPS_MAX: Final = 6
_SALT_BITS: Final = 56

logging.getLogger("headrace.segmentstore.log").addHandler(logging.NullHandler())  # faults are what is simulated


class SyncedRecord(NamedTuple):
    """A record that the disk, not the journal, knows as durable, and the payload that was written with it."""

    header: RecordHeader
    payload: bytes


Synced = Callable[[ReplicaId, list[SyncedRecord]], None]


class EntryPlace(NamedTuple):
    """Where the record of an entry is: its file, the position of its header, and the length of its payload."""

    file: str
    position: int
    length: int


class ReplicaJournal(Protocol):
    """What a simulated replica asks of a journal."""

    replica: ReplicaId

    def recovered(self) -> Mapping[int, RecoveredLog]: ...

    def queue(self, header: RecordHeader, parts: Sequence[Buffer]) -> None: ...

    @property
    def has_queued(self) -> bool: ...

    def keep_ledgers(self, container: int, chain: LedgerChain) -> None:
        """The entries that no ledger of the chain has are not needed."""
        ...

    def begin_commit(self) -> bool:
        """Begin to write what is queued. False if nothing is."""
        ...

    def end_commit(self) -> Mapping[int, int]:
        """Sync. The records that each container has durable now, counted from the start. Raises DiskError."""
        ...

    def read(self, container: int, epoch: int, first: int, last: int, bytes_max: int) -> list[Entry]: ...

    @property
    def is_full(self) -> bool:
        """Whether entries must be refused. There is room for promises, truncation points and drops."""
        ...


class SimulatedJournal:
    """The journal of one process. `synced` is told of the records that are durable."""

    def __init__(self, disk: SimulatedDisk, file_bytes: int, synced: Synced) -> None:
        """Raises DiskError: the journal cannot start now."""
        self.disk = disk
        self._synced = synced
        self._queue: list[PendingRecord] = []
        self._batch: list[PendingRecord] = []
        self._headers: dict[int, RecordHeader] = {}  # by the id of the pending record, until it is durable
        self._counts: dict[int, int] = {}
        self._touched: dict[int, int] = {}
        self._last_commit_file, self._last_commit_start = "", 0
        self._copy: FileCopy | None = None
        self._portions: Iterator[Portion] = iter(())
        self._commits = JournalCommits(
            disk, self._random_salt, file_bytes=file_bytes, copy_from_files=COPY_FROM_FILES, copies=3
        )
        self._reader = JournalReader(self._commits.index)
        disk.start_process()
        try:
            self._commits.load(_continue)
            self._recovered = recovered_logs(self._commits)
            self._commits.begin()
        except (OSError, CorruptError) as error:
            raise DiskError(str(error)) from error
        self.replica = ReplicaId(self._commits.files.replica_id)
        self.is_damaged = self._commits.damaged_entries > 0
        self.is_quarantined = any(name.startswith("aside-") for name in disk.files)

    def recovered(self) -> Mapping[int, RecoveredLog]:
        return self._recovered

    def queue(self, header: RecordHeader, parts: Sequence[Buffer]) -> None:
        pending = PendingRecord(
            header.kind,
            header.container,
            header.epoch,
            header.writer_epoch,
            header.entry,
            header.truncated_before,
            header.acknowledged_before,
            parts,
            header.length,
            ignore,
            payload_checksum=header.payload_checksum if header.kind is RecordKind.ENTRY else None,
            codec=Codec(header.codec),
        )
        self._headers[id(pending)] = header
        self._queue.append(pending)

    @property
    def has_queued(self) -> bool:
        return bool(self._queue)

    def keep_ledgers(self, container: int, chain: LedgerChain) -> None:
        self._queue.append(keep_ledgers(container, chain, ignore))

    def begin_commit(self) -> bool:
        self._batch, self._queue = self._queue, []
        return bool(self._batch)

    def end_commit(self) -> Mapping[int, int]:
        self._touched.clear()
        try:
            self._commits.commit(self._batch, self._committed)
            self._advance_copy()
        except OSError as error:
            self._batch = []
            raise DiskError(str(error)) from error
        self._prepare_spares()
        return self._touched

    def end_process(self) -> None:
        """The process ends. A commit that is under way is carried out up to a drawn step."""
        if not self._batch or self.disk.is_destroyed:
            return
        self.disk.steps_left = self.disk.draws.below(_STEPS_MAX, "steps", self.disk.actor)
        try:
            self._commits.commit(self._batch, _ignore_records)
        except OSError:
            return
        finally:
            self.disk.steps_left = None

    @property
    def is_full(self) -> bool:
        return self._commits.space().is_exhausted

    def entries(self) -> dict[tuple[int, int, int], EntryPlace]:
        """The place of each intact entry (container, epoch, entry), for the oracle and for faults."""
        found = {}
        index = self._commits.index
        for container, known in index.known().items():
            for ledger in known.ledgers:
                parts, _ = index.ledger(container, ledger.epoch, ledger.first_entry, ledger.had_before)
                for part in parts:
                    for entry, position, length in part.places():
                        place = EntryPlace(part.log_file.name, position - RECORD_HEADER_BYTES, length)
                        found[container, ledger.epoch, entry] = place
        return found

    def durable_ends(self) -> dict[str, int]:
        """The end of what is proven to be durable in each file."""
        active = self._commits.files.active.name
        ends = {log_file.name: log_file.end for log_file in self._commits.files.used}
        ends[active] = self._last_commit_start if self._last_commit_file == active else FILE_HEADER_BYTES
        return ends

    def read(self, container: int, epoch: int, first: int, last: int, bytes_max: int) -> list[Entry]:
        """Entries as long as they are here, at least one. Raises DiskError: one of them is damaged."""
        try:
            return self._reader.entries_to_send(container, epoch, first, last, bytes_max)
        except (OSError, CorruptError) as error:
            raise DiskError(str(error)) from error

    def _random_salt(self) -> int:
        """Begins with the number of the store, and so does the identity that is made of two of them."""
        drawn = self.disk.draws.number("salt", self.disk.actor)
        return self.disk.actor << _SALT_BITS | drawn >> (64 - _SALT_BITS)

    def _committed(self, records: list[PendingRecord]) -> None:
        synced = []
        for pending in records:
            if pending.kind is None:
                continue
            header = self._headers.pop(id(pending))
            synced.append(SyncedRecord(header, b"".join(pending.parts)))
            count = self._counts[header.container] = self._counts.get(header.container, 0) + 1
            self._touched[header.container] = count
        if not synced:
            return  # nothing was written, which proves nothing
        active = self._commits.files.active
        self._last_commit_file = active.name
        self._last_commit_start = active.end - sum(RECORD_HEADER_BYTES + header.length for header, _ in synced)
        if self.disk.files[active.name].is_durable:
            self._synced(self.replica, synced)

    def _advance_copy(self) -> None:
        """Take one step of a file copy: the portion that was read is written with the next commit."""
        if self._copy is None:
            if not self._commits.space_changed:
                return
            self._commits.space_changed = False
            self._copy = self._commits.copy_to_begin()
            if self._copy is not None:
                self._portions = self._copy.portions()
            return
        try:
            portion = next(self._portions, None)
        except CorruptError:
            self._commits.end_copy(self._copy, is_complete=False)
            self._copy = None
            return
        if portion is not None:
            self._commits.write_portion(self._copy, portion)
            return
        self._commits.end_copy(self._copy, is_complete=True)
        self._copy = None

    def _prepare_spares(self) -> None:
        """Create missing spare files. If that fails, the next rotation tries again, and fails if it needs one."""
        try:
            self._commits.files.spares.prepare()
        except OSError:
            return


def _continue() -> None:
    """No other thread ends the scan."""


def _ignore_records(_records: list[PendingRecord]) -> None:
    """The process that would learn of them has ended."""
