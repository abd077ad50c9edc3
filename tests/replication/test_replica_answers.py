"""What a replica writes and answers, in full: to whom, of which container and session, and with which numbers."""

from __future__ import annotations

from crc32c import crc32c

from headrace.codec.log_record_header import RecordHeader, RecordKind
from headrace.codec.replica_messages import (
    NACK_FENCED,
    NACK_GAP,
    NACK_PROTOCOL,
    OPENED_WHOLE,
    Drop,
    HeldRun,
    Nack,
    Open,
    Opened,
)
from headrace.model.container_logs import LedgerStart
from headrace.replication.effects import Answer, Held, QueueRecord, ReplicaEffect
from headrace.replication.replica_log import RecoveredLog, ReplicaLog

CONTAINER, LINK, OTHER_LINK = 4, 7, 8


def record(kind: RecordKind, epoch: int, truncated_before: int = 0, acknowledged_before: int = 0) -> QueueRecord:
    return QueueRecord(RecordHeader(kind, CONTAINER, epoch, epoch, 0, truncated_before, acknowledged_before, 0, 0), ())


def send(
    log: ReplicaLog, number: int, *, writer: int = 3, ledger: int = 3, link: int = LINK, acknowledged_before: int = 0
) -> list[ReplicaEffect]:
    payload = b"%d" % number
    header = RecordHeader(
        RecordKind.ENTRY, CONTAINER, ledger, writer, number, 0, acknowledged_before, len(payload), crc32c(payload)
    )
    return log.entry(link, header, (payload,))


def opened_log(first: int = 0) -> ReplicaLog:
    log = ReplicaLog(CONTAINER, RecoveredLog())
    log.open(LINK, Open(CONTAINER, 5, 3, first, (LedgerStart(3, first),)))
    return log


def test_a_promise_is_recorded_and_reported_in_full():
    log = ReplicaLog(CONTAINER, RecoveredLog())
    ask = Open(CONTAINER, 5, 3, 9, (LedgerStart(3, 9),))
    promise, truncation = log.open(LINK, ask)
    assert promise == record(RecordKind.PROMISE, 3)
    assert truncation == record(RecordKind.TRUNCATION, 3, 9)
    assert log.committed(1) == []
    assert log.committed(2) == [Answer(LINK, Opened(CONTAINER, 5, OPENED_WHOLE, 3, 9, 0, ()))]


def test_a_refused_open_names_its_session_and_the_promise():
    log = ReplicaLog(CONTAINER, RecoveredLog(promise=6))
    refused = log.open(LINK, Open(CONTAINER, 5, 3, 0, ()))
    assert refused == [Answer(LINK, Nack(CONTAINER, 5, NACK_FENCED, 6))]
    assert send(log, 0, link=OTHER_LINK) == [Answer(OTHER_LINK, Nack(CONTAINER, 0, NACK_FENCED, 6))]


def test_an_entry_of_no_ledger_is_refused_by_number():
    log = opened_log(10)
    assert send(log, 9, link=OTHER_LINK) == [Answer(OTHER_LINK, Nack(CONTAINER, 5, NACK_PROTOCOL, 9))]
    log.open(LINK, Open(CONTAINER, 77, 3, 10, (LedgerStart(3, 10),)))
    assert send(log, 9) == [Answer(LINK, Nack(CONTAINER, 77, NACK_PROTOCOL, 9))]


def test_a_gap_is_reported_over_the_link_of_the_session():
    log = opened_log()
    assert send(log, 2, link=OTHER_LINK) == [Answer(LINK, Nack(CONTAINER, 5, NACK_GAP, 0))]


def test_only_the_link_of_the_session_ends_it():
    log = opened_log()
    log.link_lost(OTHER_LINK)
    assert log.session is not None
    log.link_lost(LINK)
    assert log.session is None
    log.link_lost(LINK)
    assert send(log, 0) == [], "without a session no owner waits for an answer"


def test_a_session_that_ended_is_not_told_that_it_is_open():
    log = opened_log()
    log.link_lost(LINK)
    assert log.committed(1) == []


def test_nothing_is_acknowledged_before_the_open_is_answered():
    log = opened_log()
    log.committed(1)
    send(log, 0)
    log.open(LINK, Open(CONTAINER, 6, 3, 0, (LedgerStart(3, 0),)))
    assert send(log, 0) == [], "the open with the position comes first"
    assert log.committed(2) == [Answer(LINK, Opened(CONTAINER, 6, OPENED_WHOLE, 3, 0, 0, (HeldRun(3, 0, 1, 1),)))]
    assert send(log, 0) == [Held(LINK, 6, 3, 0)]


def test_an_entry_that_waits_for_its_commit_is_not_acknowledged():
    log = opened_log()
    log.committed(1)
    send(log, 0)
    send(log, 1)
    assert log.committed(2) == [Held(LINK, 5, 3, 0)]
    assert send(log, 1) == [], "it is in the queue"
    assert log.committed(2) == [], "nothing more is durable"
    assert log.committed(3) == [Held(LINK, 5, 3, 1)]


def test_a_dropped_replica_records_it_under_its_promise():
    log = opened_log()
    log.committed(1)
    assert log.drop(Drop(CONTAINER, 5, 3)) == [record(RecordKind.DROP, 3)]
    assert log.session is None
    assert log.is_empty


def test_the_journal_keeps_what_the_log_needs_only():
    log = ReplicaLog(CONTAINER, RecoveredLog(promise=2, truncated_before=4, runs=(HeldRun(2, 2, 8, 10),)))
    assert [entry for entry in range(12) if log.needs(2, entry)] == list(range(4, 10))
    assert not log.needs(1, 5)
    whole = ReplicaLog(CONTAINER, RecoveredLog(promise=2, runs=(HeldRun(2, 2, 8, 8),)))
    assert [entry for entry in range(12) if whole.needs(2, entry)] == list(range(2, 8))


def test_each_ledger_outside_of_the_chain_is_forgotten():
    """Also those behind the first one, and those that ended before their first entry."""
    runs = (HeldRun(1, 0, 4, 4), HeldRun(2, 4, 8, 8), HeldRun(3, 4, 9, 9), HeldRun(4, 9, 12, 12), HeldRun(5, 4, 6, 6))
    log = ReplicaLog(CONTAINER, RecoveredLog(promise=7, runs=runs))
    chain = (LedgerStart(1, 0), LedgerStart(3, 4), LedgerStart(4, 9), LedgerStart(7, 9))
    (answer,) = log.open(LINK, Open(CONTAINER, 1, 7, 0, chain))
    assert isinstance(answer, Answer)
    assert isinstance(answer.message, Opened)
    assert answer.message.runs == (HeldRun(1, 0, 4, 4), HeldRun(3, 4, 9, 9))
    assert (log.expected, log.durable_end) == (9, 9)
    assert not log.needs(4, 9)


def test_a_range_ends_where_a_ledger_is_not_full():
    runs = (HeldRun(1, 0, 3, 3), HeldRun(3, 4, 9, 9))
    log = ReplicaLog(CONTAINER, RecoveredLog(promise=3, runs=runs))
    log.open(LINK, Open(CONTAINER, 1, 3, 0, (LedgerStart(1, 0), LedgerStart(3, 4))))
    assert (log.expected, log.durable_end) == (3, 3)


def open_again(log: ReplicaLog, session: int, truncated_before: int = 0) -> list[ReplicaEffect]:
    return log.open(LINK, Open(CONTAINER, session, 3, truncated_before, (LedgerStart(3, 0),)))


def reported_runs(log: ReplicaLog, session: int) -> tuple[HeldRun, ...]:
    """What the log tells when everything is durable."""
    (answer,) = open_again(log, session) + log.committed(99)
    assert isinstance(answer, Answer)
    assert isinstance(answer.message, Opened)
    return answer.message.runs


def test_an_entry_is_queued_with_its_bytes():
    log = opened_log()
    (queued,) = send(log, 0, acknowledged_before=7)
    assert isinstance(queued, QueueRecord)
    assert (queued.header.entry, queued.header.acknowledged_before) == (0, 7)
    assert queued.parts == (b"0",)


def test_the_durable_range_ends_before_queued_entries():
    log = opened_log()
    log.committed(1)
    send(log, 0)
    log.committed(2)
    send(log, 1)
    open_again(log, 6)
    assert (log.durable_end, log.expected) == (1, 2)
    assert send(log, 0) == [], "what it holds is reported first"


def test_a_commit_after_the_link_has_ended_answers_nothing():
    log = opened_log()
    log.committed(1)
    send(log, 0)
    log.link_lost(LINK)
    assert log.committed(2) == []
    assert reported_runs(log, 6) == (HeldRun(3, 0, 1, 1),), "it is durable all the same"


def test_queued_entries_behind_the_end_are_garbage():
    """The next owner has closed the ledger while they were in the queue."""
    log = opened_log()
    log.committed(1)
    for number in range(3):
        send(log, number)
    log.open(LINK, Open(CONTAINER, 1, 4, 0, (LedgerStart(3, 0), LedgerStart(4, 2))))
    runs = (HeldRun(3, 0, 2, 2),)
    assert log.committed(5) == [Answer(LINK, Opened(CONTAINER, 1, OPENED_WHOLE, 4, 0, 0, runs))]
    assert (log.expected, log.durable_end) == (2, 2)
    assert not log.needs(3, 2)


def test_queued_entries_of_a_discarded_ledger_are_garbage():
    log = opened_log()
    log.committed(1)
    send(log, 0)
    log.open(LINK, Open(CONTAINER, 1, 4, 0, (LedgerStart(4, 0),)))
    assert log.committed(3) == [Answer(LINK, Opened(CONTAINER, 1, OPENED_WHOLE, 4, 0, 0, ()))]
    assert log.is_empty
    assert log.durable_end == 0


def test_an_owner_without_a_chain_discards_nothing():
    """The record has vanished, and may return. With a truncation point it says that the log has ended."""
    runs = (HeldRun(3, 1, 4, 4),)
    log = ReplicaLog(CONTAINER, RecoveredLog(promise=3, runs=runs))
    assert log.knows_chain
    assert log.open(LINK, Open(CONTAINER, 1, 3, 0, ())) == [
        Answer(LINK, Opened(CONTAINER, 1, OPENED_WHOLE, 3, 0, 0, runs))
    ]
    assert not log.knows_chain
    assert log.needs(3, 3)
    log.open(LINK, Open(CONTAINER, 2, 3, 1, ()))
    assert log.knows_chain
    assert log.is_empty


def test_pulses_of_other_links_are_ignored():
    """A late one of an earlier link may know less or be of another log."""
    log = opened_log()
    log.committed(1)
    send(log, 0)
    log.committed(2)
    assert log.pulse(OTHER_LINK, 1, 1) == []
    log.link_lost(LINK)
    assert log.pulse(LINK, 1, 1) == []
    assert (log.truncated_before, log.acknowledged_before) == (0, 0)


def test_a_pulse_records_the_truncation_point_in_full():
    log = opened_log()
    log.committed(1)
    send(log, 0)
    assert log.pulse(LINK, 1, 1) == [record(RecordKind.TRUNCATION, 3, 1, 1)]


def test_a_log_that_is_truncated_at_its_end_has_no_gap():
    log = opened_log()
    log.committed(1)
    send(log, 0)
    log.committed(2)
    (answer,) = open_again(log, 6, truncated_before=1)
    assert isinstance(answer, Answer), "no record says that the range begins again"
    assert log.durable_end == log.expected == 1


def test_a_range_that_began_again_grows():
    log = opened_log()
    for number in range(2):
        send(log, number)
    log.pulse(LINK, 9, 7)
    for number in (7, 8, 9):
        send(log, number)
    assert reported_runs(log, 6) == (HeldRun(3, 7, 10, 10),)
    assert [entry for entry in range(12) if log.needs(3, entry)] == [7, 8, 9]


def test_what_is_known_as_acknowledged_never_falls():
    """An entry that is sent again has what its writer knew then."""
    log = opened_log()
    send(log, 0, acknowledged_before=0)
    send(log, 1, acknowledged_before=1)
    log.pulse(LINK, 2, 0)
    send(log, 0, acknowledged_before=0)
    log.pulse(LINK, 1, 0)
    assert log.acknowledged_before == 2


def test_an_open_that_arrives_twice_is_answered_twice():
    log = opened_log()
    log.committed(1)
    opened = [Answer(LINK, Opened(CONTAINER, 5, OPENED_WHOLE, 3, 0, 0, ()))]
    assert log.open(LINK, Open(CONTAINER, 5, 3, 0, (LedgerStart(3, 0),))) == opened


def test_a_log_of_no_owner_can_be_discarded():
    """No store has asked for it since the start of this one: its container is gone."""
    log = ReplicaLog(CONTAINER, RecoveredLog(promise=2, truncated_before=4, runs=(HeldRun(2, 4, 8, 8),)))
    assert log.discard() == [record(RecordKind.DROP, 2)]
    assert log.is_empty
    assert (log.truncated_before, log.expected, log.durable_end) == (0, 0, 0)
