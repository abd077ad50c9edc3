"""The commit order of transactions: golden value and keys."""

from __future__ import annotations

from typing import Any

import pytest
from golden_records import GoldenRecords

from headrace.metadata.commit_records import (
    ORDER_FIRST,
    ORDER_LAST,
    decode_order,
    order_body,
    order_key,
    order_number,
    order_sort,
    replace_order,
)
from headrace.model.commit_sets import WaitingMark
from headrace.model.errors import CorruptError
from headrace.model.transactions import CommitOrder
from headrace.ports.metadata_store import Key, Record, Replace

ID = (3 << 96) | 0xAB
TEXT = "000000030000000000000000000000ab"


class TestCommitOrder(GoldenRecords):
    shapes = {
        "commit order": (
            WaitingMark(ID, 9, CommitOrder(7, ID), "a1"),
            order_body,
            lambda body: _decoded(body, f"order/00000000000000000007/{TEXT}/000"),
            {"format": 1, "id": TEXT, "marked": 9, "set": "a1"},
        )
    }
    left_out = {"commit order": {"set"}}


def _decoded(body: dict[str, Any], sort: str) -> WaitingMark:
    return decode_order(Record(Key("transactions/s/t", sort), 0, body))


def test_key():
    assert order_key("s", "t", CommitOrder(7, ID, 2)) == Key(
        "transactions/s/t", f"order/00000000000000000007/{TEXT}/002"
    )


def test_a_mark_with_its_own_number_is_refused():
    """Release 0.1.0 wrote marks without a group and a time."""
    with pytest.raises(CorruptError, match="commit order"):
        _decoded({"format": 1, "id": TEXT, "marked": 9}, "order/00000000000000000007")


def test_a_mark_of_one_transaction_is_stored_as_before():
    assert order_body(WaitingMark(ID, 9, CommitOrder(7, ID))) == {"format": 1, "id": TEXT, "marked": 9}


def test_the_place_of_a_mark_is_in_its_key():
    for order in (CommitOrder(7, ID, 2), CommitOrder(7, ID, 1_234)):
        assert _decoded({"format": 1, "id": TEXT, "marked": 9}, order_sort(order)).order == order


def test_an_entry_keeps_its_key_when_a_part_is_committed():
    before = WaitingMark(1, 9, CommitOrder(7, ID), "a1", version=3)
    after = before.after(250, ID)
    body = {"format": 1, "id": TEXT, "marked": 9, "set": "a1", "passed": 250}
    assert replace_order("s", "t", before, after) == Replace(order_key("s", "t", before.order), body, 3)
    assert decode_order(Record(order_key("s", "t", before.order), 4, body)) == after


def test_marks_sort_by_number_then_by_group_then_by_place():
    orders = [CommitOrder(7, 1), CommitOrder(7, 1, 10), CommitOrder(7, 2), CommitOrder(10, 1)]
    sorts = [order_sort(order) for order in orders]
    assert sorts == sorted(sorts)
    assert all(ORDER_FIRST < sort < ORDER_LAST for sort in sorts)
    assert [order_number(sort) for sort in sorts] == [7, 7, 7, 10]
    with pytest.raises(CorruptError):
        order_number("order/x")
