"""The index of due transactions: golden value and keys."""

from __future__ import annotations

import pytest
from golden_records import GoldenRecords
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.transaction_due import DueEntry, decode_due, due_body, due_key, due_last, due_partition, due_sort
from headrace.model.errors import CorruptError
from headrace.ports.metadata_store import Key

ID = (3 << 96) | 0xAB
TEXT = "000000030000000000000000000000ab"
GOLDEN = {
    "format": 1,
    "due": 8,
    "scope": "s",
    "stream": "t",
    "transaction": TEXT,
    "commit_set": None,
    "first_number": 5,
}


class TestTransactionDue(GoldenRecords):
    shapes = {"due transaction": (DueEntry(8, "s", "t", ID, 5), due_body, decode_due, GOLDEN)}


def test_keys():
    entry = due_key(DueEntry(8, "s", "t", ID, 5))
    assert entry == Key("transactions-due/0000", f"00000000000000000008/s/t/{TEXT}")
    assert due_partition(3) == "transactions-due/0003"


@given(due_ms=st.integers(0, 10**14), now_ms=st.integers(0, 10**14))
def test_only_due_transactions_sort_before_the_bound(due_ms: int, now_ms: int):
    sort = due_sort(DueEntry(due_ms, "s", "t", ID, 5))
    assert (sort <= due_last(now_ms)) == (due_ms <= now_ms)


def test_failures_are_stored_if_there_are_any():
    entry = DueEntry(8, "s", "t", ID, 5, failures=2)
    assert due_body(entry) == {**GOLDEN, "failures": 2}
    assert decode_due(due_body(entry)) == entry


def test_an_entry_of_a_commit_set_is_refused():
    """Release 0.1.0 wrote them."""
    with pytest.raises(CorruptError, match="of the commit set 'k'"):
        decode_due({**GOLDEN, "transaction": None, "commit_set": "k"})
