"""The order in which a stream's transactions were marked for commit: an entry for each that waits.

There is no counter: a new entry gets a number above those of the present entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.record_layout import decoded, transactions_partition, versioned
from headrace.model.transactions import CommitOrder, transaction_text
from headrace.ports.metadata_store import Body, Key

ORDER_FIRST = "order/"
ORDER_LAST = "order0"
_ORDER_DIGITS = 20
_INDEX_DIGITS = 3


@dataclass(frozen=True, slots=True)
class WaitingMark:
    """A transaction that waits for its commit, and when it was marked; older entries do not tell when (None)."""

    transaction_id: int
    marked_ms: int | None


def order_sort(order: CommitOrder) -> str:
    number = f"{ORDER_FIRST}{order.number:0{_ORDER_DIGITS}d}"
    if order.group is None:
        return number
    return f"{number}/{transaction_text(order.group)}/{order.index:0{_INDEX_DIGITS}d}"


def order_number(sort: str) -> int:
    """Raises CorruptError unless this is the sort key of an entry."""
    return decoded("commit order", versioned(sort=sort), lambda fields: int(str(fields["sort"]).split("/")[1]))


def order_key(scope: str, stream: str, order: CommitOrder) -> Key:
    return Key(transactions_partition(scope, stream), order_sort(order))


def order_body(mark: WaitingMark) -> dict[str, Any]:
    return versioned(id=transaction_text(mark.transaction_id), marked=mark.marked_ms)


def decode_order(body: Body) -> WaitingMark:
    return decoded("commit order", body, _waiting_mark)


def _waiting_mark(body: Body) -> WaitingMark:
    marked_ms = body.get("marked")
    return WaitingMark(int(body["id"], 16), None if marked_ms is None else int(marked_ms))
