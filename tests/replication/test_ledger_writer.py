"""The owner: acknowledgements by quorums, members that catch up, changes of the ensemble under the joint rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ledger_writers import BOUNDS, EPOCH, LOG, OWN, SIZE, ZONES, B, C, D, ack, append, of, open_with, whole, writer

from headrace.codec.replica_messages import NACK_FENCED, HeldRun, Nack, Opened
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState
from headrace.model.replica_placement import Placement
from headrace.replication.effects import (
    Acknowledge,
    DropMember,
    Fail,
    OpenMember,
    ReadRecord,
    Release,
    Send,
    SendPulse,
    Source,
    Suspect,
    WriteRecord,
    WriterEffect,
)
from headrace.replication.ensemble_change import ChangePhase
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.member_states import MemberState


def test_entry_is_sent_to_every_streaming_member():
    made = writer(streaming=(OWN, B))
    entry, effects = made.append(SIZE)
    assert entry == 10
    assert effects == [Send(member, 10, 10, Source.MEMORY, 0) for member in (OWN, B)]


def test_entry_is_acknowledged_when_two_members_have_it():
    made = writer()
    append(made, 2)
    assert of(Acknowledge, ack(made, B, 11)) == []
    assert of(Acknowledge, ack(made, C, 10)) == [Acknowledge(10)]
    assert of(Acknowledge, ack(made, C, 11)) == [Acknowledge(11)]
    assert made.acknowledged_entry == 11


def test_memory_is_released_by_the_own_journal_alone():
    made = writer()
    append(made)
    assert of(Release, ack(made, B, 10) + ack(made, C, 10)) == []
    assert of(Release, ack(made, OWN, 10)) == [Release(10)]


def test_member_that_comes_back_gets_all_that_it_lacks():
    made = writer()
    made.link_lost(B)
    append(made, 3)
    made.tick(1000)
    assert of(Send, open_with(made, B, 9)) == [Send(B, 10, 12, Source.MEMORY, 0)]


def test_position_counts_while_its_link_is_down():
    made = writer()
    append(made)
    ack(made, B, 10)
    made.link_lost(B)
    assert of(Acknowledge, ack(made, OWN, 10)) == [Acknowledge(10)]


def test_acknowledgement_of_an_earlier_session_is_ignored():
    made = writer()
    append(made)
    earlier = made.session_of(B)
    made.link_lost(B)
    made.tick(1000)
    assert made.acknowledged(B, earlier, EPOCH, 10) == []
    assert made.positions[B] == 9


def test_member_that_has_not_answered_yet_is_not_removed():
    """After a takeover the members answer one after the other."""
    made = writer(streaming=(OWN, B))
    append(made)
    ack(made, OWN, 10)
    ack(made, B, 10)
    made.tick(50)
    assert of(WriteRecord, made.tick(100)) == []
    assert made.change_phase is ChangePhase.NONE
    open_with(made, C, 10)
    assert made.log.members == (OWN, B, C)


@pytest.mark.parametrize("appended_meanwhile", [0, 1])
def test_member_that_acknowledges_nothing_is_opened_again(appended_meanwhile: int):
    """New entries are no sign of life."""
    made = writer()
    append(made)
    made.tick(BOUNDS.stall_ms // 2)
    append(made, appended_meanwhile)
    session = made.session_of(B)
    assert of(OpenMember, made.tick(BOUNDS.stall_ms - 1)) == []
    assert B in [effect.member for effect in of(OpenMember, made.tick(BOUNDS.stall_ms))]
    assert made.session_of(B) > session


def test_higher_promise_ends_the_writer():
    made = writer()
    (failed,) = made.refused(B, Nack(0, 0, NACK_FENCED, 6))
    assert isinstance(failed, Fail)
    assert made.tick(10_000) == ack(made, C, 10) == made.claim_lost() == []


def test_promise_of_an_earlier_writer_does_not():
    made = writer()
    assert of(Fail, made.refused(B, Nack(0, 0, NACK_FENCED, 4))) == []


def test_member_that_denies_what_it_had_is_refused():
    made = writer()
    append(made, 2)
    ack(made, B, 11)
    made.link_lost(B)
    made.tick(1000)
    assert of(Suspect, open_with(made, B, 11))
    assert made.member_states()[B] is MemberState.REFUSED


def test_damaged_member_gets_the_entries_again():
    made = writer()
    append(made, 2)
    ack(made, B, 11)
    ack(made, OWN, 11)
    made.link_lost(B)
    made.tick(1000)
    runs = (HeldRun(EPOCH, 10, 11, 12),)
    effects = made.opened(B, Opened(0, made.session_of(B), 0, EPOCH, 10, 0, runs))
    assert of(Suspect, effects) == []
    assert [effect.first for effect in of(Send, effects)] == [11]


def silent_third(made: LedgerWriter) -> list[WriterEffect]:
    """C is silent for so long that it is removed from the ensemble."""
    made.link_lost(C)
    return made.tick(1) + made.tick(BOUNDS.silence_ms)


def test_silent_member_is_removed_with_one_write():
    made = writer()
    (write,) = of(WriteRecord, silent_third(made))
    assert (write.log.members, write.version, write.claim_epoch) == ((OWN, B), 3, EPOCH)
    assert of(DropMember, made.record_written(4)) == []  # it is wanted: from now on a learner
    assert made.log.members == (OWN, B)
    assert made.change_phase is ChangePhase.NONE


def test_change_waits_until_the_new_ensemble_has_caught_up():
    made = writer()
    append(made)
    ack(made, OWN, 10)
    ack(made, C, 10)
    made.place(replace(whole(), destroyed=frozenset([C])))
    assert of(WriteRecord, made.tick(1)) == []
    assert made.change_phase is ChangePhase.WAITING
    assert of(WriteRecord, ack(made, B, 10))


def test_both_ensembles_count_until_the_outcome_is_known():
    made = writer()
    silent_third(made)
    append(made)
    made.record_unknown()
    ack(made, OWN, 10)
    assert made.acknowledged_entry == 9
    assert of(Acknowledge, ack(made, B, 10)) == [Acknowledge(10)]


def test_unknown_outcome_is_written_again_under_the_same_version():
    made = writer()
    silent_third(made)
    made.record_unknown()
    (again,) = of(WriteRecord, made.tick(BOUNDS.silence_ms + BOUNDS.record_retry_ms))
    assert again.version == 3
    assert made.record_conflict() == [ReadRecord()]
    made.record_read(made.log, 3)
    assert made.wanted_ensemble is not None, "the old version proves nothing"
    made.tick(BOUNDS.silence_ms + 2 * BOUNDS.record_retry_ms)
    made.record_conflict()
    made.record_read(made.log.with_members((OWN, B), 10), 4)
    assert (made.wanted_ensemble, made.log.members) == (None, (OWN, B))


def test_learner_joins_when_it_has_caught_up():
    two = replace(LOG, members=(OWN, B))
    made = writer(log=two, streaming=(OWN, B))
    append(made, 2)
    ack(made, OWN, 11)
    ack(made, B, 11)
    assert C in [effect.member for effect in of(OpenMember, made.tick(100))]
    open_with(made, C, 12)
    (write,) = of(WriteRecord, made.tick(200))
    assert write.log.members == (OWN, B, C)
    assert made.acknowledged_entry == 11


def test_replaced_member_is_dropped():
    made = writer()
    made.place(Placement({"a": OWN, "b": B, "c": D}, ZONES))
    made.tick(100)
    open_with(made, D, 10)
    (write,) = of(WriteRecord, made.tick(200))
    assert write.log.members == (OWN, B, D)
    assert [effect.member for effect in of(DropMember, made.record_written(4))] == [C]
    assert C not in made.positions


def test_idle_members_learn_what_is_acknowledged():
    made = writer()
    append(made)
    for replica in (OWN, B, C):
        ack(made, replica, 10)
    assert of(SendPulse, made.tick(500)) == [SendPulse(member, 10, 10) for member in (OWN, B, C)]
    assert of(SendPulse, made.tick(1000)) == []


def test_unacknowledged_bytes_fill_their_bound():
    made = writer(replace(BOUNDS, unacknowledged_bytes=4 * SIZE))
    assert made.unacknowledged_fill == 0
    append(made, 2)
    assert made.unacknowledged_fill == 0.5
    ack(made, B, 10)
    assert made.unacknowledged_fill == 0.5, "one copy is no quorum"
    ack(made, C, 10)
    assert made.unacknowledged_fill == 0.25


def test_record_with_another_ledger_ends_the_writer():
    made = writer()
    silent_third(made)
    made.record_conflict()
    other = replace(LOG, ledgers=(*LOG.ledgers, LedgerStart(6, 12)))
    assert of(Fail, made.record_read(other, 4))


def test_answer_to_an_earlier_writer_is_no_position():
    """An earlier attempt of this process numbered its sessions alike; the replica promised it a lower epoch."""
    made = writer(streaming=(OWN,))
    earlier = Opened(0, made.session_of(B), 0, EPOCH - 1, 10, 0, (HeldRun(EPOCH, 10, 12, 12),))
    assert made.opened(B, earlier) == []
    assert B not in made.positions


def test_congested_member_gets_only_what_its_link_took():
    made = writer(replace(BOUNDS, join_lag_bytes=0))
    append(made, 2)
    made.congested(B)
    assert B not in [effect.member for effect in of(Send, made.append(SIZE)[1])]
    ack(made, OWN, 12)
    assert of(Send, ack(made, B, 10)) == [], "entry 11 is still in the link"
    (send,) = of(Send, ack(made, B, 11))
    assert (send.member, send.first, send.last, send.source) == (B, 12, 12, Source.JOURNAL)


def test_congested_member_streams_again_when_it_has_caught_up():
    made = writer()
    append(made, 2)
    made.congested(B)
    ack(made, OWN, 11)
    ack(made, B, 11)
    assert Send(B, 12, 12, Source.MEMORY, 0) in made.append(SIZE)[1]


def test_congested_member_counts_for_acknowledgements():
    made = writer()
    append(made, 2)
    made.congested(B)
    ack(made, OWN, 11)
    assert of(Acknowledge, ack(made, B, 11)) == [Acknowledge(11)]


def test_congestion_concerns_only_streaming_peers():
    made = writer(streaming=(OWN, B))
    for replica in (OWN, C):
        made.congested(replica)
    assert made.member_states()[OWN] is MemberState.STREAMING
    assert made.member_states()[C] is MemberState.OPENING


def test_final_record_waits_for_acknowledgements():
    made = writer()
    append(made, 2)
    assert made.final_record is None
    made.close()
    assert made.final_record is None
    ack(made, OWN, 11)
    ack(made, B, 11)
    assert made.final_record == (ContainerLog(3, LogState.EMPTY, (), (), 12, 12), 3)


def test_final_record_waits_for_a_change_of_members():
    made = writer()
    silent_third(made)
    made.close()
    assert made.final_record is None
    made.record_written(4)
    assert made.final_record == (ContainerLog(3, LogState.EMPTY, (), (), 10, 10), 4)


def test_closed_log_begins_no_change():
    made = writer()
    made.close()
    made.link_lost(C)
    made.tick(BOUNDS.silence_ms)
    assert made.change_phase is ChangePhase.NONE


def test_ended_log_drops_its_members_and_has_no_owner():
    made = writer()
    sessions = {replica: made.session_of(replica) for replica in (OWN, B, C)}
    made.close()
    effects = made.ended()
    assert of(DropMember, effects) == [DropMember(member, session) for member, session in sessions.items()]
    assert of(Fail, effects)
    assert made.has_failed


def test_replica_truncated_behind_the_end_is_refused():
    """An operator accepted the loss of that log: the replica would take our entries for ones that it may skip."""
    made = writer(streaming=(OWN,))
    effects = made.opened(B, Opened(0, made.session_of(B), 0, EPOCH, 15, 0, ()))
    assert of(Suspect, effects)
    assert made.member_states()[B] is MemberState.REFUSED
    assert B not in made.positions


def test_answer_to_a_request_of_the_recovery_is_ignored():
    made = writer()
    assert made.record_unknown() == made.record_read(made.log, 3) == []
    assert made.change_phase is ChangePhase.NONE


def test_learner_of_a_lost_end_begins_with_nothing():
    """The log has reached its truncation point since: the replica would pass for one that holds everything before."""
    made = writer(streaming=(OWN, B, C))
    for _ in range(10):
        append(made)
    for member in (OWN, B, C):
        ack(made, member, 19)
    made.place(Placement(wanted={"c": D}, zones=ZONES))
    made.tick(BOUNDS.silence_ms)
    session = made.session_of(D)
    assert session
    lost = Opened(0, session, 0, EPOCH, 15, 0, ())
    effects = made.opened(D, lost)
    assert of(DropMember, effects) == [DropMember(D, session)]
    assert [effect.member for effect in of(OpenMember, effects)] == [D]
    assert D not in made.positions
    effects = made.opened(D, replace(lost, session=made.session_of(D)))
    assert of(Suspect, effects), "a release that keeps its truncation point is refused"
    assert made.member_states()[D] is MemberState.REFUSED
