"""A transaction: under `open/` until it is committed or aborted, then under `done/` until it is forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.due_index import IndexPage, bucket_of, move_back, read_index
from headrace.metadata.record_layout import decoded, time_prefix, transactions_partition, versioned
from headrace.model.transactions import CommitOrder, Transaction, TransactionState, WriterTime, transaction_text
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Replace, Write

# An entry in a stream's list of completed transactions, sorted by the time of their completion.

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


OPEN_FIRST = "open/"
DONE_FIRST = "done/"
_AFTER_SLASH = "0"
"""The character after '/': what begins with a prefix sorts before the prefix with this in the slash's place."""

OPEN_LAST = f"open{_AFTER_SLASH}"
DONE_LAST = f"done{_AFTER_SLASH}"


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """A transaction as it was read, and the version of its record."""

    transaction: Transaction
    version: int


def open_sort(transaction_id: int) -> str:
    return f"{OPEN_FIRST}{transaction_text(transaction_id)}"


def done_sort(transaction_id: int) -> str:
    return f"{DONE_FIRST}{transaction_text(transaction_id)}"


def open_key(scope: str, stream: str, transaction_id: int) -> Key:
    return Key(transactions_partition(scope, stream), open_sort(transaction_id))


def done_key(scope: str, stream: str, transaction_id: int) -> Key:
    return Key(transactions_partition(scope, stream), done_sort(transaction_id))


def transaction_body(transaction: Transaction) -> dict[str, Any]:
    noted = transaction.writer_time
    return versioned(
        id=transaction_text(transaction.transaction_id),
        state=str(transaction.state),
        created=transaction.created_ms,
        lease_end=transaction.lease_end_ms,
        order=_order_fields(transaction.order),
        writer_time=[noted.writer, noted.timestamp] if noted else None,
        completed=transaction.completed_ms,
        position=[list(each) for each in transaction.position],
        first_number=transaction.first_segment_number,
        **_optional_fields(transaction),
    )


def _optional_fields(transaction: Transaction) -> dict[str, Any]:
    """What most transactions do not have."""
    fields: dict[str, Any] = {"label": transaction.label, "commit_set": transaction.commit_set}
    if transaction.created_segments is not None:
        fields["created_segments"] = sorted(transaction.created_segments)
    if transaction.unconfirmed_segments:
        fields["unconfirmed_segments"] = sorted(transaction.unconfirmed_segments)
    if transaction.requested_again:
        fields["requested_again"] = sorted(transaction.requested_again)
    return {name: value for name, value in fields.items() if value is not None}


def decode_transaction(body: Body) -> Transaction:
    return decoded("transaction", body, _transaction)


def stored_transaction(record: Record | None) -> StoredTransaction | None:
    return None if record is None else StoredTransaction(decode_transaction(record.body), record.version)


def transaction_left_open(record: Record) -> Transaction | None:
    """The transaction in a record of a partition of transactions; None if it is completed, or of other records."""
    return decode_transaction(record.body) if record.key.sort.startswith(OPEN_FIRST) else None


def create_open(scope: str, stream: str, transaction: Transaction) -> Create:
    return Create(open_key(scope, stream, transaction.transaction_id), transaction_body(transaction))


def delete_begun(scope: str, stream: str, transaction: Transaction) -> Delete:
    """The write that rolls back `create_open`. It fails if the transaction has changed since."""
    return Delete(open_key(scope, stream, transaction.transaction_id), 0)


def replace_open(scope: str, stream: str, stored: StoredTransaction, after: Transaction) -> Replace:
    key = open_key(scope, stream, after.transaction_id)
    return Replace(key, transaction_body(after), stored.version)


def _transaction(body: Body) -> Transaction:
    return Transaction(
        transaction_id=int(body["id"], 16),
        state=TransactionState(body["state"]),
        created_ms=int(body["created"]),
        lease_end_ms=int(body["lease_end"]),
        order=_order(body["order"]),
        writer_time=_writer_time(body["writer_time"]),
        completed_ms=None if body["completed"] is None else int(body["completed"]),
        position=tuple((int(segment), int(offset)) for segment, offset in body["position"]),
        first_segment_number=int(body["first_number"]),
        label=_text(body.get("label")),
        commit_set=_text(body.get("commit_set")),
        created_segments=None if (created := body.get("created_segments")) is None else frozenset(map(int, created)),
        unconfirmed_segments=frozenset(map(int, body.get("unconfirmed_segments", []))),
        requested_again=frozenset(map(int, body.get("requested_again", []))),
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _order_fields(order: CommitOrder | None) -> list[int | str] | None:
    return None if order is None else [order.number, transaction_text(order.group), order.index]


def _order(fields: Any) -> CommitOrder | None:
    if fields is None:
        return None
    number, group, index = fields
    return CommitOrder(int(number), int(group, 16), int(index))


def _writer_time(fields: Any) -> WriterTime | None:
    if fields is None:
        return None
    writer, timestamp = fields
    return WriterTime(str(writer), int(timestamp))


def read_completed(store: MetadataStore, scope: str, stream: str, limit: int) -> list[tuple[Record, Transaction]]:
    """Completed transactions that are not forgotten, in order of their ids, at most `limit`; one query."""
    page = store.query(transactions_partition(scope, stream), first=DONE_FIRST, last=DONE_LAST, limit=limit)
    return [(record, decode_transaction(record.body)) for record in page.records]


# When a transaction is checked next: an index per bucket, sorted by time.
#
# The time is a lower bound: a tick that finds an entry whose transaction has more time moves the entry.


@dataclass(frozen=True, slots=True)
class DueEntry:
    """A transaction to be checked.

    `first_segment_number` tells the incarnation of the stream. After `failures` in a row the entry is at a later place,
    and `due_ms` is still when it was due at first.
    """

    due_ms: int
    scope: str
    stream: str
    transaction_id: int
    first_segment_number: int
    failures: int = 0


def due_partition(bucket: int) -> str:
    return f"transactions-due/{bucket:04d}"


def due_sort(entry: DueEntry) -> str:
    return f"{time_prefix(entry.due_ms)}/{entry.scope}/{entry.stream}/{transaction_text(entry.transaction_id)}"


def due_last(now_ms: int) -> str:
    """The upper bound of a query for what is due at `now_ms`."""
    return time_prefix(now_ms + 1)


def due_key(entry: DueEntry) -> Key:
    return Key(due_partition(bucket_of(entry.scope, entry.stream)), due_sort(entry))


def due_body(entry: DueEntry) -> dict[str, Any]:
    return versioned(
        due=entry.due_ms,
        scope=entry.scope,
        stream=entry.stream,
        transaction=transaction_text(entry.transaction_id),
        commit_set=None,  # release 0.1.0 had entries of commit sets
        first_number=entry.first_segment_number,
        **({"failures": entry.failures} if entry.failures else {}),
    )


def decode_due(body: Body) -> DueEntry:
    return decoded("due transaction", body, _due_entry)


def create_due(entry: DueEntry) -> Create:
    return Create(due_key(entry), due_body(entry))


def _due_entry(body: Body) -> DueEntry:
    if body["commit_set"] is not None:
        raise ValueError(f"it is of the commit set {body['commit_set']!r}, not of a transaction")
    return DueEntry(
        due_ms=int(body["due"]),
        scope=str(body["scope"]),
        stream=str(body["stream"]),
        transaction_id=int(body["transaction"], 16),
        first_segment_number=int(body["first_number"]),
        failures=int(body.get("failures", 0)),
    )


def read_due_entries(store: MetadataStore, bucket: int, now_ms: int, after: str, limit: int) -> IndexPage[DueEntry]:
    """The entries of a bucket that are due at `now_ms`; one query."""
    partition, last = due_partition(bucket), due_last(now_ms)
    return read_index(store, partition, decode_due, after=after, last=last, limit=limit)


def put_off_due(record: Record, entry: DueEntry, due_ms: int) -> list[Write]:
    """The writes that put an entry in the place of the one in `record`, at another place in the index."""
    return move_back(record, due_ms, due_body(entry))
