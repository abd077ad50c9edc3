"""A replica: promises, gapless ranges, acknowledgements after the sync, and sessions that end."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.codec.log_record_header import RecordHeader, RecordKind
from headrace.codec.replica_messages import (
    NACK_FENCED,
    NACK_GAP,
    NACK_PROTOCOL,
    Drop,
    HeldRun,
    Nack,
    Open,
    Opened,
    Read,
    decode_message,
    encode_message,
)
from headrace.model.container_logs import LedgerStart
from headrace.replication.effects import Answer, AnswerFromJournal, Held, QueueRecord, ReplicaEffect
from headrace.replication.replica_log import RecoveredLog, ReplicaLog, Witness

LINK, OTHER_LINK = 7, 8
WRITERS = 6


def entry(
    number: int, ledger: int = 1, writer: int = 1, truncated_before: int = 0, acknowledged_before: int = 0
) -> tuple[RecordHeader, tuple[bytes]]:
    payload = b"%d" % number
    kind = RecordKind.ENTRY
    header = RecordHeader(
        kind, 0, ledger, writer, number, truncated_before, acknowledged_before, len(payload), crc32c(payload)
    )
    return header, (payload,)


def open_message(writer: int = 1, session: int = 1, truncated_before: int = 0, ledgers: tuple = ((1, 0),)) -> Open:
    return Open(0, session, writer, truncated_before, tuple(LedgerStart(*ledger) for ledger in ledgers))


def opened(effects: list[ReplicaEffect]) -> Opened:
    (answer,) = [effect.message for effect in effects if isinstance(effect, Answer)]
    assert isinstance(answer, Opened)
    return answer


def nacks(effects: list[ReplicaEffect]) -> list[tuple[int, int]]:
    return [(e.message.code, e.message.value) for e in effects if isinstance(e, Answer) and isinstance(e.message, Nack)]


def log_with(*numbers: int) -> ReplicaLog:
    """A log of writer 1 that holds these entries durably."""
    log = ReplicaLog(0, RecoveredLog())
    log.open(LINK, open_message())
    for number in numbers:
        log.entry(LINK, *entry(number))
    log.committed(1 + len(numbers))
    return log


def test_promise_is_durable_before_it_is_reported():
    log = ReplicaLog(0, RecoveredLog())
    (queued,) = log.open(LINK, open_message(writer=5))
    assert isinstance(queued, QueueRecord)
    assert (queued.header.kind, queued.header.epoch) == (RecordKind.PROMISE, 5)
    assert opened(log.committed(1)).promise == 5


def test_opened_waits_for_entries_that_were_queued_before():
    log = log_with()
    log.entry(LINK, *entry(0))
    assert not [effect for effect in log.open(OTHER_LINK, open_message(writer=2)) if isinstance(effect, Answer)]
    assert opened(log.committed(3)).runs == (HeldRun(1, 0, 1, 1),)


def test_opened_does_not_report_entries_behind_it():
    """They are of the same writer, and came over an earlier link: they are not durable yet."""
    log = log_with()
    log.entry(LINK, *entry(0))
    log.open(OTHER_LINK, open_message(session=2))
    log.entry(LINK, *entry(1))
    assert opened(log.committed(2)).runs == (HeldRun(1, 0, 1, 1),)


def test_entry_is_acknowledged_after_its_commit():
    log = log_with()
    effects = log.entry(LINK, *entry(0))
    assert [type(effect) for effect in effects] == [QueueRecord]
    assert log.committed(2) == [Held(LINK, 1, 1, 0)]


def test_ended_session_gets_no_acknowledgement():
    log = log_with()
    log.entry(LINK, *entry(0))
    log.open(OTHER_LINK, open_message(writer=2))
    assert not [effect for effect in log.committed(3) if isinstance(effect, Held)]


@pytest.mark.parametrize("writer", [1, 4])
def test_entry_of_a_lower_writer_is_fenced(writer: int):
    log = ReplicaLog(0, RecoveredLog(promise=5))
    assert nacks(log.entry(LINK, *entry(0, writer=writer))) == [(NACK_FENCED, 5)]
    assert nacks(log.open(LINK, open_message(writer=writer))) == [(NACK_FENCED, 5)]


def test_entry_of_a_writer_without_a_promise_is_fenced():
    """Another replica has promised it this epoch, but what this one holds was not asked for yet."""
    log = log_with(0)
    assert nacks(log.entry(LINK, *entry(1, writer=2))) == [(NACK_FENCED, 1)]
    assert log.expected == 1


def test_gap_is_reported_once_until_it_is_filled():
    log = log_with(0)
    assert nacks(log.entry(LINK, *entry(2))) == [(NACK_GAP, 1)]
    assert log.entry(LINK, *entry(3)) == []
    log.entry(LINK, *entry(1))
    assert nacks(log.entry(LINK, *entry(4))) == [(NACK_GAP, 2)]


def test_entry_that_is_held_is_acknowledged_again():
    assert log_with(0, 1).entry(LINK, *entry(0)) == [Held(LINK, 1, 1, 1)]


def test_range_begins_again_at_the_truncation_point():
    log = log_with(0, 1)
    log.pulse(LINK, 9, 7)
    (queued,) = log.entry(LINK, *entry(7))
    assert isinstance(queued, QueueRecord)
    log.committed(5)
    runs = opened(log.open(LINK, open_message(session=2, truncated_before=7))).runs
    assert runs == (HeldRun(1, 7, 8, 8),)


def test_jump_over_a_gap_is_recorded_before_the_next_entry():
    """Otherwise a scan would take the gap for damage."""
    log = log_with(0, 1)
    (queued,) = log.pulse(LINK, 9, 7)
    assert isinstance(queued, QueueRecord)
    assert (queued.header.kind, queued.header.truncated_before) == (RecordKind.TRUNCATION, 7)


def test_entries_behind_the_end_of_their_ledger_are_garbage():
    log = log_with(0, 1, 2)
    answer = log.open(LINK, open_message(writer=2, ledgers=((1, 0), (2, 2))))
    assert not [effect for effect in answer if isinstance(effect, Answer)]
    assert opened(log.committed(5)).runs == (HeldRun(1, 0, 2, 2),)
    assert log.expected == 2


def test_earlier_open_of_the_same_writer_is_ignored():
    """Its chain lacks the writer's own ledger: taken for current, it would make acknowledged entries garbage."""
    log = log_with(0)
    log.open(LINK, open_message(writer=2, session=2, ledgers=((1, 0), (2, 1))))
    log.entry(LINK, *entry(1, ledger=2, writer=2))
    log.committed(4)
    assert log.open(OTHER_LINK, open_message(writer=2, session=1)) == []
    assert log.durable_end == 2


def test_earlier_open_is_ignored_after_its_link_was_lost():
    log = ReplicaLog(0, RecoveredLog())
    log.open(LINK, open_message(writer=2, session=2, ledgers=((1, 0), (2, 0))))
    log.entry(LINK, *entry(0, ledger=2, writer=2))
    log.committed(2)
    log.link_lost(LINK)
    assert log.open(OTHER_LINK, open_message(writer=2, session=1)) == []
    answer = opened(log.open(OTHER_LINK, open_message(writer=2, session=3, ledgers=((1, 0), (2, 0)))))
    assert answer.runs == (HeldRun(2, 0, 1, 1),)


def test_drop_of_an_earlier_session_is_ignored():
    log = log_with(0)
    log.open(LINK, open_message(session=2))
    assert log.drop(Drop(0, 1, 1)) == []
    assert log.durable_end == 1
    assert [type(effect) for effect in log.drop(Drop(0, 2, 1))] == [QueueRecord]
    assert not log.needs(1, 0)


def test_late_drop_of_an_earlier_owner_is_ignored():
    """It has the number of the current session, because each owner counts its own."""
    log = log_with(0)
    log.open(OTHER_LINK, open_message(writer=2))
    assert log.drop(Drop(0, 1, 1)) == []
    assert log.durable_end == 1


def test_drop_keeps_the_promise():
    log = log_with(0)
    log.open(LINK, open_message(session=2))
    log.drop(Drop(0, 2, 1))
    assert log.promise == 1
    assert log.open(LINK, open_message(session=1)) == [], "an earlier OPEN is late"
    log.committed(3)
    assert opened(log.open(LINK, open_message(session=3))).runs == ()


def test_drop_forgets_the_truncation_point():
    """The journal forgets it, too. In the next log it would pass for entries that this replica holds."""
    log = log_with(0, 1)
    log.pulse(LINK, 2, 2)
    log.drop(Drop(0, 1, 1))
    effects = log.open(LINK, open_message(writer=2, ledgers=((1, 0), (2, 1))))
    log.committed(20)
    assert (log.truncated_before, log.expected, log.durable_end) == (0, 0, 0), effects


def test_damaged_run_says_what_it_had():
    run = HeldRun(1, 0, 2, 6)
    log = ReplicaLog(0, RecoveredLog(promise=1, runs=(run,)))
    assert opened(log.open(LINK, open_message())).runs == (run,)
    log.entry(LINK, *entry(2))
    log.committed(1)
    assert opened(log.open(LINK, open_message(session=2))).runs == (HeldRun(1, 0, 3, 6),)


def test_read_needs_a_session_of_the_link():
    log = log_with(0)
    message = Read(1, 0, 1, 0, 0, 100)
    assert log.read(LINK, message) == [AnswerFromJournal(LINK, message)]
    refusal = Answer(OTHER_LINK, Nack(0, 0, NACK_PROTOCOL, message.request))
    assert log.read(OTHER_LINK, message) == [refusal]


class AnyHistory(RuleBasedStateMachine):
    """Any order of messages from any writer, with commits and restarts in between.

    A writer opens the log with the closed ledgers first, and then with a ledger of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log = ReplicaLog(0, RecoveredLog())
        self.queued: list[RecordHeader] = []
        self.durable: list[RecordHeader] = []
        self.promised = 0
        self.firsts = [0] * WRITERS
        self.opens: list[Open] = []

    @initialize(firsts=st.lists(st.integers(0, 6), min_size=WRITERS, max_size=WRITERS))
    def begin(self, firsts: list[int]) -> None:
        """Where the ledger of each writer begins: nowhere before that of an earlier one."""
        self.firsts = sorted(firsts)

    def look(self, effects: list[ReplicaEffect]) -> None:
        for effect in effects:
            if isinstance(effect, QueueRecord):
                self.queued.append(effect.header)
            elif isinstance(effect, Answer) and isinstance(effect.message, Opened):
                assert effect.message.promise >= self.promised
                self.promised = effect.message.promise
                assert any(record.writer_epoch >= self.promised for record in self.durable)
                assert all(run.start <= run.end <= run.had_end for run in effect.message.runs)
                held = self.held()
                for run in effect.message.runs:
                    assert {(run.epoch, number) for number in range(run.start, run.end)} <= held
            elif isinstance(effect, Held):
                chain = self.log.chain
                range_held = range(self.log.truncated_before, effect.last + 1)
                assert {(chain.epoch_of(number), number) for number in range_held} <= self.held()

    def held(self) -> set[tuple[int, int]]:
        """The durable entries since the last DROP, by ledger and number."""
        return {(each.epoch, each.entry) for each in self.of_this_log() if each.kind is RecordKind.ENTRY}

    def of_this_log(self) -> list[RecordHeader]:
        drops = [index for index, record in enumerate(self.durable) if record.kind is RecordKind.DROP]
        return self.durable[drops[-1] + 1 :] if drops else self.durable

    @rule(rises=st.booleans(), owns=st.booleans(), truncated_before=st.integers(0, 3))
    def open(self, rises: bool, owns: bool, truncated_before: int) -> None:
        """A new owner, or the last one over another link."""
        last = self.opens[-1].writer_epoch if self.opens else 0
        writer = last + 1 if not last or (rises and last < WRITERS) else last
        owns = owns or bool(self.opens and self.opens[-1].ledgers and self.opens[-1].ledgers[-1].epoch == writer)
        ledgers = tuple((epoch + 1, first) for epoch, first in enumerate(self.firsts[: writer - (not owns)]))
        self.opens.append(open_message(writer, len(self.opens) + 1, truncated_before, ledgers))
        self.look(self.log.open(LINK, self.opens[-1]))

    @precondition(lambda self: self.opens)
    @rule(data=st.data())
    def open_late(self, data: st.DataObject) -> None:
        self.look(self.log.open(LINK, data.draw(st.sampled_from(self.opens))))

    @rule(
        number=st.integers(0, 8),
        epoch=st.integers(1, WRITERS),
        writer=st.integers(1, WRITERS),
        truncated_before=st.integers(0, 3),
    )
    def entry(self, number: int, epoch: int, writer: int, truncated_before: int) -> None:
        effects = self.log.entry(LINK, *entry(number, epoch, writer, truncated_before))
        taken = [e for e in effects if isinstance(e, QueueRecord) and e.header.kind is RecordKind.ENTRY]
        assert not taken or writer >= self.promised
        assert not taken or self.log.chain.epoch_of(number) == epoch
        self.look(effects)

    @rule(writer=st.none() | st.integers(1, WRITERS), ahead=st.integers(0, 2), truncated_before=st.integers(0, 3))
    def next_entry(self, writer: int | None, ahead: int, truncated_before: int) -> None:
        """Nothing is wrong but the writer, who may be fenced, or the number, if an entry before it was lost."""
        number = self.log.expected + ahead
        epoch = self.log.chain.epoch_of(number) or 1
        self.entry(number, epoch, self.log.promise if writer is None else writer, truncated_before)

    @rule(rises=st.booleans(), count=st.integers(0, 4), truncated_before=st.integers(0, 3), part=st.integers(0, 9))
    def append(self, rises: bool, count: int, truncated_before: int, part: int) -> None:
        """A writer opens its ledger, and sends what is expected; how much becomes durable is any number of records."""
        if rises or self.log.session is None:
            self.open(rises, True, truncated_before)
            self.commit(len(self.queued))
        for _ in range(count):
            self.next_entry(None, 0, truncated_before)
        self.commit(part)

    @rule(part=st.integers(0, 5))
    def commit(self, part: int) -> None:
        self.durable += self.queued[:part]
        del self.queued[:part]
        self.look(self.log.committed(self.count()))

    @rule()
    def drop(self) -> None:
        session = self.log.session
        if session is not None:
            self.look(self.log.drop(Drop(0, session.number, session.writer_epoch)))

    @rule()
    def restart(self) -> None:
        promise = max([record.writer_epoch for record in self.durable], default=0)
        truncated_before = max([record.truncated_before for record in self.of_this_log()], default=0)
        runs = []
        for epoch in range(1, WRITERS + 1):
            held = {number for ledger, number in self.held() if ledger == epoch and number >= truncated_before}
            start, had_end = min(held, default=0), max(held, default=-1) + 1
            if held:
                end = next(number for number in range(start, had_end + 1) if number not in held)
                runs.append(HeldRun(epoch, start, end, had_end))
        self.log = ReplicaLog(0, RecoveredLog(promise, truncated_before, runs=tuple(runs)))
        self.queued.clear()
        self.counted = len(self.durable)

    counted = 0

    def count(self) -> int:
        return len(self.durable) - self.counted

    @invariant()
    def durable_range_is_within_the_queued_range(self) -> None:
        assert self.log.durable_end <= self.log.expected
        assert self.log.promise >= self.promised


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def truncations(effects: list[ReplicaEffect]) -> list[int]:
    queued = [effect.header for effect in effects if isinstance(effect, QueueRecord)]
    return [header.truncated_before for header in queued if header.kind is RecordKind.TRUNCATION]


def test_truncation_point_of_a_pulse_is_journalled_once():
    """No entry carries it, and the files before it would never become free."""
    log = log_with(0, 1, 2)
    assert truncations(log.pulse(LINK, 3, 2)) == [2]
    assert log.pulse(LINK, 3, 2) == log.pulse(LINK, 3, 1) == []
    assert truncations(log.pulse(LINK, 3, 3)) == [3]


def test_truncation_point_that_an_entry_carried_is_not_repeated():
    log = log_with(0, 1, 2)
    log.entry(LINK, *entry(3, truncated_before=2))
    assert log.pulse(LINK, 3, 2) == []


@pytest.mark.parametrize("carrier", ["open", "repeated entry"])
def test_truncation_point_that_was_not_journalled_follows(carrier: str):
    log = log_with(0, 1, 2)
    if carrier == "open":
        log.open(LINK, open_message(session=2, truncated_before=2))
    else:
        log.entry(LINK, *entry(0, truncated_before=2))
    assert truncations(log.pulse(LINK, 3, 2)) == [2]
    assert log.pulse(LINK, 3, 2) == []


def test_pulse_over_a_gap_queues_one_record():
    log = log_with(0)
    assert truncations(log.pulse(LINK, 3, 7)) == [7]


def test_recovered_truncation_point_is_not_journalled_again():
    log = ReplicaLog(0, RecoveredLog(1, 4, runs=(HeldRun(1, 4, 6, 6),)))
    log.open(LINK, open_message(truncated_before=4))
    assert log.pulse(LINK, 4, 4) == []
    assert truncations(log.pulse(LINK, 5, 5)) == [5]


@pytest.mark.parametrize("start", [1, 2])
def test_entries_behind_a_gap_are_not_held(start: int):
    """Also if a single entry is missing."""
    log = ReplicaLog(0, RecoveredLog(1, runs=(HeldRun(1, start, 6, 6),)))
    log.open(LINK, open_message())
    log.committed(1)
    assert nacks(log.entry(LINK, *entry(6))) == [(NACK_GAP, 0)]


def reported_confirmed(log: ReplicaLog, writer: int, ledgers: tuple) -> int:
    effects = log.open(OTHER_LINK, open_message(writer, 1, 0, ledgers))
    return opened(effects + log.committed(99)).acknowledged_before


def test_witness_of_the_open_ledger_is_reported_to_a_recovery():
    log = log_with(0, 1)
    log.entry(LINK, *entry(2, acknowledged_before=2))
    assert reported_confirmed(log, 2, ((1, 0),)) == 2


def test_witness_of_a_closed_ledger_is_forgotten():
    """An operator may have accepted the loss of entries that were acknowledged: they are in no ledger."""
    log = log_with(0, 1)
    log.pulse(LINK, 9, 0)
    assert reported_confirmed(log, 2, ((1, 0),)) == 9
    assert reported_confirmed(log, 3, ((1, 0), (2, 2))) == 0


@pytest.mark.parametrize("known", [0, 9])
@pytest.mark.parametrize("how", ["copy", "pulse"])
def test_recovery_does_not_replace_the_witness(how: str, known: int):
    log = log_with(0, 1)
    log.pulse(LINK, 2, 0)
    log.open(OTHER_LINK, open_message(2))
    if how == "pulse":
        log.pulse(OTHER_LINK, known, 0)
    else:
        log.entry(OTHER_LINK, *entry(2, writer=2, acknowledged_before=known))
    assert reported_confirmed(log, 3, ((1, 0),)) == 2


def test_witness_counts_for_the_ledger_of_its_writer_only():
    """A recovery had copied entries before, under the epoch that its ledger got then."""
    log = log_with(0, 1)
    log.pulse(LINK, 9, 0)
    log.open(OTHER_LINK, open_message(2))
    log.entry(OTHER_LINK, *entry(2, writer=2, acknowledged_before=9))
    log.open(OTHER_LINK, open_message(2, 2, 0, ((1, 0), (2, 3))))
    assert log.acknowledged_before == 0
    log.entry(OTHER_LINK, *entry(3, ledger=2, writer=2, acknowledged_before=3))
    assert reported_confirmed(log, 3, ((1, 0), (2, 3))) == 3


def test_recovered_witness_is_reported_to_a_recovery():
    """After a restart of all stores only the journals know which entries were acknowledged."""
    log = ReplicaLog(0, RecoveredLog(witness=Witness(2, 9)))
    assert reported_confirmed(log, 3, ((1, 0), (2, 4))) == 9


def test_recovered_witness_of_a_closed_ledger_is_forgotten():
    """A takeover would wait for entries whose loss was accepted while this replica was away."""
    assert reported_confirmed(ReplicaLog(0, RecoveredLog(witness=Witness(1, 9))), 3, ((1, 0), (2, 4))) == 0


def test_witness_is_reported_to_a_takeover_without_a_record():
    log = log_with(0, 1)
    log.pulse(LINK, 2, 0)
    assert reported_confirmed(log, 2, ()) == 2


# What an earlier session, a drop or damage leaves


def test_gap_is_reported_again_after_another_open():
    """The owner sends from the gap on when the log is open. If that gets lost as well, only a NACK brings it again."""
    log = log_with(0)
    assert nacks(log.entry(LINK, *entry(2))) == [(NACK_GAP, 1)]
    log.open(LINK, open_message(session=2))
    assert nacks(log.entry(LINK, *entry(2))) == [(NACK_GAP, 1)]


def test_entry_moves_the_truncation_point():
    log = log_with(0, 1)
    log.entry(LINK, *entry(2, truncated_before=2))
    assert log.truncated_before == 2
    assert not log.needs(1, 1)


def test_jump_that_an_entry_tells_fills_the_gap():
    log = log_with(0, 1)
    queued = log.entry(LINK, *entry(7, truncated_before=7))
    assert [effect.header.kind for effect in queued if isinstance(effect, QueueRecord)] == [
        RecordKind.TRUNCATION,
        RecordKind.ENTRY,
    ]
    assert log.expected == 8


def test_commit_is_not_told_to_an_owner_without_a_chain():
    log = log_with(0)
    log.entry(LINK, *entry(1))
    log.open(OTHER_LINK, open_message(writer=2, ledgers=()))
    assert not [effect for effect in log.committed(4) if isinstance(effect, Held)]
    assert log.durable_end == 0


def test_drop_forgets_what_was_known_as_acknowledged():
    """It would pass for the next log of this replica: a recovery would wait for entries that were never there."""
    log = log_with(0)
    log.pulse(LINK, 1, 0)
    (dropped,) = log.drop(Drop(0, 1, 1))
    assert isinstance(dropped, QueueRecord)
    assert dropped.header.acknowledged_before == log.acknowledged_before == 0


def test_commit_from_before_a_drop_does_not_count_behind_it():
    """The journal forgets with the drop what was queued before, so that only the second copy of an entry counts."""
    log = log_with()
    log.entry(LINK, *entry(0))
    log.drop(Drop(0, 1, 1))
    log.open(LINK, open_message(session=2))
    log.entry(LINK, *entry(0))
    assert opened(log.committed(3)).runs == (HeldRun(1, 0, 0, 0),)
    assert log.committed(4) == [Held(LINK, 2, 1, 0)]


def test_run_without_an_intact_entry_says_what_it_had():
    """Its first entry is damaged. Without the report a recovery would take the others for never written."""
    run = HeldRun(1, 3, 3, 9)
    log = ReplicaLog(0, RecoveredLog(1, 3, runs=(run,)))
    assert opened(log.open(LINK, open_message(truncated_before=3))).runs == (run,)


def test_run_that_begins_again_says_what_it_had():
    log = ReplicaLog(0, RecoveredLog(promise=1, runs=(HeldRun(1, 0, 2, 9),)))
    log.open(LINK, open_message(truncated_before=5))
    log.entry(LINK, *entry(5, truncated_before=5))
    log.committed(2)
    assert opened(log.open(LINK, open_message(session=2, truncated_before=5))).runs == (HeldRun(1, 5, 6, 9),)


def test_run_that_begins_again_is_told_before_it_is_durable():
    """OPENED waits for the entry 2 only. What it tells must be a range, or the writer refuses it."""
    log = log_with(0, 1)
    log.entry(LINK, *entry(2))
    assert not log.open(OTHER_LINK, open_message(session=2))
    log.entry(OTHER_LINK, *entry(9, truncated_before=9))
    answer = opened(log.committed(4))
    assert answer.runs == (HeldRun(1, 9, 9, 9),)
    assert decode_message(memoryview(encode_message(answer))) == answer


def test_a_gap_at_the_front_is_no_part_of_the_range():
    """Its journal has lost the entries before 3. As a position the later ones would pass for all of them."""
    log = ReplicaLog(0, RecoveredLog(promise=1, runs=(HeldRun(1, 3, 5, 5),)))
    log.open(LINK, open_message())
    assert (log.expected, log.durable_end) == (0, 0)


def test_a_run_begins_where_its_ledger_does():
    log = ReplicaLog(0, RecoveredLog(promise=1, runs=(HeldRun(1, 0, 5, 5),)))
    assert opened(log.open(LINK, open_message(ledgers=((1, 3),)))).runs == (HeldRun(1, 3, 5, 5),)


def test_truncated_entries_that_are_queued_count_as_durable():
    """No recovery needs them, and the owner must not wait for them."""
    log = log_with(0)
    for number in range(1, 6):
        log.entry(LINK, *entry(number))
    assert log.durable_end == 1
    log.pulse(LINK, 0, 4)
    assert (log.durable_end, log.expected) == (4, 6)
    log.pulse(LINK, 0, 5)
    assert log.durable_end == 5


def test_a_pulse_of_an_owner_without_a_chain_tells_its_point():
    log = ReplicaLog(0, RecoveredLog())
    log.open(LINK, open_message(ledgers=()))
    log.committed(1)
    log.pulse(LINK, 5, 2)
    assert (log.acknowledged_before, log.truncated_before) == (0, 2)


def test_a_replica_without_a_session_refuses_and_keeps():
    log = ReplicaLog(0, RecoveredLog())
    assert log.read(LINK, Read(9, 0, 1, 0, 0, 1)) == [Answer(LINK, Nack(0, 0, NACK_PROTOCOL, 9))]
    assert log.drop(Drop(0, 1, 1)) == []
