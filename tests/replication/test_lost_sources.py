"""A takeover whose source of entries goes away: it asks another one, and without one it begins again and says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from takeovers import BOUNDS, GRACE, LOG, OWN, B, C, answer, entries, of, recovery

from headrace.codec.replica_messages import NACK_PROTOCOL, Entries, Nack
from headrace.model.container_logs import ContainerLog, LedgerStart, without_lost_members
from headrace.replication.effects import (
    Blocked,
    OpenMember,
    ReadEntries,
    ReadRecord,
    SendCopies,
    WriteRecord,
    WriterEffect,
)
from headrace.replication.log_recovery import LogRecovery

END = 20
HAS = END - 2
"""The own replica lacks the entries from here on."""


def reading(of_b: int = END, of_c: int | None = END) -> tuple[LogRecovery, ReadEntries]:
    """A takeover that has asked a member for what the own replica lacks."""
    made = recovery()
    effects = answer(made, OWN, HAS) + answer(made, B, of_b)
    effects += [] if of_c is None else answer(made, C, of_c)
    (read,) = of(ReadEntries, effects + made.tick(GRACE))
    made.tick(2 * GRACE)
    return made, read


def refuse(made: LogRecovery, read: ReadEntries) -> list[WriterEffect]:
    return made.refused(read.member, Nack(0, 0, NACK_PROTOCOL, read.message.request))


def lose_link(made: LogRecovery, read: ReadEntries) -> list[WriterEffect]:
    return made.link_lost(read.member)


def replace(made: LogRecovery, read: ReadEntries) -> list[WriterEffect]:
    return made.other_replica(read.member)


def wait(made: LogRecovery, _read: ReadEntries) -> list[WriterEffect]:
    return made.tick(2 * GRACE + BOUNDS.retry_ms)


@pytest.mark.parametrize("happens", [refuse, lose_link, replace, wait])
def test_another_member_is_asked(happens: Callable[[LogRecovery, ReadEntries], list[WriterEffect]]):
    made, read = reading()
    (again,) = of(ReadEntries, happens(made, read))
    assert {read.member, again.member} == {B, C}
    assert (again.message.first, again.message.last) == (HAS, END - 1)
    answered = made.entries(again.message.request, Entries(again.message.request, 0, False, entries(HAS, END - 1)))
    assert of(SendCopies, answered)


def test_refusal_of_an_earlier_question_changes_nothing():
    made, read = reading()
    assert made.refused(read.member, Nack(0, 0, NACK_PROTOCOL, read.message.request - 1)) == []
    assert made.refused(read.member, Nack(0, 7, NACK_PROTOCOL, read.message.request)) == []


def test_lost_source_is_opened_again_at_the_next_tick():
    made, read = reading(of_c=None)
    assert of(ReadEntries, made.link_lost(read.member)) == []
    (opened,) = of(OpenMember, made.tick(2 * GRACE + 1))
    assert opened.member == read.member
    (again,) = of(ReadEntries, answer(made, B, END))
    assert again.member == B


def test_replica_that_stays_away_is_not_dialled_at_each_tick():
    made, read = reading(of_c=None)
    made.link_lost(read.member)
    made.tick(2 * GRACE + 1)
    assert made.link_lost(read.member) == []
    assert made.tick(2 * GRACE + 2) == []


def test_log_does_not_end_because_a_source_is_silent():
    """One member of three has the entry, and a silent one denies nothing: perhaps the two had acknowledged it."""
    made, read = reading(of_c=HAS)
    effects = made.link_lost(read.member) + made.tick(2 * GRACE + 1)
    assert of(WriteRecord, effects) == []
    assert made.last == END - 1


def without_progress(made: LogRecovery, from_ms: int) -> list[WriterEffect]:
    return made.tick(from_ms + BOUNDS.stall_ms)


def test_takeover_without_progress_begins_again():
    """The member that had the longest end is gone. The others are a read quorum: nothing that it lacks counts."""
    made, read = reading(of_c=None)
    made.link_lost(read.member)
    effects = without_progress(made, 2 * GRACE)
    assert {effect.member for effect in of(OpenMember, effects)} == {OWN, B, C}
    (blocked,) = of(Blocked, effects)
    assert str(END - 1) in blocked.reason
    made.record_read(LOG, 3)
    effects = answer(made, OWN, HAS) + answer(made, C, HAS) + made.tick(4 * GRACE + BOUNDS.stall_ms)
    (write,) = of(WriteRecord, effects)
    assert write.log.ledgers[-1] == LedgerStart(made.epoch, HAS)
    assert write.log.members == (OWN, C)
    assert made.blocked_by is None, "another member has answered"


def test_takeover_that_copies_does_not_begin_again():
    made, read = reading()
    now_ms = 0
    for entry in (HAS, HAS + 1):
        made.entries(read.message.request, Entries(read.message.request, 0, True, entries(entry, entry)))
        now_ms += BOUNDS.stall_ms - 1
        assert of(Blocked, made.tick(now_ms)) == []
        effects = made.acknowledged(OWN, made.session_of(OWN), 5, entry)
        if entry == HAS:
            (read,) = of(ReadEntries, effects)
    assert made.blocked_by is None


def test_operator_accepts_a_loss_while_nothing_is_copied():
    made, _ = reading(of_c=None)
    assert of(ReadRecord, made.tick(2 * GRACE + BOUNDS.retry_ms)) == []
    assert of(ReadRecord, without_progress(made, 2 * GRACE))
    accepted = without_lost_members(LOG, {B, C})
    effects = made.record_read(accepted, 4)
    assert {effect.member for effect in of(OpenMember, effects)} == {OWN, B, C}


def test_slow_answers_of_the_metadata_hold_up_no_replica():
    """The look for an operator's decision is under way when replicas have to be opened again."""
    made = recovery()
    made.tick(BOUNDS.retry_ms)
    assert made.blocked_by is not None
    opened = of(OpenMember, made.tick(2 * BOUNDS.retry_ms))
    assert {effect.member for effect in opened} == {OWN, B, C}


def test_journal_that_does_not_answer_blocks():
    """A takeover waits for the own replica, too, although it is no member."""
    made = recovery(ContainerLog(3, LOG.state, (B, C), LOG.ledgers, LOG.truncated_before))
    answer(made, B, END)
    answer(made, C, END)
    (blocked,) = of(Blocked, made.tick(BOUNDS.retry_ms))
    assert OWN.hex()[:8] in blocked.reason
