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
    DueEntry,
    decode_due,
    decode_transaction,
    done_key,
    done_sort,
    due_body,
    due_key,
    due_last,
    due_partition,
    due_sort,
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
def test_open_and_done_sort_between_their_bounds(transaction_id: int):
    assert OPEN_FIRST < open_sort(transaction_id) < OPEN_LAST
    assert DONE_FIRST < done_sort(transaction_id) < DONE_LAST


TRANSACTION_DUE_GOLDEN = {
    "format": 1,
    "due": 8,
    "scope": "s",
    "stream": "t",
    "transaction": TEXT,
    "commit_set": None,
    "first_number": 5,
}


class TestTransactionDue(GoldenRecords):
    shapes = {"due transaction": (DueEntry(8, "s", "t", ID, 5), due_body, decode_due, TRANSACTION_DUE_GOLDEN)}


def test_keys_of_transaction_due():
    entry = due_key(DueEntry(8, "s", "t", ID, 5))
    assert entry == Key("transactions-due/0000", f"00000000000000000008/s/t/{TEXT}")
    assert due_partition(3) == "transactions-due/0003"


@given(due_ms=st.integers(0, 10**14), now_ms=st.integers(0, 10**14))
def test_only_due_transactions_sort_before_the_bound(due_ms: int, now_ms: int):
    sort = due_sort(DueEntry(due_ms, "s", "t", ID, 5))
    assert (sort <= due_last(now_ms)) == (due_ms <= now_ms)


def test_failures_are_stored_if_there_are_any():
    entry = DueEntry(8, "s", "t", ID, 5, failures=2)
    assert due_body(entry) == {**TRANSACTION_DUE_GOLDEN, "failures": 2}
    assert decode_due(due_body(entry)) == entry


def test_an_entry_of_a_commit_set_is_refused():
    """Release 0.1.0 wrote them."""
    with pytest.raises(CorruptError, match="of the commit set 'k'"):
        decode_due({**TRANSACTION_DUE_GOLDEN, "transaction": None, "commit_set": "k"})
