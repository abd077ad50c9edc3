"""The order in which a stream's transactions were marked for commit: an entry for each mark that waits.

There is no counter: a new entry gets a number above those of the present entries. A commit set has one entry. It stays
at its key when a run has committed a part of its members, because a query is not a snapshot: it could miss an entry
that moves.
"""

from __future__ import annotations

from typing import Any

from headrace.metadata.record_layout import decoded, transactions_partition, versioned
from headrace.model.commit_runs import WaitingMark
from headrace.model.transactions import CommitOrder, transaction_text
from headrace.ports.metadata_store import Body, Create, Key, Record, Replace

ORDER_FIRST = "order/"
ORDER_LAST = "order0"
_ORDER_DIGITS = 20
_INDEX_DIGITS = 3


def order_sort(order: CommitOrder) -> str:
    number = f"{order.number:0{_ORDER_DIGITS}d}"
    return f"{ORDER_FIRST}{number}/{transaction_text(order.group)}/{order.index:0{_INDEX_DIGITS}d}"


def order_number(sort: str) -> int:
    """Raises CorruptError unless this is the sort key of an entry."""
    return decoded("commit order", versioned(sort=sort), lambda fields: int(str(fields["sort"]).split("/")[1]))


def order_key(scope: str, stream: str, order: CommitOrder) -> Key:
    return Key(transactions_partition(scope, stream), order_sort(order))


def order_body(mark: WaitingMark) -> dict[str, Any]:
    optional: dict[str, Any] = {} if mark.commit_set is None else {"set": mark.commit_set}
    if mark.passed:
        optional["passed"] = mark.passed
    return versioned(id=transaction_text(mark.transaction_id), marked=mark.marked_ms, **optional)


def create_order(scope: str, stream: str, mark: WaitingMark) -> Create:
    return Create(order_key(scope, stream, mark.order), order_body(mark))


def replace_order(scope: str, stream: str, former: WaitingMark, after: WaitingMark) -> Replace:
    """The write when a part of a commit set is committed. It fails unless the entry is as it was read."""
    return Replace(order_key(scope, stream, former.order), order_body(after), former.version)


def decode_order(record: Record) -> WaitingMark:
    return decoded("commit order", record.body, lambda body: _waiting_mark(body, record.key.sort, record.version))


def _waiting_mark(body: Body, sort: str, version: int) -> WaitingMark:
    commit_set = body.get("set")
    return WaitingMark(
        int(body["id"], 16),
        int(body["marked"]),
        _order_of(sort),
        None if commit_set is None else str(commit_set),
        int(body.get("passed", 0)),
        version,
    )


def _order_of(sort: str) -> CommitOrder:
    _, number, group, index = sort.split("/")
    return CommitOrder(int(number), int(group, 16), int(index))
