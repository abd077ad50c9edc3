"""Transactions as values: ids, leases, states, and what is due."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.deployment_defaults import COMPLETED_TRANSACTIONS_KEPT_MS
from headrace.model import transactions
from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.transactions import CommitOrder, Due, Transaction, TransactionState, WriterTime

OPEN = transactions.new_transaction(5, 10_000, 1_000, 0)
COMMITTING = transactions.marked_for_commit(OPEN, CommitOrder(3, OPEN.transaction_id), WriterTime("w", 1))
ABORTING = transactions.marked_for_abort(OPEN)
COMMITTED = transactions.committed(COMMITTING, ((0, 7),), 5_000)
ABORTED = transactions.aborted(ABORTING, 5_000)


@given(epoch=st.integers(0, 2**31 - 1), randomness=st.integers(0, 2**94 - 1))
def test_an_id_has_positive_halves_and_contains_the_epoch(epoch: int, randomness: int):
    identifier = transactions.transaction_id_of(epoch, randomness)
    high, low = identifier >> 64, identifier & (2**64 - 1)
    assert high < 2**63
    assert low < 2**63
    assert high & 0xFFFFFFFF < 2**31, "the counter's own sign bit is clear too"
    assert transactions.reference_epoch_of(identifier) == epoch
    assert transactions.parse_transaction_id(transactions.transaction_text(identifier)) == identifier


@given(first=st.integers(0, 2**94 - 1), second=st.integers(0, 2**94 - 1))
def test_ids_differ_where_chance_does(first: int, second: int):
    assert (transactions.transaction_id_of(1, first) == transactions.transaction_id_of(1, second)) == (first == second)


def test_ids_differ_in_each_bit_of_chance():
    whole = (1 << transactions.RANDOM_BITS) - 1
    chances = {0, whole, *(1 << bit for bit in range(transactions.RANDOM_BITS))}
    assert len({transactions.transaction_id_of(1, chance) for chance in chances}) == len(chances)
    assert transactions.transaction_id_of(1, whole) == 0x00000001_7FFFFFFF_7FFFFFFF_FFFFFFFF


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "A" * 32, "g" * 32, "0" * 31 + "\n", "\u0660" * 32])
def test_text_that_is_not_a_transaction_id_is_refused(text: str):
    with pytest.raises(InvalidRequestError) as refused:
        transactions.parse_transaction_id(text)
    assert refused.value.specific_code == "invalid_transaction_id"


def test_the_name_of_a_transactions_segment():
    segment = StreamSegment(0, KeyRange(0.0, 1.0))
    name = transactions.segment_of_transaction("s", "t", segment, (1 << 64) | 5)
    assert name == "s/t/0.#epoch.0#transaction.00000000000000010000000000000005"


def test_only_an_open_transaction_is_pinged_or_marked():
    for mark, (transaction, code) in product(
        (
            lambda transaction: transactions.pinged(transaction, 10_000, 1_000),
            lambda transaction: transactions.marked_for_commit(transaction, CommitOrder(1, 2)),
            transactions.marked_for_abort,
        ),
        (
            (COMMITTING, "transaction_committed"),
            (COMMITTED, "transaction_committed"),
            (ABORTING, "transaction_aborted"),
            (ABORTED, "transaction_aborted"),
        ),
    ):
        with pytest.raises(IllegalStateError) as refused:
            mark(transaction)
        assert refused.value.specific_code == code


def test_a_position_is_kept_for_a_commit_with_a_time():
    assert COMMITTED.position == ((0, 7),)
    assert (
        transactions.committed(
            transactions.marked_for_commit(OPEN, CommitOrder(3, OPEN.transaction_id)), ((0, 7),), 5_000
        ).position
        == ()
    )


GRACE_END_MS = OPEN.lease_end_ms + transactions.LEASE_GRACE_MS
KEPT_END_MS = 5_000 + COMPLETED_TRANSACTIONS_KEPT_MS


@pytest.mark.parametrize(
    ("transaction", "now_ms", "expected"),
    [
        (OPEN, 0, Due.WAIT),
        (OPEN, GRACE_END_MS, Due.WAIT),
        (OPEN, GRACE_END_MS + 1, Due.EXPIRE),
        (COMMITTING, 10**13, Due.RESEND_COMMIT),
        (ABORTING, 0, Due.RESEND_ABORT),
        (COMMITTED, KEPT_END_MS - 1, Due.WAIT),
        (COMMITTED, KEPT_END_MS, Due.COLLECT),
        (ABORTED, KEPT_END_MS, Due.COLLECT),
    ],
)
def test_what_is_due(transaction: Transaction, now_ms: int, expected: Due):
    assert transactions.due(transaction, now_ms) is expected


@given(
    state=st.sampled_from([OPEN, COMMITTING, ABORTING, COMMITTED, ABORTED]),
    later_ms=st.integers(0, 2 * COMPLETED_TRANSACTIONS_KEPT_MS),
)
def test_a_check_that_finds_nothing_to_do_comes_again_later(state: Transaction, later_ms: int):
    now_ms = 5_000 + later_ms
    if transactions.due(state, now_ms) in (Due.WAIT, Due.RESEND_COMMIT, Due.RESEND_ABORT):
        assert transactions.next_check_ms(state, now_ms) > now_ms


LAST_PING_MS = OPEN.created_ms + transactions.EXECUTION_MS_MAX - 10_000


def test_a_new_transaction_is_open_for_its_lease():
    opened = transactions.new_transaction(5, 10_000, 1_000, 7, label="l")
    expected = Transaction(5, TransactionState.OPEN, 1_000, 11_000, first_segment_number=7, label="l")
    assert opened == expected
    assert opened.created_segments is None, "all of its segments are created now"
    assert transactions.new_transaction(5, 10_000, 1_000, 0, on_demand=True).created_segments == frozenset()


@pytest.mark.parametrize(
    ("lease_ms", "lease_ms_max", "code"),
    [
        (9_999, transactions.LEASE_MS_MAX, "lease_too_small"),
        (0, transactions.LEASE_MS_MAX, "lease_too_small"),
        (transactions.LEASE_MS_MAX + 1, transactions.LEASE_MS_MAX, "lease_too_large"),
        (20_001, 20_000, "lease_too_large"),
    ],
)
def test_a_lease_outside_of_its_bounds_is_refused(lease_ms: int, lease_ms_max: int, code: str):
    with pytest.raises(InvalidRequestError) as refused:
        transactions.check_lease(lease_ms, lease_ms_max)
    assert refused.value.specific_code == code
    assert refused.value.details == {"lease_ms": lease_ms, "lease_ms_min": 10_000, "lease_ms_max": lease_ms_max}


def test_a_lease_at_a_bound_is_taken():
    assert [transactions.check_lease(lease_ms) for lease_ms in (10_000, 24 * 3600 * 1000)] == [10_000, 24 * 3600 * 1000]
    assert transactions.check_lease(20_000, 20_000) == 20_000


def test_a_transaction_has_no_wrong_lease():
    with pytest.raises(InvalidRequestError):
        transactions.new_transaction(5, 9_999, 1_000, 0)
    with pytest.raises(InvalidRequestError):
        transactions.pinged(OPEN, 9_999, 1_000)


@pytest.mark.parametrize(
    ("now_ms", "lease_ms", "end_ms"),
    [
        (2_000, 10_000, 12_000),
        (1_000, 10_000, 11_000),
        (500, 10_000, 11_000),
        (2_000, 60_000, 62_000),
        (LAST_PING_MS, 10_000, OPEN.created_ms + transactions.EXECUTION_MS_MAX),
    ],
)
def test_a_ping_prolongs_the_lease_and_never_shortens_it(now_ms: int, lease_ms: int, end_ms: int):
    assert transactions.pinged(OPEN, lease_ms, now_ms) == replace(OPEN, lease_end_ms=end_ms)


def test_no_lease_ends_after_the_longest_time_of_a_transaction():
    with pytest.raises(IllegalStateError) as refused:
        transactions.pinged(OPEN, 10_000, LAST_PING_MS + 1)
    assert refused.value.specific_code == "max_execution_time_exceeded"


@pytest.mark.parametrize(
    ("of_work", "present", "former"),
    [(3, None, True), (3, 3, False), (3, 4, True), (4, 3, False)],
)
def test_work_of_a_former_incarnation_is_known_by_its_number(of_work: int, present: int | None, former: bool):
    assert transactions.is_of_former_incarnation(of_work, present) is former


@pytest.mark.parametrize(
    ("state", "is_commit", "is_abort"),
    [
        (TransactionState.OPEN, False, False),
        (TransactionState.COMMITTING, True, False),
        (TransactionState.COMMITTED, True, False),
        (TransactionState.ABORTING, False, True),
        (TransactionState.ABORTED, False, True),
    ],
)
def test_what_a_state_leads_to(state: TransactionState, is_commit: bool, is_abort: bool):
    assert (state.is_commit, state.is_abort) == (is_commit, is_abort)


SEGMENTS = [StreamSegment(number, KeyRange(number / 4, (number + 1) / 4)) for number in range(4)]


def _numbers(segments: list[StreamSegment]) -> list[int]:
    return [segment.number for segment in segments]


def test_segments_on_demand_are_noted_before_they_are_created():
    opened = transactions.new_transaction(5, 10_000, 1_000, 0, on_demand=True)
    noted = transactions.with_segments(opened, [0, 1])
    assert _numbers(transactions.segments_created(noted, SEGMENTS)) == [0, 1]
    assert transactions.segments_with_events(noted, SEGMENTS) == [], "no request has succeeded"
    confirmed = transactions.with_confirmed(noted, [1, 3])
    assert _numbers(transactions.segments_created(confirmed, SEGMENTS)) == [0, 1]
    assert _numbers(transactions.segments_with_events(confirmed, SEGMENTS)) == [1]
    more = transactions.with_segments(confirmed, [1, 2])
    assert _numbers(transactions.segments_created(more, SEGMENTS)) == [0, 1, 2]
    assert _numbers(transactions.segments_with_events(more, SEGMENTS)) == [1], "it was confirmed, and stays so"


def test_a_transaction_with_all_segments_notes_none_of_them():
    assert transactions.with_segments(OPEN, [0, 1]) == OPEN
    assert transactions.segments_created(OPEN, SEGMENTS) == SEGMENTS
    assert transactions.segments_with_events(OPEN, SEGMENTS) == SEGMENTS


def test_segments_that_a_late_request_may_create():
    """A commit merged them; one of two requests for a segment may arrive after that, or one without an answer."""
    opened = transactions.new_transaction(5, 10_000, 1_000, 0, on_demand=True)
    once = transactions.with_confirmed(transactions.with_segments(opened, [0, 1, 2]), [0])
    twice = transactions.with_segments(once, [0, 1, 3])
    assert transactions.numbers_created_late(transactions.with_confirmed(twice, [1])) == frozenset({1, 2, 3})
    assert transactions.numbers_created_late(transactions.with_confirmed(twice, [1, 2, 3])) == frozenset({1})
    thrice = transactions.with_segments(twice, [2])
    assert transactions.numbers_created_late(transactions.with_confirmed(thrice, [1, 2, 3])) == frozenset({1, 2})
    assert transactions.numbers_created_late(COMMITTED) == frozenset()
    gone = transactions.aborted(transactions.marked_for_abort(once), 5_000)
    assert transactions.numbers_created_late(gone) == frozenset({0, 1, 2}), (
        "an abort deletes them without a request's answer"
    )
    assert transactions.numbers_created_late(ABORTED) is None


@pytest.mark.parametrize(
    ("closed", "code"), [(COMMITTING, "transaction_committed"), (ABORTED, "transaction_aborted")], ids=str
)
def test_a_closed_transaction_gets_no_segments(closed: Transaction, code: str):
    for change in (
        lambda: transactions.with_segments(closed, [0]),
        lambda: transactions.with_confirmed(closed, [0]),
        lambda: transactions.prepared(closed, "a"),
    ):
        with pytest.raises(IllegalStateError) as refused:
            change()
        assert refused.value.specific_code == code
        assert refused.value.details == {"transaction": f"{5:032x}", "state": str(closed.state)}


def test_a_mark_keeps_all_but_the_state():
    order, time = CommitOrder(3, OPEN.transaction_id), WriterTime("w", 1)
    assert replace(OPEN, state=TransactionState.COMMITTING, order=order, writer_time=time) == COMMITTING
    assert replace(OPEN, state=TransactionState.ABORTING) == ABORTING
    done = replace(COMMITTING, state=TransactionState.COMMITTED, position=((0, 7),), completed_ms=5_000)
    assert done == COMMITTED
    assert replace(ABORTING, state=TransactionState.ABORTED, completed_ms=5_000) == ABORTED
    prepared = transactions.prepared(OPEN, "a")
    assert prepared == replace(OPEN, state=TransactionState.COMMITTING, commit_set="a")


@pytest.mark.parametrize(
    ("transaction", "now_ms", "expected_ms"),
    [
        (OPEN, 1_000, GRACE_END_MS + 1),
        (OPEN, 0, GRACE_END_MS + 1),
        (replace(OPEN, lease_end_ms=10**9), 1_000, 1_000 + transactions.CHECK_EVERY_MS),
        (COMMITTING, 1_000, 1_000 + transactions.CHECK_EVERY_MS),
        (ABORTING, 1_000, 1_000 + transactions.CHECK_EVERY_MS),
        (COMMITTED, 1_000, KEPT_END_MS),
        (ABORTED, 1_000, KEPT_END_MS),
    ],
)
def test_when_a_transaction_is_looked_at_next(transaction: Transaction, now_ms: int, expected_ms: int):
    assert transactions.next_check_ms(transaction, now_ms) == expected_ms


def test_a_completed_transaction_is_kept_as_long_as_wanted():
    assert transactions.next_check_ms(COMMITTED, 5_000, 70) == 5_070
    assert transactions.due(COMMITTED, 5_069, 70) is Due.WAIT
    assert transactions.due(COMMITTED, 5_070, 70) is Due.COLLECT


def test_a_missing_transaction_is_named():
    error = transactions.no_such_transaction("s", "t", 5)
    assert error.specific_code == "transaction_not_found"
    assert error.details == {"scope": "s", "stream": "t", "transaction": f"{5:032x}"}
