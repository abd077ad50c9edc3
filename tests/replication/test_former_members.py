"""A takeover asks former members for an entry that no member has intact, and uses their answers for nothing else."""

from __future__ import annotations

import itertools
from dataclasses import replace

from takeovers import BOUNDS, EPOCH, GRACE, LOG, OWN, ZONES, B, C, D, answer, entries, no_entries, of, recovery

from headrace.codec.replica_messages import NACK_FENCED, Entries, Entry, HeldRun, Nack, Open, Opened
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.replication.effects import (
    Blocked,
    DropMember,
    Fail,
    OpenMember,
    ReadEntries,
    Send,
    SendCopies,
    SendPulse,
    Serve,
    WriteRecord,
    WriterEffect,
)
from headrace.replication.log_recovery import OTHERS_ASKED_MAX, LogRecovery, RecoveryStep

DAMAGED, END = 18, 20


def lacking(made: LogRecovery | None = None) -> tuple[LogRecovery, list[WriterEffect]]:
    """A takeover whose members had two entries that none of them has intact."""
    made = made or recovery()
    effects = answer(made, OWN, DAMAGED, had=END) + answer(made, B, DAMAGED) + answer(made, C, DAMAGED, had=END)
    for _ in range(2):
        effects = no_entries(made, effects)
    return made, effects


def given(made: LogRecovery, read: ReadEntries, found: tuple[Entry, ...]) -> list[WriterEffect]:
    return made.entries(read.message.request, Entries(read.message.request, 0, False, found))


def begin_again(made: LogRecovery, attempt: int = 1) -> None:
    made.tick(GRACE + (attempt - 1) * BOUNDS.stall_ms)
    made.tick(GRACE + attempt * BOUNDS.stall_ms)


def test_former_member_is_asked_for_a_damaged_entry():
    made, effects = lacking()
    assert of(Blocked, effects)
    (opened,) = of(OpenMember, effects)
    assert opened == OpenMember(D, Open(0, made.session_of(D), EPOCH, 10, LOG.ledgers))
    (read,) = of(ReadEntries, answer(made, D, END))
    assert (read.member, read.message.epoch, read.message.first) == (D, 5, DAMAGED)
    (copies,) = of(SendCopies, given(made, read, entries(DAMAGED, END - 1)))
    assert (copies.member, len(copies.entries)) == (OWN, 2)


def test_silent_member_is_not_opened_as_a_former_one():
    """It is asked as a member, and an answer to that counts as one."""
    made = recovery()
    session = made.session_of(C)
    answer(made, OWN, DAMAGED, had=END)
    answer(made, B, DAMAGED, had=END)
    effects = no_entries(made, no_entries(made, made.tick(GRACE)))
    assert [opened.member for opened in of(OpenMember, effects)] == [D]
    assert made.session_of(C) == session


def test_members_with_the_entry_are_asked_alone():
    made = recovery()
    effects = answer(made, OWN, DAMAGED, had=END) + answer(made, B, END) + answer(made, C, DAMAGED)
    assert {each.member for each in of(ReadEntries, effects)} == {B}
    assert of(OpenMember, effects) == []


def test_former_member_is_no_member_of_the_next_ledger():
    made, _ = lacking()
    (read,) = of(ReadEntries, answer(made, D, END))
    given(made, read, entries(DAMAGED, END - 1))
    effects = made.acknowledged(OWN, made.session_of(OWN), 5, END - 1)
    assert {send.member for send in of(Send, effects)} == {B, C}
    made.sent(B, made.session_of(B), END - 1)
    made.tick(2 * GRACE)
    (write,) = of(WriteRecord, made.acknowledged(B, made.session_of(B), 5, END - 1))
    assert (write.log.members, write.log.ledgers[-1]) == ((OWN, B), LedgerStart(EPOCH, END))


def served(made: LogRecovery, wanted: tuple[ReplicaId, ...] = (OWN, B, C)) -> list[WriterEffect]:
    """The end of a takeover whose own replica gets the entries from the former member, and B from there."""
    (read,) = of(ReadEntries, answer(made, D, END))
    given(made, read, entries(DAMAGED, END - 1))
    made.acknowledged(OWN, made.session_of(OWN), 5, END - 1)
    made.sent(B, made.session_of(B), END - 1)
    made.tick(made._now_ms + 2 * GRACE)
    assert of(WriteRecord, made.acknowledged(B, made.session_of(B), 5, END - 1))
    made.want(wanted, ZONES)
    return made.record_written(4)


def test_former_member_may_forget_its_copy_then():
    """It has promised the epoch of the ledger: of itself it would keep the copy until the next takeover."""
    made, _ = lacking()
    session = made.session_of(D)
    *drops, serve = served(made)
    assert drops == [DropMember(D, session)]
    assert isinstance(serve, Serve)


def test_replica_of_an_earlier_attempt_may_forget_its_copy():
    made, _ = lacking()
    session = made.session_of(D)
    begin_again(made)
    for replica in (OWN, B, C):
        answer(made, replica, END)
    assert of(WriteRecord, made.record_read(LOG, 3))
    assert of(DropMember, made.record_written(4)) == [DropMember(D, session)]


def test_wanted_former_member_keeps_its_copy():
    """The writer of the next ledger opens it as a learner."""
    made, _ = lacking()
    effects = served(made, wanted=(OWN, B, D))
    assert [drop.member for drop in of(DropMember, effects)] == [C], "it is neither a member nor wanted any more"
    assert of(Serve, effects)


def test_former_member_moves_no_bound_of_the_log():
    made, _ = lacking()
    answer(made, D, END + 5, acknowledged_before=END + 5, truncated_before=12)
    assert (made.last, made.truncated_before) == (END - 1, 10)
    assert made.acknowledged(D, made.session_of(D), 5, END + 4) == []


def test_late_answer_of_a_former_member_changes_nothing():
    """What it holds is asked for while the entries are copied only: the next ledger is written once."""
    made, _ = lacking()
    served(made)
    assert answer(made, D, END) == []
    assert made.step is RecoveryStep.SERVE


def test_answer_of_a_former_member_revives_no_takeover():
    made, _ = lacking()
    assert of(Fail, made.refused(B, Nack(0, made.session_of(B), NACK_FENCED, EPOCH + 1)))
    assert answer(made, D, END) == []
    assert made.has_failed


def test_truncation_point_of_a_removed_member_counts():
    """It was a member when it was asked, and has entries of this log: it needs none before its truncation point."""
    made = recovery()
    made.want((OWN, B), ZONES)
    made.record_read(replace(LOG, members=(OWN, B)), 4)
    answer(made, OWN, DAMAGED)
    answer(made, B, END)
    answer(made, C, END, truncated_before=12)
    assert (made.step, made.truncated_before) == (RecoveryStep.COPY, 12)


def test_answer_of_a_former_member_is_no_promise():
    """In the next attempt two members are silent: the answer to the attempt before does not stand for theirs."""
    made, _ = lacking()
    session = made.session_of(D)
    begin_again(made)
    assert made.step is RecoveryStep.FENCE
    runs = (HeldRun(5, 10, END, END),)
    effects = answer(made, OWN, DAMAGED, had=END) + made.opened(D, Opened(0, session, 0, EPOCH, 10, 0, runs))
    effects += made.tick(2 * BOUNDS.stall_ms)
    assert made.step is RecoveryStep.FENCE
    assert {each.member for each in of(OpenMember, effects)} == {B, C}
    effects = answer(made, B, DAMAGED) + answer(made, C, DAMAGED, had=END)
    assert {each.member for each in of(SendPulse, effects)} == {OWN, B, C}
    assert [each.member for each in of(ReadEntries, effects)] == [C], "members are asked first"


def test_entries_outside_of_the_log_are_not_taken():
    """A former member may have missed an accepted loss: its entry with this number is of another ledger."""
    made, _ = lacking()
    (read,) = of(ReadEntries, answer(made, D, END))
    forked = tuple(replace(each, header=each.header._replace(epoch=4)) for each in entries(DAMAGED, END - 1))
    effects = given(made, read, forked)
    assert of(SendCopies, effects) == of(WriteRecord, effects) == []
    assert made.blocked_by is not None


def test_log_does_not_wait_for_a_former_member():
    """It may have an entry more, which too few members had: without it the log ends there."""
    made = recovery()
    effects = answer(made, OWN, DAMAGED, had=END) + answer(made, B, DAMAGED) + answer(made, C, DAMAGED, had=END - 1)
    for _ in range(2):
        effects = no_entries(made, effects)
    (read,) = of(ReadEntries, answer(made, D, END))
    given(made, read, entries(DAMAGED, DAMAGED))
    effects = no_entries(made, made.acknowledged(OWN, made.session_of(OWN), 5, DAMAGED))
    assert [each.member for each in of(ReadEntries, effects)] == [D]
    effects = made.link_lost(D)
    assert made.last == DAMAGED
    assert {send.member for send in of(Send, effects)} == {B, C}


def test_higher_promise_of_a_former_member_ends_the_takeover():
    made, _ = lacking()
    assert of(Fail, made.refused(D, Nack(0, made.session_of(D), NACK_FENCED, EPOCH + 1)))


def test_former_member_that_is_wanted_counts_as_wanted():
    made, _ = lacking()
    made.want((OWN, D, C), ZONES | {D: "d"})
    (read,) = of(ReadEntries, answer(made, D, END))
    given(made, read, entries(DAMAGED, END - 1))
    made.acknowledged(OWN, made.session_of(OWN), 5, END - 1)
    (write,) = of(WriteRecord, made.tick(GRACE + 2 * BOUNDS.retry_ms))
    assert write.log.members == (OWN, D)


def test_attempts_ask_all_other_replicas_in_turn():
    others = [ReplicaId(bytes([100 + number]) * 16) for number in range(OTHERS_ASKED_MAX + 1)]
    zones = ZONES | dict.fromkeys(reversed(others), "d")
    made = LogRecovery(0, OWN, (OWN, B, C), zones, 3, BOUNDS, 0)
    made.start(7)
    made.claimed(EPOCH)
    made.record_read(ContainerLog(3, LogState.OPEN, (OWN, B, C), LOG.ledgers, 10), 3)
    asked = []
    for attempt in range(1, 4):
        asked.append([each.member for each in of(OpenMember, lacking(made)[1])])
        assert of(OpenMember, made.want((OWN, B, C), zones)) == [], "an attempt asks each once"
        for moment in range(2):  # the patience of an attempt, and the pause before the next one
            made.tick((2 * attempt + moment) * (GRACE + BOUNDS.stall_ms))
    turns = itertools.cycle([D, *others])
    assert asked == [list(itertools.islice(turns, OTHERS_ASKED_MAX)) for _ in range(3)]
