"""Deliberate bugs, to prove that the simulator finds bugs: each replaces one decision of the protocol or its shell.

A mutation counts as caught when one of the checkers that are named for it fires within `SEEDS_MAX` seeds. The numbers
are those of the design; 6b and 16b are variants. Mutation 15 (files freed too early) and 17 (blocks used again too
early) concern the real journal and the store, which are not part of this level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock
from weakref import WeakKeyDictionary

from headrace.codec.replica_messages import HeldRun, Open
from headrace.model.container_logs import ContainerLog
from headrace.model.ensembles import Ensemble, ReplicaId
from headrace.replication import log_recovery
from headrace.replication.effects import Held, ReadRecord, ReplicaEffect, WriteClaim, WriterEffect
from headrace.replication.ensemble_change import EnsembleChange
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.log_recovery import LogRecovery, RecoveryStep
from headrace.replication.recovered_logs import RecoveredLog, RunSpans
from headrace.replication.replica_log import ReplicaLog, Session
from simulation.disk import DiskError
from simulation.journal import SimulatedJournal, next_record
from simulation.metadata import Metadata
from simulation.runs import run_seed
from simulation.store import Store

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
    return max((self.positions.get(one, -1) for one in self.log.members), default=-1)


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


def _id_of_the_name(self: Store) -> ReplicaId:
    return ReplicaId(bytes((self.number, 1)) * 8)


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


def _run_without_damage(self: RunSpans, epoch: int, truncated: int) -> HeldRun | None:
    run = _RUN(self, epoch, truncated)
    return None if run is None or run.start == run.end else run._replace(had_end=run.end)


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


def _read_after_unknown(self: LedgerWriter) -> list[WriterEffect]:
    return [] if self.has_failed else self._change.conflict()


def _ignore_failed_sync(self: SimulatedJournal) -> None:
    try:
        self.disk.sync()
    except DiskError:
        return


_RECORD_READ = LogRecovery.record_read
_REFUSAL = Metadata._refusal
_RUN = RunSpans.run
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
        ((EnsembleChange, "_has_reached", lambda self, wanted_position, confirmed: True),),
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
        ((LogRecovery, "_end_of_log", lambda self, told: min(told.values())),),
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
        ((Store, "_new_replica_id", _id_of_the_name),),
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
        "16",
        "a damaged span is reported as never held",
        ("durability",),
        ((RunSpans, "run", _run_without_damage),),
    ),
    Mutation(
        "16b",
        "damage whose entry is not known is skipped",
        ("durability",),
        ((SimulatedJournal, "_skip_unnamed_damage", lambda self, raw, position: next_record(raw, position + 1)),),
    ),
    Mutation(
        "18",
        "the journal continues after a failed sync",
        ("I4",),
        ((SimulatedJournal, "_sync", _ignore_failed_sync),),
    ),
)


def seeds_until_caught(mutation: Mutation, seeds_max: int = SEEDS_MAX) -> tuple[int, str] | None:
    """How many seeds it takes until a named checker fires, and which one; None if none of them does."""
    with applied(mutation):
        for seed in range(seeds_max):
            for violation in run_seed(seed).violations:
                if violation.checker in mutation.checkers:
                    return seed + 1, violation.checker
    return None
