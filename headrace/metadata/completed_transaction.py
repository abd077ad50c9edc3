"""An entry in a stream's list of completed transactions, sorted by the time of their completion."""

from __future__ import annotations

from typing import Any

from headrace.metadata.record_layout import decoded, time_prefix, transactions_partition, versioned
from headrace.model.transactions import Transaction, TransactionState, transaction_text
from headrace.ports.metadata_store import Body, Key

COMPLETED_FIRST = "completed/"
COMPLETED_LAST = "completed0"


def completed_sort(completed_ms: int, transaction_id: int) -> str:
    return f"{COMPLETED_FIRST}{time_prefix(completed_ms)}/{transaction_text(transaction_id)}"


def completed_key(scope: str, stream: str, completed_ms: int, transaction_id: int) -> Key:
    return Key(transactions_partition(scope, stream), completed_sort(completed_ms, transaction_id))


def completed_body(transaction: Transaction) -> dict[str, Any]:
    return versioned(id=transaction_text(transaction.transaction_id), state=str(transaction.state))


def decode_completed(body: Body) -> tuple[int, TransactionState]:
    """Id and outcome."""
    return decoded(
        "completed transaction", body, lambda fields: (int(fields["id"], 16), TransactionState(fields["state"]))
    )
