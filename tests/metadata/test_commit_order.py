"""The commit order of transactions: golden value and keys."""

from __future__ import annotations

import pytest
from golden_records import GoldenRecords

from headrace.metadata.commit_order import (
    ORDER_FIRST,
    ORDER_LAST,
    WaitingMark,
    decode_order,
    order_body,
    order_key,
    order_number,
    order_sort,
)
from headrace.model.errors import CorruptError
from headrace.model.transactions import CommitOrder
from headrace.ports.metadata_store import Key

ID = (3 << 96) | 0xAB
TEXT = "000000030000000000000000000000ab"


class TestCommitOrder(GoldenRecords):
    shapes = {
        "commit order": (WaitingMark(ID, 9), order_body, decode_order, {"format": 1, "id": TEXT, "marked": 9}),
    }
    added_later = {"commit order": {"marked"}}


def test_key():
    assert order_key("s", "t", CommitOrder(7, ID, 2)) == Key(
        "transactions/s/t", f"order/00000000000000000007/{TEXT}/002"
    )


def test_an_old_mark_has_its_own_number_and_no_time():
    assert order_sort(CommitOrder(7, None)) == "order/00000000000000000007"
    assert decode_order({"format": 1, "id": TEXT}) == WaitingMark(ID, None)


def test_marks_sort_by_number_then_by_group_then_by_place():
    orders = [CommitOrder(7, None), CommitOrder(7, 1), CommitOrder(7, 1, 10), CommitOrder(7, 2), CommitOrder(10, 1)]
    sorts = [order_sort(one) for one in orders]
    assert sorts == sorted(sorts)
    assert all(ORDER_FIRST < one < ORDER_LAST for one in sorts)
    assert [order_number(one) for one in sorts] == [7, 7, 7, 7, 10]
    with pytest.raises(CorruptError):
        order_number("order/x")
