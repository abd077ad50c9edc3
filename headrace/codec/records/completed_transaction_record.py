"""An entry in a stream's list of completed transactions, sorted by the time of their completion."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.transactions import Transaction, TransactionState, transaction_text

COMPLETED_FIRST = "completed/"
COMPLETED_LAST = "completed0"
_TIME_DIGITS = 20


def completed_sort(completed_ms: int, transaction_id: int) -> str:
    return f"{COMPLETED_FIRST}{completed_ms:0{_TIME_DIGITS}d}/{transaction_text(transaction_id)}"


def completed_body(transaction: Transaction) -> dict[str, Any]:
    return versioned(id=transaction_text(transaction.transaction_id), state=str(transaction.state))


def completed_of_body(body: Body) -> tuple[int, TransactionState]:
    """Id and outcome."""
    return decoded(
        "completed transaction", body, lambda fields: (int(fields["id"], 16), TransactionState(fields["state"]))
    )
