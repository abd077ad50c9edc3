"""Transactions in the metadata store: golden bodies and keys, round trips, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from golden_records import GoldenRecords, Shape
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.records import (
    commit_order_record,
    commit_run_record,
    commit_set_record,
    completed_transaction_record,
    transaction_due_record,
    transaction_record,
)
from headrace.codec.records.commit_order_record import WaitingMark
from headrace.codec.records.transaction_due_record import DueEntry
from headrace.model.errors import CorruptError
from headrace.model.transactions import (
    CommitOrder,
    CommitRun,
    CommitSet,
    Transaction,
    TransactionState,
    WriterTime,
)

ID = (3 << 96) | 0xAB
TEXT = "000000030000000000000000000000ab"
DONE = Transaction(
    ID, TransactionState.COMMITTED, 1_000, 2_000, CommitOrder(7, ID, 2), WriterTime("w", -5), 3_000, ((2**62, 9),)
)

SHAPES: dict[str, Shape] = {
    "transaction": (
        DONE,
        transaction_record.transaction_body,
        transaction_record.transaction_of_body,
        {
            "format": 1,
            "id": TEXT,
            "state": "COMMITTED",
            "created": 1_000,
            "lease_end": 2_000,
            "order": [7, TEXT, 2],
            "writer_time": ["w", -5],
            "completed": 3_000,
            "position": [[2**62, 9]],
        },
    ),
    "commit run": (
        CommitRun((ID, 1), 3, 5, True, 99),
        commit_run_record.commit_run_body,
        commit_run_record.commit_run_of_body,
        {
            "format": 1,
            "transactions": [TEXT, "0" * 31 + "1"],
            "reference_epoch": 3,
            "active_epoch": 5,
            "rolls": True,
            "started": 99,
        },
    ),
    "commit set": (
        CommitSet("k", (ID,), 4),
        commit_set_record.commit_set_body,
        commit_set_record.commit_set_of_body,
        {"format": 1, "key": "k", "transactions": [TEXT], "marked": 4},
    ),
    "due transaction": (
        DueEntry(8, "s", "t", ID),
        transaction_due_record.due_body,
        transaction_due_record.due_of_body,
        {"format": 1, "due": 8, "scope": "s", "stream": "t", "transaction": TEXT, "commit_set": None},
    ),
    "commit order": (
        WaitingMark(ID, 9),
        commit_order_record.order_body,
        commit_order_record.order_of_body,
        {"format": 1, "id": TEXT, "marked": 9},
    ),
}


class TestTransactionRecords(GoldenRecords):
    shapes = SHAPES
    added_later = {"commit order": {"marked"}}


def test_an_old_mark_with_its_own_number_keeps_its_entry():
    golden = SHAPES["transaction"][3]
    found = transaction_record.transaction_of_body({**golden, "order": 7})
    assert found.order == CommitOrder(7, None)
    assert transaction_record.transaction_body(found)["order"] == 7
    assert commit_order_record.order_sort(found.order) == "order/00000000000000000007"
    assert commit_order_record.order_of_body({"format": 1, "id": TEXT}) == WaitingMark(ID, None)


def test_a_run_names_those_that_it_aborts():
    run = CommitRun((ID, 1), 3, 5, True, 99, incomplete=(1,))
    body = commit_run_record.commit_run_body(run)
    assert body == SHAPES["commit run"][3] | {"incomplete": ["0" * 31 + "1"]}
    assert commit_run_record.commit_run_of_body(body) == run


def test_marks_sort_by_number_then_by_group_then_by_place():
    orders = [CommitOrder(7, None), CommitOrder(7, 1), CommitOrder(7, 1, 10), CommitOrder(7, 2), CommitOrder(10, 1)]
    sorts = [commit_order_record.order_sort(one) for one in orders]
    assert sorts == sorted(sorts)
    assert [commit_order_record.number_of_order_sort(one) for one in sorts] == [7, 7, 7, 7, 10]
    with pytest.raises(CorruptError):
        commit_order_record.number_of_order_sort("order/x")


def test_a_completed_entry():
    body = completed_transaction_record.completed_body(DONE)
    assert body == {"format": 1, "id": TEXT, "state": "COMMITTED"}
    assert completed_transaction_record.completed_of_body(body) == (ID, TransactionState.COMMITTED)
    with pytest.raises(CorruptError):
        completed_transaction_record.completed_of_body({"format": 1, "id": TEXT})


def test_keys_are_where_they_always_were():
    assert transaction_record.transactions_partition("s", "t") == "transactions/s/t"
    assert transaction_record.open_sort(ID) == f"open/{TEXT}"
    assert transaction_record.done_sort(ID) == f"done/{TEXT}"
    assert completed_transaction_record.completed_sort(9, ID) == f"completed/00000000000000000009/{TEXT}"
    assert commit_order_record.order_sort(CommitOrder(7, ID, 2)) == f"order/00000000000000000007/{TEXT}/002"
    assert commit_set_record.commit_set_sort("k") == "commit-set/k"
    assert commit_run_record.RUN_SORT == "run"
    assert transaction_due_record.due_partition(3) == "transactions-due/0003"
    assert transaction_due_record.due_sort(DueEntry(8, "s", "t", ID)) == f"00000000000000000008/s/t/{TEXT}"
    assert transaction_due_record.due_sort(DueEntry(8, "s", "t", None, "k")) == "00000000000000000008/s/t/set/k"


@given(due_ms=st.integers(0, 10**14), now_ms=st.integers(0, 10**14))
def test_only_due_transactions_sort_before_the_bound(due_ms: int, now_ms: int):
    sort = transaction_due_record.due_sort(DueEntry(due_ms, "s", "t", ID))
    assert (sort <= transaction_due_record.due_last(now_ms)) == (due_ms <= now_ms)


@given(st.integers(0, 2**128 - 1))
def test_each_kind_of_record_sorts_between_its_bounds(one: int):
    for first, last, sort in (
        (transaction_record.OPEN_FIRST, transaction_record.OPEN_LAST, transaction_record.open_sort),
        (transaction_record.DONE_FIRST, transaction_record.DONE_LAST, transaction_record.done_sort),
    ):
        assert first < sort(one) < last


def test_incarnation_and_failures_are_noted_where_they_are_known():
    entry = DueEntry(8, "s", "t", ID, first_segment_number=5, failures=2)
    body = transaction_due_record.due_body(entry)
    assert body == {**SHAPES["due transaction"][3], "first_number": 5, "failures": 2}
    assert transaction_due_record.due_of_body(body) == entry
    transaction = replace(DONE, first_segment_number=5)
    body = transaction_record.transaction_body(transaction)
    assert body == {**transaction_record.transaction_body(DONE), "first_number": 5}
    assert transaction_record.transaction_of_body(body) == transaction
