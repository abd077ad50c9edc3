"""Where each record of a stream's transactions is stored: in a partition apart from the stream's other records.

Each function imports the module of its record itself, for the reason given in `keys`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace import topology
from headrace.model.buckets import bucket_of_stream
from headrace.model.names import check_known_name, scoped_stream_name
from headrace.ports.metadata_store import Key

if TYPE_CHECKING:
    from headrace.codec.records.transaction_due_record import DueEntry
    from headrace.model.transactions import CommitOrder


def transactions_partition(scope: str, stream: str) -> str:
    """Raises InvalidRequestError, code "invalid_name", for an invalid name, as every function of this module does."""
    from headrace.codec.records import transaction_record

    return transaction_record.transactions_partition(
        check_known_name("scope", scope), check_known_name("stream", stream)
    )


def open_key(scope: str, stream: str, transaction_id: int) -> Key:
    from headrace.codec.records import transaction_record

    return Key(transactions_partition(scope, stream), transaction_record.open_sort(transaction_id))


def done_key(scope: str, stream: str, transaction_id: int) -> Key:
    from headrace.codec.records import transaction_record

    return Key(transactions_partition(scope, stream), transaction_record.done_sort(transaction_id))


def completed_key(scope: str, stream: str, completed_ms: int, transaction_id: int) -> Key:
    from headrace.codec.records import completed_transaction_record

    sort = completed_transaction_record.completed_sort(completed_ms, transaction_id)
    return Key(transactions_partition(scope, stream), sort)


def order_key(scope: str, stream: str, order: CommitOrder) -> Key:
    from headrace.codec.records import commit_order_record

    return Key(transactions_partition(scope, stream), commit_order_record.order_sort(order))


def commit_run_key(scope: str, stream: str) -> Key:
    from headrace.codec.records import commit_run_record

    return Key(transactions_partition(scope, stream), commit_run_record.RUN_SORT)


def commit_set_key(scope: str, stream: str, key: str) -> Key:
    from headrace.codec.records import commit_set_record

    return Key(transactions_partition(scope, stream), commit_set_record.commit_set_sort(key))


def due_key(entry: DueEntry) -> Key:
    from headrace.codec.records import transaction_due_record

    bucket = bucket_of_stream(scoped_stream_name(entry.scope, entry.stream), topology.BUCKET_COUNT)
    return Key(transaction_due_record.due_partition(bucket), transaction_due_record.due_sort(entry))
