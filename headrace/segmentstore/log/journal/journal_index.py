"""Where each entry is that a journal holds: its file, position and length, from the scan and from each commit.

Entries are kept by container and epoch (`entry_runs`).

Any thread may read while the journal's thread adds. An entry costs 12 bytes of memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Final, NamedTuple

from headrace.codec.log_record_header import RecordKind
from headrace.model.container_logs import LedgerChain
from headrace.model.errors import CorruptError
from headrace.replication.replica_log import NO_WITNESS, Witness
from headrace.segmentstore.log.journal.entry_runs import (
    EntryPart,
    EntryPiece,
    EntryRun,
    LedgerState,
    NotedRecord,
    ledger_state,
)
from headrace.segmentstore.log.journal.journal_files import LogFile, Pin
from headrace.segmentstore.log.journal.journal_format import RecordHeader

_ENTRY: Final = RecordKind.ENTRY


class KnownLog(NamedTuple):
    """What the journal knows of a container.

    `promise` is the highest epoch that was promised, or that wrote an entry. The entries before `truncated_before` are
    not needed. `witness` is what the newest owner with entries here knew as acknowledged. `ledgers` is in the order of
    the epochs.
    """

    promise: int
    truncated_before: int
    witness: Witness
    ledgers: list[LedgerState]


class ContainerEntries:
    """The entries of one container that the journal holds.

    `epoch` and `next_entry` belong to the newest entry. They and the truncation point never decrease.
    """

    def __init__(self, container: int) -> None:
        self.container = container
        self.epoch = 0
        self.next_entry = 0
        self.truncated_before = 0
        self.witness = NO_WITNESS
        self.writer_epoch = 0
        self.runs: dict[int, EntryRun] = {}

    def note_header(self, record: NotedRecord) -> None:
        """Note what the header says of the log."""
        if record.writer_epoch > self.writer_epoch:
            self.writer_epoch = record.writer_epoch

    def note_witness(self, entry: NotedRecord) -> None:
        """Note what the owner of the ledger knew as acknowledged when it sent this entry.

        A recovery that copies an entry knows only what it has found. If an operator accepted a loss, an older ledger
        ended before entries that its owner knew as acknowledged: the newest ledger counts.
        """
        if entry.writer_epoch == entry.epoch:
            self.witness = max(self.witness, Witness(entry.epoch, entry.acknowledged_before))

    def run(self, epoch: int, entry: int) -> EntryRun:
        """The run of a ledger; a new one begins with `entry`."""
        run = self.runs.get(epoch)
        if run is None:
            run = self.runs[epoch] = EntryRun(epoch, entry)
            self.epoch = max(self.epoch, epoch)
        return run

    def held(self) -> list[LedgerState]:
        """What is held of each ledger from the truncation point on, and what was held and is damaged."""
        return [ledger_state(run, self.truncated_before) for run in self.in_order]

    @property
    def in_order(self) -> list[EntryRun]:
        return [self.runs[epoch] for epoch in sorted(self.runs)]

    def truncate(self, before_entry: int) -> None:
        self.truncated_before = before_entry
        self.next_entry = max(self.next_entry, before_entry)
        for run in list(self.runs.values()):
            kept = [piece for piece in run.pieces if piece.next_entry > before_entry]
            if not kept or len(kept) < len(run.pieces):
                self._keep(run, kept)

    def keep_ledgers(self, chain: LedgerChain) -> bool:
        """Forget the entries that no ledger of the chain has; return whether there were any."""
        has_foreign = False
        for run in list(self.runs.values()):
            bounds = chain.bounds(run.epoch)
            first, end = bounds if bounds is not None else (run.next_entry, None)
            if first <= run.first_entry and (end is None or run.next_entry <= end):
                continue
            has_foreign = True
            run.clip(first, end)
            if run.first_entry >= run.next_entry:
                del self.runs[run.epoch]
        return has_foreign

    def forget_file(self, log_file: LogFile) -> None:
        for run in list(self.runs.values()):
            if any(piece.log_file is log_file for piece in run.pieces):
                self._keep(run, [piece for piece in run.pieces if piece.log_file is not log_file])

    def _keep(self, run: EntryRun, pieces: Sequence[EntryPiece]) -> None:
        run.keep(pieces)
        if not pieces and run.next_entry <= self.truncated_before:
            del self.runs[run.epoch]

    def chain(self, first_entry: int) -> list[EntryPart]:
        """The entries of all ledgers from `first_entry` or the truncation point on, each once and in order.

        Raises:
            CorruptError: an entry is missing, or is there twice with different content.
        """
        end = self.truncated_before
        chained: list[EntryPart] = []
        before: EntryRun | None = None
        for run in self.in_order:
            run.check(self.container)
            if run.next_entry <= self.truncated_before:
                continue
            first = max(min((piece.first_entry for piece in run.pieces), default=run.next_entry), self.truncated_before)
            if first > end:
                raise self._missing(end, first)
            if first < end and before is not None:
                raise CorruptError(
                    f"entry {first} of container {self.container} is in the ledgers of the epochs {before.epoch} and "
                    f"{run.epoch}, and differs"
                )
            parts, missing = run.find(first, run.next_entry)
            if missing:
                raise self._missing(*missing[0])
            chained += parts
            before, end = run, run.next_entry
        if end < self.next_entry:
            raise self._missing(end, self.next_entry)
        return [
            part._replace(first_entry=max(part.first_entry, first_entry))
            for part in chained
            if part.end_entry > first_entry
        ]

    def _missing(self, entry: int, next_entry: int) -> CorruptError:
        return CorruptError(
            f"the log of container {self.container} is needed from entry {self.truncated_before} on, but its entries "
            f"from {entry} to {next_entry - 1} are not there: older journal files are missing"
        )


class JournalIndex:
    """The index of one journal. `promises` has the highest epoch that the replica promised, by container."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.promises: dict[int, int] = {}
        self.truncated_before: dict[int, int] = {}
        self._containers: dict[int, ContainerEntries] = {}

    def clear(self) -> None:
        """Forget everything, because the journal is in quarantine."""
        self.promises.clear()
        self.truncated_before.clear()
        self._containers.clear()

    # For the journal, which holds `lock` once it has started

    def add(self, log_file: LogFile, record: NotedRecord, position: int) -> bool:
        """Note a durable record. Call it in the order of the files.

        Returns whether it ends the need for earlier records.
        """
        container, kind = record.container, record.kind
        entries = self._containers.get(container)
        if kind is _ENTRY:
            if entries is None:
                entries = self._containers[container] = ContainerEntries(container)
            run = entries.runs.get(record.epoch)
            if run is None:
                run = entries.run(record.epoch, record.entry)
            run.add(log_file, record, position)
            if record.entry >= entries.next_entry:
                entries.next_entry = record.entry + 1
            entries.note_header(record)
            entries.note_witness(record)
        elif kind is RecordKind.DROP:
            self._containers.pop(container, None)
            self.truncated_before.pop(container, None)
            return True
        else:
            if kind is RecordKind.PROMISE:
                self.promises[container] = max(self.promises.get(container, 0), record.writer_epoch)
                if not (entries or record.truncated_before):
                    return False
            if entries is None:
                entries = self._containers[container] = ContainerEntries(container)
            entries.note_header(record)
        return self._truncate(entries, record)

    def _truncate(self, entries: ContainerEntries, record: NotedRecord) -> bool:
        if record.truncated_before <= entries.truncated_before:
            return False
        entries.epoch = max(entries.epoch, record.epoch)
        self.truncated_before[entries.container] = record.truncated_before
        entries.truncate(record.truncated_before)
        return True

    def add_damaged(self, header: RecordHeader) -> None:
        """Note an entry whose payload is damaged, in the order of the files: the journal had it."""
        entries = self._containers.setdefault(header.container, ContainerEntries(header.container))
        entries.run(header.epoch, header.entry).note(header.entry)
        entries.next_entry = max(entries.next_entry, header.entry + 1)
        entries.note_header(header)
        entries.note_witness(header)
        self._truncate(entries, header)

    def keep_ledgers(self, container: int, chain: LedgerChain) -> bool:
        """Forget the entries that no ledger of the chain has; return whether there were any."""
        entries = self._containers.get(container)
        return entries is not None and entries.keep_ledgers(chain)

    def pieces(self, container: int) -> list[EntryPiece]:
        """The pieces of all ledgers of a container."""
        entries = self._containers.get(container)
        return [] if entries is None else [piece for run in entries.runs.values() for piece in run.pieces]

    def forget_file(self, log_file: LogFile) -> None:
        """Forget the records in a file that is about to be used again."""
        for entries in self._containers.values():
            entries.forget_file(log_file)

    def is_at(self, header: RecordHeader, log_file: LogFile, position: int) -> bool:
        """Whether an entry is needed, and its record at this place is the one that counts."""
        entries = self._containers.get(header.container)
        run = entries.runs.get(header.epoch) if entries is not None else None
        if entries is None or run is None or header.entry < entries.truncated_before:
            return False
        return run.position(header.entry) == (log_file, position)

    # For readers, in any thread

    def __contains__(self, container: object) -> bool:
        return container in self._containers

    def next_entry(self, container: int) -> int:
        """The number after the newest entry of the container that is durable here; 0 if it has none."""
        entries = self._containers.get(container)
        return 0 if entries is None else entries.next_entry

    def epochs(self) -> Mapping[int, int]:
        """The containers that have records here, and the epoch of the newest."""
        with self.lock:
            return {number: entries.epoch for number, entries in self._containers.items()}

    def ledgers(self, container: int) -> list[LedgerState]:
        """What the journal holds of the ledgers of a container, oldest ledger first."""
        with self.lock:
            entries = self._containers.get(container)
            return [] if entries is None else entries.held()

    def known(self) -> dict[int, KnownLog]:
        """What the journal knows of each container that has records here."""
        with self.lock:
            logs = {container: KnownLog(promise, 0, NO_WITNESS, []) for container, promise in self.promises.items()}
            for container, entries in self._containers.items():
                logs[container] = KnownLog(
                    max(self.promises.get(container, 0), entries.writer_epoch),
                    entries.truncated_before,
                    entries.witness,
                    entries.held(),
                )
            return logs

    def chain(self, container: int, first_entry: int = 0) -> tuple[list[EntryPart], Pin]:
        """The entries of all ledgers of a container, and a pin of their files.

        Raises:
            CorruptError: an entry is missing, or is there twice with different content.
        """
        with self.lock:
            entries = self._containers.get(container)
            parts = [] if entries is None else entries.chain(first_entry)
            return parts, Pin({part.log_file for part in parts})

    def ledger(self, container: int, epoch: int, first_entry: int, end_entry: int) -> tuple[list[EntryPart], Pin]:
        """The entries of one ledger in this range that are here, and a pin of their files."""
        with self.lock:
            entries = self._containers.get(container)
            run = None if entries is None else entries.runs.get(epoch)
            parts = [] if run is None else run.find(first_entry, end_entry)[0]
            return parts, Pin({part.log_file for part in parts})
