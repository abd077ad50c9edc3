"""The record of a container's log: chains of ledgers, and which transitions are allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.model.container_logs import (
    LEDGERS_MAX,
    NO_COPIES,
    NO_POSITION,
    ContainerLog,
    LedgerChain,
    LedgerStart,
    LogState,
    ReplicaId,
    check_transition,
    emptied,
    full_chain,
    open_ledger,
    retained_ledgers,
    without_lost_members,
)
from headrace.model.errors import IllegalStateError

A, B, C = (ReplicaId(bytes([number]) * 16) for number in range(3))
CHAIN = LedgerChain([LedgerStart(12, 40), LedgerStart(15, 90), LedgerStart(16, 90), LedgerStart(20, 95)])
LOG = ContainerLog(3, LogState.OPEN, (A, B, C), CHAIN.ledgers, truncated_before=50)


@pytest.mark.parametrize(("entry", "epoch"), [(39, None), (40, 12), (89, 12), (90, 16), (94, 16), (95, 20), (999, 20)])
def test_each_entry_belongs_to_one_ledger(entry: int, epoch: int | None):
    assert CHAIN.epoch_of(entry) == epoch
    assert not CHAIN.has(13, entry), "an owner that had no ledger"
    assert [start.epoch for start in CHAIN.ledgers if CHAIN.has(start.epoch, entry)] == ([epoch] if epoch else [])


def test_positions_are_clipped_to_the_end_of_their_ledger():
    assert CHAIN.clip(12, 200) == 89
    assert CHAIN.clip(15, 200) == 89
    assert CHAIN.clip(20, 200) == 200
    assert CHAIN.clip(13, 200) == NO_POSITION


def test_ledgers_before_the_truncation_point_are_not_retained():
    assert retained_ledgers(CHAIN.ledgers, 89) == CHAIN.ledgers
    assert retained_ledgers(CHAIN.ledgers, 90) == CHAIN.ledgers[2:]
    assert retained_ledgers(CHAIN.ledgers, 1000) == CHAIN.ledgers[3:]
    assert LOG.with_members((A, B), 90).ledgers == CHAIN.ledgers[2:]


def test_ledger_without_entries_is_dropped_by_the_next_owner():
    log = LOG
    for epoch in range(21, 2 * LEDGERS_MAX):
        after = open_ledger(log, epoch, 97, (A, B, C), 50, 3)
        check_transition(log, after, epoch)
        log = after
    assert log.ledgers == (LedgerStart(12, 40), LedgerStart(16, 90), LedgerStart(20, 95), LedgerStart(epoch, 97))
    for entry in range(40, 97):
        assert log.chain.epoch_of(entry) == CHAIN.epoch_of(entry)
    assert list(log.chain.parts(50, 99)) == [(12, 50, 90), (16, 90, 95), (20, 95, 97), (epoch, 97, 99)]


def test_ledger_with_entries_must_not_be_dropped():
    dropped = replace(LOG, ledgers=(CHAIN.ledgers[0], CHAIN.ledgers[3], LedgerStart(21, 97)))
    with pytest.raises(IllegalStateError, match="have changed"):
        check_transition(LOG, dropped, 21)


def test_record_with_too_many_ledgers_is_not_written():
    ledgers = tuple(LedgerStart(epoch, epoch) for epoch in range(LEDGERS_MAX))
    full = replace(LOG, ledgers=ledgers, truncated_before=0)
    after = open_ledger(full, LEDGERS_MAX, LEDGERS_MAX, (A, B), 0, 3)
    assert full_chain(full) is None
    with pytest.raises(IllegalStateError, match="ledgers"):
        check_transition(full, after, LEDGERS_MAX)
    truncated = open_ledger(full, LEDGERS_MAX, LEDGERS_MAX, (A, B), 1, 3)
    check_transition(full, truncated, LEDGERS_MAX)


def test_first_ledger_of_an_empty_log_begins_with_its_next_entry():
    empty = emptied(LOG, 120)
    after = open_ledger(empty, 30, 120, (A, B), 120, 3)
    check_transition(empty, after, 30)
    assert after.ledgers == (LedgerStart(30, 120),)


def test_log_without_copies_has_no_members():
    first = open_ledger(None, 1, 0, (), 0, NO_COPIES)
    check_transition(None, first, 1)
    second = open_ledger(first, 4, 20, (), 5, NO_COPIES)
    check_transition(first, second, 4)
    check_transition(second, emptied(second, 25), 4)
    with pytest.raises(IllegalStateError, match="1 members of 0 copies"):
        check_transition(first, replace(second, members=(A,)), 4)


def test_open_log_does_not_move_to_s3_or_away():
    """Entries on stores would be looked for in S3, and not be found."""
    in_s3 = open_ledger(None, 1, 0, (), 0, NO_COPIES)
    with pytest.raises(IllegalStateError, match="does not move to S3"):
        check_transition(LOG, open_ledger(LOG, 21, 97, (), 60, NO_COPIES), 21)
    with pytest.raises(IllegalStateError, match="does not move to S3"):
        check_transition(in_s3, open_ledger(in_s3, 2, 5, (A, B), 0, 3), 2)
    check_transition(emptied(LOG, 120), open_ledger(emptied(LOG, 120), 30, 120, (), 120, NO_COPIES), 30)


def test_clean_shutdown_leaves_no_member():
    after = emptied(LOG, 120)
    check_transition(LOG, after, 20)
    assert (after.state, after.members, after.next_entry) == (LogState.EMPTY, (), 120)


def test_change_of_members_and_next_ledger_are_allowed():
    check_transition(None, open_ledger(None, 1, 0, (A, B), 0, 3), 1)
    check_transition(LOG, LOG.with_members((A, B), 60), 20)
    check_transition(LOG, LOG.with_members((A, B), 93), 20)
    check_transition(LOG, open_ledger(LOG, 21, 97, (A, B), 60, 3), 21)
    check_transition(LOG, open_ledger(LOG, 21, 97, (A, B), 97, 3), 21)


@pytest.mark.parametrize(
    ("after", "epoch"),
    [
        (LOG.with_members((A,), 60), 20),
        (LOG.with_members((A, A), 60), 20),
        (LOG.with_members((A, B), 60), 21),
        (replace(LOG, truncated_before=49), 20),
        (replace(LOG, ledgers=CHAIN.ledgers[:3]), 16),
        (replace(LOG, ledgers=(*CHAIN.ledgers[:2], LedgerStart(20, 95))), 20),
        (replace(LOG, ledgers=(*CHAIN.ledgers, LedgerStart(21, 94))), 21),
        (replace(LOG, ledgers=(*CHAIN.ledgers[:3], LedgerStart(21, 94))), 21),
        (replace(LOG, ledgers=()), 20),
        (emptied(LOG, 94), 20),
    ],
    ids=[
        "one member",
        "a member twice",
        "foreign claim",
        "truncation point falls",
        "open ledger removed",
        "ledger in the middle removed",
        "ledger before its predecessor",
        "ledger replaced",
        "no ledger",
        "emptied before its end",
    ],
)
def test_other_transitions_are_refused(after: ContainerLog, epoch: int):
    with pytest.raises(IllegalStateError):
        check_transition(LOG, after, epoch)


def test_accepted_loss_leaves_the_member_that_survives():
    after = without_lost_members(LOG, {A, C})
    check_transition(LOG, after, None)
    assert (after.members, after.ledgers, after.has_accepted_loss) == ((B,), LOG.ledgers, True)
    assert not LOG.has_accepted_loss
    check_transition(after, open_ledger(after, 21, 96, (B, C), 60, 3), 21)
    check_transition(after, after.with_members((B, C), 60), 20)


def test_log_says_where_it_continues_after_a_loss():
    left = without_lost_members(LOG, {A, C})
    after = open_ledger(left, 21, 96, (B, C), 60, 3)
    assert after.continued_at == LedgerStart(21, 96)
    check_transition(left, after, 21)
    with pytest.raises(IllegalStateError):
        check_transition(left, replace(after, continued_at=None), 21)
    later = open_ledger(after.with_members((B, C, A), 96), 22, 99, (A, B), 96, 3)
    assert later.continued_at == LedgerStart(21, 96)
    with pytest.raises(IllegalStateError):
        check_transition(after, replace(later, continued_at=None), 22)
    behind = later.with_members((A, B, C), 97)
    assert behind.continued_at is None
    check_transition(later, behind, 22)


def test_living_owner_continues_without_a_loss():
    left = without_lost_members(LOG, {A, C})
    assert left.with_members((B, C), 60).continued_at is None


def test_chain_knows_the_entries_that_its_owners_had():
    chain = LedgerChain((LedgerStart(4, 10), LedgerStart(7, 20), LedgerStart(9, 25)))
    known = {(3, 9), (4, 19), (7, 24), (8, 24), (9, 25), (9, 1000)}
    lost = {(3, 10), (4, 20), (7, 25), (8, 25)}
    assert {place for place in known | lost if chain.knows(*place)} == known


@pytest.mark.parametrize("members", [(A, B, C), (A, B)])
def test_log_without_a_surviving_member_is_lost(members: tuple[ReplicaId, ...]):
    before = replace(LOG, members=members)
    lost = without_lost_members(before, set(members))
    check_transition(before, lost, None)
    assert (lost.state, lost.members, lost.ledgers) == (LogState.LOST, (), ())
    assert lost.next_entry is not None
    assert lost.next_entry > 1 << 40, "no replica may have seen this number"
    check_transition(lost, open_ledger(lost, 30, lost.next_entry, (A, B), lost.next_entry, 3), 30)


def test_one_copy_that_is_lost_ends_the_log():
    log = replace(LOG, copies=1, members=(A,))
    assert not log.has_accepted_loss
    assert without_lost_members(log, {A}).state is LogState.LOST


@pytest.mark.parametrize(
    ("log", "lost"),
    [(LOG, {C}), (replace(LOG, members=(A, B)), {B}), (LOG, set()), (emptied(LOG, 120), {A, B, C})],
    ids=["two of three remain", "one of two remains", "none is lost", "no members"],
)
def test_loss_that_a_recovery_does_not_need_is_refused(log: ContainerLog, lost: set[ReplicaId]):
    with pytest.raises(IllegalStateError):
        without_lost_members(log, lost)


@pytest.mark.parametrize(
    ("before", "after", "epoch"),
    [
        (None, LOG, None),
        (LOG, LOG.with_members((A, B), 50), None),
        (LOG, replace(LOG, members=(A,), truncated_before=60), None),
        (LOG, without_lost_members(LOG, {A, B, C}), 20),
    ],
    ids=["no record", "enough remain", "more than members", "an owner"],
)
def test_operator_only_removes_lost_members(before: ContainerLog | None, after: ContainerLog, epoch: int | None):
    with pytest.raises(IllegalStateError):
        check_transition(before, after, epoch)


def test_ledgers_without_entries_are_no_part():
    assert list(CHAIN.parts(85, 96)) == [(12, 85, 90), (16, 90, 95), (20, 95, 96)]
    assert list(CHAIN.parts(90, 90)) == []


EMPTY = emptied(LOG, 120)


@pytest.mark.parametrize(
    ("before", "after", "epoch", "problem"),
    [
        (LOG, replace(EMPTY, members=(A,)), 20, "names members or ledgers"),
        (LOG, replace(EMPTY, ledgers=(LedgerStart(20, 95),)), 20, "names members or ledgers"),
        (LOG, replace(EMPTY, next_entry=None), 20, "does not say which entry is next"),
        (LOG, emptied(LOG, 94), 20, "is before its last ledger"),
        (open_ledger(None, 4, 1, (A, B), 0, 3), emptied(LOG, 0), 5, "is before its last ledger"),
        (LOG, LOG, 21, "does not belong to the claim"),
        (None, open_ledger(None, 4, 0, (A, B), 0, 3), 5, "does not belong to the claim"),
        (None, replace(LOG, ledgers=(LedgerStart(9, 0), LedgerStart(8, 5))), 8, "do not increase"),
        (None, replace(LOG, ledgers=(LedgerStart(8, 0), LedgerStart(8, 5))), 8, "do not increase"),
        (EMPTY, open_ledger(EMPTY, 30, 121, (A, B), 120, 3), 30, "does not begin with the next entry"),
        (LOG, open_ledger(LOG, 19, 97, (A, B), 97, 3), 19, "belongs to a newer claim"),
    ],
)
def test_records_that_cannot_be_are_refused(before: ContainerLog | None, after: ContainerLog, epoch: int, problem: str):
    with pytest.raises(IllegalStateError, match=problem):
        check_transition(before, after, epoch)


def test_a_log_may_end_where_its_last_ledger_begins():
    check_transition(LOG, emptied(LOG, 95), 20)
    check_transition(None, emptied(LOG, 95), 20)
    check_transition(EMPTY, emptied(LOG, 130), 30)
