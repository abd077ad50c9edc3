"""The record of a container's log: its members, and where each of its ledgers begins.

A log is a chain of ledgers, one per owner. The epoch of a ledger is the version of the owner's claim, so (container,
epoch, entry) names the same bytes forever. The record is written when the owner or an ensemble changes, never for an
append.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, NewType

from headrace.model.errors import IllegalStateError

# Ensembles: the replicas that must hold a container's log, and the quorums for appending to it and recovering it.
#
# An entry is acknowledged when an ack quorum holds it. A recovery asks a read quorum. Any read quorum has a member in
# common with any ack quorum, so that a recovery finds every acknowledged entry.
#
# A position is the last entry that a replica holds durably, together with everything from the truncation point on.

ReplicaId = NewType("ReplicaId", bytes)
"""16 random bytes, made with a journal. A store with a new volume is another replica."""

REPLICA_ID_BYTES: Final = 16

COPIES: Final = 3
"""Members of a complete ensemble in a replicated deployment."""

COPIES_MIN: Final = 2
"""Members below which an owner never reduces the ensemble of a replicated deployment."""

NO_POSITION: Final = -1
"""The position of a replica that holds no entry, in a log that begins with entry 0."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The members of a log. `copies` is 3 in a replicated deployment and 1 in a one-copy deployment."""

    members: tuple[ReplicaId, ...]
    copies: int = COPIES

    @property
    def ack_quorum(self) -> int:
        """The number of members that must hold an entry before it is acknowledged."""
        return min(self.copies, COPIES_MIN)

    @property
    def read_quorum(self) -> int:
        """The number of members that must answer a recovery: so many that no ack quorum remains without one."""
        return max(1, len(self.members) - self.ack_quorum + 1)

    def quorum_position(self, positions: Mapping[ReplicaId, int]) -> int:
        """The last entry that an ack quorum holds; NO_POSITION if the ensemble has fewer members than a quorum."""
        held = sorted((positions.get(member, NO_POSITION) for member in self.members), reverse=True)
        return held[self.ack_quorum - 1] if len(held) >= self.ack_quorum else NO_POSITION

    def is_read_quorum(self, answered: Collection[ReplicaId]) -> bool:
        """Whether so many members answered that every acknowledged entry is among what they hold."""
        return sum(member in answered for member in self.members) >= self.read_quorum


def joint_quorum_position(current: Ensemble, wanted: Ensemble | None, positions: Mapping[ReplicaId, int]) -> int:
    """The last entry that may be acknowledged.

    While the outcome of a change of the ensemble is not known, an entry needs the quorums of both ensembles: either of
    them may be the one that the next recovery reads.
    """
    position = current.quorum_position(positions)
    return position if wanted is None else min(position, wanted.quorum_position(positions))


LEDGERS_MAX: Final = 8192
"""Ledgers with entries in a chain: a container that changes its owner every ten seconds for a day, without a truncation
of its log. It is checked before a record is written, so that every record can be read. As a record it has 310 KB."""

LEDGERS_REPORTED_FROM: Final = 2048
"""Ledgers that an operator is told of, hours before the limit."""


LOST_ENTRIES_MAX: Final = 1 << 40
"""Entries that a lost log may have had behind what its record says: 1,000 a second for 34 years."""

NO_COPIES: Final = 0
"""The copies of a log whose entries are objects in chunk storage: it has no members."""


class LogState(StrEnum):
    """OPEN: members hold it. EMPTY: tier 2 has everything. LOST: an operator accepted the loss of all replicas."""

    OPEN = "OPEN"
    EMPTY = "EMPTY"
    LOST = "LOST"


class LedgerStart(NamedTuple):
    """A ledger and its first entry. It ends before the first entry of the next ledger."""

    epoch: int
    first: int


class LedgerChain:
    """Which ledger each entry of a log belongs to."""

    __slots__ = ("_bounds", "ledgers")

    def __init__(self, ledgers: Iterable[LedgerStart]) -> None:
        self.ledgers = tuple(ledgers)
        ends: list[int | None] = [start.first for start in self.ledgers[1:]]
        self._bounds = {
            start.epoch: (start.first, end) for start, end in zip(self.ledgers, [*ends, None], strict=False)
        }

    def bounds(self, epoch: int) -> tuple[int, int | None] | None:
        """The first entry of a ledger and the one after its last; no end if it is open, None if it is not here."""
        return self._bounds.get(epoch)

    def has(self, epoch: int, entry: int) -> bool:
        """Whether the ledger of this epoch contains the entry."""
        bounds = self._bounds.get(epoch)
        return bounds is not None and bounds[0] <= entry and (bounds[1] is None or entry < bounds[1])

    def epoch_of(self, entry: int) -> int | None:
        """The epoch of the ledger that has an entry; None before the first ledger."""
        epoch = None
        for start in self.ledgers:
            if start.first > entry:
                break
            epoch = start.epoch
        return epoch

    def parts(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The ledgers that have entries from `first` to before `end`: epoch, first entry, entry behind the last."""
        for start in self.ledgers:
            low, ledger_end = self._bounds[start.epoch]
            low, high = max(low, first), end if ledger_end is None else min(ledger_end, end)
            if low < high:
                yield start.epoch, low, high

    def knows(self, epoch: int, entry: int) -> bool:
        """Whether an entry, as the log of the owner of `epoch` had it, is in this log or was truncated."""
        following = next((start for start in self.ledgers if start.epoch > epoch), None)
        return following is None or entry < following.first

    def clip(self, epoch: int, last: int) -> int:
        """`last`, or the end of the ledger if that is before it: entries behind the end belong to no log."""
        bounds = self._bounds.get(epoch)
        if bounds is None:
            return NO_POSITION
        return last if bounds[1] is None else min(last, bounds[1] - 1)


@dataclass(frozen=True, slots=True)
class ContainerLog:
    """The record as a value.

    `truncated_before` is a lower bound of the truncation point. `next_entry` is the number of the next entry of a log
    that is EMPTY or LOST.

    `continued_at` is the first ledger after an accepted loss: tier 2 may be ahead of what is left of the log before it.
    None without a loss, and when the log is truncated behind the start of that ledger.
    """

    copies: int
    state: LogState
    members: tuple[ReplicaId, ...]
    ledgers: tuple[LedgerStart, ...]
    truncated_before: int = 0
    next_entry: int | None = None
    continued_at: LedgerStart | None = None

    @property
    def ensemble(self) -> Ensemble:
        return Ensemble(self.members, self.copies)

    @property
    def has_accepted_loss(self) -> bool:
        """Whether an operator accepted the loss of so many members that acknowledged entries may be gone.

        An owner never writes a record with so few members.
        """
        return self.state is LogState.OPEN and len(self.members) < min(self.copies, COPIES_MIN)

    @property
    def chain(self) -> LedgerChain:
        return LedgerChain(self.ledgers)

    def with_members(self, members: tuple[ReplicaId, ...], truncated_before: int) -> ContainerLog:
        """The record after a change of the ensemble."""
        return replace(
            self,
            members=members,
            truncated_before=truncated_before,
            ledgers=retained_ledgers(self.ledgers, truncated_before),
            continued_at=_still_needed(self.continued_at, truncated_before),
        )


def retained_ledgers(ledgers: tuple[LedgerStart, ...], truncated_before: int) -> tuple[LedgerStart, ...]:
    """The chain without the ledgers whose successor begins at or before the truncation point."""
    kept = 0
    while kept + 1 < len(ledgers) and ledgers[kept + 1].first <= truncated_before:
        kept += 1
    return ledgers[kept:]


def occupied_ledgers(ledgers: tuple[LedgerStart, ...]) -> tuple[LedgerStart, ...]:
    """The chain without the closed ledgers that have no entry. What replicas may hold of those belongs to no log."""
    following = (*(start.first for start in ledgers[1:]), None)
    return tuple(start for start, end in zip(ledgers, following, strict=True) if start.first != end)


def open_ledger(
    log: ContainerLog | None, epoch: int, first: int, members: tuple[ReplicaId, ...], truncated_before: int, copies: int
) -> ContainerLog:
    """The record with a new ledger, which closes the ledger before it."""
    opened = LedgerStart(epoch, first)
    before: tuple[LedgerStart, ...] = ()
    continued_at: LedgerStart | None = None
    if log is not None and log.state is LogState.OPEN:
        before = log.ledgers
        continued_at = opened if log.has_accepted_loss else _still_needed(log.continued_at, truncated_before)
    ledgers = occupied_ledgers(retained_ledgers((*before, opened), truncated_before))
    return ContainerLog(copies, LogState.OPEN, members, ledgers, truncated_before, continued_at=continued_at)


def _still_needed(continued_at: LedgerStart | None, truncated_before: int) -> LedgerStart | None:
    """Whose owner truncates nothing before tier 2 and the log agree."""
    return None if continued_at is None or truncated_before > continued_at.first else continued_at


def emptied(log: ContainerLog, next_entry: int) -> ContainerLog:
    """The record after a clean shutdown: tier 2 has everything."""
    return ContainerLog(log.copies, LogState.EMPTY, (), (), next_entry, next_entry)


def without_lost_members(log: ContainerLog, lost: Collection[ReplicaId]) -> ContainerLog:
    """The record after an operator accepted that members are destroyed: written under its version, without a claim.

    The next recovery takes the longest copy that is left. If no member is left the log is LOST, and its next entry has
    a number that no replica can have seen: a truncation point of the lost log must not hide entries of the new one.

    Raises:
        IllegalStateError: the log has no members, or so many remain that a recovery loses nothing.
    """
    _require(log.state is LogState.OPEN, "it has no members that could be lost")
    members = tuple(member for member in log.members if member not in lost)
    _require(not log.ensemble.is_read_quorum(members), f"{len(members)} members remain, which lose nothing")
    if members:
        return replace(log, members=members)
    next_entry = max(log.ledgers[-1].first, log.truncated_before) + LOST_ENTRIES_MAX
    return ContainerLog(log.copies, LogState.LOST, (), (), next_entry, next_entry)


def full_chain(log: ContainerLog) -> str | None:
    """Why the record must not be written because of its number of ledgers; None if it may be."""
    count = len(log.ledgers)
    if count <= LEDGERS_MAX:
        return None
    return (
        f"the log would have {count} ledgers, and at most {LEDGERS_MAX} are allowed: its container has changed its "
        "owner too often without a truncation of the log; remove what stops its owners, and raise the limit"
    )


def check_transition(before: ContainerLog | None, after: ContainerLog, claim_epoch: int | None) -> None:
    """Raises IllegalStateError: an owner of this epoch, or an operator (None), must not replace the record so."""
    if claim_epoch is None:
        _require(before is not None, "there is none")
        assert before is not None
        lost = set(before.members) - set(after.members)
        _require(after == without_lost_members(before, lost), "an operator only removes lost members")
        return
    _require(after.state is not LogState.LOST, "only an operator accepts that a log is lost")
    if after.state is not LogState.OPEN:
        _require(not after.members and not after.ledgers, "a log without replicas names members or ledgers")
        _require(after.next_entry is not None, "a log without replicas does not say which entry is next")
        _require(
            before is None or not before.ledgers or before.ledgers[-1].first <= (after.next_entry or 0),
            "the next entry of an emptied log is before its last ledger",
        )
        return
    _require(bool(after.ledgers), "an open log has no ledger")
    full = full_chain(after)
    _require(full is None, full or "")
    _require(after.ledgers[-1].epoch == claim_epoch, "the open ledger does not belong to the claim")
    for ledger, following in zip(after.ledgers, after.ledgers[1:], strict=False):
        _require(ledger.epoch < following.epoch, "the epochs of ledgers do not increase")
        _require(ledger.first <= following.first, "a ledger begins before the ledger that it follows")
    fewest = min(after.copies, COPIES_MIN)
    _require(len(set(after.members)) == len(after.members), "a member is named twice")
    _require(fewest <= len(after.members) <= after.copies, f"{len(after.members)} members of {after.copies} copies")
    if before is None:
        return
    _require(before.truncated_before <= after.truncated_before, "the truncation point falls")
    is_moved = (before.copies == NO_COPIES) != (after.copies == NO_COPIES)
    # The new owner would not look where the entries are, and would not find them.
    _require(before.state is not LogState.OPEN or not is_moved, "an open log does not move to S3 or away from it")
    if before.state is not LogState.OPEN:
        _require(after.ledgers[0].first == before.next_entry, "the first ledger does not begin with the next entry")
        return
    _check_chain(before.ledgers, after.ledgers, claim_epoch)
    if before.has_accepted_loss and before.ledgers[-1].epoch < claim_epoch:
        _require(after.continued_at == after.ledgers[-1], "it does not say that it continues after a loss")
    elif _still_needed(before.continued_at, after.truncated_before) is not None:
        _require(after.continued_at == before.continued_at, "it does not say where it continues after a loss")


def _check_chain(before: tuple[LedgerStart, ...], after: tuple[LedgerStart, ...], claim_epoch: int) -> None:
    """Ledgers are only appended by their own claim, and only removed from the front, or if they have no entry."""
    chain = before if before[-1].epoch == claim_epoch else (*before, after[-1])
    kept = (each[-len(after) :] for each in (chain, occupied_ledgers(chain)))
    _require(after in kept, "ledgers that were there before have changed")
    _require(before[-1].epoch <= claim_epoch, "the open ledger belongs to a newer claim")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise IllegalStateError(f"the record of a container's log is not replaced: {problem}")
