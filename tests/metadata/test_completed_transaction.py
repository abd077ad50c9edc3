"""The list of completed transactions: golden value and key."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.metadata.transaction import (
    COMPLETED_FIRST,
    COMPLETED_LAST,
    completed_body,
    completed_key,
    decode_completed,
)
from headrace.model.errors import CorruptError
from headrace.model.transactions import Transaction, TransactionState
from headrace.ports.metadata_store import Key

ID = (3 << 96) | 0xAB
TEXT = "000000030000000000000000000000ab"
DONE = Transaction(ID, TransactionState.COMMITTED, 1_000, 2_000, 5, None, None, 3_000, ())


def test_golden_value():
    body = completed_body(DONE)
    assert body == {"format": 1, "id": TEXT, "state": "COMMITTED"}
    assert decode_completed(body) == (ID, TransactionState.COMMITTED)


@pytest.mark.parametrize(
    "body", [{"format": 1, "id": TEXT}, {"format": 2, "id": TEXT, "state": "COMMITTED"}, {"format": 1, "state": "OPEN"}]
)
def test_an_invalid_entry_is_refused(body: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_completed(body)


def test_key():
    key = completed_key("s", "t", 9, ID)
    assert key == Key("transactions/s/t", f"completed/00000000000000000009/{TEXT}")
    assert COMPLETED_FIRST < key.sort < COMPLETED_LAST
