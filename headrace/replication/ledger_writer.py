"""The owner's part of the protocol, for one container: appends, acknowledgements, members, truncation.

An entry is acknowledged when an ack quorum of the ensemble holds it durably, and while a change of the ensemble is in
progress, when quorums of both ensembles do. The owner's own replica is an ordinary member.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Final

from headrace.codec.replica_messages import NACK_DISK_FULL, NACK_FENCED, NACK_GAP, Nack, Open, Opened
from headrace.model.container_logs import NO_POSITION, ContainerLog, Ensemble, ReplicaId, emptied, joint_quorum_position
from headrace.model.replica_placement import Placement
from headrace.replication.bounds import REOPEN_FIRST_MS, REOPEN_MAX_MS, WriterBounds
from headrace.replication.effects import (
    Acknowledge,
    DropMember,
    Fail,
    OpenMember,
    Release,
    Send,
    SendPulse,
    Source,
    Suspect,
    WriterEffect,
)
from headrace.replication.ensemble_change import (
    ChangePhase,
    EnsembleChange,
    MemberView,
    RepairBounds,
    next_ensemble,
    wanted_learners,
)
from headrace.replication.log_ends import had_position, reported_position, truncation_point
from headrace.replication.member_states import FED, Member, MemberState

# How many bytes of a ledger follow an entry, in bounded memory.

UNKNOWN_LAG: Final = 1 << 62
"""The lag of a replica that lacks entries of an earlier ledger, whose sizes this owner never learned."""


class EntrySizes:
    """Marks of (entry, bytes appended before it), one for each `mark_bytes`: the lag is exact up to that."""

    def __init__(self, first: int, mark_bytes: int) -> None:
        self._entries = [first]
        self._bytes = [0]
        self._mark_bytes = mark_bytes
        self.total = 0
        self._next = first

    def append(self, entry: int, size: int) -> None:
        """Account for the next entry."""
        if self.total - self._bytes[-1] >= self._mark_bytes:
            self._entries.append(entry)
            self._bytes.append(self.total)
        self.total += size
        self._next = entry + 1

    def lag(self, last: int, end: int | None = None) -> int:
        """About the bytes of the entries behind `last`, up to before `end`; wrong by less than one mark."""
        if last + 1 < self._entries[0]:
            return UNKNOWN_LAG
        if last + 1 >= self._next:
            return 0
        up_to = self.total if end is None or end >= self._next else self._before(end)
        return max(0, up_to - self._before(last + 1))

    def truncate(self, truncated_before: int) -> None:
        """Forget marks that nothing before the truncation point needs."""
        keep = bisect_right(self._entries, truncated_before) - 1
        if keep > 0:
            del self._entries[:keep]
            del self._bytes[:keep]

    def _before(self, entry: int) -> int:
        """The bytes before the mark at or before an entry."""
        return self._bytes[max(0, bisect_right(self._entries, entry) - 1)]


class LedgerWriter:
    """The open ledger of a container that this process owns. Created when the record with the ledger is in force."""

    def __init__(
        self,
        container: int,
        own: ReplicaId,
        log: ContainerLog,
        version: int,
        truncated_before: int,
        sessions: int,
        bounds: WriterBounds,
        now_ms: int,
    ) -> None:
        self.container = container
        self.own = own
        self.epoch = log.ledgers[-1].epoch
        self.chain = log.chain
        self.truncated_before = truncated_before
        self.next_entry = log.ledgers[-1].first
        self.acknowledged_entry = self.next_entry - 1
        self.positions: dict[ReplicaId, int] = {}
        self.has_failed = False
        self.is_closed = False
        self._change = EnsembleChange(log, version, self.epoch, bounds)
        self._bounds = bounds
        self._members: dict[ReplicaId, Member] = {}
        self._placement = Placement()
        self._sizes = EntrySizes(self.next_entry, bounds.size_mark_bytes)
        self.sessions = sessions
        self._released = self.acknowledged_entry  # the own journal has it since the recovery, and no memory does
        self._pulse_at_ms = now_ms
        self._now_ms = now_ms

    @property
    def log(self) -> ContainerLog:
        return self._change.log

    @property
    def change_phase(self) -> ChangePhase:
        return self._change.phase

    @property
    def wanted_ensemble(self) -> Ensemble | None:
        return self._change.wanted

    @property
    def unacknowledged_fill(self) -> float:
        """The appended bytes that no quorum holds yet, as a share of their bound. The caller waits from 1 on."""
        return self._sizes.lag(self.acknowledged_entry) / self._bounds.unacknowledged_bytes

    def member_states(self) -> Mapping[ReplicaId, MemberState]:
        return {replica: member.state for replica, member in self._members.items()}

    def session_of(self, replica: ReplicaId) -> int:
        """The number of the newest OPEN to a replica."""
        return self._members[replica].session if replica in self._members else 0

    @property
    def final_record(self) -> tuple[ContainerLog, int] | None:
        """The record that ends the log, and the version that it replaces; None until everything is acknowledged.

        The caller writes it after `close`, when tier 2 has everything. If the outcome is unknown it is written again;
        if another version is there, the next owner recovers the log.
        """
        is_settled = self.acknowledged_entry == self.next_entry - 1 and self._change.phase is ChangePhase.NONE
        if self.has_failed or not self.is_closed or not is_settled:
            return None
        return emptied(self.log, self.next_entry), self._change.version

    # Events.

    def start(self) -> list[WriterEffect]:
        """Open all members, the own replica first."""
        return self._admit((self.own, *self.log.members))

    def append(self, size: int) -> tuple[int, list[WriterEffect]]:
        """Number an entry of `size` bytes, and send it to every member that streams."""
        assert not self.has_failed
        assert not self.is_closed, "a log that is about to end takes no entries"
        entry = self.next_entry
        self.next_entry += 1
        self._sizes.append(entry, size)
        effects: list[WriterEffect] = []
        for replica, member in self._members.items():
            if member.state is MemberState.STREAMING:
                effects += self._stream(replica, member)
        return entry, effects

    def opened(self, replica: ReplicaId, message: Opened) -> list[WriterEffect]:
        """A replica promised this epoch and reported what it holds."""
        member = self._current(replica, message.session)
        if member is None or member.state is not MemberState.OPENING or message.promise != self.epoch:
            return []
        truncated_before = max(self.truncated_before, message.truncated_before)
        if self._is_of_lost_end(replica, message):  # it would pass for one that holds our entries
            return self._empty(replica, member, message.truncated_before)
        position = reported_position(self.chain, truncated_before, message.runs)
        known = self.positions.get(replica, NO_POSITION)
        if max(position, had_position(self.chain, truncated_before, message.runs)) < known:
            member.state = MemberState.REFUSED
            return [Suspect(replica, f"its position was {known} and is {position}")]
        self.positions[replica] = position
        member.opened(position, message.truncated_before, self._now_ms)
        return self._progress(replica, member)

    def acknowledged(self, replica: ReplicaId, session: int, epoch: int, last: int) -> list[WriterEffect]:
        """A replica holds durably everything up to `last`, an entry of the ledger `epoch`."""
        member = self._current(replica, session)
        if member is None or member.state not in FED:
            return []
        position = self.chain.clip(epoch, last)
        if position <= self.positions[replica]:
            return []
        self.positions[replica] = position
        member.sent = max(member.sent, position)
        member.progress_ms = self._now_ms
        return self._progress(replica, member)

    def refused(self, replica: ReplicaId, message: Nack) -> list[WriterEffect]:
        """A replica did not take a message."""
        if message.code == NACK_FENCED and message.value > self.epoch:
            return self._fail(f"replica {replica.hex()[:8]} promised epoch {message.value}")
        member = self._current(replica, message.session)
        if member is None:
            return []
        if message.code == NACK_GAP and member.state in FED:
            member.sent = message.value - 1
            member.state = MemberState.CATCHING_UP
            return self._feed(replica, member)
        member.lose(self._now_ms, REOPEN_MAX_MS if message.code == NACK_DISK_FULL else REOPEN_FIRST_MS)
        return []

    def sent(self, replica: ReplicaId, session: int, last: int) -> list[WriterEffect]:
        """The shell has sent a window from the journal, up to this entry."""
        member = self._current(replica, session)
        if member is None or member.reads_from is None:
            return []
        first, member.reads_from = member.reads_from, None
        if last < first and first >= self.truncated_before:  # the own journal has not got it: fenced?
            member.lose(self._now_ms, REOPEN_MAX_MS)
            return []
        member.sent = max(last, self.positions[replica])
        return self._feed(replica, member)

    def congested(self, replica: ReplicaId) -> None:
        """More than LINK_UNSENT_BYTES_MAX wait in the link: the member catches up from the journal."""
        member = self._members.get(replica)
        if member is not None and member.state is MemberState.STREAMING and replica != self.own:
            member.state = MemberState.CATCHING_UP

    def link_lost(self, replica: ReplicaId) -> list[WriterEffect]:
        """The link to a replica has ended. Its position still counts: what is durable stays durable."""
        member = self._members.get(replica)
        if not self.has_failed and member is not None and member.state is not MemberState.REFUSED:
            member.lose(self._now_ms, REOPEN_FIRST_MS)
        return []

    def other_replica(self, replica: ReplicaId) -> list[WriterEffect]:
        """Another replica answers where this one was."""
        effects, member = self.link_lost(replica), self._members.get(replica)
        if not self.has_failed and member is not None:
            member.state = MemberState.REFUSED
        return effects

    def place(self, placement: Placement) -> None:
        """Where copies are wanted, and which replicas are destroyed."""
        self._placement = placement

    def close(self) -> None:
        """Take no more entries, and begin no change of the ensemble: the log is about to end."""
        self.is_closed = True

    def ended(self) -> list[WriterEffect]:
        """The final record is written: no replica is needed any more."""
        return [*self._drop(list(self._members)), *self._fail("the log has ended")]

    def truncate(self, truncated_before: int) -> None:
        """A checkpoint is acknowledged: tier 2 has everything before this entry."""
        assert truncated_before <= self.acknowledged_entry + 1, "only acknowledged entries are truncated"
        self.truncated_before = max(self.truncated_before, truncated_before)
        self._sizes.truncate(self.truncated_before)

    def record_written(self, version: int) -> list[WriterEffect]:
        if self.has_failed:
            return []
        self._change.written(version)
        return self._adopt_members()

    def record_unknown(self) -> list[WriterEffect]:
        if self._change.is_asking:
            self._change.unknown(self._now_ms)
        return []

    def record_conflict(self) -> list[WriterEffect]:
        return [] if self.has_failed else self._change.conflict()

    def record_read(self, log: ContainerLog, version: int) -> list[WriterEffect]:
        if self.has_failed or not self._change.is_asking:
            return []
        if log.ledgers[-1:] != self.log.ledgers[-1:]:
            return self._fail("the log record has another ledger")
        self._change.record_read(log, version, self._now_ms)
        return self._adopt_members() if self._change.phase is ChangePhase.NONE else []

    def claim_lost(self) -> list[WriterEffect]:
        return self._fail("another store has the claim")

    def tick(self, now_ms: int) -> list[WriterEffect]:
        """Let time pass: repeat what was not answered, and look for a change of the ensemble."""
        self._now_ms = now_ms
        if self.has_failed:
            return []
        effects: list[WriterEffect] = []
        for replica, member in list(self._members.items()):
            effects += self._tend(replica, member)
        if now_ms >= self._pulse_at_ms:
            self._pulse_at_ms = now_ms + self._bounds.pulse_ms
            for replica, member in self._members.items():
                effects += self._pulse(replica, member)
        effects += self._repair()
        return effects + self._confirm()

    # Decisions that the simulator replaces.

    def _acknowledgeable(self) -> int:
        """The last entry that may be acknowledged."""
        return joint_quorum_position(self._change.current, self._change.wanted, self.positions)

    # Members.

    def _current(self, replica: ReplicaId, session: int) -> Member | None:
        member = self._members.get(replica)
        return None if self.has_failed or member is None or member.session != session else member

    def _open(self, replica: ReplicaId) -> list[WriterEffect]:
        member = self._members[replica]
        self.sessions += 1
        member.session = self.sessions
        member.state = MemberState.OPENING
        member.reopen_at_ms = self._now_ms + max(member.reopen_wait_ms, 2 * REOPEN_FIRST_MS)
        member.reopen_wait_ms = min(2 * member.reopen_wait_ms, REOPEN_MAX_MS)
        message = Open(self.container, member.session, self.epoch, self.truncated_before, self.chain.ledgers)
        return [OpenMember(replica, message)]

    def _is_of_lost_end(self, replica: ReplicaId, message: Opened) -> bool:
        """Whether a replica is truncated in a part of the log whose loss was accepted while it was away."""
        if message.truncated_before > self.acknowledged_entry + 1:
            return True
        answers, is_counted = (
            {replica: message},
            self._change.wanted is not None and replica in self._change.wanted.members,
        )
        return not is_counted and message.truncated_before > truncation_point(self.log, self.truncated_before, answers)

    def _empty(self, replica: ReplicaId, member: Member, truncated_before: int) -> list[WriterEffect]:
        """Have a learner begin with nothing, once. A former release keeps its truncation point; a member may count."""
        if replica not in self.log.members and not member.is_emptied:
            member.is_emptied = True
            return [DropMember(replica, member.session), *self._open(replica)]
        member.state = MemberState.REFUSED
        reason = f"its log is truncated at {truncated_before}, this one ends at {self.acknowledged_entry}"
        return [Suspect(replica, reason)]

    def _tend(self, replica: ReplicaId, member: Member) -> list[WriterEffect]:
        """Open a member that is down, or that has not acknowledged for too long what was sent."""
        if member.state in (MemberState.DOWN, MemberState.OPENING):
            return self._open(replica) if self._now_ms >= member.reopen_at_ms else []
        if member.state not in FED:
            return []
        if member.sent <= self.positions[replica]:
            member.progress_ms = self._now_ms
            return self._feed(replica, member)
        if self._now_ms - member.progress_ms < self._bounds.stall_ms:
            return []
        member.lose(self._now_ms, 0)
        return self._open(replica)

    def _progress(self, replica: ReplicaId, member: Member) -> list[WriterEffect]:
        effects: list[WriterEffect] = []
        if replica == self.own and self.positions[replica] > self._released:
            self._released = self.positions[replica]
            effects.append(Release(self._released))
        return effects + self._confirm() + self._feed(replica, member)

    def _feed(self, replica: ReplicaId, member: Member) -> list[WriterEffect]:
        """Send the next window to a member that has acknowledged the last one; stream as soon as memory suffices.

        A small one need not be acknowledged first: under load the own journal commits before the member has answered,
        so that the member would never have all that is in no memory.
        """
        if member.state is not MemberState.CATCHING_UP or member.reads_from is not None:
            return []
        position, sent = self.positions[replica], member.sent
        if sent > position and self._sizes.lag(position, sent + 1) > self._bounds.join_lag_bytes:
            return []
        effects: list[WriterEffect] = []
        if member.sent + 1 < self.truncated_before:
            member.sent = self.truncated_before - 1
            effects.append(self._tell(replica, member))
        if replica == self.own or member.sent >= self._released:
            member.state = MemberState.STREAMING
            return effects + self._stream(replica, member)
        first = member.reads_from = member.sent + 1
        window = self._bounds.catch_up_window_bytes
        return [*effects, Send(replica, first, self._released, Source.JOURNAL, window)]

    def _stream(self, replica: ReplicaId, member: Member) -> list[WriterEffect]:
        """Send from memory what was not sent yet. A member that acknowledges too little catches up later."""
        first, last = member.sent + 1, self.next_entry - 1
        if first > last:
            return []
        if member.sent <= self.positions[replica]:
            member.progress_ms = self._now_ms
        member.sent = last
        if replica != self.own and self._sizes.lag(self.positions[replica]) > self._bounds.link_window_bytes:
            member.state = MemberState.CATCHING_UP
        return [Send(replica, first, last, Source.MEMORY, 0)]

    def _pulse(self, replica: ReplicaId, member: Member) -> list[WriterEffect]:
        if member.state not in FED or member.announced == (self.acknowledged_entry, self.truncated_before):
            return []
        return [self._tell(replica, member)]

    def _tell(self, replica: ReplicaId, member: Member) -> WriterEffect:
        member.announced = (self.acknowledged_entry, self.truncated_before)
        return SendPulse(replica, self.acknowledged_entry, self.truncated_before)

    # Acknowledgements and the ensemble.

    def _confirm(self) -> list[WriterEffect]:
        """Acknowledge what the quorums hold, and write a change that waited for it."""
        effects: list[WriterEffect] = []
        position = min(self._acknowledgeable(), self.next_entry - 1)
        if position > self.acknowledged_entry:
            self.acknowledged_entry = position
            effects.append(Acknowledge(position))
        wanted = self._change.wanted
        if wanted is not None:
            reached = wanted.quorum_position(self.positions)
            stalls = reached < self._change.current.quorum_position(self.positions)
            effects += self._change.advance(
                reached, self.acknowledged_entry, self.truncated_before, self._now_ms, stalls=stalls
            )
        return effects

    def _repair(self) -> list[WriterEffect]:
        """Feed the learners that placement wants, and decide the next change."""
        learners = wanted_learners(self._change.current, self.own, self._placement)
        effects = self._admit(learners)
        if self._change.phase is not ChangePhase.NONE or self.is_closed:
            return effects
        effects += self._drop(
            [member for member in self._members if member not in learners and member not in self.log.members]
        )
        bounds = RepairBounds(self._bounds.silence_ms, self._bounds.lag_bytes)
        views = {replica: self._view(replica, member) for replica, member in self._members.items()}
        wanted = next_ensemble(self._change.current, self.own, views, self._placement, bounds)
        if wanted is not None:
            self._change.begin(wanted, self._now_ms)
        return effects

    def _view(self, replica: ReplicaId, member: Member) -> MemberView:
        # A member that has not reported its position yet may have everything: only its silence speaks against it.
        position = self.positions.get(replica)
        lag = 0 if position is None else self._sizes.lag(position, self.acknowledged_entry + 1)
        is_ready = position is not None and lag <= self._bounds.join_lag_bytes and member.state in FED
        is_streaming = member.state is MemberState.STREAMING
        return MemberView(is_streaming, member.silent_ms(self._now_ms), lag, is_ready)

    def _adopt_members(self) -> list[WriterEffect]:
        """The record has other members: the ones that were removed are not needed any more."""
        learned = (*self.log.members, *wanted_learners(self._change.current, self.own, self._placement))
        effects = self._drop([member for member in self._members if member not in learned])
        return effects + self._admit(self.log.members) + self._confirm()

    def _admit(self, replicas: Iterable[ReplicaId]) -> list[WriterEffect]:
        """Open replicas that this owner did not know."""
        effects: list[WriterEffect] = []
        for replica in replicas:
            if replica not in self._members:
                self._members[replica] = Member(self._now_ms)
                effects += self._open(replica)
        return effects

    def _drop(self, replicas: Iterable[ReplicaId]) -> list[WriterEffect]:
        effects: list[WriterEffect] = []
        for replica in list(replicas):
            effects.append(DropMember(replica, self._members.pop(replica).session))
            self.positions.pop(replica, None)
        return effects

    def _fail(self, reason: str) -> list[WriterEffect]:
        if self.has_failed:
            return []
        self.has_failed = True
        return [Fail(reason)]
