"""Which replica a takeover asks for entries that it lacks."""

from __future__ import annotations

import pytest
from takeovers import OWN, B, C, entries

from headrace.codec.replica_messages import Entries, Read
from headrace.model.container_logs import NO_POSITION, Ensemble, LedgerChain, LedgerStart
from headrace.replication.copy_sources import CopySources
from headrace.replication.effects import ReadEntries

CONTAINER, BYTES_MAX, PATIENCE = 0, 5_000, 1_000
CHAIN = LedgerChain((LedgerStart(5, 10), LedgerStart(6, 30)))


def sources(**had: int) -> CopySources:
    made = CopySources(CONTAINER, BYTES_MAX, PATIENCE)
    made.begin(CHAIN)
    for name, position in had.items():
        made.note({"b": B, "c": C, "own": OWN}[name], position)
    return made


def answered(made: CopySources, request: int, first: int, last: int, *, container: int = CONTAINER) -> object:
    return made.answer(request, Entries(request, container, False, entries(first, last)), last)


def test_the_replica_that_holds_the_most_is_asked():
    made = sources(b=25, c=28)
    assert made.ask(20, 28, {B: 25, C: 22}, 0) == ReadEntries(B, Read(1, CONTAINER, 5, 20, 25, BYTES_MAX))
    assert made.is_reading
    assert made.awaits(B, 1)
    assert not made.awaits(C, 1)
    assert not made.awaits(B, 2)


def test_of_equal_positions_what_it_once_had_decides():
    made = sources(b=25, c=28)
    asked = made.ask(24, 24, {B: 20, C: 20}, 0)
    assert asked == ReadEntries(C, Read(1, CONTAINER, 5, 24, 24, BYTES_MAX)), "behind damage it may have it"
    assert sources(b=25, c=25).ask(24, 24, {B: 20, C: 20}, 0) == ReadEntries(
        C, Read(1, CONTAINER, 5, 24, 24, BYTES_MAX)
    )


def test_a_replica_without_a_position_is_asked_for_what_it_had():
    made = sources(b=25, c=12)
    asked = made.ask(25, 40, {B: NO_POSITION, C: 12}, 0)
    assert asked == ReadEntries(B, Read(1, CONTAINER, 5, 25, 29, BYTES_MAX)), "the ledger ends at 29"
    assert made.ask(26, 26, {}, 0) is None
    assert made.ask(9, 9, {B: 25}, 0) is None, "it is in no ledger"


def test_a_replica_that_has_got_more_since_its_answer_is_asked():
    assert sources(b=15).ask(18, 22, {B: 20}, 0) == ReadEntries(B, Read(1, CONTAINER, 5, 18, 20, BYTES_MAX))


def test_a_question_ends_with_the_position_or_the_ledger():
    assert sources(b=29).ask(20, 25, {B: 20}, 0) == ReadEntries(B, Read(1, CONTAINER, 5, 20, 20, BYTES_MAX))
    assert sources(b=50).ask(30, 60, {B: 50}, 0) == ReadEntries(B, Read(1, CONTAINER, 6, 30, 50, BYTES_MAX))


def test_questions_have_numbers_of_their_own():
    made = sources(b=25)
    for number in (1, 2, 3):
        assert made.ask(20, 20, {B: 25}, 0) == ReadEntries(B, Read(number, CONTAINER, 5, 20, 20, BYTES_MAX))
    assert answered(made, 2, 20, 20) is None, "it is the answer to an earlier question"
    assert answered(made, 3, 20, 20) == entries(20, 20)


def test_entries_behind_the_end_of_the_log_are_not_taken():
    made = sources(b=25)
    made.ask(20, 22, {B: 25}, 0)
    assert made.answer(1, Entries(1, CONTAINER, False, entries(20, 25)), 22) == entries(20, 22)


def test_only_the_answer_to_the_open_question_counts():
    made = sources(b=25)
    assert answered(made, 0, 20, 20) is None
    made.ask(20, 22, {B: 25}, 0)
    assert answered(made, 1, 20, 22, container=9) is None
    assert made.is_reading
    assert answered(made, 1, 19, 23) == entries(19, 23)[1:], "not more than was asked for"
    assert answered(made, 1, 20, 22) is None
    assert not made.is_reading


def test_an_empty_answer_denies_the_first_entry_only():
    made = sources(b=25, c=24)
    made.ask(20, 22, {B: 25, C: 24}, 0)
    assert answered(made, 1, 40, 40) == ()
    assert made.ask(20, 22, {B: 25, C: 24}, 0) == ReadEntries(C, Read(2, CONTAINER, 5, 20, 22, BYTES_MAX))
    assert answered(made, 2, 40, 40) == ()
    assert made.ask(20, 22, {B: 25, C: 24}, 0) is None
    assert made.ask(21, 22, {B: 25, C: 24}, 0) == ReadEntries(B, Read(3, CONTAINER, 5, 21, 22, BYTES_MAX))
    made.note(C, 24)
    assert made.ask(20, 22, {B: 25, C: 24}, 0) == ReadEntries(C, Read(4, CONTAINER, 5, 20, 22, BYTES_MAX))


def test_a_source_whose_link_ends_is_not_asked():
    made = sources(b=25, c=22)
    made.ask(20, 22, {B: 25, C: 22}, 0)
    assert made.lost(C)
    assert made.is_reading, "another one was asked"
    assert made.lost(B)
    assert not made.is_reading
    assert not made.lost(B), "that is known"
    assert made.is_lost(B)
    assert made.ask(20, 22, {B: 25, C: 22}, 0) is None
    made.answered(B)
    assert not made.is_lost(B)
    assert made.ask(20, 22, {B: 25, C: 22}, 0) is not None


@pytest.mark.parametrize("asked_ms", [0, 700])
def test_patience_with_a_source_counts_from_the_question(asked_ms: int):
    made = sources(b=25)
    assert not made.stop_waiting(10**9), "nothing was asked"
    made.ask(20, 22, {B: 25}, asked_ms)
    assert not made.stop_waiting(asked_ms + PATIENCE - 1)
    assert made.is_reading
    assert made.stop_waiting(asked_ms + PATIENCE)
    assert not made.is_reading
    assert answered(made, 1, 20, 22) is None, "a late answer does not count"


def test_silent_replicas_are_those_that_may_have_the_entry():
    made = sources(b=25, c=20, own=25)
    made.ask(25, 25, {OWN: 25}, 0)
    assert answered(made, 1, 40, 40) == ()
    for replica in (C, B, OWN):
        made.lost(replica)
    assert made.silent_with(25, (OWN, B, C)) == [B], "C never had it, and the own replica has denied it"
    assert made.silent_with(20, (OWN, B, C)) == [OWN, B, C]
    assert made.silent_with(20, (OWN, C)) == [OWN, C], "another one is not waited for"
    assert made.silent_with(26, (OWN, B, C)) == []
    other = sources()
    other.lost(B)
    assert other.silent_with(0, (OWN, B, C)) == [], "it has reported nothing"


def test_a_new_attempt_forgets_all_answers():
    made = sources(b=25)
    made.ask(20, 20, {B: 25}, 0)
    made.lost(C)
    made.begin(LedgerChain((LedgerStart(7, 0),)))
    assert not made.is_reading
    assert not made.is_lost(C)
    assert made.ask(20, 20, {B: 25}, 0) is None
    made.note(B, 25)
    assert made.ask(20, 20, {B: 25}, 0) == ReadEntries(B, Read(2, CONTAINER, 7, 20, 20, BYTES_MAX))


def test_members_without_an_answer_may_have_everything():
    ensemble = Ensemble((OWN, B, C))
    assert sources().may_be_acknowledged(25, ensemble)
    assert sources(b=24).may_be_acknowledged(25, ensemble)
    assert not sources(b=24, c=24).may_be_acknowledged(25, ensemble)
    assert sources(b=24, c=25).may_be_acknowledged(25, ensemble)
