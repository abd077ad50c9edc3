"""What the owner of a log sends to its members, in full, and when it repeats it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ledger_writers import BOUNDS, EPOCH, LOG, OWN, SIZE, ZONES, B, C, D, ack, append, of, open_with, whole, writer

from headrace.codec.replica_messages import (
    NACK_DISK_FULL,
    NACK_FENCED,
    NACK_GAP,
    NACK_STOPPING,
    HeldRun,
    Nack,
    Open,
    Opened,
)
from headrace.model.container_logs import LedgerStart
from headrace.model.replica_placement import Placement
from headrace.replication.bounds import REOPEN_FIRST_MS, REOPEN_MAX_MS
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
    WriteRecord,
)
from headrace.replication.ensemble_change import ChangePhase
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.member_states import MemberState


def opens(made: LedgerWriter, replica: object, until_ms: int, from_ms: int = 0) -> list[int]:
    """When a replica is opened."""
    return [
        now_ms
        for now_ms in range(from_ms, until_ms + 1, 10)
        if replica in [effect.member for effect in of(OpenMember, made.tick(now_ms))]
    ]


def test_each_member_is_opened_for_this_ledger():
    ledgers = (LedgerStart(3, 2), LedgerStart(EPOCH, 10))
    made = LedgerWriter(9, OWN, replace(LOG, ledgers=ledgers), 3, 4, 20, BOUNDS, 0)
    assert made.start() == [
        OpenMember(member, Open(9, session, EPOCH, 4, ledgers)) for member, session in ((OWN, 21), (B, 22), (C, 23))
    ]
    assert [made.session_of(member) for member in (OWN, B, C, D)] == [21, 22, 23, 0]
    assert made.tick(0) == [], "it does not know yet where copies are wanted"


def test_a_silent_member_is_opened_ever_less_often():
    assert opens(writer(streaming=(OWN, B)), C, 4_000) == [100, 200, 400, 800, 1_600, 2_600, 3_600]


@pytest.mark.parametrize(
    ("code", "wait_ms"), [(NACK_DISK_FULL, REOPEN_MAX_MS), (NACK_STOPPING, REOPEN_FIRST_MS), (None, REOPEN_FIRST_MS)]
)
def test_a_lost_member_is_opened_after_a_pause(code: int | None, wait_ms: int):
    made = writer()
    made.tick(1_000)
    made.link_lost(B) if code is None else made.refused(B, Nack(0, made.session_of(B), code, 0))
    assert made.member_states()[B] is MemberState.DOWN
    assert opens(made, B, 2_000, 1_000)[0] == 1_000 + wait_ms


def test_a_member_that_answered_is_opened_soon_again():
    """What was a long pause before it answered is none for the next time."""
    made = writer(streaming=(OWN, B))
    opens(made, C, 3_000)
    open_with(made, C, 10)
    made.link_lost(C)
    assert opens(made, C, 3_300, 3_000) == [3_050, 3_150, 3_250]


def test_a_refused_member_is_not_opened_again():
    """It would go on as if it had never denied what it acknowledged."""
    made = writer()
    append(made)
    ack(made, B, 10)
    made.link_lost(B)
    made.tick(50)
    (suspect,) = of(Suspect, open_with(made, B, 10))
    assert suspect.member == B
    assert "10" in suspect.reason
    made.link_lost(B)
    assert opens(made, B, 5_000) == []
    assert made.positions[B] == 10, "a quorum relied on it"


def test_a_replica_in_the_place_of_another_is_not_opened():
    made = writer()
    append(made)
    ack(made, B, 10)
    assert made.other_replica(B) == []
    assert made.member_states()[B] is MemberState.REFUSED
    assert of(Acknowledge, ack(made, OWN, 10)) == [Acknowledge(10)], "what B holds is durable"
    assert opens(made, B, 5_000) == []


def test_events_of_unknown_replicas_change_nothing():
    made = writer()
    states = dict(made.member_states())
    assert made.opened(D, Opened(0, 0, 0, EPOCH, 10, 0, ())) == []
    assert made.acknowledged(D, 0, EPOCH, 10) == []
    assert made.sent(D, 0, 10) == made.link_lost(D) == made.other_replica(D) == []
    assert made.refused(D, Nack(0, 0, NACK_GAP, 10)) == []
    made.congested(D)
    assert made.member_states() == states
    assert D not in made.positions


def test_a_repeated_answer_to_an_open_is_ignored():
    """The position that it tells is an old one by now."""
    made = writer()
    append(made, 2)
    ack(made, B, 11)
    assert open_with(made, B, 10) == []
    assert made.positions[B] == 11


def test_messages_of_an_earlier_session_are_ignored():
    made = writer()
    append(made, 2)
    ack(made, OWN, 11)
    earlier = made.session_of(B)
    made.link_lost(B)
    made.tick(50)
    (window,) = of(Send, open_with(made, B, 10))
    assert made.acknowledged(B, earlier, EPOCH, 11) == []
    assert made.sent(B, earlier, 11) == []
    assert made.refused(B, Nack(0, earlier, NACK_DISK_FULL, 0)) == []
    assert made.positions[B] == 9
    assert made.member_states()[B] is MemberState.CATCHING_UP
    assert (window.first, window.last) == (10, 11)


def test_an_ended_writer_does_nothing_more():
    made = writer()
    append(made)
    made.link_lost(C)
    made.tick(1)
    made.tick(BOUNDS.silence_ms)
    (failed,) = of(Fail, made.refused(B, Nack(0, 0, NACK_FENCED, EPOCH + 1)))
    assert str(EPOCH + 1) in failed.reason
    assert B.hex()[:8] in failed.reason
    assert ack(made, B, 10) == ack(made, OWN, 10) == open_with(made, C, 10) == []
    assert made.record_written(4) == made.record_conflict() == made.record_read(made.log, 4) == []
    states = dict(made.member_states())
    assert made.link_lost(B) == made.other_replica(B) == made.tick(60_000) == []
    assert made.member_states() == states
    assert made.final_record is None


def test_each_end_says_why():
    made = changing()
    made.record_conflict()
    other_ledger = made.record_read(replace(LOG, ledgers=(LedgerStart(EPOCH + 1, 13),)), 4)
    for effects in (writer().ended(), writer().claim_lost(), other_ledger):
        (failed,) = of(Fail, effects)
        assert isinstance(failed.reason, str)
        assert failed.reason


def test_the_own_promise_ends_no_writer():
    made = writer()
    assert made.refused(B, Nack(0, 0, NACK_FENCED, EPOCH)) == []
    assert not made.has_failed


def test_a_gap_is_filled_from_the_entry_that_is_missing():
    made = writer()
    append(made, 4)
    ack(made, OWN, 13)
    ack(made, B, 10)
    (window,) = of(Send, made.refused(B, Nack(0, made.session_of(B), NACK_GAP, 12)))
    assert (window.first, window.last, window.source) == (12, 13, Source.JOURNAL)


def test_a_gap_while_it_is_opened_loses_the_member():
    made = writer(streaming=(OWN, B))
    assert made.refused(C, Nack(0, made.session_of(C), NACK_GAP, 12)) == []
    assert made.member_states()[C] is MemberState.DOWN


def test_what_no_replica_was_sent_is_not_acknowledged():
    """A position beyond the end is of no entry of this owner."""
    made = writer()
    append(made)
    ack(made, B, 50)
    assert ack(made, C, 50)[0] == Acknowledge(10)
    assert made.acknowledged_entry == 10


def two_ledgers() -> LedgerWriter:
    """The ledger of epoch 3 has the entries 2 to 9."""
    log = replace(LOG, ledgers=(LedgerStart(3, 2), LedgerStart(EPOCH, 10)), truncated_before=2)
    made = LedgerWriter(0, OWN, log, 3, 2, 0, BOUNDS, 0)
    made.place(whole())
    made.start()
    return made


def test_entries_behind_the_end_of_a_closed_ledger_do_not_count():
    """An earlier owner sent them, and no quorum had them. The numbers are those of other entries now."""
    made = two_ledgers()
    for member in (OWN, B):
        made.opened(member, Opened(0, made.session_of(member), 0, EPOCH, 2, 0, (HeldRun(3, 2, 6, 6),)))
    append(made, 3)
    for member in (OWN, B):
        assert of(Acknowledge, made.acknowledged(member, made.session_of(member), 3, 12)) == []
        assert made.positions[member] == 9
        assert of(Acknowledge, made.acknowledged(member, made.session_of(member), 4, 12)) == []
    assert made.acknowledged_entry == 9


def test_the_own_memory_is_released_once():
    made = writer(streaming=())
    assert of(Release, open_with(made, OWN, 10)) == [], "no memory has what an earlier owner appended"
    append(made)
    assert of(Release, ack(made, OWN, 10)) == [Release(10)]
    made.link_lost(OWN)
    made.tick(50)
    assert of(Release, open_with(made, OWN, 11)) == []


# Stalls.


def test_a_stall_counts_from_the_last_progress():
    made = writer()
    append(made, 2)
    made.tick(100)
    ack(made, B, 10)
    assert opens(made, B, 99 + BOUNDS.stall_ms, 200) == []
    assert opens(made, B, 100 + BOUNDS.stall_ms, 100 + BOUNDS.stall_ms) == [100 + BOUNDS.stall_ms]


def test_a_repeated_acknowledgement_is_no_progress():
    made = writer()
    append(made, 2)
    ack(made, B, 10)
    made.tick(100)
    assert ack(made, B, 10) == []
    assert opens(made, B, BOUNDS.stall_ms, BOUNDS.stall_ms) == [BOUNDS.stall_ms]


def test_a_stall_of_a_window_counts_from_its_open():
    made = writer(streaming=(OWN, B))
    append(made, 2)
    ack(made, OWN, 11)
    made.tick(100)
    assert of(Send, open_with(made, C, 10))
    made.sent(C, made.session_of(C), 11)
    assert opens(made, C, 99 + BOUNDS.stall_ms, 110) == []
    assert opens(made, C, 100 + BOUNDS.stall_ms, 100 + BOUNDS.stall_ms) == [100 + BOUNDS.stall_ms]


def test_a_congested_member_that_has_all_gets_the_next_window():
    """Nothing that it could acknowledge is on its way: the next tick feeds it."""
    made = writer()
    made.congested(B)
    append(made)
    ack(made, OWN, 10)
    assert Send(B, 10, 10, Source.JOURNAL, BOUNDS.catch_up_window_bytes) in made.tick(700)
    made.sent(B, made.session_of(B), 10)
    assert opens(made, B, 699 + BOUNDS.stall_ms, 710) == []
    assert opens(made, B, 700 + BOUNDS.stall_ms, 700 + BOUNDS.stall_ms) == [700 + BOUNDS.stall_ms]


def test_what_is_sent_again_has_time_to_arrive():
    made = writer()
    append(made)
    made.tick(BOUNDS.stall_ms - 100)
    assert of(Send, made.refused(B, Nack(0, made.session_of(B), NACK_GAP, 10)))
    assert opens(made, B, 2 * BOUNDS.stall_ms - 101, BOUNDS.stall_ms) == []


@pytest.mark.parametrize(("entries", "state"), [(2, MemberState.STREAMING), (3, MemberState.CATCHING_UP)])
def test_a_peer_streams_within_its_window_only(entries: int, state: MemberState):
    made = writer(replace(BOUNDS, link_window_bytes=2 * SIZE))
    append(made, entries)
    assert made.member_states()[B] is state
    assert made.member_states()[OWN] is MemberState.STREAMING, "the own replica has no link"


# Pulses and the truncation point.


def test_a_pulse_is_not_repeated_before_its_time():
    made = writer()
    for entry, now_ms in ((10, 100), (11, 100 + BOUNDS.pulse_ms - 1), (12, 100 + BOUNDS.pulse_ms)):
        append(made)
        for member in (OWN, B, C):
            ack(made, member, entry)
        pulses = of(SendPulse, made.tick(now_ms))
        assert [pulse.acknowledged_entry for pulse in pulses] == ([] if entry == 11 else 3 * [entry])


def test_a_new_log_has_nothing_to_tell():
    log = replace(LOG, ledgers=(LedgerStart(EPOCH, 0),), truncated_before=0)
    made = LedgerWriter(0, OWN, log, 3, 0, 0, BOUNDS, 0)
    made.place(whole())
    made.start()
    for member in (OWN, B, C):
        made.opened(member, Opened(0, made.session_of(member), 0, EPOCH, 0, 0, ()))
    assert made.tick(BOUNDS.pulse_ms) == []


def with_acknowledged(entries: int) -> LedgerWriter:
    made = writer(streaming=(OWN, B))
    append(made, entries)
    for member in (OWN, B):
        ack(made, member, 9 + entries)
    return made


def test_only_acknowledged_entries_are_truncated():
    made = with_acknowledged(2)
    append(made)
    with pytest.raises(AssertionError):
        made.truncate(13)
    made.truncate(12)
    made.truncate(11)
    assert made.truncated_before == 12, "it never falls"


def test_the_truncation_point_is_told_as_it_is():
    """One entry too far, and the members forget an entry that tier 2 lacks."""
    made = with_acknowledged(3)
    made.truncate(11)
    assert of(SendPulse, made.tick(BOUNDS.pulse_ms)) == [SendPulse(OWN, 12, 11), SendPulse(B, 12, 11)]
    made.link_lost(B)
    (opened,) = of(OpenMember, made.tick(BOUNDS.pulse_ms + REOPEN_FIRST_MS))
    assert (opened.member, opened.message.truncated_before) == (B, 11)


def test_a_truncation_alone_is_told():
    """Without it the members keep the files of a log to which nothing is appended."""
    made = with_acknowledged(3)
    made.tick(BOUNDS.pulse_ms)
    made.truncate(11)
    assert of(SendPulse, made.tick(2 * BOUNDS.pulse_ms)) == [SendPulse(OWN, 12, 11), SendPulse(B, 12, 11)]


def test_a_member_that_comes_back_is_told_again():
    """Its process may have started again: what it knew as acknowledged was not durable."""
    made = with_acknowledged(3)
    assert SendPulse(B, 12, 10) in made.tick(BOUNDS.pulse_ms)
    made.link_lost(B)
    made.tick(BOUNDS.pulse_ms + REOPEN_FIRST_MS)
    open_with(made, B, 13)
    assert SendPulse(B, 12, 10) in made.tick(3 * BOUNDS.pulse_ms)


def test_a_window_of_a_lost_link_holds_up_no_later_one():
    made = with_acknowledged(3)
    for attempt in (1, 2):
        (window,) = of(Send, open_with(made, C, 10))
        assert (window.first, window.source) == (10, Source.JOURNAL)
        made.link_lost(C)
        made.tick(attempt * REOPEN_MAX_MS)


# Silence.


def test_a_stall_is_no_long_silence():
    """A member whose link stalls once is opened again. It leaves the ensemble only if it stays away."""
    made = writer()
    stalls_ms = 2 * BOUNDS.silence_ms
    made.tick(stalls_ms)
    append(made)
    for member in (OWN, C):
        ack(made, member, 10)
    effects = made.tick(stalls_ms + BOUNDS.stall_ms)
    assert [effect.member for effect in of(OpenMember, effects)] == [B]
    assert of(WriteRecord, effects + made.tick(stalls_ms + BOUNDS.stall_ms + 1)) == []
    assert made.change_phase is ChangePhase.NONE


def test_a_member_that_catches_up_is_not_silent():
    made = writer()
    append(made, 3)
    for member in (OWN, B, C):
        ack(made, member, 12)
    made.link_lost(B)
    made.tick(1)
    append(made)
    for member in (OWN, C):
        ack(made, member, 13)
    made.tick(BOUNDS.silence_ms - 1)
    open_with(made, B, 13)
    assert made.member_states()[B] is MemberState.CATCHING_UP
    assert of(WriteRecord, made.tick(BOUNDS.silence_ms + 1)) == []
    assert made.change_phase is ChangePhase.NONE


def test_a_member_at_the_truncation_point_lacks_nothing_before():
    made = with_acknowledged(3)
    made.truncate(11)
    assert open_with(made, C, 11) == [Send(C, 11, 12, Source.JOURNAL, BOUNDS.catch_up_window_bytes)]


@pytest.mark.parametrize("truncated_before", [11, 12])
def test_a_member_learns_of_entries_that_are_truncated(truncated_before: int):
    """It has to begin again behind them: the owner's journal lacks them."""
    made = with_acknowledged(3)
    assert of(Send, open_with(made, C, 10))
    made.truncate(truncated_before)
    assert made.sent(C, made.session_of(C), 9) == [
        SendPulse(C, 12, truncated_before),
        Send(C, truncated_before, 12, Source.JOURNAL, BOUNDS.catch_up_window_bytes),
    ]


@pytest.mark.parametrize(("truncated_before", "is_taken"), [(12, True), (13, False)])
def test_a_member_truncated_behind_the_end_is_refused(truncated_before: int, is_taken: bool):
    made = with_acknowledged(2)
    effects = made.opened(C, Opened(0, made.session_of(C), 0, EPOCH, truncated_before, 0, ()))
    assert [effect.member for effect in of(Suspect, effects)] == ([] if is_taken else [C])
    assert all("13" in effect.reason for effect in of(Suspect, effects))
    assert made.positions.get(C) == (11 if is_taken else None)


# Changes of the ensemble.


def changing() -> LedgerWriter:
    """The owner replaces C by D; the write of the record is under way. Entries 10 to 12 are everywhere."""
    made = writer()
    append(made, 3)
    for member in (OWN, B, C):
        ack(made, member, 12)
    made.truncate(11)
    made.place(Placement({"a": OWN, "b": B, "c": D}, ZONES))
    made.tick(100)
    open_with(made, D, 13)
    (write,) = of(WriteRecord, made.tick(200))
    assert write == WriteRecord(LOG.with_members((OWN, B, D), 11), 3, EPOCH)
    return made


def test_a_quorum_of_the_old_members_alone_is_not_enough():
    """The new record may be in force already: a recovery asks its members, and finds no quorum of C's entries."""
    made = changing()
    append(made)
    ack(made, OWN, 13)
    assert of(Acknowledge, ack(made, C, 13)) == []
    assert of(Acknowledge, ack(made, D, 13)) == [Acknowledge(13)]


def test_a_quorum_of_the_new_members_alone_is_not_enough():
    made = changing()
    append(made)
    ack(made, OWN, 13)
    assert of(Acknowledge, ack(made, D, 13)) == []
    assert of(Acknowledge, ack(made, B, 13)) == [Acknowledge(13)]


def test_the_record_that_is_read_decides_the_members():
    made = changing()
    session = made.session_of(C)
    made.record_conflict()
    effects = made.record_read(LOG.with_members((OWN, B, D), 11), 4)
    assert of(DropMember, effects) == [DropMember(C, session)]
    assert set(made.member_states()) == {OWN, B, D}


def test_a_closed_ledger_in_the_record_is_no_other_owner():
    made = two_ledgers()
    log, runs = made.log, (HeldRun(3, 2, 10, 10),)
    for member in (OWN, B):
        made.opened(member, Opened(0, made.session_of(member), 0, EPOCH, 2, 0, runs))
    assert of(WriteRecord, made.tick(BOUNDS.silence_ms))
    made.record_conflict()
    assert of(Fail, made.record_read(log.with_members((OWN, B), 2), 4)) == []
    assert made.log.members == (OWN, B)


def test_a_learner_is_kept_while_its_change_may_arrive():
    """Placement has changed its mind, but the record may name D already, and then its copy counts."""
    made = changing()
    made.place(whole())
    made.record_conflict()
    assert of(DropMember, made.record_read(made.log, 3)) == []
    assert of(DropMember, made.tick(300)) == []
    assert D in made.positions


def test_a_learner_whose_change_may_arrive_is_not_emptied():
    made = changing()
    made.link_lost(D)
    made.tick(300)
    effects = made.opened(D, Opened(0, made.session_of(D), 0, EPOCH, 13, 0, ()))
    assert of(DropMember, effects) == of(Suspect, effects) == []
    assert made.positions[D] == 12


def test_a_learner_that_never_answered_is_dropped():
    made = writer()
    made.place(Placement({"a": OWN, "b": B, "c": D}, ZONES))
    made.tick(100)
    made.place(whole())
    assert of(DropMember, made.tick(110)) == [DropMember(D, 4)]


@pytest.mark.parametrize(("lacks", "written"), [(0, (OWN, B, D)), (1, (OWN, B, C))])
def test_a_change_that_holds_up_nothing_is_not_written_back(lacks: int, written: tuple[object, ...]):
    made = changing()
    append(made)
    for member in (OWN, C):
        ack(made, member, 13)
    ack(made, B, 13 - lacks)
    made.record_unknown()
    (write,) = of(WriteRecord, made.tick(200 + BOUNDS.change_patience_ms))
    assert write.log.members == written
    assert write.log.truncated_before == 11


@pytest.mark.parametrize(("lag", "is_kept"), [(2, True), (3, False)])
def test_a_member_that_lacks_too_much_is_removed(lag: int, is_kept: bool):
    made = writer(replace(BOUNDS, lag_bytes=2 * SIZE))
    append(made, 10)
    for member, last in ((OWN, 17), (B, 17), (C, 17 - lag)):
        ack(made, member, last)
    writes = of(WriteRecord, made.tick(10))
    assert [write.log.members for write in writes] == ([] if is_kept else [(OWN, B)]), "entries 18 and 19 are no lag"


@pytest.mark.parametrize(("lag", "joins"), [(2, True), (3, False)])
def test_a_learner_joins_when_it_lacks_little(lag: int, joins: bool):
    made = writer(replace(BOUNDS, join_lag_bytes=2 * SIZE), replace(LOG, members=(OWN, B)), (OWN, B))
    append(made, 10)
    for member in (OWN, B):
        ack(made, member, 17)
    made.tick(100)
    open_with(made, C, 18 - lag)
    made.tick(200)
    assert made.wanted_ensemble == (LOG.ensemble if joins else None)


def test_a_learner_without_a_link_does_not_join():
    made = writer(log=replace(LOG, members=(OWN, B)), streaming=(OWN, B))
    made.tick(100)
    open_with(made, C, 10)
    made.link_lost(C)
    made.tick(110)
    assert made.wanted_ensemble is None


def test_a_learner_without_the_closed_ledgers_does_not_join():
    log = replace(LOG, members=(OWN, B), ledgers=(LedgerStart(3, 2), LedgerStart(EPOCH, 10)), truncated_before=2)
    made = LedgerWriter(0, OWN, log, 3, 2, 0, BOUNDS, 0)
    made.place(whole())
    made.start()
    for member, end in ((OWN, 10), (B, 10), (C, 9)):
        made.tick(0)
        made.opened(member, Opened(0, made.session_of(member), 0, EPOCH, 2, 0, (HeldRun(3, 2, end, end),)))
    made.tick(10)
    assert made.wanted_ensemble is None
    made.acknowledged(C, made.session_of(C), 3, 9)
    made.tick(20)
    assert made.wanted_ensemble == LOG.ensemble


def test_a_member_that_answers_is_never_silent():
    made = writer(replace(BOUNDS, silence_ms=1, lag_bytes=0))
    made.tick(60_000)
    assert made.wanted_ensemble is None


def test_silence_counts_from_when_a_member_was_fed_last():
    """Also if its link comes and goes, but it never answers."""
    made = writer()
    for now_ms in range(100, BOUNDS.silence_ms + 100, 100):
        made.tick(now_ms)
        made.link_lost(C)
        assert made.wanted_ensemble is None
    made.tick(BOUNDS.silence_ms + 100)
    assert made.wanted_ensemble is not None
    assert C not in made.wanted_ensemble.members


def test_another_replica_is_silent_from_its_answer_on():
    made = writer()
    made.tick(5_000)
    made.other_replica(C)
    made.tick(4_999 + BOUNDS.silence_ms)
    assert made.wanted_ensemble is None
    made.tick(5_000 + BOUNDS.silence_ms)
    assert made.wanted_ensemble is not None


def test_a_member_that_never_answered_lacks_nothing_known():
    made = writer(replace(BOUNDS, lag_bytes=0), streaming=(OWN, B))
    append(made)
    for member in (OWN, B):
        ack(made, member, 10)
    made.tick(BOUNDS.silence_ms - 1)
    assert made.wanted_ensemble is None
    made.tick(BOUNDS.silence_ms)
    assert made.wanted_ensemble is not None


def test_a_log_that_failed_or_is_not_closed_has_no_final_record():
    made = writer()
    assert made.final_record is None
    made.close()
    assert made.final_record is not None
    made.claim_lost()
    assert made.final_record is None


def test_a_refused_member_acknowledges_nothing():
    """Another replica has its place. What arrives over the former link says nothing about that one."""
    made = writer()
    append(made)
    made.other_replica(B)
    assert ack(made, B, 10) == []
    assert made.positions[B] == 9


def test_a_window_that_was_not_asked_for_changes_nothing():
    made = writer()
    assert made.sent(B, made.session_of(B), 12) == []
    assert made.member_states()[B] is MemberState.STREAMING


def test_marks_of_truncated_entries_are_forgotten():
    made = writer()
    append(made, 50)
    for replica in (OWN, B):
        ack(made, replica, 59)
    made.truncate(58)
    assert len(made._sizes._entries) == 2


def test_a_failed_writer_ignores_the_record():
    made = writer()
    made.place(Placement({"a": OWN, "b": B}, ZONES, frozenset({C})))
    assert of(WriteRecord, made.tick(1))
    made.record_conflict()
    made.claim_lost()
    assert made.record_read(LOG.with_members((OWN, B), 10), 9) == []
    assert made.log == LOG


def test_a_member_in_the_place_of_another_stays_closed():
    """It was sent entries that it never acknowledged: that is no reason to open it again."""
    made = writer()
    append(made)
    made.other_replica(B)
    assert opens(made, B, 3 * BOUNDS.stall_ms) == []


def test_a_member_that_acknowledges_nothing_is_opened_again():
    """Also while entries are appended all the time: each of them is sent, and none of them is progress."""
    made = writer()
    found = []
    for now_ms in range(0, 2 * BOUNDS.stall_ms, 100):
        append(made)
        found += [now_ms for effect in of(OpenMember, made.tick(now_ms)) if effect.member == B]
        ack(made, OWN, made.next_entry - 1)
        ack(made, C, made.next_entry - 1)
        if found:
            break
    assert found == [BOUNDS.stall_ms]
