"""Commit sets: transactions that are committed together, and the runs that commit marked transactions.

A writer numbers its sets with epochs that grow. Its record, at its home stream, has the last epoch that was committed,
so a repetition is recognised as long as that stream exists.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.model.names import check_stream_name, refuse_dot_segment
from headrace.model.transactions import CommitOrder, Transaction, marked_together, reference_epoch_of

SET_TRANSACTIONS_MAX = 2_500
SET_STREAMS_MAX = 40
"""Of a set. Its decision writes two records for each stream, and one for the writer, in one transaction."""

WRITER_CHARACTERS_MAX = 250
EPOCH_MAX = (1 << 63) - 1
NOTE_BYTES_MAX = 64 << 10
"""A cut of a thousand segments fits. The writer's record has up to two notes, and at most 400 KB."""
WRITER_ALPHABET = "the letters A-Z and a-z, the digits, '.', ':', '_' and '-'"
_WRITER = re.compile(r"[A-Za-z0-9._:\-]{1,250}")

MEMBERS_PER_WRITE = 100
"""The number of members that are read, prepared or released at once: the most that one transaction writes."""

Members = Mapping[str, Sequence[int]]
"""The ids of the transactions of a set, by stream."""


@dataclass(frozen=True, slots=True)
class PendingSet:
    """A set that its writer has begun to commit, with parts in `streams`. A `refused` one releases its members.

    The `note` is the caller's. The writer has it when, and only when, the set is committed.
    """

    set_id: str
    epoch: int
    streams: tuple[str, ...]
    refused: bool = False
    note: str | None = None


@dataclass(frozen=True, slots=True)
class CommitWriter:
    """The sets of a writer: the last one that was committed (all None before the first), and one that is not decided.

    A writer has at most one pending set. Its `epoch` is higher than the committed one.
    """

    name: str
    epoch: int | None = None
    set_id: str | None = None
    time_ms: int | None = None
    pending: PendingSet | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class CommitPart:
    """The members of a set in one stream, in the order of their commit.

    It has an `order` from the decision on, and no part of a set has one before. `lost` says that members lost bytes
    before the first was committed, so that none is.
    """

    set_id: str
    home: str
    writer: str
    members: tuple[int, ...]
    order: CommitOrder | None = None
    lost: bool = False


def is_committed(writer: CommitWriter | None, epoch: int) -> bool:
    """Whether this epoch of the writer or a later one was committed."""
    return writer is not None and writer.epoch is not None and epoch <= writer.epoch


def begun(writer: CommitWriter, pending: PendingSet) -> CommitWriter:
    """The writer after it began to commit a set.

    Raises:
        CorruptError: another set is pending, or the epoch was committed; nothing may replace them.
    """
    if writer.pending is not None or is_committed(writer, pending.epoch):
        raise CorruptError(f"refusing to begin epoch {pending.epoch} of writer {writer.name}: it is {writer}")
    return replace(writer, pending=pending)


def refused(writer: CommitWriter) -> CommitWriter:
    """The writer after its pending set was refused. Its members are released next."""
    return replace(writer, pending=replace(_pending(writer), refused=True))


def forgotten(writer: CommitWriter) -> CommitWriter:
    """The writer without its refused set."""
    if not _pending(writer).refused:
        raise CorruptError(f"refusing to forget a set of writer {writer.name} that may be committed")
    return replace(writer, pending=None)


def decided(writer: CommitWriter, now_ms: int) -> CommitWriter:
    """The writer after its pending set was committed."""
    pending = _pending(writer)
    if pending.refused:
        raise CorruptError(f"refusing to commit a refused set of writer {writer.name}")
    return CommitWriter(writer.name, pending.epoch, pending.set_id, now_ms, note=pending.note)


def ordered(part: CommitPart, number: int) -> CommitPart:
    """A part after the decision, with its place in the order of its stream."""
    return replace(part, order=CommitOrder(number, group=part.members[0]))


def member_chunks(members: Members) -> Iterator[tuple[str, Sequence[int]]]:
    """The members in chunks of one stream each, of MEMBERS_PER_WRITE."""
    for stream, ids in members.items():
        for start in range(0, len(ids), MEMBERS_PER_WRITE):
            yield stream, ids[start : start + MEMBERS_PER_WRITE]


def _pending(writer: CommitWriter) -> PendingSet:
    if writer.pending is None:
        raise CorruptError(f"writer {writer.name} has no pending commit set")
    return writer.pending


def check_set_writer(writer: str) -> str:
    """Raises InvalidRequestError, code "invalid_commit_set"."""
    if not _WRITER.fullmatch(writer):
        raise InvalidRequestError(
            f"{writer[:100]!a} cannot be the writer of a commit set: use 1 to {WRITER_CHARACTERS_MAX} of "
            f"{WRITER_ALPHABET}",
            code="invalid_commit_set",
        )
    return refuse_dot_segment("writer", writer, "invalid_commit_set")


def check_set_epoch(epoch: int) -> int:
    """Raises InvalidRequestError, code "invalid_commit_set"."""
    if not 0 <= epoch <= EPOCH_MAX:
        raise InvalidRequestError(
            f"{epoch} cannot be the epoch of a commit set: use 0 to {EPOCH_MAX}", code="invalid_commit_set"
        )
    return epoch


def check_set_note(note: str | None) -> str | None:
    """Raises InvalidRequestError, code "invalid_commit_set"."""
    try:
        size = 0 if note is None else len(note.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the note of a commit set is not text: {error.reason}", code="invalid_commit_set"
        ) from None
    if size > NOTE_BYTES_MAX:
        raise InvalidRequestError(
            f"the note of a commit set has {size} bytes as UTF-8, but at most {NOTE_BYTES_MAX} are possible",
            code="invalid_commit_set",
        )
    return note


def in_commit_order(ids: Iterable[int]) -> tuple[int, ...]:
    """Members of a set in one stream, in the order in which they are committed: those of older epochs first."""
    return tuple(sorted(ids, key=reference_epoch_of))


def check_set_members(members: Members) -> dict[str, tuple[int, ...]]:
    """The members by stream, in the order given, but those of older epochs first. A stream without one is left out.

    A run commits transactions of one epoch, so a set that mixes them would need a run for each member.

    Raises InvalidRequestError: code "invalid_commit_set", unless these are 1 to 2,500 different transactions of at most
    40 streams; or "invalid_name".
    """
    checked = {check_stream_name(stream): in_commit_order(ids) for stream, ids in sorted(members.items()) if ids}
    count = sum(map(len, checked.values()))
    if (
        not 1 <= count <= SET_TRANSACTIONS_MAX
        or len(checked) > SET_STREAMS_MAX
        or any(len(set(ids)) != len(ids) for ids in checked.values())
    ):
        raise InvalidRequestError(
            f"a commit set has 1 to {SET_TRANSACTIONS_MAX} different transactions of at most {SET_STREAMS_MAX} streams",
            details={
                "transactions": count,
                "transactions_max": SET_TRANSACTIONS_MAX,
                "streams": len(checked),
                "streams_max": SET_STREAMS_MAX,
            },
            code="invalid_commit_set",
        )
    return checked


# The runs that commit marked transactions, and which transactions the next run takes.
#
# The order of a stream has one entry for each transaction that was marked by itself, and one for each commit set. The
# entry of a set means its members from `position` on: when a run has committed a part of them, the entry changes, and
# keeps its place.

TRANSACTIONS_PER_RUN_MAX = 250
"""A micro-batch of Spark with its usual 200 tasks fits. A store merges up to 1,000 transactions in one step."""

SETS_PER_RUN_MAX = 10
"""Two writes for each set are part of the transaction that ends the run."""


@dataclass(frozen=True, slots=True)
class WaitingMark:
    """An entry of the order: a transaction that waits for its commit, or the next one of a commit set.

    `marked_ms` is when it was marked. Of a commit set `passed` members after the one of `order` are committed.
    `version` is that of the entry's record.
    """

    transaction_id: int
    marked_ms: int
    order: CommitOrder
    commit_set: str | None = None
    passed: int = 0
    version: int = 0

    @property
    def position(self) -> int:
        """The number of the members of the commit set that were committed before."""
        return self.order.index + self.passed

    def after(self, position: int, transaction_id: int) -> WaitingMark:
        """The entry when the members before this position are committed; the next one is `transaction_id`."""
        passed = position - self.order.index
        return replace(self, transaction_id=transaction_id, passed=passed, version=self.version + 1)


@dataclass(frozen=True, slots=True)
class RunSet:
    """A commit set in a run: the entry `mark` that the run takes, and what becomes of it (None: the set ends)."""

    mark: WaitingMark
    rest: WaitingMark | None

    @property
    def set_id(self) -> str:
        assert self.mark.commit_set is not None, "only entries of sets are in a run's sets"
        return self.mark.commit_set


@dataclass(frozen=True, slots=True)
class CommitRun:
    """The commit that runs on a stream: transactions of one reference epoch, in the order of their commit.

    `active_epoch` is the number of the epoch that was active when the commit began. A rolling commit derives the
    creation times of its epochs from `started_ms`. The `incomplete` transactions are aborted:
    they or members of their commit sets lost bytes before the commit began.
    """

    transactions: tuple[int, ...]
    reference_epoch: int
    active_epoch: int
    rolls: bool
    started_ms: int
    incomplete: tuple[int, ...] = ()
    sets: tuple[RunSet, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """What the next run takes from the front of the order."""

    transactions: tuple[int, ...]
    sets: tuple[RunSet, ...]


def plan_run(marks: Sequence[WaitingMark], parts: Mapping[str, CommitPart]) -> PlannedRun:
    """The longest beginning of the order with transactions of one epoch, within the limits of a run.

    `parts` has those of the first SETS_PER_RUN_MAX sets of `marks`. There is at least one mark.
    """
    epoch = reference_epoch_of(marks[0].transaction_id)
    taken: list[int] = []
    sets: list[RunSet] = []
    for mark in marks:
        if mark.commit_set is None:
            offered: Sequence[int] = (mark.transaction_id,)
        elif len(sets) == SETS_PER_RUN_MAX:
            break
        else:
            offered = parts[mark.commit_set].members[mark.position :]
        fitting = _beginning_of_epoch(offered, epoch, TRANSACTIONS_PER_RUN_MAX - len(taken))
        if not fitting:
            break
        taken += fitting
        if mark.commit_set is not None:
            sets.append(RunSet(mark, _rest(mark, offered, len(fitting))))
        if len(fitting) < len(offered):
            break
    return PlannedRun(tuple(taken), tuple(sets))


def _beginning_of_epoch(offered: Sequence[int], epoch: int, limit: int) -> Sequence[int]:
    count = 0
    while count < min(limit, len(offered)) and reference_epoch_of(offered[count]) == epoch:
        count += 1
    return offered[:count]


def _rest(mark: WaitingMark, offered: Sequence[int], taken: int) -> WaitingMark | None:
    return None if taken == len(offered) else mark.after(mark.position + taken, offered[taken])


def aborted_together(
    transactions: Sequence[Transaction], lost: Collection[int], begun: Collection[str], lost_sets: Collection[str]
) -> tuple[int, ...]:
    """The transactions of a run that are aborted because some lost bytes, in their order.

    Those that were marked for commit together are aborted together. Of a commit set that an earlier run has `begun` to
    commit only those that lost bytes are aborted, unless the set is one of `lost_sets`: then none of it is committed.
    """
    group_of = {transaction.transaction_id: marked_together(transaction) for transaction in transactions}
    lost_groups = {group_of[each] for each in lost if group_of[each] not in begun}
    lost_groups.update(lost_sets)
    return tuple(
        transaction_id for transaction_id, group in group_of.items() if group in lost_groups or transaction_id in lost
    )
