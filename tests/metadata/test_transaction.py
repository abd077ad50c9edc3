"""The record of a transaction: golden value and keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from golden_records import GoldenRecords
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.transaction import (
    DONE_FIRST,
    DONE_LAST,
    OPEN_FIRST,
    OPEN_LAST,
    decode_transaction,
    done_key,
    done_sort,
    open_key,
    open_sort,
    transaction_body,
)
from headrace.model.errors import CorruptError
from headrace.model.transactions import CommitOrder, Transaction, TransactionState, WriterTime
from headrace.ports.metadata_store import Key

ID = (3 << 96) | 0xAB
TEXT = "000000030000000000000000000000ab"
DONE = Transaction(
    ID, TransactionState.COMMITTED, 1_000, 2_000, 5, CommitOrder(7, ID, 2), WriterTime("w", -5), 3_000, ((2**62, 9),)
)
GOLDEN = {
    "format": 1,
    "id": TEXT,
    "state": "COMMITTED",
    "created": 1_000,
    "lease_end": 2_000,
    "order": [7, TEXT, 2],
    "writer_time": ["w", -5],
    "completed": 3_000,
    "position": [[2**62, 9]],
    "first_number": 5,
}


class TestTransaction(GoldenRecords):
    shapes = {"transaction": (DONE, transaction_body, decode_transaction, GOLDEN)}


def test_a_mark_with_its_own_number_is_refused():
    """Release 0.1.0 wrote marks without a group."""
    with pytest.raises(CorruptError, match="transaction"):
        decode_transaction({**GOLDEN, "order": 7})


def test_what_few_transactions_have_is_stored_where_they_have_it():
    prepared = replace(DONE, label="job/7", commit_set="a1", created_segments=frozenset({5, 2}), order=None)
    body = transaction_body(prepared)
    extra = {"label": "job/7", "commit_set": "a1", "created_segments": [2, 5]}
    assert body == {**GOLDEN, "order": None, **extra}
    assert decode_transaction(body) == prepared
    assert decode_transaction(GOLDEN).created_segments is None
    none_yet = replace(DONE, created_segments=frozenset())
    assert decode_transaction(transaction_body(none_yet)) == none_yet
    unconfirmed = replace(prepared, unconfirmed_segments=frozenset({5}))
    assert transaction_body(unconfirmed) == {**body, "unconfirmed_segments": [5]}
    assert decode_transaction(transaction_body(unconfirmed)) == unconfirmed
    again = replace(unconfirmed, requested_again=frozenset({5}))
    assert transaction_body(again) == {**body, "unconfirmed_segments": [5], "requested_again": [5]}
    assert decode_transaction(transaction_body(again)) == again


def test_keys():
    assert open_key("s", "t", ID) == Key("transactions/s/t", f"open/{TEXT}")
    assert done_key("s", "t", ID) == Key("transactions/s/t", f"done/{TEXT}")


@given(st.integers(0, 2**128 - 1))
def test_open_and_done_sort_between_their_bounds(one: int):
    assert OPEN_FIRST < open_sort(one) < OPEN_LAST
    assert DONE_FIRST < done_sort(one) < DONE_LAST
