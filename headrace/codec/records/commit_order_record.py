"""The order in which a stream's transactions were marked for commit: a counter, and an entry for each that waits."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.transactions import transaction_text

NEXT_ORDER_SORT = "next-order"
ORDER_FIRST = "order/"
ORDER_LAST = "order0"
_ORDER_DIGITS = 20


def order_sort(order: int) -> str:
    return f"{ORDER_FIRST}{order:0{_ORDER_DIGITS}d}"


def order_body(transaction_id: int) -> dict[str, Any]:
    return versioned(id=transaction_text(transaction_id))


def order_of_body(body: Body) -> int:
    """The id of the transaction."""
    return decoded("commit order", body, lambda fields: int(fields["id"], 16))


def next_order_body(order: int) -> dict[str, Any]:
    return versioned(next=order)


def next_order_of_body(body: Body) -> int:
    return decoded("next order", body, lambda fields: int(fields["next"]))
