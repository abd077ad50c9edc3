"""Deliberate bugs, to prove that the simulator finds bugs: each replaces one decision of the protocol or its shell.

A mutation counts as caught when one of the checkers that are named for it fires within `SEEDS_MAX` seeds. The numbers
are those of the design; variants have a letter. Number 17 has a variant in `store_level`, too, with the real memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock
from weakref import WeakKeyDictionary

from headrace.codec.log_record_header import RecordKind
from headrace.codec.replica_messages import Drop, HeldRun, Open
from headrace.model.container_logs import NO_POSITION, ContainerLog, Ensemble, LedgerChain, ReplicaId, open_ledger
from headrace.ports.journal_disk import JournalDisk
from headrace.replication import ledger_writer, log_recovery
from headrace.replication.copy_sources import CopySources
from headrace.replication.effects import Acknowledge, Held, ReadRecord, Release, ReplicaEffect, WriteClaim, WriterEffect
from headrace.replication.ensemble_change import EnsembleChange
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.log_ends import reported_position
from headrace.replication.log_recovery import LogRecovery, RecoveryStep
from headrace.replication.replica_log import RecoveredLog, ReplicaLog, Session
from headrace.segmentstore.log.journal import journal_commits, journal_files
from headrace.segmentstore.log.journal.journal_commits import JournalCommits
from headrace.segmentstore.log.journal.journal_files import LogFile
from headrace.segmentstore.log.journal.journal_format import LostRecordsError, RecordHeader
from headrace.segmentstore.log.journal.journal_index import KnownLog
from headrace.segmentstore.log.journal.journal_scan import Record, RecordScan
from headrace.segmentstore.log.journal.pending_records import PendingRecord, promise_record
from headrace.segmentstore.log.journal.replica_identity import create_identity
from headrace.segmentstore.log.replicated import replica_sessions
from simulation import replica_process
from simulation.disk import SimulatedFile
from simulation.metadata import Metadata
from simulation.replica_process import ReplicaProcess
from simulation.runs import run_seed

SEEDS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class Mutation:
    """A deliberate bug. `checkers` are those that must notice it; `patches` what it replaces."""

    name: str
    bug: str
    checkers: tuple[str, ...]
    patches: tuple[tuple[object, str, Callable[..., Any]], ...]


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """Run the block with the bug."""
    with ExitStack() as stack:
        for target, attribute, replacement in mutation.patches:
            stack.enter_context(mock.patch.object(target, attribute, replacement))
        yield


def _largest_position(self: LedgerWriter) -> int:
    return max((self.positions.get(member, -1) for member in self.log.members), default=-1)


def _current_ensemble_only(self: LedgerWriter) -> int:
    return self.log.ensemble.quorum_position(self.positions)


def _without_promise(init: Callable[..., None]) -> Callable[..., None]:
    def forgetful(self: ReplicaLog, container: int, recovered: RecoveredLog) -> None:
        init(self, container, recovered)
        self.promise = 0

    return forgetful


def _held_when_received(self: ReplicaLog) -> Any:
    return self._held()


def _expected_end(self: ReplicaLog) -> int:
    return self.expected


def _first_of_answers(self: LogRecovery, ensemble: Ensemble) -> bool:
    return any(member in self._answers for member in ensemble.members)


def _create_identity_of_the_name(disk: JournalDisk, random_64: Callable[[], int]) -> bytes:
    """The number of the store is the first byte of each drawn number."""
    return _CREATE_IDENTITY(disk, lambda: random_64() >> 56 << 56 | 1)


def _record_before_claim(self: LogRecovery, claim_version: int) -> list[WriterEffect]:
    self._claim_looked_at = claim_version  # type: ignore[attr-defined]
    return [ReadRecord()]


def _continue_with_old_record(self: LogRecovery, epoch: int) -> list[WriterEffect]:
    self.epoch = epoch
    self.step = RecoveryStep.READ
    return _RECORD_READ(self, *self._record_looked_at)  # type: ignore[attr-defined]


def _keep_record_and_claim(self: LogRecovery, log: ContainerLog | None, version: int) -> list[WriterEffect]:
    if self.step is RecoveryStep.CLAIM:
        self._record_looked_at = (log, version)  # type: ignore[attr-defined]
        return [WriteClaim(self._claim_looked_at)]  # type: ignore[attr-defined]
    return _RECORD_READ(self, log, version)


def _claim_only(self: Metadata, container: int, version: int, claim_epoch: int) -> Any:
    return _REFUSAL(self, container, self.logs[container].version, claim_epoch)


def _recovered_without_damage(known: KnownLog) -> RecoveredLog:
    log = _RECOVERED(known)
    return replace(log, runs=tuple(run._replace(had_end=run.end) for run in log.runs if run.start < run.end))


def _skip_any_damage(self: RecordScan) -> Record:
    """Continues with the next whole record, or with one that says nothing at the end."""
    try:
        return _SKIP_DAMAGED_ENTRY(self)
    except LostRecordsError:
        limit = self._durable_until
    while self.end < limit:
        self.end += 1
        record = self._record_at(self.end, limit)
        if record is not None:
            self.end = record.position + record.header.length
            return record
    return Record(RecordHeader(RecordKind.TRUNCATION, 0, 0, 0, 0, 0, 0, 0, 0, 0), self.end)


def _truncate_what_is_acknowledged(self: LedgerWriter, truncated_before: int) -> None:
    """Truncates what tier 2 does not have."""
    _TRUNCATE(self, max(truncated_before, self.acknowledged_entry + 1))


def _truncate_before_sync(
    self: JournalCommits, batch: list[PendingRecord], committed: Callable[[list[PendingRecord]], None]
) -> None:
    """Truncation points count before their commit is durable."""
    for pending in batch:
        known = self.index._containers.get(pending.container)
        if pending.kind is not None and known is not None and self.index._truncate(known, pending):
            self._free_files()
    _COMMIT(self, batch, committed)


def _free_despite_damage(self: JournalCommits, log_file: LogFile, record: Record) -> None:
    self.index.add_damaged(record.header)


def _open_and_remember(self: ReplicaLog, link: int, message: Open) -> list[ReplicaEffect]:
    before = self.session
    effects = _OPEN(self, link, message)
    if before is not None and before != self.session:
        _EARLIER[self] = before
    return effects


def _committed_for_earlier(self: ReplicaLog, records: int) -> list[ReplicaEffect]:
    """Acknowledges to the writer whose session has ended, too."""
    effects = _COMMITTED(self, records)
    earlier, last = _EARLIER.get(self), self.durable_end - 1
    if earlier is not None:
        effects = [*effects, Held(earlier.link, earlier.number, self.chain.epoch_of(last) or 0, last)]
    return effects


def _ends_session_of_number(self: ReplicaLog, message: Drop) -> bool:
    return self.session is not None and self.session.number == message.session


def _release_when_acknowledged(self: LedgerWriter) -> list[WriterEffect]:
    effects = _CONFIRM(self)
    return [*effects, *(Release(effect.up_to) for effect in effects if isinstance(effect, Acknowledge))]


def _read_after_unknown(self: LedgerWriter) -> list[WriterEffect]:
    return [] if self.has_failed else self._change.conflict()


def _ignore_failed_sync(self: SimulatedFile) -> None:
    try:
        _SYNC(self)
    except OSError:
        return


def _had_by_answers_only(self: CopySources, entry: int, ensemble: Ensemble) -> bool:
    """A member that has not answered counts as one without the entry."""
    return sum(self._had.get(member, NO_POSITION) >= entry for member in ensemble.members) >= ensemble.ack_quorum


def _one_entry_too_high(chain: LedgerChain, truncated_before: int, runs: Iterable[HeldRun]) -> int:
    return reported_position(chain, truncated_before, runs) + 1


def _ledger_at_the_last_entry(
    log: ContainerLog | None, epoch: int, first: int, members: tuple[ReplicaId, ...], truncated_before: int, copies: int
) -> ContainerLog:
    return open_ledger(log, epoch, max(0, first - 1), members, truncated_before, copies)


def _truncate_one_more(self: ReplicaLog, truncated_before: int) -> list[ReplicaEffect]:
    return _TRUNCATE_REPLICA(self, truncated_before + 1 if truncated_before else 0)


def _end_at_own_copy(self: LogRecovery) -> list[WriterEffect]:
    """Asks no other replica for what this process lacks."""
    self.last = self._progress.position(self.own)
    return self._copy()


def _open_without_last_entry(self: LogRecovery) -> list[WriterEffect]:
    """Counts replicas that lack the last entry as complete."""
    complete = tuple(answer for answer in self._answers if self._progress.position(answer) >= self.last - 1)
    members = self._members_of(complete)
    if self._has_copies(members) and not self._is_asking:
        return self._open_ledger(members)
    return _COPY(self)


_RECORD_READ = LogRecovery.record_read
_COPY = LogRecovery._copy
_TRUNCATE_REPLICA = ReplicaLog._truncate
_REFUSAL = Metadata._refusal
_RECOVERED = replica_sessions._recovered
_SKIP_DAMAGED_ENTRY = RecordScan._skip_damaged_entry
_CREATE_IDENTITY = create_identity
_TRUNCATE = LedgerWriter.truncate
_CONFIRM = LedgerWriter._confirm
_COMMIT = JournalCommits.commit
_SYNC = SimulatedFile.sync
_OPEN = ReplicaLog.open
_COMMITTED = ReplicaLog.committed
_EARLIER: WeakKeyDictionary[ReplicaLog, Session] = WeakKeyDictionary()

MUTATIONS: Final = (
    Mutation(
        "1",
        "acknowledges when one member has an entry",
        ("I4", "durability"),
        ((LedgerWriter, "_acknowledgeable", _largest_position),),
    ),
    Mutation(
        "2",
        "a replica acknowledges on receipt, before the sync",
        ("I4",),
        ((ReplicaLog, "_held_on_receipt", _held_when_received), (ReplicaLog, "_acknowledged_end", _expected_end)),
    ),
    Mutation(
        "3",
        "a replica takes entries of writers below its promise",
        ("I3", "I7"),
        ((ReplicaLog, "_refuses_writer", lambda self, writer_epoch: False),),
    ),
    Mutation(
        "4",
        "a promise is forgotten at a restart",
        ("I3", "I7"),
        ((ReplicaLog, "__init__", _without_promise(ReplicaLog.__init__)),),
    ),
    Mutation(
        "5",
        "OPENED is sent before what was queued earlier is durable",
        ("durability",),
        (
            (ReplicaLog, "_is_opened_durable", lambda self: self._opened_after is not None),
            (ReplicaLog, "open", _open_and_remember),
            (ReplicaLog, "committed", _committed_for_earlier),
        ),
    ),
    Mutation(
        "6",
        "no joint rule: only the old ensemble counts during a change",
        ("I4",),
        ((LedgerWriter, "_acknowledgeable", _current_ensemble_only),),
    ),
    Mutation(
        "6b",
        "a read that shows the old version ends the joint rule",
        ("I4",),
        (
            (EnsembleChange, "_ends_change", lambda self, version: True),
            (LedgerWriter, "record_unknown", _read_after_unknown),
        ),
    ),
    Mutation(
        "7",
        "a change is written before the survivors have what is acknowledged",
        ("I4",),
        ((EnsembleChange, "_has_reached", lambda self, wanted_position, acknowledged_entry: True),),
    ),
    Mutation(
        "8",
        "a recovery continues with one answer of three",
        ("durability",),
        ((LogRecovery, "_is_fenced", _first_of_answers),),
    ),
    Mutation(
        "9",
        "a recovery ends at the shortest position",
        ("durability",),
        ((LogRecovery, "_end_of_log", lambda self, reported: min(reported.values())),),
    ),
    Mutation(
        "10",
        "the record is written before a second member has the end",
        ("I8",),
        (
            (LogRecovery, "_has_copies", lambda self, members: self.own in members),
            (log_recovery, "check_transition", lambda before, after, claim_epoch: None),
        ),
    ),
    Mutation(
        "11",
        "a store is recognized by its name: an empty volume answers for the lost one",
        ("durability",),
        ((journal_files, "create_identity", _create_identity_of_the_name),),
    ),
    Mutation(
        "12",
        "a replica takes an entry behind a gap",
        ("I2",),
        ((ReplicaLog, "_is_gap", lambda self, entry: False),),
    ),
    Mutation(
        "13",
        "the log record is written without a check of the claim and of the version",
        ("I6", "durability"),
        ((Metadata, "_refusal", lambda self, container, version, claim_epoch: None),),
    ),
    Mutation(
        "14",
        "the log record is read before the claim, and written without its version",
        ("I7",),
        (
            (LogRecovery, "start", _record_before_claim),
            (LogRecovery, "claimed", _continue_with_old_record),
            (LogRecovery, "record_read", _keep_record_and_claim),
            (Metadata, "_refusal", _claim_only),
        ),
    ),
    Mutation(
        "15",
        "a file is freed before the truncation point that allows it is durable",
        ("I2",),
        (
            (JournalCommits, "commit", _truncate_before_sync),
            (journal_commits, "promise_record", lambda *args: promise_record(*args[:3])),  # else one makes it durable
        ),
    ),
    Mutation(
        "15b",
        "the truncation point moves before the checkpoint is acknowledged",
        ("I10",),
        ((LedgerWriter, "truncate", _truncate_what_is_acknowledged),),
    ),
    Mutation(
        "15c",
        "a promise and its truncation point are not written again before their file is freed",
        ("I2", "I3"),
        ((JournalCommits, "_move_promises", lambda self, log_file: True),),
    ),
    Mutation(
        "15d",
        "a copy that no log needed is discarded although an OPEN came meanwhile",
        ("I8", "I4"),
        (
            (replica_process, "is_copy_unneeded", lambda log, own, promise: log is not None and own not in log.members),
            (ReplicaProcess, "_was_heard_since", lambda self, container, asked: False),
        ),
    ),
    Mutation(
        "16",
        "a damaged span is reported as never held",
        ("durability",),
        ((replica_sessions, "_recovered", _recovered_without_damage),),
    ),
    Mutation(
        "16b",
        "damage whose entry is not known is skipped",
        ("durability",),
        ((RecordScan, "_skip_damaged_entry", _skip_any_damage),),
    ),
    Mutation(
        "16c",
        "the file of a damaged entry is freed like any other",
        ("durability", "I2"),
        ((JournalCommits, "_note_damaged", _free_despite_damage),),
    ),
    Mutation(
        "17b",
        "the memory of an entry is used again when it is acknowledged",
        ("I1",),
        ((LedgerWriter, "_confirm", _release_when_acknowledged),),
    ),
    Mutation(
        "18",
        "the journal continues after a failed sync",
        ("I4",),
        ((SimulatedFile, "sync", _ignore_failed_sync),),
    ),
    Mutation(
        "20",
        "a DROP of an earlier owner ends the session that has its number",
        ("I8",),
        ((ReplicaLog, "_ends_session", _ends_session_of_number),),
    ),
    Mutation(
        "21",
        "OPENED reports entries that are queued as held",
        ("I2",),
        ((ReplicaLog, "_reported_end", lambda self, run: run.end),),
    ),
    Mutation(
        "22",
        "a recovery takes a member that did not answer for one without the entry",
        ("durability",),
        ((CopySources, "may_be_acknowledged", _had_by_answers_only),),
    ),
    Mutation(
        "23",
        "the owner takes the position in OPENED for one entry higher",
        ("I4",),
        ((ledger_writer, "reported_position", _one_entry_too_high),),
    ),
    Mutation(
        "23b",
        "a recovery takes the position in OPENED for one entry higher",
        ("I12",),
        ((log_recovery, "reported_position", _one_entry_too_high),),
    ),
    Mutation(
        "24",
        "the next ledger begins at the last entry, not behind it",
        ("durability",),
        ((log_recovery, "open_ledger", _ledger_at_the_last_entry),),
    ),
    Mutation(
        "25",
        "a replica truncates one entry more than it is told",
        ("I8", "I10", "durability"),
        ((ReplicaLog, "_truncate", _truncate_one_more),),
    ),
    Mutation(
        "26",
        "a recovery ends the log with what its own replica has",
        ("durability",),
        ((LogRecovery, "_read_lacking", _end_at_own_copy),),
    ),
    Mutation(
        "27",
        "a recovery counts copies without the last entry",
        ("durability", "I8"),
        ((LogRecovery, "_copy", _open_without_last_entry),),
    ),
)


def seeds_until_caught(mutation: Mutation, seeds_max: int = SEEDS_MAX, first: int = 0) -> tuple[int, str] | None:
    """How many seeds from `first` on it takes until a named checker fires, and which one; None if none of them does."""
    with applied(mutation):
        for seed in range(first, first + seeds_max):
            for violation in run_seed(seed).violations:
                if violation.checker in mutation.checkers:
                    return seed + 1 - first, violation.checker
    return None
