"""The transactions of a stream that is sealed or deleted: steps of these operations.

A seal aborts the open transactions and commits those that were marked before. No transaction begins, since the stream
is SEALING. A deletion removes all records of transactions. Their entries in the index of due work stay until the tick
finds no transaction for them.
"""

from __future__ import annotations

from headrace.controller.engine import Tools
from headrace.controller.steps.transaction_aborts import TransactionAborts
from headrace.controller.steps.transaction_commits import TransactionCommits
from headrace.metadata.record_layout import transactions_partition
from headrace.metadata.stream_records import StoredStream
from headrace.metadata.transaction import read_completed
from headrace.model.transactions import TransactionState
from headrace.ports.deadlines import is_time_short, require_time_for_piece
from headrace.ports.metadata_store import Delete

_RECORDS_PER_PAGE = 90
"""Below WRITES_PER_TRANSACTION_MAX, with room for the check of the current record."""


def settle_transactions(tools: Tools, stored: StoredStream) -> None:
    """Complete all transactions. No other one can begin."""
    stream = stored.stream
    TransactionAborts(tools).abort_all(stream)
    commits = TransactionCommits(tools)
    while commits.next_run(stream.scope, stream.name, while_sealing=True):
        require_time_for_piece(f"commits of {stream.scoped_name} before it is sealed")


def forget_transactions(tools: Tools, stored: StoredStream) -> None:
    """Delete all records in the partition of the transactions, before the epochs that name their segments."""
    stream = stored.stream
    partition = transactions_partition(stream.scope, stream.name)
    aborts = TransactionAborts(tools)
    while True:
        completed = read_completed(tools.records.store, stream.scope, stream.name, _RECORDS_PER_PAGE)
        if not completed:
            break
        passed: list[Delete] = []
        for record, transaction in completed:
            if passed and is_time_short():
                break
            if transaction.state is TransactionState.ABORTED:
                aborts.delete_segments(stream, transaction)
            passed.append(Delete(record.key, None))
        tools.records.while_unchanged(stored, *passed)
        require_time_for_piece(f"deletion of the transactions of {stream.scoped_name}")
    while rest := tools.records.store.query(partition, limit=_RECORDS_PER_PAGE).records:
        tools.records.while_unchanged(stored, *(Delete(record.key, None) for record in rest))
        require_time_for_piece(f"deletion of the transactions of {stream.scoped_name}")
