"""A replica's part of the protocol, for one container: what it promises, takes, acknowledges and tells.

Three rules carry the protocol:

- A promise is durable before it is reported.
- OPENED is sent after everything that was queued before it is durable, so that it has all that an earlier owner may
  still count.
- An entry is acknowledged after the sync of the commit that has it.

Between looking at the promise and queueing a record nothing else may run: the shell calls these methods on one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.codec.log_record_header import RecordHeader, RecordKind
from headrace.codec.replica_messages import (
    NACK_FENCED,
    NACK_GAP,
    NACK_PROTOCOL,
    OPENED_WHOLE,
    Drop,
    HeldRun,
    Nack,
    Open,
    Opened,
    Read,
)
from headrace.model.container_logs import LedgerChain
from headrace.replication.effects import Answer, AnswerFromJournal, Held, QueueRecord, ReplicaEffect

if TYPE_CHECKING:
    from typing_extensions import Buffer


# What a journal knows about each container after a start: the interface between the journal and ReplicaLog.


class Witness(NamedTuple):
    """What the owner with this epoch knew as acknowledged: the entries before `acknowledged_before`."""

    epoch: int
    acknowledged_before: int


NO_WITNESS: Final = Witness(0, 0)


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The durable state of one container's log at a replica.

    A journal that has lost records which it cannot name does not give this state: its store makes a new journal, which
    is another replica.
    """

    promise: int = 0
    truncated_before: int = 0
    witness: Witness = NO_WITNESS
    runs: tuple[HeldRun, ...] = ()


class Session(NamedTuple):
    """One OPEN that is in force: the writer, the number of the OPEN, and the link that it came over."""

    writer_epoch: int
    number: int
    link: int


@dataclass(slots=True)
class _Run:
    """Entries of one ledger without gaps. `end` counts queued ones, `durable_end` those that were synced."""

    start: int
    end: int
    durable_end: int
    had_end: int


class _Queued(NamedTuple):
    """An entry in the journal's queue, by the number of its record."""

    record: int
    epoch: int
    entry: int


class ReplicaLog:
    """The state of one container at one replica, rebuilt from the journal at each start."""

    def __init__(self, container: int, recovered: RecoveredLog) -> None:
        self.container = container
        self.promise = recovered.promise
        self.truncated_before = recovered.truncated_before
        self._witness = recovered.witness
        self._truncated_queued = recovered.truncated_before
        self._runs = {run.epoch: _Run(run.start, run.end, run.end, run.had_end) for run in recovered.runs}
        self.knows_chain = True
        """Whether the owner's chain says which entries are garbage."""
        self._chain = LedgerChain(())
        self._session: Session | None = None
        self._newest_open = (0, 0)
        self._opened_after: int | None = None
        self._gap_reported_at: int | None = None
        self._records_queued = 0
        self._records_durable = 0
        self._queue: deque[_Queued] = deque()
        self._expected = self.truncated_before
        self._durable_end = self.truncated_before

    @property
    def session(self) -> Session | None:
        return self._session

    @property
    def chain(self) -> LedgerChain:
        return self._chain

    @property
    def is_empty(self) -> bool:
        """Whether this replica holds no entry of any ledger."""
        return not self._runs

    @property
    def expected(self) -> int:
        """The entry behind the gapless range, queued ones included."""
        return self._expected

    @property
    def acknowledged_before(self) -> int:
        """The entry behind the last one that an owner is known to have acknowledged; 0 if none is known."""
        return self._witness.acknowledged_before

    @property
    def durable_end(self) -> int:
        """The entry behind the durable gapless range of the current session's chain."""
        return self._durable_end

    def open(self, link: int, message: Open) -> list[ReplicaEffect]:
        """A writer asks for the log: promise its epoch, and end earlier sessions."""
        if message.writer_epoch < self.promise:
            return [self._nack(link, message.session, NACK_FENCED, self.promise)]
        if self._is_outdated(message):
            return []
        effects: list[ReplicaEffect] = []
        if message.writer_epoch > self.promise:
            self.promise = message.writer_epoch
            effects.append(self._queued(self._record(RecordKind.PROMISE, message.writer_epoch)))
        self._session = Session(message.writer_epoch, message.session, link)
        self._newest_open = self._session[:2]
        self._gap_reported_at = None
        self._chain = LedgerChain(message.ledgers)
        if self._is_witness_of_closed_ledger():
            self._witness = NO_WITNESS
        # An owner that found no record has none of both. If there are entries, the record has vanished, and may return.
        self.knows_chain = bool(message.ledgers) or message.truncated_before > 0
        if self.knows_chain:
            self._discard_outside_chain()
        self._measure()
        effects += self._truncate(message.truncated_before)
        self._opened_after = self._records_queued
        return effects + self._opened_if_durable()

    def entry(self, link: int, header: RecordHeader, parts: Sequence[Buffer]) -> list[ReplicaEffect]:
        """An entry, whose payload is in `parts`. Its writer epoch says who sent it; the link does not matter."""
        session = self._session
        if self._refuses_writer(header.writer_epoch):
            return [self._nack(link, 0, NACK_FENCED, self.promise)]
        if session is None:
            return []
        if not self._chain.has(header.epoch, header.entry):
            return [self._nack(link, session.number, NACK_PROTOCOL, header.entry)]
        effects = self._truncate(header.truncated_before)
        if header.writer_epoch == header.epoch:
            self._note_acknowledged(header.writer_epoch, header.acknowledged_before)
        if self._is_gap(header.entry):
            return effects + self._tell_gap()
        if header.entry < self._expected:
            return effects + (self._held() if header.entry < self._durable_end else [])
        self._gap_reported_at = None
        effects.append(self._queued(QueueRecord(header, parts)))
        self._queue.append(_Queued(self._records_queued, header.epoch, header.entry))
        self._extend(header.epoch, header.entry)
        return effects + self._held_on_receipt()

    def committed(self, records: int) -> list[ReplicaEffect]:
        """The first `records` records that this log has queued are durable."""
        self._records_durable = records
        before = self._durable_end
        while self._queue and self._queue[0].record <= records:
            done = self._queue.popleft()
            run = self._runs.get(done.epoch)
            if run is not None and run.start <= done.entry < run.end:
                run.durable_end = max(run.durable_end, done.entry + 1)
                run.had_end = max(run.had_end, run.durable_end)
                if self._chain.has(done.epoch, done.entry):
                    self._durable_end = max(self._durable_end, done.entry + 1)
        effects = self._opened_if_durable()
        if effects:
            return effects
        return self._held() if self._durable_end > before else []

    def pulse(self, link: int, acknowledged_before: int, truncated_before: int) -> list[ReplicaEffect]:
        """What the writer knows, while it appends nothing.

        No entry brings the truncation point to the journal then: it gets a record, so that old files become free.
        """
        if self._session is None or self._session.link != link:
            return []
        if self._chain.ledgers and self._chain.ledgers[-1].epoch == self._session.writer_epoch:
            self._note_acknowledged(self._session.writer_epoch, acknowledged_before)
        effects = self._truncate(truncated_before)
        if self.truncated_before > self._truncated_queued:
            effects.append(self._queued(self._record(RecordKind.TRUNCATION, self.promise)))
        return effects

    def read(self, link: int, message: Read) -> list[ReplicaEffect]:
        """A recovery asks for entries. An answer never says that an entry does not exist: only OPENED says so.

        Without a session of this link the question is refused, so that another replica is asked. The refusal names the
        question and no session. A writer ignores it, and so does a recovery of a former release.
        """
        if self._session is None or self._session.link != link:
            return [self._nack(link, 0, NACK_PROTOCOL, message.request)]
        return [AnswerFromJournal(link, message)]

    def drop(self, message: Drop) -> list[ReplicaEffect]:
        """This replica is not a member any longer. The promise stays."""
        return self.discard() if self._ends_session(message) else []

    def discard(self) -> list[ReplicaEffect]:
        """No log needs what this replica holds, its truncation point or its witness. The promise stays.

        The journal forgets them, too. Kept, they would pass for those of the log that this replica gets next.
        """
        self._session = None
        self._witness = NO_WITNESS
        self.truncated_before = self._truncated_queued = 0
        self._opened_after = None
        self._runs.clear()
        self._queue.clear()
        self._measure()
        return [self._queued(self._record(RecordKind.DROP, self.promise))]

    def link_lost(self, link: int) -> None:
        """The link has ended. What is durable stays, and still counts for the owner."""
        if self._session is not None and self._session.link == link:
            self._session = None
            self._opened_after = None

    def needs(self, epoch: int, entry: int) -> bool:
        """Whether the journal must keep an entry."""
        run = self._runs.get(epoch)
        return entry >= self.truncated_before and run is not None and run.start <= entry < max(run.end, run.had_end)

    # Decisions. The simulator replaces them one at a time, to prove that it notices.

    def _refuses_writer(self, writer_epoch: int) -> bool:
        return writer_epoch != self.promise

    def _ends_session(self, message: Drop) -> bool:
        """Whether DROP is of the current session. A late one of an earlier owner may have the same number."""
        return self._session is not None and self._session[:2] == (message.writer_epoch, message.session)

    def _is_witness_of_closed_ledger(self) -> bool:
        """Whether the witness is of a closed ledger, which may have ended at an accepted loss."""
        return self._witness.epoch < max((start.epoch for start in self._chain.ledgers), default=1)

    def _reported_end(self, run: _Run) -> int:
        """OPENED reports what is durable: entries of the same writer may have been queued behind the OPEN."""
        return run.durable_end

    def _is_gap(self, entry: int) -> bool:
        return entry > self._expected

    def _held_on_receipt(self) -> list[ReplicaEffect]:
        """An entry that was only received is not acknowledged."""
        return []

    def _is_opened_durable(self) -> bool:
        """Whether everything is durable that was queued before OPENED."""
        return self._opened_after is not None and self._records_durable >= self._opened_after

    def _is_outdated(self, message: Open) -> bool:
        """Whether the OPEN is an earlier one of the same writer, which may have been sent over an earlier link.

        Its chain may lack the writer's own ledger. Taken for the current chain, it would make acknowledged entries of
        that ledger garbage. That is so also after the link of the newer one has ended.
        """
        return (message.writer_epoch, message.session) < self._newest_open

    # Steps.

    def _discard_outside_chain(self) -> None:
        """Forget what no ledger of the chain has: it never became part of the log."""
        for epoch, run in list(self._runs.items()):
            bounds = self._chain.bounds(epoch)
            if bounds is None:
                del self._runs[epoch]
                continue
            first, end = bounds
            run.start = max(run.start, first)
            if end is not None:
                run.end, run.durable_end = min(run.end, end), min(run.durable_end, end)
                run.had_end = min(run.had_end, end)
            run.end, run.durable_end = max(run.end, run.start), max(run.durable_end, run.start)
            run.had_end = max(run.had_end, run.start)
            if max(run.end, run.had_end) <= run.start:
                del self._runs[epoch]

    def _measure(self) -> None:
        """Find the gapless range from the truncation point on."""
        self._expected = self._gapless_end(durable=False)
        self._durable_end = self._gapless_end(durable=True)

    def _gapless_end(self, *, durable: bool) -> int:
        expected = self.truncated_before
        for start in self._chain.ledgers:
            run = self._runs.get(start.epoch)
            if run is not None and run.start <= expected:
                expected = max(expected, run.durable_end if durable else run.end)
            bounds = self._chain.bounds(start.epoch)
            if bounds is None or bounds[1] is None or expected < bounds[1]:
                break
        return expected

    def _note_acknowledged(self, writer_epoch: int, acknowledged_before: int) -> None:
        """Remember what the writer of the open ledger knows as acknowledged: a recovery must find it.

        What an earlier writer knew does not count. The record says where its ledger ended, and if an operator accepted
        a loss, the ledger ended before.
        """
        self._witness = max(self._witness, Witness(writer_epoch, acknowledged_before))

    def _truncate(self, truncated_before: int) -> list[ReplicaEffect]:
        """Move the truncation point forward. Entries that are missing before it are not needed any more.

        If the range begins again behind a gap, the journal must say so: otherwise a scan would take the gap for damage.
        """
        if truncated_before <= self.truncated_before:
            return []
        self.truncated_before = truncated_before
        if truncated_before <= self._expected:
            self._durable_end = max(self._durable_end, truncated_before)
            return []
        self._measure()
        return [self._queued(self._record(RecordKind.TRUNCATION, self.promise))]

    def _extend(self, epoch: int, entry: int) -> None:
        run = self._runs.get(epoch)
        if run is None:
            self._runs[epoch] = _Run(entry, entry + 1, entry, entry)
        elif run.end == entry:
            run.end = entry + 1
        else:
            self._runs[epoch] = _Run(entry, entry + 1, entry, max(entry, run.had_end))
        self._expected = entry + 1

    def _opened_if_durable(self) -> list[ReplicaEffect]:
        session = self._session
        if session is None or not self._is_opened_durable():
            return []
        self._opened_after = None
        runs = tuple(
            HeldRun(epoch, run.start, self._reported_end(run), run.had_end) for epoch, run in sorted(self._runs.items())
        )
        answer = Opened(
            self.container,
            session.number,
            OPENED_WHOLE,
            self.promise,
            self.truncated_before,
            self.acknowledged_before,
            runs,
        )
        return [Answer(session.link, answer)]

    def _held(self) -> list[ReplicaEffect]:
        """What one ACK says. Before OPENED nothing is acknowledged: the writer knows no position yet."""
        session = self._session
        if session is None or self._opened_after is not None:
            return []
        last = self._acknowledged_end() - 1
        return [Held(session.link, session.number, self._chain.epoch_of(last) or 0, last)]

    def _acknowledged_end(self) -> int:
        return self._durable_end

    def _tell_gap(self) -> list[ReplicaEffect]:
        """Once for each gap: everything that is in flight behind it arrives, too."""
        session = self._session
        if session is None or self._gap_reported_at == self._expected:
            return []
        self._gap_reported_at = self._expected
        return [self._nack(session.link, session.number, NACK_GAP, self._expected)]

    def _queued(self, effect: QueueRecord) -> QueueRecord:
        self._records_queued += 1
        self._truncated_queued = max(self._truncated_queued, effect.header.truncated_before)
        return effect

    def _record(self, kind: RecordKind, epoch: int) -> QueueRecord:
        return QueueRecord(
            RecordHeader(kind, self.container, epoch, epoch, 0, self.truncated_before, self.acknowledged_before, 0, 0),
            (),
        )

    def _nack(self, link: int, session: int, code: int, value: int) -> Answer:
        return Answer(link, Nack(self.container, session, code, value))
