"""Takes over a container's log: claim, read the record, fence, find the end, copy it, open the next ledger.

The order matters. After the claim every record write of the earlier owner fails, so the record that is read then names
the last ensemble that there will be. After a read quorum has promised the new epoch, no entry of the earlier owner can
still be acknowledged, and every acknowledged entry is among the answers.

An entry that is damaged at all of these may be intact at a replica that is neither a member nor wanted: it was a member
once. A recovery that would be blocked asks such replicas for entries, too. Their answers count for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from headrace.codec.replica_messages import NACK_FENCED, NACK_PROTOCOL, Entries, Nack, Open, Opened
from headrace.model.container_logs import (
    COPIES_MIN,
    NO_POSITION,
    ContainerLog,
    Ensemble,
    LedgerChain,
    LogState,
    ReplicaId,
    check_transition,
    full_chain,
    open_ledger,
)
from headrace.replication.bounds import RecoveryBounds
from headrace.replication.copy_sources import CopyProgress, CopySources
from headrace.replication.effects import (
    DropMember,
    Fail,
    OpenMember,
    ReadRecord,
    SendCopies,
    SendPulse,
    Serve,
    WriteClaim,
    WriteRecord,
    WriterEffect,
)
from headrace.replication.ensemble_change import members_after_takeover
from headrace.replication.log_ends import (
    find_log_end,
    first_possible,
    had_position,
    reported_position,
    truncation_point,
)

OTHERS_ASKED_MAX: Final = 16
"""Replicas that are neither members nor wanted, and that one attempt asks. A cluster may have hundreds of processes,
and each of them costs a link."""

# The steps of a takeover, in their order.


class RecoveryStep(Enum):
    CLAIM = "claim"
    READ = "read"
    FENCE = "fence"
    COPY = "copy"
    OPEN = "open"
    SERVE = "serve"
    FAILED = "failed"


class LogRecovery:
    """One takeover by one process. `wanted` are the replicas that placement wants, the own one among them.

    `sessions` is the number of the last OPEN. The writer of the new ledger continues behind it.
    """

    def __init__(
        self,
        container: int,
        own: ReplicaId,
        wanted: tuple[ReplicaId, ...],
        zones: Mapping[ReplicaId, str],
        copies: int,
        bounds: RecoveryBounds,
        now_ms: int,
    ) -> None:
        self.container = container
        self.own = own
        self.step = RecoveryStep.CLAIM
        self.epoch = 0
        self.last = NO_POSITION
        self.truncated_before = 0
        self._wanted = wanted
        self._zones = zones
        self._copies = copies
        self._bounds = bounds
        self._now_ms = now_ms
        self._log: ContainerLog | None = None
        self._version = 0
        self._next: ContainerLog | None = None
        self._chain = LedgerChain(())
        self.sessions = 0
        self._session: dict[ReplicaId, int] = {}
        self._opened: dict[ReplicaId, int] = {}
        """The newest OPEN to each replica, also in earlier attempts."""
        self._answers: dict[ReplicaId, Opened] = {}
        self._progress = CopyProgress(bounds.copy_window_bytes, bounds.stall_ms)
        self._sources = CopySources(container, bounds.copy_window_bytes, bounds.retry_ms)
        self._others: tuple[ReplicaId, ...] = ()
        """Opened in this attempt as sources of entries only: neither members nor wanted."""
        self._others_turn = 0
        self._reopen: list[ReplicaId] = []  # at the next tick
        self._emptied: set[ReplicaId] = set()
        self._acknowledged = NO_POSITION
        self._grace_until_ms: int | None = None
        self._retry_at_ms = now_ms
        self._is_asking = False
        self._past_before = 0

    @property
    def has_failed(self) -> bool:
        return self.step is RecoveryStep.FAILED

    @property
    def blocked_by(self) -> str | None:
        """Why the takeover makes no progress; None while it does."""
        return self._progress.blocked_by

    @property
    def chain(self) -> LedgerChain:
        return self._chain

    @property
    def replicas(self) -> tuple[ReplicaId, ...]:
        """The replicas whose answers this takeover wants."""
        members = self._ensemble().members
        return (*members, *(each for each in self._wanted if each not in members))

    def session_of(self, replica: ReplicaId) -> int:
        """The number of the newest OPEN to a replica."""
        return self._session.get(replica, 0)

    # Events.

    def want(self, wanted: tuple[ReplicaId, ...], zones: Mapping[ReplicaId, str]) -> list[WriterEffect]:
        """Placement wants other replicas now, for example because a store has started."""
        self._wanted, self._zones = wanted, zones
        return self._go_on()

    def start(self, claim_version: int) -> list[WriterEffect]:
        """Take the container over from the owner whose claim has this version."""
        return [WriteClaim(claim_version)]

    def claimed(self, epoch: int) -> list[WriterEffect]:
        """The claim is written; its version is the epoch of the next ledger."""
        self.epoch = epoch
        self.step = RecoveryStep.READ
        return self._read_record()

    def claim_lost(self) -> list[WriterEffect]:
        return self._fail("another store has the claim")

    def record_read(self, log: ContainerLog | None, version: int, past_before: int = 0) -> list[WriterEffect]:
        """The record as of after the claim; version 0 if there is none. While blocked, an operator may change it."""
        self._is_asking, self._past_before = False, past_before
        is_changed = self.step in (RecoveryStep.FENCE, RecoveryStep.COPY) and version > self._version
        if self.step is not RecoveryStep.READ and not is_changed:
            return self._go_on()
        self._log, self._version = log, version
        if log is not None and log.ledgers and log.ledgers[-1].epoch == self.epoch:
            return self._serve(log, version)
        self._chain = log.chain if log is not None and log.state is LogState.OPEN else LedgerChain(())
        self.truncated_before = first_possible(log)
        return self._fence()

    def request_unknown(self) -> list[WriterEffect]:
        """The outcome of a request to the metadata store is not known. `tick` repeats it, one request at a time."""
        self._is_asking = False
        self._retry_at_ms = self._now_ms + self._bounds.retry_ms
        return self._go_on()

    def opened(self, replica: ReplicaId, message: Opened) -> list[WriterEffect]:
        """A replica promised this epoch. An answer to an earlier attempt of this process promises a lower one."""
        if self._session.get(replica) != message.session or message.promise != self.epoch:
            return []
        self._sources.answered(replica)
        if self.step is RecoveryStep.FENCE:
            self._answers[replica] = message
            return self._look_at_answers()
        if self.step is RecoveryStep.COPY and replica in self._others and replica not in self.replicas:
            self._sources.note(replica, had_position(self._chain, self.truncated_before, message.runs))
            return self._copy()
        if self.step is RecoveryStep.COPY:
            self.truncated_before = truncation_point(self._log, self.truncated_before, {replica: message})
            self._answers[replica] = message
            emptied = self._empty_others()
            if replica not in self._answers:
                return emptied
            self._note_answer(replica, message)
            return emptied + self._copy()
        return []

    def refused(self, replica: ReplicaId, message: Nack) -> list[WriterEffect]:
        """A replica has promised a higher epoch, or could not take a message: that one is opened again by `tick`.

        Before the claim nothing was sent: the NACK is for an earlier attempt of this process. A NACK without a session
        refuses a question.
        """
        if self.step is not RecoveryStep.CLAIM and message.code == NACK_FENCED and message.value > self.epoch:
            return self._fail(f"replica {replica.hex()[:8]} promised epoch {message.value}")
        is_question = message.code == NACK_PROTOCOL and not message.session
        return self.link_lost(replica) if is_question and self._sources.awaits(replica, message.value) else []

    def link_lost(self, replica: ReplicaId) -> list[WriterEffect]:
        """The link to a replica has ended. What it has promised and holds still counts, but it answers no question."""
        if self._sources.lost(replica) and replica in self._answers:
            self._reopen.append(replica)
        return self._copy() if self.step is RecoveryStep.COPY else []

    other_replica = link_lost  # another one answers where it was: that has no session either

    def acknowledged(self, replica: ReplicaId, session: int, epoch: int, last: int) -> list[WriterEffect]:
        """A replica holds the copies up to here."""
        is_current = self.step is RecoveryStep.COPY and self._session.get(replica) == session
        if not is_current or not self._progress.is_fed(replica):
            return []
        self._progress.holds(replica, self._chain.clip(epoch, last), self._now_ms)
        return self._copy()

    def entries(self, request: int, message: Entries) -> list[WriterEffect]:
        """Entries that this process lacks."""
        copies = self._sources.answer(request, message, self.last) if self.step is RecoveryStep.COPY else None
        if not copies:
            return [] if copies is None else self._copy()
        self.truncated_before = max(self.truncated_before, *(copy.header.truncated_before for copy in copies))
        self._progress.sent(self.own, copies[-1].header.entry)
        return [SendCopies(self.own, copies)]

    def sent(self, replica: ReplicaId, session: int, last: int) -> list[WriterEffect]:
        """The shell has sent a window from the journal, up to this entry."""
        if self._session.get(replica) == session:
            self._progress.sent(replica, last)
        return []

    def record_written(self, version: int) -> list[WriterEffect]:
        self._is_asking = False
        if self.step is not RecoveryStep.OPEN or self._next is None:
            return []
        return self._serve(self._next, version)

    def record_conflict(self) -> list[WriterEffect]:
        """The record has another version: an earlier attempt may have arrived, or an operator changed the members."""
        self._is_asking = False
        if self.step is not RecoveryStep.OPEN:
            return []
        self.step = RecoveryStep.READ
        return self._read_record()

    def tick(self, now_ms: int) -> list[WriterEffect]:
        """Let time pass: end the wait for further answers, and repeat what was not answered."""
        self._now_ms = now_ms
        if self.step is RecoveryStep.FENCE and self._grace_until_ms is not None and now_ms >= self._grace_until_ms:
            return self._find_end()
        if self.step is RecoveryStep.COPY and self._grace_until_ms is not None and now_ms >= self._grace_until_ms:
            self._grace_until_ms = None
            return self._copy()
        if now_ms < self._retry_at_ms:
            return self._open_again()
        if self._is_asking and self.step in (RecoveryStep.READ, RecoveryStep.OPEN):
            return []
        self._retry_at_ms = now_ms + self._bounds.retry_ms
        match self.step:
            case RecoveryStep.READ:
                return self._read_record()
            case RecoveryStep.FENCE:
                silent = [replica for replica in self.replicas if replica not in self._answers]
                return self._blocked_by_silence() + self._open(silent) + self._open_again() + self._look_for_operator()
            case RecoveryStep.COPY:
                if self._progress.has_stalled(now_ms):
                    return self._begin_again()
                return self._repeat_copy() + self._look_for_operator()
            case RecoveryStep.OPEN:
                return self._write_record()
            case _:
                return []

    # Decisions that the simulator replaces.

    def _is_fenced(self, ensemble: Ensemble) -> bool:
        """Whether so many members have promised that no ack quorum is without one."""
        return ensemble.is_read_quorum(self._answers)

    def _end_of_log(self, reported: Mapping[ReplicaId, int]) -> int:
        """The longest position: an entry that only one member has may be acknowledged."""
        return max(reported.values())

    def _has_copies(self, members: tuple[ReplicaId, ...]) -> bool:
        """Whether enough replicas have the end of the log, this process among them."""
        return self.own in members and len(members) >= min(COPIES_MIN, self._copies)

    # Steps.

    def _read_record(self) -> list[WriterEffect]:
        self._is_asking = True
        return [ReadRecord()]

    def _ensemble(self) -> Ensemble:
        """Whose answers are needed: the members, or for a log without replicas those that placement wants."""
        if self._log is not None and self._log.state is LogState.OPEN:
            return self._log.ensemble
        return Ensemble(self._wanted, self._copies)

    def _open(self, replicas: Iterable[ReplicaId]) -> list[WriterEffect]:
        effects: list[WriterEffect] = []
        # With a truncation point that other replicas reported, an empty chain would mean that the log has ended.
        truncated_before = 0 if self._log is None else self.truncated_before
        for replica in replicas:
            self.sessions += 1
            self._session[replica] = self._opened[replica] = self.sessions
            message = Open(self.container, self.sessions, self.epoch, truncated_before, self._chain.ledgers)
            effects.append(OpenMember(replica, message))
        return effects

    def _open_again(self) -> list[WriterEffect]:
        """Open the replicas whose link has ended since the last tick. Without an answer `_retry_at_ms` is next."""
        lost, self._reopen = self._reopen, []
        return self._open(lost) if self.step in (RecoveryStep.FENCE, RecoveryStep.COPY) else []

    def _fence(self) -> list[WriterEffect]:
        self.step = RecoveryStep.FENCE
        self._answers.clear()
        self._forget_others()
        self._progress.begin()
        self._sources.begin(self._chain)
        self._grace_until_ms = None
        self._retry_at_ms = self._now_ms + self._bounds.retry_ms
        return self._open(self.replicas)

    def _blocked_by_silence(self) -> list[WriterEffect]:
        needed = dict.fromkeys((*self._ensemble().members, self.own))
        missing = [each.hex()[:8] for each in needed if each not in self._answers]
        if self._grace_until_ms is not None or not missing:
            return []
        return self._progress.block(f"{len(missing)} members do not answer: {', '.join(missing)}")

    def _look_for_operator(self) -> list[WriterEffect]:
        """While the recovery is blocked, an operator may accept the loss of members: the record says so."""
        return [] if self.blocked_by is None or self._is_asking else self._read_record()

    def _go_on(self) -> list[WriterEffect]:
        """No request is under way any more: the next ledger may be opened."""
        return self._copy() if self.step is RecoveryStep.COPY else []

    def _look_at_answers(self) -> list[WriterEffect]:
        ensemble = self._ensemble()
        if self.own not in self._answers or not self._is_fenced(ensemble):
            return []
        if self._grace_until_ms is None:
            self._grace_until_ms = self._now_ms + self._bounds.fence_grace_ms
        has_loss = self._log is not None and self._log.has_accepted_loss
        if not has_loss and all(member in self._answers for member in ensemble.members):
            return self._find_end()
        return []

    def _find_end(self) -> list[WriterEffect]:
        """The end of the log is the longest position that an answer has."""
        end = find_log_end(self._log, self.truncated_before, self._answers, self._end_of_log, self._past_before)
        self.last, self._acknowledged, self.truncated_before = end
        emptied = self._empty_others()
        if self.own not in self._answers:
            self._grace_until_ms = None
            return emptied
        if self.last < self._acknowledged:
            self._grace_until_ms = None
            why = ": its record has vanished" if self._log is None else ""
            reason = f"entry {self._acknowledged} was acknowledged, the log ends at {self.last}{why}"
            return emptied + self._progress.block(reason)
        self._grace_until_ms = self._now_ms + self._bounds.fence_grace_ms
        self._retry_at_ms = self._now_ms + self._bounds.retry_ms
        self.step = RecoveryStep.COPY
        for replica, answer in self._answers.items():
            self._note_answer(replica, answer)
        self._progress.begin_copy(self._now_ms)
        pulses = [SendPulse(answer, NO_POSITION, self.truncated_before) for answer in self._answers]
        return [*emptied, *pulses, *self._copy()]

    def _empty_others(self) -> list[WriterEffect]:
        """Have replicas that are truncated in a lost part of the log begin with nothing, and do not count them.

        A replica of a former release keeps its truncation point. It is left out.
        """
        others = [
            replica for replica, answer in self._answers.items() if answer.truncated_before > self.truncated_before
        ]
        effects: list[WriterEffect] = []
        for other in others:
            del self._answers[other]
            if other not in self._emptied:
                self._emptied.add(other)
                effects += [DropMember(other, self.session_of(other)), *self._open([other])]
        return effects

    def _note_answer(self, replica: ReplicaId, answer: Opened) -> None:
        position = reported_position(self._chain, self.truncated_before, answer.runs)
        self._progress.opened(replica, position, self._now_ms)
        self._sources.note(replica, had_position(self._chain, self.truncated_before, answer.runs))

    def _copy(self) -> list[WriterEffect]:
        """Copy to this process first, then to the others; open the next ledger as soon as enough have the end."""
        complete = tuple(answer for answer in self._answers if self._progress.position(answer) >= self.last)
        members = self._members_of(complete)
        if self._has_copies(members) and (len(members) == len(self._answered()) or self._grace_until_ms is None):
            return [] if self._is_asking else self._open_ledger(members)
        if self._progress.position(self.own) < self.last:
            return [] if self._progress.awaits(self.own) else self._read_lacking()
        return self._progress.windows([each for each in self._answered() if each not in complete], self.last)

    def _answered(self) -> tuple[ReplicaId, ...]:
        """The replicas that could be members: those that answered."""
        return self._members_of(tuple(self._answers))

    def _members_of(self, replicas: tuple[ReplicaId, ...]) -> tuple[ReplicaId, ...]:
        candidates = tuple(each for each in (self.own, *self.replicas) if each in replicas)
        return members_after_takeover(candidates, self._ensemble(), self._zones)

    def _read_lacking(self) -> list[WriterEffect]:
        """Ask the replica that holds the most for what this process lacks.

        If none has an entry intact, and no ack quorum can have had it, it was not acknowledged: the log ends before it.
        """
        if self._sources.is_reading:
            return []
        first = self._progress.position(self.own) + 1
        question = self._sources.ask(first, self.last, self._progress.positions, self._now_ms)
        if question is not None or self._sources.silent_with(first, self._answers):
            return [] if question is None else [question]
        if first <= self._acknowledged or self._sources.may_be_acknowledged(first, self._ensemble()):
            blocked = self._progress.block(f"entry {first} was there, and no replica that answered has it intact")
            return blocked + self._open_others()
        self.last = first - 1
        return self._copy()

    def _open_others(self) -> list[WriterEffect]:
        """Once in each attempt, ask some of the replicas that are neither members nor wanted. The next ones come next.

        They promise the epoch and report what they hold of the chain, as members do. What they answer moves neither the
        end of the log nor its truncation point, and they are no candidates for the next ledger.
        """
        if self._others:
            return []
        asked = {*self.replicas, *self._answers}
        others = sorted(each for each in self._zones if each not in asked)
        count = min(OTHERS_ASKED_MAX, len(others))
        self._others = tuple(others[(self._others_turn + each) % len(others)] for each in range(count))
        self._others_turn += count
        return self._open(self._others)

    def _forget_others(self) -> None:
        """What they answer from now on does not count: in the next attempt the members are asked first."""
        for each in self._others:
            self._session.pop(each, None)
        self._others = ()

    def _repeat_copy(self) -> list[WriterEffect]:
        """Open again those that have not proceeded since the last time: messages may have been lost.

        A source that has not answered its question is opened again, too. Meanwhile another one is asked.
        """
        moved, progress, sources = self._progress.take_moved(), self._progress, self._sources
        self._reopen.clear()
        effects = self._copy() if self.own not in moved and sources.stop_waiting(self._now_ms) else []
        return effects + self._open(
            replica
            for replica in self.replicas
            if sources.is_lost(replica)
            or (replica not in moved and (replica not in self._answers or progress.position(replica) < self.last))
        )

    def _begin_again(self) -> list[WriterEffect]:
        """Nothing has moved for long: forget the answers, and ask all replicas again.

        A replica that answered may have ended since. If the others are a read quorum, the log may end before what only
        that one had: it is not acknowledged. Nothing is decided until the next ledger is written.
        """
        names = ", ".join(
            replica.hex()[:8] for replica in self.replicas if self._progress.position(replica) < self.last
        )
        blocked = self._progress.block(f"nothing is copied up to entry {self.last}, which {names} lack")
        return blocked + self._fence() + self._look_for_operator()

    def _open_ledger(self, members: tuple[ReplicaId, ...]) -> list[WriterEffect]:
        opened = open_ledger(self._log, self.epoch, self.last + 1, members, self.truncated_before, self._copies)
        if (full := full_chain(opened)) is not None:
            return self._progress.block(full)
        self.step, self._next = RecoveryStep.OPEN, opened
        check_transition(self._log, self._next, self.epoch)
        return self._write_record()

    def _write_record(self) -> list[WriterEffect]:
        assert self._next is not None
        self._is_asking = True
        return [WriteRecord(self._next, self._version, self.epoch)]

    def _serve(self, log: ContainerLog, version: int) -> list[WriterEffect]:
        self.step = RecoveryStep.SERVE
        serve = Serve(log, version, self.truncated_before, log.ledgers[-1].first - 1)
        return [*self._drop_unneeded(log), serve]

    def _drop_unneeded(self, log: ContainerLog) -> list[WriterEffect]:
        """Drop the copies that the next ledger has no use for.

        Their replicas have promised this epoch. Of themselves they would keep them until the next takeover.
        """
        return [
            DropMember(replica, session)
            for replica, session in self._opened.items()
            if replica not in log.members and replica not in self._wanted
        ]

    def _fail(self, reason: str) -> list[WriterEffect]:
        if self.step is RecoveryStep.FAILED:
            return []
        self.step = RecoveryStep.FAILED
        return [Fail(reason)]
