"""Members that lack entries get them from the owner's journal, window by window, and then stream."""

from __future__ import annotations

from dataclasses import replace

from ledger_writers import BOUNDS, EPOCH, LOG, OWN, SIZE, B, C, ack, append, of, open_with, writer

from headrace.codec.replica_messages import NACK_GAP, Nack, Opened
from headrace.model.container_logs import LedgerStart
from headrace.replication.bounds import REOPEN_MAX_MS
from headrace.replication.effects import OpenMember, Send, Source
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.member_states import MemberState


def test_member_catches_up_from_the_journal_then_streams():
    made = writer(replace(BOUNDS, join_lag_bytes=0), streaming=(OWN, B))
    append(made, 3)
    ack(made, OWN, 11)
    (window,) = of(Send, open_with(made, C, 10))
    assert (window.first, window.last, window.source) == (10, 11, Source.JOURNAL)
    made.sent(C, made.session_of(C), 11)
    (rest,) = of(Send, ack(made, C, 11))
    assert rest == Send(C, 12, 12, Source.MEMORY, 0)
    assert made.member_states()[C] is MemberState.STREAMING


def test_window_may_be_acknowledged_while_it_is_sent():
    """The shell sends slowly, so that catching up leaves bandwidth for appends."""
    made = writer(streaming=(OWN, B))
    append(made, 6)
    ack(made, OWN, 14)
    open_with(made, C, 10)
    assert of(Send, ack(made, C, 12)) == [], "the shell still sends the window"
    (window,) = of(Send, made.sent(C, made.session_of(C), 12))
    assert (window.first, window.last, window.source) == (13, 14, Source.JOURNAL)
    assert made.member_states()[C] is MemberState.CATCHING_UP


def test_member_streams_although_the_own_journal_commits():
    """Under load it does so before the member has acknowledged the window."""
    made = writer(replace(BOUNDS, join_lag_bytes=2 * SIZE), streaming=(OWN, B))
    append(made, 6)
    ack(made, OWN, 14)
    (window,) = of(Send, open_with(made, C, 14))
    assert (window.first, window.last, window.source) == (14, 14, Source.JOURNAL)
    ack(made, OWN, 15)
    (window,) = of(Send, made.sent(C, made.session_of(C), 14))
    assert (window.first, window.last, window.source) == (15, 15, Source.JOURNAL)
    append(made)
    (rest,) = of(Send, made.sent(C, made.session_of(C), 15))
    assert rest == Send(C, 16, 16, Source.MEMORY, 0)
    assert made.member_states()[C] is MemberState.STREAMING


def test_large_window_is_acknowledged_before_the_next_one():
    made = writer(replace(BOUNDS, join_lag_bytes=2 * SIZE), streaming=(OWN, B))
    append(made, 9)
    ack(made, OWN, 18)
    assert of(Send, open_with(made, C, 10))
    assert of(Send, made.sent(C, made.session_of(C), 14)) == []
    (window,) = of(Send, ack(made, C, 14))
    assert (window.first, window.last) == (15, 18)


def test_member_that_has_more_than_was_sent_goes_on_there():
    """Entries of the link before may reach it behind its answer."""
    made = writer(replace(BOUNDS, join_lag_bytes=2 * SIZE), streaming=(OWN, B))
    append(made, 9)
    ack(made, OWN, 18)
    open_with(made, C, 10)
    made.sent(C, made.session_of(C), 14)
    (window,) = of(Send, ack(made, C, 16))
    assert (window.first, window.last) == (17, 18)


def test_member_beyond_its_window_catches_up():
    made = writer(replace(BOUNDS, link_window_bytes=2 * SIZE))
    append(made, 3)
    assert made.member_states()[B] is MemberState.CATCHING_UP
    assert made.member_states()[OWN] is MemberState.STREAMING


def test_entries_of_earlier_ledgers_are_read_from_the_journal():
    """Also for a member that answers before the own replica does: no memory has them."""
    log = replace(LOG, ledgers=(LedgerStart(4, 0), LedgerStart(EPOCH, 10)), truncated_before=0)
    made = LedgerWriter(0, OWN, log, 3, 0, 0, BOUNDS, 0)
    made.start()
    effects = made.opened(B, Opened(0, made.session_of(B), 0, EPOCH, 0, 0, ()))
    assert [(each.first, each.last, each.source) for each in of(Send, effects)] == [(0, 9, Source.JOURNAL)]


def test_gap_sends_from_the_expected_entry():
    made = writer()
    append(made, 2)
    ack(made, OWN, 11)
    (window,) = of(Send, made.refused(B, Nack(0, made.session_of(B), NACK_GAP, 10)))
    assert (window.member, window.first, window.source) == (B, 10, Source.JOURNAL)


def test_member_behind_the_truncation_point_learns_it_first():
    made = writer(streaming=(OWN, B))
    append(made, 5)
    ack(made, OWN, 14)
    ack(made, B, 14)
    made.truncate(13)
    effects = made.opened(C, Opened(0, made.session_of(C), 0, EPOCH, 10, 0, ()))
    assert effects[-1] == Send(C, 13, 14, Source.JOURNAL, BOUNDS.catch_up_window_bytes)
    assert made.positions[C] == 12


def test_window_the_own_journal_lacks_is_asked_for_later():
    """A newer owner made the entries of this one garbage, before this one has learnt it."""
    made = writer(streaming=(OWN, B))
    append(made, 2)
    ack(made, OWN, 11)
    (send,) = of(Send, open_with(made, C, 10))
    assert made.sent(C, made.session_of(C), send.first - 1) == []
    assert C in [effect.member for effect in of(OpenMember, made.tick(REOPEN_MAX_MS))]


def test_window_that_was_truncated_meanwhile_is_skipped():
    made = writer(streaming=(OWN, B))
    append(made, 2)
    ack(made, OWN, 11)
    ack(made, B, 11)
    (send,) = of(Send, open_with(made, C, 10))
    made.truncate(12)
    made.sent(C, made.session_of(C), send.first - 1)
    assert Send(C, 12, 12, Source.MEMORY, 0) in made.append(SIZE)[1]
