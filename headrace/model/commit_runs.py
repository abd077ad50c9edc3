"""The runs that commit marked transactions, and which transactions the next run takes.

The order of a stream has one entry for each transaction that was marked by itself, and one for each commit set. The
entry of a set means its members from `position` on: when a run has committed a part of them, the entry changes, and
keeps its place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.model.commit_sets import CommitPart
from headrace.model.transactions import CommitOrder, Transaction, marked_together, reference_epoch_of

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
    group_of = {one.transaction_id: marked_together(one) for one in transactions}
    lost_groups = {group_of[one] for one in lost if group_of[one] not in begun}
    lost_groups.update(lost_sets)
    return tuple(one for one, group in group_of.items() if group in lost_groups or one in lost)
