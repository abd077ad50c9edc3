"""Transactions as values: ids, leases, states, and what is due."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.deployment_defaults import COMPLETED_TRANSACTIONS_KEPT_MS
from headrace.model import transactions
from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.transactions import CommitOrder, Due, Transaction, WriterTime

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


@given(one=st.integers(0, 2**94 - 1), other=st.integers(0, 2**94 - 1))
def test_ids_differ_where_chance_does(one: int, other: int):
    assert (transactions.transaction_id_of(1, one) == transactions.transaction_id_of(1, other)) == (one == other)


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
            lambda one: transactions.pinged(one, 10_000, 1_000),
            lambda one: transactions.marked_for_commit(one, CommitOrder(1, 2)),
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
