"""A replica that was away while an operator accepted a loss: its truncation point is of entries that are lost."""

from __future__ import annotations

import pytest
from takeovers import BOUNDS, EPOCH, GRACE, OWN, ZONES, B, C, D, of

from headrace.codec.replica_messages import HeldRun, Opened
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.replication.effects import DropMember, OpenMember, ReadEntries, WriteRecord, WriterEffect
from headrace.replication.log_recovery import LogRecovery

CONTINUED = ContainerLog(3, LogState.OPEN, (B, C), (LedgerStart(3, 10), LedgerStart(5, 50)), 10)
"""Epoch 3 had entries up to 150, and was truncated at 100. Only those before 50 are left. Epoch 5 wrote up to 60."""

LOST_POINT = 100


def recovery(wanted: tuple[ReplicaId, ...] = (OWN, B, C), log: ContainerLog = CONTINUED) -> LogRecovery:
    made = LogRecovery(0, OWN, wanted, ZONES | {D: "d"}, 3, BOUNDS, 0)
    made.start(7)
    made.claimed(EPOCH)
    made.record_read(log, 3)
    return made


def tell(made: LogRecovery, replica: ReplicaId, truncated_before: int, *runs: HeldRun) -> list[WriterEffect]:
    return made.opened(replica, Opened(0, made.session_of(replica), 0, EPOCH, truncated_before, 0, runs))


def tell_whole(made: LogRecovery, replica: ReplicaId) -> list[WriterEffect]:
    return tell(made, replica, 10, HeldRun(3, 10, 50, 50), HeldRun(5, 50, 61, 61))


def test_own_replica_of_a_lost_end_is_emptied():
    made = recovery()
    tell_whole(made, B)
    tell_whole(made, C)
    session = made.session_of(OWN)
    effects = tell(made, OWN, LOST_POINT) + made.tick(GRACE)
    assert of(DropMember, effects) == [DropMember(OWN, session)]
    assert [effect.member for effect in of(OpenMember, effects)] == [OWN]
    assert made.tick(2 * GRACE) == [], "nothing is decided before the own replica has answered again"
    tell(made, OWN, 0)
    made.tick(3 * GRACE)
    assert (made.last, made.truncated_before) == (60, 10)


def test_own_replica_is_emptied_until_it_answers():
    """Its link may have ended in between: then it has to be opened again."""
    made = recovery()
    tell_whole(made, B)
    tell_whole(made, C)
    tell(made, OWN, LOST_POINT)
    made.tick(GRACE)
    assert [effect.member for effect in of(OpenMember, made.tick(GRACE + BOUNDS.retry_ms))] == [OWN]


@pytest.mark.parametrize("point", [11, 55, LOST_POINT])
def test_truncation_point_of_a_lost_end_does_not_count(point: int):
    """Also one that the log has reached since: the entries before it are in no other place."""
    made = recovery((OWN, B, C, D), ContainerLog(3, LogState.OPEN, (OWN, B), CONTINUED.ledgers, 10))
    tell(made, D, point)
    tell_whole(made, OWN)
    effects = tell_whole(made, B) + made.tick(GRACE)
    assert (made.last, made.truncated_before) == (60, 10)
    assert [effect.member for effect in of(DropMember, effects)] == [D]
    (write,) = of(WriteRecord, effects + made.tick(2 * GRACE))
    assert D not in write.log.members


def test_late_answer_of_a_lost_end_does_not_count():
    made = recovery((OWN, B, C, D), ContainerLog(3, LogState.OPEN, (OWN, B), CONTINUED.ledgers, 10))
    tell(made, OWN, 10, HeldRun(3, 10, 50, 50), HeldRun(5, 50, 55, 55))
    tell_whole(made, B)
    made.tick(GRACE)
    assert [effect.member for effect in of(DropMember, tell(made, D, LOST_POINT))] == [D]
    assert tell(made, D, LOST_POINT) == [], "a release that keeps it is left out"
    assert (made.last, made.truncated_before) == (60, 10)


def test_ended_log_begins_where_its_record_says():
    made = recovery(log=ContainerLog(3, LogState.EMPTY, (), (), 61, 61))
    tell(made, B, 61)
    tell(made, OWN, 61)
    effects = tell(made, C, LOST_POINT) + made.tick(GRACE) + made.tick(2 * GRACE)
    (write,) = of(WriteRecord, effects)
    assert write.log.ledgers == (LedgerStart(EPOCH, 61),)


def test_emptied_replica_is_no_member_until_it_answers_again():
    """What it held before is gone, and nothing of this log has reached it."""
    made = recovery((OWN, B, C, D), ContainerLog(3, LogState.OPEN, (OWN, B), CONTINUED.ledgers, 10))
    tell(made, OWN, 10, HeldRun(3, 10, 50, 50), HeldRun(5, 50, 61, 61))
    tell(made, B, 10, HeldRun(3, 10, 50, 50), HeldRun(5, 50, 55, 55))
    made.tick(GRACE)
    effects = tell(made, D, LOST_POINT, HeldRun(5, 50, 61, 61))
    assert [type(effect) for effect in effects] == [DropMember, OpenMember]
    assert D not in made._answers
    assert made.acknowledged(D, made.session_of(D), 5, 60) == []
    assert of(WriteRecord, made.tick(3 * GRACE)) == []


def test_emptied_replica_of_the_first_answers_does_not_count():
    made = recovery((OWN, B, C, D), ContainerLog(3, LogState.OPEN, (OWN, B), CONTINUED.ledgers, 10))
    tell(made, D, LOST_POINT, HeldRun(5, 50, 61, 61))
    tell_whole(made, OWN)
    tell(made, B, 10, HeldRun(3, 10, 50, 50), HeldRun(5, 50, 55, 55))
    made.tick(GRACE)
    assert set(made._answers) == {OWN, B}


def test_emptied_replica_is_no_source():
    """It has just been told to forget what it reported."""
    made = recovery((OWN, B, C, D), ContainerLog(3, LogState.OPEN, (OWN, B), CONTINUED.ledgers, 10))
    tell(made, OWN, 10, HeldRun(3, 10, 50, 50), HeldRun(5, 50, 55, 55))
    tell_whole(made, B)
    made.tick(GRACE)
    tell(made, D, LOST_POINT, HeldRun(5, 50, 61, 61))
    assert of(ReadEntries, made.link_lost(B)) == []
