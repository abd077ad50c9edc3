"""What a takeover asks, tells and writes in each of its steps, in full, and what it ignores."""

from __future__ import annotations

from dataclasses import replace

import pytest
from takeovers import BOUNDS, EPOCH, GRACE, LOG, OWN, ZONES, B, C, D, answer, entries, no_entries, of, recovery

from headrace.codec.replica_messages import (
    NACK_FENCED,
    NACK_GAP,
    NACK_PROTOCOL,
    NACK_STOPPING,
    Entries,
    HeldRun,
    Nack,
    Open,
    Opened,
    Read,
)
from headrace.model.container_logs import NO_POSITION, ContainerLog, LedgerStart, LogState
from headrace.replication.effects import (
    Blocked,
    DropMember,
    Fail,
    OpenMember,
    ReadEntries,
    ReadRecord,
    Send,
    SendCopies,
    SendPulse,
    Serve,
    Source,
    WriteRecord,
    WriterEffect,
)
from headrace.replication.log_recovery import LogRecovery, RecoveryStep

CONTAINER = 9


def started(log: ContainerLog | None = LOG, copies: int = 3, past_before: int = 0) -> LogRecovery:
    made = LogRecovery(CONTAINER, OWN, (OWN, B, C)[:copies], ZONES, copies, BOUNDS, 0)
    made.start(7)
    made.claimed(EPOCH)
    made.record_read(log, 0 if log is None else 3, past_before)
    return made


def members_opened(effects: list[WriterEffect]) -> list[object]:
    return [effect.member for effect in of(OpenMember, effects)]


def late_entries(made: LogRecovery, first: int, last: int, request: int = 1) -> list[WriterEffect]:
    return made.entries(request, Entries(request, 0, False, entries(first, last)))


# Fencing.


def test_each_replica_is_opened_under_the_new_epoch():
    made = LogRecovery(CONTAINER, OWN, (OWN, B, C), ZONES, 3, BOUNDS, 0)
    assert (made.epoch, made.last, made.truncated_before) == (0, NO_POSITION, 0)
    assert (made.replicas, made.chain.ledgers, made.session_of(B)) == ((OWN, B, C), (), 0)
    made.claimed(EPOCH)
    assert made.record_read(LOG, 3) == [
        OpenMember(member, Open(CONTAINER, session, EPOCH, 10, LOG.ledgers))
        for member, session in ((OWN, 1), (B, 2), (C, 3))
    ]
    answer(made, B, 20)
    assert made.tick(BOUNDS.retry_ms)[1:3] == [
        OpenMember(member, Open(CONTAINER, session, EPOCH, 10, LOG.ledgers)) for member, session in ((OWN, 4), (C, 5))
    ]
    assert [made.session_of(member) for member in (OWN, B, C)] == [4, 2, 5]
    assert made.sessions == 5, "the writer of the next ledger counts on from here"


def test_the_record_is_read_again_after_a_pause():
    made = LogRecovery(CONTAINER, OWN, (OWN, B, C), ZONES, 3, BOUNDS, 0)
    made.claimed(EPOCH)
    made.tick(100)
    assert made.tick(10 * BOUNDS.retry_ms) == [], "the request is under way"
    assert made.request_unknown() == []
    assert made.tick(11 * BOUNDS.retry_ms - 1) == []
    assert made.tick(11 * BOUNDS.retry_ms) == [ReadRecord()]


def test_silent_replicas_are_asked_once_in_each_pause():
    made = recovery()
    answer(made, OWN, 20)
    assert members_opened(made.tick(BOUNDS.retry_ms)) == [B, C]
    assert made.tick(BOUNDS.retry_ms + 1) == []
    assert members_opened(made.tick(2 * BOUNDS.retry_ms)) == [B, C]


def test_nothing_is_decided_while_others_may_answer():
    """An event that has nothing to do with the answers must not end the log before what they have."""
    made = recovery()
    answer(made, OWN, 20)
    answer(made, B, 20)
    assert made.link_lost(C) == []
    assert late_entries(made, 10, 12) == []
    assert made.acknowledged(B, made.session_of(B), 5, 25) == []
    assert made.request_unknown() == made.record_read(LOG, 3) == made.want((OWN, B, C), {OWN: "a"}) == []
    assert made.record_written(4) == made.record_conflict() == []
    assert made.step is RecoveryStep.FENCE


def test_answers_of_others_than_members_fence_nothing():
    """The members may still acknowledge entries to their owner."""
    made = LogRecovery(0, OWN, (OWN, D, C), ZONES, 3, BOUNDS, 0)
    made.claimed(EPOCH)
    made.record_read(replace(LOG, members=(B, C)), 3)
    assert answer(made, OWN, 20) == answer(made, D, 20) == made.tick(GRACE) == []
    assert of(SendPulse, answer(made, C, 20) + made.tick(2 * GRACE))


def test_the_own_epoch_ends_no_takeover():
    made = recovery()
    assert made.refused(B, Nack(0, 0, NACK_FENCED, EPOCH)) == []
    (failed,) = made.refused(B, Nack(0, 0, NACK_FENCED, EPOCH + 1))
    assert isinstance(failed, Fail)
    assert str(EPOCH + 1) in failed.reason
    assert B.hex()[:8] in failed.reason
    assert made.claim_lost() == made.tick(60_000) == answer(made, OWN, 20) == []


def test_a_lost_claim_says_why():
    (failed,) = recovery().claim_lost()
    assert isinstance(failed, Fail)
    assert failed.reason


def test_only_a_higher_version_of_the_record_counts():
    made = recovery()
    answer(made, OWN, 18)
    answer(made, B, 20)
    fewer = replace(LOG, members=(OWN,))
    assert made.record_read(fewer, 3) == []
    assert members_opened(made.record_read(fewer, 4)) == [OWN, B, C]


def test_the_only_copy_suffices_in_a_one_copy_deployment():
    made = started(None, copies=1)
    effects = made.opened(OWN, Opened(0, made.session_of(OWN), 0, EPOCH, 0, 0, ()))
    (write,) = of(WriteRecord, effects)
    assert (write.log.members, write.log.copies) == ((OWN,), 1)


def test_a_new_log_gets_all_copies_that_are_wanted():
    others = (B, C, D)
    made = LogRecovery(0, OWN, (OWN, *others), ZONES | {D: "d"}, 4, BOUNDS, 0)
    made.claimed(EPOCH)
    made.record_read(None, 0)
    effects: list[WriterEffect] = []
    for member in (OWN, *others):
        effects += made.opened(member, Opened(0, made.session_of(member), 0, EPOCH, 0, 0, ()))
    (write,) = of(WriteRecord, effects)
    assert (write.log.members, write.log.copies) == ((OWN, *others), 4)


# The end of the log.


def test_members_learn_the_truncation_point():
    made = recovery()
    answer(made, OWN, 20)
    answer(made, B, 20, truncated_before=12)
    effects = answer(made, C, 20)
    assert of(SendPulse, effects) == [SendPulse(member, NO_POSITION, 12) for member in (OWN, B, C)]
    (write,) = of(WriteRecord, effects)
    assert write.log.truncated_before == 12


@pytest.mark.parametrize(("past_before", "is_blocked"), [(5, True), (6, False)])
def test_a_vanished_record_is_told_by_newer_entries(past_before: int, is_blocked: bool):
    """Entries of epochs before the point are of a log that an operator gave up."""
    made = started(None, past_before=past_before)
    effects: list[WriterEffect] = []
    for member in (OWN, B, C):
        runs = (HeldRun(5, 0, 20, 20),)
        effects += made.opened(member, Opened(0, made.session_of(member), 0, EPOCH, 0, 0, runs))
    blocked, written = of(Blocked, effects), of(WriteRecord, effects)
    assert ["record" in effect.reason for effect in blocked] == [True] * is_blocked
    assert [effect.log.ledgers for effect in written] == ([] if is_blocked else [(LedgerStart(EPOCH, 0),)])


def test_a_missing_end_stays_the_reason_of_the_block():
    made = recovery()
    answer(made, OWN, 18)
    answer(made, B, 18, acknowledged_before=20)
    (blocked,) = of(Blocked, answer(made, C, 18))
    assert "19" in blocked.reason
    assert "record" not in blocked.reason
    effects = made.tick(BOUNDS.retry_ms)
    assert of(Blocked, effects) == of(WriteRecord, effects) == []
    assert made.blocked_by == blocked.reason, "all replicas have answered"


def test_an_entry_known_as_acknowledged_is_never_given_up():
    """Only one replica had it, and that is damaged. But a member was told that it is acknowledged."""
    made = recovery()
    answer(made, OWN, 18)
    answer(made, B, 18, acknowledged_before=19)
    effects = no_entries(made, answer(made, C, 17, had=20))
    assert of(Blocked, effects)
    assert of(WriteRecord, effects + made.tick(2 * GRACE)) == []
    assert made.last == 19


def test_two_replicas_of_a_lost_end_are_emptied():
    log = replace(LOG, ledgers=(LedgerStart(3, 10), LedgerStart(5, 20)), members=(OWN, B, C))
    made = LogRecovery(0, OWN, (OWN, D, b"\5" * 16), ZONES, 3, BOUNDS, 0)  # type: ignore[arg-type]
    made.claimed(EPOCH)
    made.record_read(log, 3)
    others = [replica for replica in made.replicas if replica not in log.members]
    sessions = [made.session_of(replica) for replica in others]
    for replica in others:
        made.opened(replica, Opened(0, made.session_of(replica), 0, EPOCH, 100, 0, ()))
    effects: list[WriterEffect] = []
    for member in log.members:
        runs = (HeldRun(3, 10, 20, 20), HeldRun(5, 20, 25, 25))
        effects += made.opened(member, Opened(0, made.session_of(member), 0, EPOCH, 10, 0, runs))
    dropped = [DropMember(replica, session) for replica, session in zip(others, sessions, strict=True)]
    assert of(DropMember, effects) == dropped
    assert members_opened(effects) == others


# Copies.


def test_a_complete_pair_waits_for_the_third_copy():
    made = recovery()
    answer(made, OWN, 20)
    answer(made, B, 20)
    effects = answer(made, C, 15)
    assert of(Send, effects) == [Send(C, 15, 19, Source.JOURNAL, BOUNDS.copy_window_bytes)]
    assert of(WriteRecord, effects + made.tick(GRACE - 1)) == []
    (write,) = of(WriteRecord, made.tick(GRACE))
    assert set(write.log.members) == {OWN, B}


def test_the_third_copy_ends_the_wait():
    made = recovery()
    for member, end in ((OWN, 20), (B, 20), (C, 15)):
        answer(made, member, end)
    assert of(WriteRecord, made.acknowledged(C, made.session_of(C), 5, 18)) == []
    (write,) = of(WriteRecord, made.acknowledged(C, made.session_of(C), 5, 19))
    assert set(write.log.members) == {OWN, B, C}


def copying() -> LogRecovery:
    """The own replica has entries up to 19, B up to 9 only, and C is silent."""
    made = recovery()
    answer(made, OWN, 20)
    answer(made, B, 10)
    assert of(Send, made.tick(GRACE)) == [Send(B, 10, 19, Source.JOURNAL, BOUNDS.copy_window_bytes)]
    made.tick(2 * GRACE)
    return made


def test_the_next_window_begins_behind_the_last_one():
    made = copying()
    assert made.sent(B, made.session_of(B) + 1, 12) == []
    assert made.acknowledged(B, made.session_of(B), 5, 12) == [], "it was sent more"
    assert made.sent(B, made.session_of(B), 14) == []
    assert made.acknowledged(B, made.session_of(B), 5, 13) == []
    assert made.acknowledged(B, made.session_of(B), 5, 14) == [
        Send(B, 15, 19, Source.JOURNAL, BOUNDS.copy_window_bytes)
    ]


def test_only_acknowledgements_of_this_session_count():
    made = copying()
    assert made.acknowledged(B, made.session_of(B) - 1, 5, 19) == []
    assert made.acknowledged(C, made.session_of(C), 5, 19) == [], "it has not answered"
    assert of(WriteRecord, made.acknowledged(B, made.session_of(B), 5, 19))


def test_entries_behind_a_closed_ledger_are_no_copies():
    """A replica has entries of the closed ledger behind its end. They are not those of the next one."""
    made = recovery(replace(LOG, ledgers=(LedgerStart(4, 10), LedgerStart(5, 20))))
    for member, runs in ((OWN, (HeldRun(4, 10, 20, 20), HeldRun(5, 20, 25, 25))), (B, (HeldRun(4, 10, 15, 15),))):
        made.opened(member, Opened(0, made.session_of(member), 0, EPOCH, 10, 0, runs))
    made.tick(GRACE)
    made.tick(2 * GRACE)
    made.sent(B, made.session_of(B), 24)
    assert made.acknowledged(B, made.session_of(B), 4, 24) == []
    assert of(WriteRecord, made.acknowledged(B, made.session_of(B), 5, 24))


def reading() -> tuple[LogRecovery, ReadEntries]:
    """The own replica lacks the entries 15 to 19, which B has."""
    made = recovery()
    answer(made, OWN, 15)
    (read,) = of(ReadEntries, answer(made, B, 20) + made.tick(GRACE))
    assert read == ReadEntries(B, Read(1, 0, 5, 15, 19, BOUNDS.copy_window_bytes))
    return made, read


def test_copies_are_stored_before_more_are_asked_for():
    made, _ = reading()
    assert late_entries(made, 15, 17) == [SendCopies(OWN, entries(15, 17))]
    assert answer(made, C, 20) == made.tick(2 * GRACE) == []
    assert of(ReadEntries, made.acknowledged(OWN, made.session_of(OWN), 5, 16)) == []
    (read,) = of(ReadEntries, made.acknowledged(OWN, made.session_of(OWN), 5, 17))
    assert (read.message.first, read.message.last) == (18, 19)


def test_copies_bring_the_truncation_point():
    made, _ = reading()
    later = tuple(replace(entry, header=entry.header._replace(truncated_before=12)) for entry in entries(15, 19))
    made.entries(1, Entries(1, 0, False, later))
    assert made.truncated_before == 12


def test_entries_that_arrive_too_late_are_not_copied():
    """The own replica has them by now, and the next ledger is about to be opened."""
    made, _ = reading()
    assert of(WriteRecord, answer(made, C, 20) + answer(made, OWN, 20))
    assert late_entries(made, 15, 19) == []


def test_a_late_answer_is_progress():
    made, _ = reading()
    made.tick(BOUNDS.stall_ms - 100)
    answer(made, C, 17)
    assert of(Blocked, made.tick(2 * BOUNDS.stall_ms - 101)) == []


def test_a_stalled_copy_names_who_lacks_entries():
    made = copying()
    (blocked,) = of(Blocked, made.tick(GRACE + BOUNDS.stall_ms))
    assert [member.hex()[:8] in blocked.reason for member in (OWN, B, C)] == [False, True, True]
    assert "19" in blocked.reason


# The next ledger.


def test_the_log_is_served_up_to_the_new_ledger():
    ledgers = (LedgerStart(3, 4), LedgerStart(4, 10), LedgerStart(5, 14))
    made = recovery(ContainerLog(3, LogState.OPEN, (OWN, B, C), ledgers, 4))
    runs = (HeldRun(3, 4, 10, 10), HeldRun(4, 10, 14, 14), HeldRun(5, 14, 20, 20))
    effects: list[WriterEffect] = []
    for member in (OWN, B, C):
        effects += made.opened(member, Opened(0, made.session_of(member), 0, EPOCH, 4, 0, runs))
    (write,) = of(WriteRecord, effects)
    assert write.log.ledgers == (*ledgers, LedgerStart(EPOCH, 20))
    assert made.record_written(4) == [Serve(write.log, 4, 4, 19)]
    assert made.step is RecoveryStep.SERVE
    assert made.tick(60_000) == made.record_written(5) == []


def test_a_write_whose_version_was_refused_serves_nothing():
    """The record is read first: it may be of another owner."""
    made = recovery()
    for member in (OWN, B, C):
        answer(made, member, 20)
    assert made.record_conflict() == [ReadRecord()]
    assert made.record_written(4) == []
    assert made.step is RecoveryStep.READ


def test_an_ended_link_is_not_dialled_behind_the_copies():
    made = recovery()
    answer(made, OWN, 20)
    answer(made, B, 20)
    made.link_lost(B)
    assert of(WriteRecord, made.tick(GRACE))
    assert made.tick(2 * GRACE) == made.tick(2 * GRACE + 1) == []


# The record and the answers that count.


def test_next_ledger_replaces_the_record_that_was_read_last():
    """An operator has changed it meanwhile. Under the former version the write would be refused for ever."""
    made = recovery()
    answer(made, OWN, 20)
    assert of(ReadRecord, made.tick(BOUNDS.retry_ms))
    made.record_read(replace(LOG, members=(OWN, B)), 4)
    answer(made, OWN, 20)
    (write,) = of(WriteRecord, answer(made, B, 20) + made.tick(BOUNDS.retry_ms + GRACE))
    assert write.version == 4


def test_changed_record_begins_the_grace_period_again():
    """Else it would end before a read quorum of the new members has answered."""
    made = recovery()
    answer(made, OWN, 18)
    assert of(ReadRecord, made.tick(BOUNDS.retry_ms))
    answer(made, B, 18)
    made.record_read(replace(LOG, members=(B, C)), 4)
    answer(made, OWN, 18)
    assert of(SendPulse, made.tick(BOUNDS.retry_ms + GRACE)) == []
    assert made.step is RecoveryStep.FENCE


def test_late_member_that_is_truncated_further_is_kept():
    """What it holds is of this log: told to begin with nothing, it would drop acknowledged entries."""
    made = copying()
    late = Opened(0, made.session_of(C), 0, EPOCH, 15, 0, (HeldRun(5, 15, 20, 20),))
    assert of(DropMember, made.opened(C, late)) == []
    assert made.truncated_before == 15


def test_answer_to_an_earlier_open_of_this_takeover_is_late():
    """The replica may have been told to begin with nothing since."""
    made = recovery()
    late = Opened(0, made.session_of(B), 0, EPOCH, 10, 0, (HeldRun(5, 10, 20, 20),))
    made.tick(BOUNDS.retry_ms)
    answer(made, OWN, 20)
    assert made.opened(B, late) == made.tick(BOUNDS.retry_ms + GRACE) == []
    assert made.step is RecoveryStep.FENCE


# What is ignored in a later step.


def writing() -> LogRecovery:
    """A takeover that writes its ledger with two members; the outcome of the first attempt is not known."""
    made = recovery()
    answer(made, OWN, 20)
    answer(made, B, 20)
    assert of(WriteRecord, made.tick(GRACE))
    assert made.step is RecoveryStep.OPEN
    assert made.request_unknown() == []
    return made


def test_a_ledger_that_may_be_written_is_not_changed():
    """The first write may have arrived: only the same record may be written again."""
    made = writing()
    assert answer(made, C, 20) == []
    assert made.acknowledged(C, made.session_of(C), 5, 19) == []
    assert made.link_lost(B) == made.want((OWN, B, D), ZONES) == []
    (write,) = of(WriteRecord, made.tick(GRACE + BOUNDS.retry_ms))
    assert write.log.members == (OWN, B)


def test_a_record_that_is_read_late_changes_no_ledger():
    made = writing()
    assert made.record_read(LOG, 9) == []
    assert made.step is RecoveryStep.OPEN


def test_only_a_promise_fences_a_takeover():
    """The numbers of other refusals are those of entries and questions, which are higher than epochs."""
    made = recovery()
    for code in (NACK_GAP, NACK_PROTOCOL, NACK_STOPPING):
        assert made.refused(B, Nack(0, made.session_of(B), code, 999)) == []
    assert made.refused(B, Nack(0, 0, NACK_PROTOCOL, 1)) == [], "nothing was asked"
    assert not made.has_failed


def test_only_a_refused_question_is_asked_elsewhere():
    made = recovery()
    answer(made, OWN, 15)
    answer(made, C, 20)
    (read,) = of(ReadEntries, answer(made, B, 20))
    request = read.message.request
    assert made.refused(read.member, Nack(0, 0, NACK_STOPPING, request)) == []
    (other,) = of(ReadEntries, made.refused(read.member, Nack(0, 0, NACK_PROTOCOL, request)))
    assert other.member != read.member


def test_silent_replica_is_opened_in_each_pause_only():
    made = recovery()
    answer(made, OWN, 20)
    made.link_lost(C)
    assert made.tick(1) == []


def test_each_answer_waits_no_longer_for_others():
    made = LogRecovery(0, OWN, (OWN, B, D), ZONES, 3, BOUNDS, 0)
    made.claimed(EPOCH)
    made.record_read(LOG, 3)
    answer(made, OWN, 20)
    answer(made, B, 20)
    made.tick(GRACE - 1)
    answer(made, D, 20)
    assert made.step is RecoveryStep.FENCE
    made.tick(GRACE)
    assert made.step is not RecoveryStep.FENCE


def test_replicas_that_lag_have_a_time_of_their_own():
    """From the moment on when it is known what they lack."""
    made = recovery()
    answer(made, OWN, 20)
    answer(made, B, 20)
    made.tick(GRACE - 1)
    (send,) = of(Send, answer(made, C, 18))
    assert (send.member, send.first) == (C, 18)
    assert made.tick(GRACE) == []
    (write,) = of(WriteRecord, made.tick(2 * GRACE - 1))
    assert write.log.members == (OWN, B)


def test_a_second_attempt_forgets_what_replicas_had():
    """B has lost entries since: at the end they are on fewer members than the takeover counted."""
    made = recovery()
    answer(made, OWN, 18)
    answer(made, B, 20)
    made.tick(GRACE)
    now_ms = GRACE + BOUNDS.stall_ms + 2 * BOUNDS.retry_ms
    made.tick(now_ms - 1)
    made.tick(now_ms)
    assert made.step is RecoveryStep.FENCE
    answer(made, OWN, 20)
    answer(made, B, 15)
    effects = made.tick(now_ms + GRACE)
    assert of(WriteRecord, effects) == []
    assert [(effect.member, effect.first) for effect in of(Send, effects)] == [(B, 15)]


def test_a_blocked_takeover_reads_the_record_once_in_a_pause():
    made = recovery()
    answer(made, OWN, 20)
    made.tick(BOUNDS.retry_ms)
    made.tick(2 * BOUNDS.retry_ms)
    assert made.blocked_by is not None
    assert of(ReadRecord, made.tick(3 * BOUNDS.retry_ms)) == [], "the request of the former pause is under way"


def test_entries_that_were_lost_on_their_way_are_asked_for_again():
    made = recovery()
    answer(made, OWN, 15)
    answer(made, C, 15)
    (read,) = of(ReadEntries, answer(made, B, 20))
    request = read.message.request
    assert of(SendCopies, made.entries(request, Entries(request, 0, False, entries(15, 19))))
    made.link_lost(OWN)
    made.tick(1)
    (again,) = of(ReadEntries, answer(made, OWN, 15))
    assert (again.member, again.message.first) == (B, 15)


def test_a_lost_link_is_opened_once():
    made = recovery()
    answer(made, OWN, 15)
    answer(made, C, 15)
    answer(made, B, 20)
    made.tick(GRACE)
    made.link_lost(B)
    retry_ms = made._retry_at_ms
    assert B in members_opened(made.tick(retry_ms))
    assert members_opened(made.tick(retry_ms + 1)) == []
