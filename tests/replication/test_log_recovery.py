"""Takeover: fence a read quorum, find the end, copy it to two members, open the next ledger once."""

from __future__ import annotations

import pytest
from takeovers import BOUNDS, EPOCH, GRACE, LOG, OWN, ZONES, B, C, D, answer, entries, no_entries, of, recovery

from headrace.codec.replica_messages import NACK_FENCED, Entries, Entry, HeldRun, Nack, Opened
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.replication.effects import (
    Blocked,
    Fail,
    OpenMember,
    ReadEntries,
    ReadRecord,
    Send,
    SendCopies,
    Serve,
    WriteRecord,
    WriterEffect,
)
from headrace.replication.log_recovery import LogRecovery
from headrace.replication.replica_log import RecoveredLog, ReplicaLog


def test_one_answer_of_three_is_not_enough():
    made = recovery()
    assert answer(made, OWN, 20) == []
    assert of(WriteRecord, made.tick(10 * GRACE)) == []


def test_answers_without_the_own_replica_are_not_enough():
    made = recovery()
    assert answer(made, B, 20) == answer(made, C, 20) == []


def test_ledger_begins_behind_the_longest_position():
    made = recovery()
    answer(made, OWN, 20)
    answer(made, B, 20)
    (write,) = of(WriteRecord, answer(made, C, 20))
    assert write.log.ledgers == (LedgerStart(5, 10), LedgerStart(EPOCH, 20))
    assert (set(write.log.members), write.version, write.claim_epoch) == ({OWN, B, C}, 3, EPOCH)
    (serve,) = of(Serve, made.record_written(4))
    assert (serve.last, serve.truncated_before, serve.version) == (19, 10, 4)


def test_other_members_get_a_grace_period():
    made = recovery()
    answer(made, OWN, 20)
    answer(made, B, 20)
    assert of(WriteRecord, made.tick(GRACE - 1)) == []
    (write,) = of(WriteRecord, made.tick(GRACE))
    assert write.log.members == (OWN, B)


def test_end_of_one_member_is_copied_before_the_record_write():
    made = recovery()
    answer(made, OWN, 18)
    effects = answer(made, B, 20) + made.tick(GRACE)
    assert of(WriteRecord, effects) == []
    (read,) = of(ReadEntries, effects)
    assert (read.member, read.message.first, read.message.last) == (B, 18, 19)
    (copies,) = of(
        SendCopies, made.entries(read.message.request, Entries(read.message.request, 0, False, entries(18, 19)))
    )
    assert copies.member == OWN
    assert of(WriteRecord, made.acknowledged(OWN, made.session_of(OWN), 5, 18)) == []
    assert of(WriteRecord, made.acknowledged(OWN, made.session_of(OWN), 5, 19))


def test_replicas_that_proceed_are_not_opened_again():
    """A long copy takes several times as long as a retry waits."""
    made = recovery()
    answer(made, OWN, 15)
    (read,) = of(ReadEntries, answer(made, B, 20) + made.tick(GRACE))
    now_ms = 2 * GRACE
    made.tick(now_ms)
    for entry in range(15, 19):
        request = read.message.request
        made.entries(request, Entries(request, 0, True, entries(entry, entry)))
        (read,) = of(ReadEntries, made.acknowledged(OWN, made.session_of(OWN), 5, entry))
        now_ms += BOUNDS.retry_ms
        effects = made.tick(now_ms)
        assert [effect.member for effect in of(OpenMember, effects)] == [C]
    request = read.message.request
    assert of(SendCopies, made.entries(request, Entries(request, 0, False, entries(19, 19))))


def test_replica_that_does_not_proceed_is_opened_again():
    made = recovery()
    answer(made, OWN, 15)
    assert of(ReadEntries, answer(made, B, 20) + made.tick(GRACE))
    made.tick(2 * GRACE)
    opened = of(OpenMember, made.tick(2 * GRACE + BOUNDS.retry_ms))
    assert [effect.member for effect in opened] == [OWN, B, C]
    assert of(ReadEntries, answer(made, OWN, 15)) == [], "the source did not answer: it is opened again first"
    (read,) = of(ReadEntries, answer(made, B, 20))
    assert read.member == B


def test_end_that_only_the_own_replica_has_is_sent_to_another():
    made = recovery()
    answer(made, OWN, 20)
    effects = answer(made, B, 18) + made.tick(GRACE)
    assert of(WriteRecord, effects) == []
    (send,) = of(Send, effects)
    assert (send.member, send.first, send.last) == (B, 18, 19)
    made.sent(B, made.session_of(B), 19)
    made.tick(2 * GRACE)
    assert of(WriteRecord, made.acknowledged(B, made.session_of(B), 5, 19))


def test_damaged_end_is_part_of_the_log():
    made = recovery()
    answer(made, OWN, 18)
    effects = answer(made, B, 18, had=20) + made.tick(GRACE)
    assert made.last == 19
    effects += no_entries(made, effects)
    assert of(WriteRecord, effects) == []
    assert of(Blocked, effects)


def test_intact_entries_behind_damage_are_read():
    made = recovery()
    answer(made, OWN, 18)
    (read,) = of(ReadEntries, answer(made, B, 17, had=20) + made.tick(GRACE))
    assert (read.member, read.message.first, read.message.last) == (B, 18, 19)
    found = Entries(read.message.request, 0, False, entries(18, 19))
    assert of(SendCopies, made.entries(found.request, found))


def test_own_entries_behind_damage_are_read():
    made = recovery()
    answer(made, OWN, 17, had=20)
    (read,) = of(ReadEntries, answer(made, B, 18) + made.tick(GRACE))
    assert read.member == B
    found = Entries(read.message.request, 0, False, entries(17, 17))
    made.entries(found.request, found)
    (read,) = of(ReadEntries, made.acknowledged(OWN, made.session_of(OWN), 5, 17))
    assert (read.member, read.message.first) == (OWN, 18)


def test_damaged_entry_of_one_member_of_three_ends_the_log():
    """Both others answered without it: it was never acknowledged."""
    made = recovery()
    answer(made, OWN, 18)
    answer(made, B, 18)
    effects = answer(made, C, 17, had=20)
    effects = no_entries(made, effects)
    (write,) = of(WriteRecord, effects + made.tick(2 * GRACE))
    assert write.log.ledgers[-1] == LedgerStart(EPOCH, 18)


@pytest.mark.parametrize(("acknowledged_before", "blocks"), [(18, False), (19, True)])
def test_damaged_entry_that_was_acknowledged_blocks(acknowledged_before: int, blocks: bool):
    """One member had it, as far as they know, and another one knows that it was acknowledged."""
    made = recovery()
    answer(made, OWN, 18)
    answer(made, B, 18, acknowledged_before=acknowledged_before)
    effects = no_entries(made, answer(made, C, 17, had=20))
    assert bool(of(Blocked, effects)) is blocks
    assert bool(of(WriteRecord, effects + made.tick(2 * GRACE))) is not blocks


def test_damaged_entry_that_two_members_had_blocks():
    made = recovery()
    answer(made, OWN, 18, had=20)
    answer(made, B, 18)
    effects = answer(made, C, 18, had=20)
    for _ in range(2):
        effects = no_entries(made, effects)
    assert of(Blocked, effects)
    assert of(WriteRecord, made.tick(2 * GRACE)) == []


def test_damaged_entry_of_a_closed_ledger_blocks():
    """A closed ledger was held by all its members: what an earlier recovery found does not end earlier now."""
    chain = (LedgerStart(4, 10), LedgerStart(5, 20))
    made = recovery(ContainerLog(3, LogState.OPEN, (OWN, B, C), chain, 10))
    for replica, had in ((OWN, 18), (B, 18), (C, 20)):
        runs = (HeldRun(4, 10, 18, had),)
        effects = made.opened(replica, Opened(0, made.session_of(replica), 0, EPOCH, 10, 0, runs))
    assert made.last == 19
    assert of(Blocked, no_entries(made, effects))


def test_log_that_ends_before_an_acknowledged_entry_is_blocked():
    made = recovery()
    answer(made, OWN, 18)
    effects = answer(made, B, 18, acknowledged_before=20) + made.tick(GRACE)
    assert of(Blocked, effects)
    assert of(WriteRecord, effects) == []


def test_silent_members_are_asked_again_and_reported_once():
    made = recovery()
    answer(made, OWN, 20)
    effects = made.tick(BOUNDS.retry_ms)
    assert [effect.member for effect in of(OpenMember, effects)] == [B, C]
    assert of(Blocked, effects)
    assert of(Blocked, made.tick(2 * BOUNDS.retry_ms)) == []


def test_unknown_outcome_is_written_again_under_the_same_version():
    made = recovery()
    for replica in (OWN, B, C):
        answer(made, replica, 20)
    made.request_unknown()
    (again,) = of(WriteRecord, made.tick(BOUNDS.retry_ms))
    assert again.version == 3
    assert made.record_conflict() == [ReadRecord()]
    (serve,) = of(Serve, made.record_read(again.log, 4))
    assert (serve.log, serve.version) == (again.log, 4)


def test_request_is_not_repeated_before_its_outcome():
    made = recovery()
    for replica in (OWN, B, C):
        answer(made, replica, 20)
    assert made.tick(10 * BOUNDS.retry_ms) == []


@pytest.mark.parametrize("end", ["fenced", "claim lost"])
def test_recovery_ends_when_another_store_is_ahead(end: str):
    made = recovery()
    effects = made.refused(B, Nack(0, 0, NACK_FENCED, 9)) if end == "fenced" else made.claim_lost()
    assert of(Fail, effects)
    assert made.has_failed


def test_first_ledger_of_a_container_begins_with_entry_0():
    made = recovery(None, 0)
    answer(made, OWN, 0, truncated_before=0)
    (write,) = of(WriteRecord, answer(made, B, 0, truncated_before=0) + answer(made, C, 0, truncated_before=0))
    assert write.log.ledgers == (LedgerStart(EPOCH, 0),)
    assert write.version == 0


def test_empty_log_continues_with_its_next_entry():
    made = recovery(ContainerLog(3, LogState.EMPTY, (), (), 77, 77))
    answer(made, OWN, 0, truncated_before=77)
    (write,) = of(WriteRecord, answer(made, B, 0, truncated_before=77) + answer(made, C, 0, truncated_before=77))
    assert write.log.ledgers == (LedgerStart(EPOCH, 77),)


def test_member_in_the_zone_of_the_new_owner_is_left_out():
    log = ContainerLog(3, LogState.OPEN, (D, B, C), (LedgerStart(5, 10),), 10)
    made = LogRecovery(0, OWN, (OWN, B, C), ZONES, 3, BOUNDS, 0)
    made.start(7)
    made.claimed(EPOCH)
    made.record_read(log, 3)
    effects: list[WriterEffect] = []
    for replica in (OWN, D, B, C):
        effects += answer(made, replica, 20)
    (write,) = of(WriteRecord, effects)
    assert set(write.log.members) == {OWN, B, C}


def test_truncation_point_of_a_learner_counts():
    """The own replica may know a later one than all members: it no longer holds what is before that."""
    log = ContainerLog(3, LogState.OPEN, (B, C), (LedgerStart(5, 10),), 10)
    made = recovery_of(log)
    for replica in (B, C):
        answer(made, replica, 20)
    made.opened(OWN, Opened(0, made.session_of(OWN), 0, EPOCH, 18, 0, (HeldRun(5, 18, 20, 20),)))
    assert made.truncated_before == 18


def recovery_of(log: ContainerLog) -> LogRecovery:
    made = LogRecovery(0, OWN, (OWN, B, C), ZONES, 3, BOUNDS, 0)
    made.start(7)
    made.claimed(EPOCH)
    made.record_read(log, 3)
    return made


def test_entries_of_another_container_are_not_taken():
    """Each container numbers its requests: the number alone does not say whose answer it is."""
    made = recovery()
    answer(made, OWN, 18)
    (read,) = of(ReadEntries, answer(made, B, 20) + made.tick(GRACE))
    request = read.message.request
    assert made.entries(request, Entries(request, 1, False, entries(18, 19))) == []
    assert of(SendCopies, made.entries(request, Entries(request, 0, False, entries(18, 19))))


@pytest.mark.parametrize("field", ["container", "epoch"])
def test_entries_of_another_log_are_not_copied(field: str):
    made = recovery()
    answer(made, OWN, 18)
    (read,) = of(ReadEntries, answer(made, B, 20) + made.tick(GRACE))
    request = read.message.request
    other = {field: 4, "truncated_before": 15}
    others = tuple(Entry(entry.header._replace(**other), entry.payload) for entry in entries(18, 19))
    assert of(SendCopies, made.entries(request, Entries(request, 0, False, others))) == []
    assert made.truncated_before == 10


def test_answer_to_an_earlier_attempt_is_no_promise():
    """The same process tried before, with a lower epoch: its sessions had the same numbers."""
    made = recovery()
    answer(made, OWN, 20)
    earlier = Opened(0, made.session_of(B), 0, EPOCH - 1, 10, 0, (HeldRun(5, 10, 20, 20),))
    assert made.opened(B, earlier) == []
    assert made.tick(GRACE) == []
    assert of(WriteRecord, answer(made, B, 20) + made.tick(2 * GRACE))


def test_refusal_of_an_earlier_attempt_ends_no_recovery():
    """The same process was fenced as an owner, and begins again before the NACK arrives."""
    made = LogRecovery(0, OWN, (OWN, B, C), ZONES, 3, BOUNDS, 0)
    made.start(7)
    assert made.refused(B, Nack(0, 0, NACK_FENCED, 7)) == []
    assert made.claimed(8) == [ReadRecord()]


ONE_LEFT = ContainerLog(3, LogState.OPEN, (B,), (LedgerStart(4, 5), LedgerStart(5, 10)), 7)


def answer_of_one_left(
    made: LogRecovery, replica: ReplicaId, end: int, acknowledged_before: int = 0
) -> list[WriterEffect]:
    runs = (HeldRun(4, 5, 10, 10), HeldRun(5, 10, end, end))
    return made.opened(replica, Opened(0, made.session_of(replica), 0, EPOCH, 7, acknowledged_before, runs))


def test_accepted_loss_ends_the_log_with_the_longest_copy_left():
    made = recovery(ONE_LEFT)
    answer_of_one_left(made, OWN, 10)
    answer_of_one_left(made, B, 18, acknowledged_before=30)
    answer_of_one_left(made, C, 20)
    effects = made.tick(GRACE)
    assert made.last == 19, "the copy of a former member counts, and entry 29 is lost"
    assert of(Blocked, effects) == []


def test_accepted_loss_does_not_end_before_the_open_ledger():
    made = recovery(ONE_LEFT)
    for replica in (OWN, B, C):
        made.opened(replica, Opened(0, made.session_of(replica), 0, EPOCH, 7, 0, ()))
    assert of(Blocked, made.tick(GRACE))
    assert made.last == 9


def test_blocked_recovery_looks_for_an_accepted_loss():
    made = recovery()
    answer(made, OWN, 18)
    effects = made.tick(BOUNDS.retry_ms)
    assert of(Blocked, effects)
    assert of(ReadRecord, effects)
    assert of(OpenMember, made.record_read(LOG, 3)) == []
    assert of(ReadRecord, made.tick(2 * BOUNDS.retry_ms))
    opens = made.record_read(ContainerLog(3, LogState.LOST, (), (), 99, 99), 4)
    assert {effect.message.ledgers for effect in of(OpenMember, opens)} == {()}


def test_ledger_is_not_opened_while_a_read_is_under_way():
    """The answer would come to the writer of the new ledger."""
    made = recovery()
    answer(made, OWN, 18)
    assert of(ReadRecord, made.tick(BOUNDS.retry_ms))
    answer(made, B, 18)
    assert of(WriteRecord, answer(made, C, 18)) == []
    assert of(WriteRecord, made.request_unknown())


def test_zone_of_a_new_store_ends_the_wait_for_members():
    made = recovery()
    made.want((OWN, B, C), {OWN: "a"})
    answer(made, OWN, 20)
    answer(made, B, 20)
    answer(made, C, 20)
    assert of(WriteRecord, made.tick(GRACE)) == []
    assert made.want((OWN, B, C), {OWN: "a"}) == []
    (write,) = of(WriteRecord, made.want((OWN, B, C), ZONES))
    assert set(write.log.members) == {OWN, B, C}


def test_vanished_record_tells_no_replica_to_discard():
    """Only an OPEN without a truncation point says that its owner found no record. The answers have one."""
    made = recovery(None, 0)
    answer(made, OWN, 20)
    effects = answer(made, B, 20) + made.tick(GRACE)
    assert of(Blocked, effects)
    made.link_lost(B)
    opens = [*of(OpenMember, made.tick(2 * GRACE)), *of(OpenMember, made.tick(2 * GRACE + BOUNDS.retry_ms))]
    assert [effect.member for effect in opens] == [B, C]
    for effect in opens:
        replica = ReplicaLog(0, RecoveredLog(5, 10, runs=(HeldRun(5, 10, 20, 20),)))
        replica.open(1, effect.message)
        assert replica.needs(5, 19)
