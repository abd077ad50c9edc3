"""Where a log ends and begins, by what replicas reported; and the position of a replica, entry by entry."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from takeovers import LOG, OWN, B, D

from headrace.codec.replica_messages import HeldRun, Opened
from headrace.model.container_logs import ContainerLog, LedgerChain, LedgerStart, LogState, ReplicaId
from headrace.replication.log_ends import (
    LogEnd,
    find_log_end,
    first_possible,
    had_position,
    reported_position,
    truncation_point,
)

EMPTY = ContainerLog(3, LogState.EMPTY, (), (), 77, 77)
TWO_LEDGERS = replace(LOG, ledgers=(LedgerStart(4, 10), LedgerStart(5, 16)))
LOST = ContainerLog(3, LogState.LOST, (), (), 99, 99)


def reported(*runs: tuple[int, int, int, int], truncated_before: int = 10, acknowledged_before: int = 0) -> Opened:
    return Opened(0, 1, 0, 6, truncated_before, acknowledged_before, tuple(HeldRun(*run) for run in runs))


def end_of(
    log: ContainerLog | None, answers: dict[ReplicaId, Opened], truncated_before: int = 10, past_before: int = 0
) -> LogEnd:
    return find_log_end(log, truncated_before, answers, lambda had: max(had.values()), past_before)


@pytest.mark.parametrize(
    ("log", "answers", "expected"),
    [
        (LOG, {OWN: reported((5, 10, 18, 18)), B: reported((5, 10, 20, 20))}, LogEnd(19, 9, 10)),
        (LOG, {OWN: reported((5, 10, 18, 22)), B: reported((5, 10, 20, 20))}, LogEnd(21, 9, 10)),
        (LOG, {OWN: reported(), B: reported()}, LogEnd(9, 9, 10)),
        (LOG, {OWN: reported(acknowledged_before=15), B: reported((5, 10, 20, 20))}, LogEnd(19, 14, 10)),
        (
            LOG,
            {OWN: reported((5, 10, 18, 18)), D: reported((5, 10, 30, 30), acknowledged_before=30)},
            LogEnd(17, 9, 10),
        ),
        (LOG, {OWN: reported((5, 10, 18, 18)), B: reported((5, 12, 20, 20), truncated_before=12)}, LogEnd(19, 11, 12)),
        (LOG, {OWN: reported(truncated_before=19)}, LogEnd(18, 18, 19)),
        (TWO_LEDGERS, {OWN: reported((4, 10, 12, 12))}, LogEnd(15, 15, 10)),
        (
            replace(LOG, members=(B,)),
            {B: reported(acknowledged_before=30), D: reported((5, 10, 21, 21))},
            LogEnd(20, 9, 10),
        ),
        (EMPTY, {OWN: reported((5, 10, 90, 90), truncated_before=88, acknowledged_before=89)}, LogEnd(9, 9, 10)),
    ],
    ids=[
        "the longest",
        "also if it is damaged",
        "a ledger without entries",
        "a witness",
        "no member",
        "the highest truncation point",
        "truncated up to the end",
        "closed ledgers were held",
        "an accepted loss",
        "an ended log",
    ],
)
def test_the_end_of_a_log(log: ContainerLog, answers: dict[ReplicaId, Opened], expected: LogEnd):
    assert end_of(log, answers) == expected


@pytest.mark.parametrize(
    ("past_before", "acknowledged"), [(0, 19), (4, 19), (5, 14), (6, -1)], ids=["all", "each", "one", "none"]
)
def test_entries_of_a_vanished_record_count_as_acknowledged(past_before: int, acknowledged: int):
    answers = {
        OWN: reported((4, 10, 18, 20), truncated_before=0),
        B: reported((5, 10, 15, 15), truncated_before=0),
    }
    assert end_of(None, answers, 0, past_before) == LogEnd(-1, acknowledged, 0)


def test_a_truncation_point_of_no_record_counts():
    assert end_of(None, {OWN: reported(truncated_before=12), B: reported(truncated_before=3)}, 0) == LogEnd(11, 11, 12)


@pytest.mark.parametrize(
    ("replica", "answer", "expected"),
    [
        (B, reported(truncated_before=15), 15),
        (B, reported(truncated_before=8), 10),
        (D, reported(truncated_before=15), 10),
        (D, reported((5, 10, 15, 15), truncated_before=15), 10),
        (D, reported((5, 10, 16, 16), truncated_before=15), 15),
        (D, reported((7, 10, 16, 16), truncated_before=15), 10),
    ],
)
def test_a_truncation_point_needs_entries_behind_it(replica: ReplicaId, answer: Opened, expected: int):
    """A replica that is no member may be truncated in a part of the log that was lost."""
    assert truncation_point(LOG, 10, {replica: answer}) == expected


def test_the_record_says_where_a_log_begins():
    assert [first_possible(log) for log in (None, LOG, EMPTY, LOST)] == [0, 10, 77, 99]
    assert first_possible(replace(EMPTY, truncated_before=70)) == 77, "tier 2 has everything before its next entry"


@st.composite
def chains(draw: st.DrawFn) -> LedgerChain:
    firsts = sorted(draw(st.lists(st.integers(0, 12), min_size=1, max_size=4)))
    return LedgerChain(LedgerStart(2 * number + 1, first) for number, first in enumerate(firsts))


@st.composite
def chains_with_runs(draw: st.DrawFn) -> tuple[LedgerChain, tuple[HeldRun, ...]]:
    """A chain, and runs of some of its ledgers and of other ones. Their ends may be behind the end of a ledger."""
    chain, runs = draw(chains()), []
    for epoch in draw(st.sets(st.integers(1, 8))):
        start = draw(st.integers(0, 4)) + (chain.bounds(epoch) or (0, None))[0]
        length, lost = draw(st.integers(0, 8)), draw(st.integers(0, 4))
        if chain.bounds(epoch) is None or (chain.has(epoch, start) and length + lost > 0):
            runs.append(HeldRun(epoch, start, start + length, start + length + lost))
    return chain, tuple(runs)


@given(chains_with_runs(), st.integers(0, 14))
def test_positions_are_of_entries_in_the_chain(case: tuple[LedgerChain, tuple[HeldRun, ...]], truncated_before: int):
    chain, runs = case
    held = {entry for run in runs for entry in range(run.start, run.end) if chain.has(run.epoch, entry)}
    had = {entry for run in runs for entry in range(run.start, run.had_end) if chain.has(run.epoch, entry)}
    expected = truncated_before
    while expected in held:
        expected += 1
    assert reported_position(chain, truncated_before, runs) == expected - 1
    assert had_position(chain, truncated_before, runs) == max([truncated_before - 1, *had])


def test_a_later_ledger_fills_no_hole_of_an_earlier_one():
    chain = LedgerChain((LedgerStart(4, 10), LedgerStart(5, 16)))
    runs = (HeldRun(4, 10, 13, 13), HeldRun(5, 12, 20, 20))
    assert reported_position(chain, 10, runs) == 12
