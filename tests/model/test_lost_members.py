"""An operator accepts that members of a log are destroyed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.model.container_logs import (
    LOST_ENTRIES_MAX,
    ContainerLog,
    LedgerStart,
    LogState,
    ReplicaId,
    check_transition,
    emptied,
    open_ledger,
    without_lost_members,
)
from headrace.model.errors import IllegalStateError

A, B, C, D = (ReplicaId(bytes([number]) * 16) for number in range(4))
LOG = ContainerLog(3, LogState.OPEN, (A, B, C), (LedgerStart(12, 40), LedgerStart(15, 90)), truncated_before=50)


def test_the_remaining_member_has_the_log():
    assert without_lost_members(LOG, [A, C, D]) == replace(LOG, members=(B,))


@pytest.mark.parametrize("lost", [[], [A], [D], [A, D]])
def test_a_loss_that_recovery_survives_is_refused(lost: list[ReplicaId]):
    with pytest.raises(IllegalStateError, match="remain"):
        without_lost_members(LOG, lost)


def test_either_of_two_members_is_enough():
    two = replace(LOG, members=(A, B))
    with pytest.raises(IllegalStateError, match="remain"):
        without_lost_members(two, [A])
    assert without_lost_members(two, [A, B]).state is LogState.LOST


@pytest.mark.parametrize("log", [LOG, replace(LOG, copies=1, members=(A,)), replace(LOG, truncated_before=200)])
def test_a_log_without_members_is_lost(log: ContainerLog):
    lost = without_lost_members(log, [A, B, C])
    assert (lost.state, lost.members, lost.ledgers, lost.copies) == (LogState.LOST, (), (), log.copies)
    assert lost.next_entry == lost.truncated_before == max(90, log.truncated_before) + LOST_ENTRIES_MAX
    check_transition(lost, open_ledger(lost, 16, lost.truncated_before, (C, D), lost.truncated_before, 3), 16)


def test_a_log_that_is_not_open_has_nothing_to_lose():
    for log in (emptied(LOG, 120), without_lost_members(LOG, [A, B, C])):
        with pytest.raises(IllegalStateError, match="no members"):
            without_lost_members(log, [A, B, C])
