"""What becomes of a stream's transactions when it is sealed and when it is deleted: steps of those workflows.

Sealing aborts what is open and commits what was marked before; nothing new comes in, since the stream is in SEALING.
Deleting forgets them all. Entries of the due list stay until the tick finds nothing behind them.
"""

from __future__ import annotations

from headrace.codec.records.transaction_record import DONE_FIRST, DONE_LAST, transaction_of_body
from headrace.controller.operations.abort_transaction import TransactionAborts
from headrace.controller.operations.commit_transactions import TransactionCommits
from headrace.controller.workflow import Tools
from headrace.metadata.stream_records import StoredStream
from headrace.metadata.transaction_keys import transactions_partition
from headrace.model.transactions import TransactionState
from headrace.ports.deadlines import is_time_short, require_time_for_piece
from headrace.ports.metadata_store import Delete

_RECORDS_PER_PAGE = 90
"""Below WRITES_PER_TRANSACTION_MAX, with room for the check of the current record."""


def settle_transactions(tools: Tools, stored: StoredStream) -> None:
    """Afterwards none is open or marked, and none can come."""
    stream = stored.stream
    TransactionAborts(tools).abort_all(stream)
    commits = TransactionCommits(tools)
    while commits.next_run(stream.scope, stream.name, while_sealing=True):
        require_time_for_piece(f"commits of {stream.scoped_name} before it is sealed")


def forget_transactions(tools: Tools, stored: StoredStream) -> None:
    """Everything in the partition of the stream's transactions; before the epochs go that name their segments."""
    stream = stored.stream
    partition = transactions_partition(stream.scope, stream.name)
    aborts = TransactionAborts(tools)
    while True:
        page = tools.records.store.query(partition, first=DONE_FIRST, last=DONE_LAST, limit=_RECORDS_PER_PAGE)
        if not page.records:
            break
        passed: list[Delete] = []
        for record in page.records:
            if passed and is_time_short():
                break
            transaction = transaction_of_body(record.body)
            if transaction.state is TransactionState.ABORTED:
                aborts.delete_segments(stream, transaction)
            passed.append(Delete(record.key, None))
        tools.records.while_unchanged(stored, *passed)
        require_time_for_piece(f"deletion of the transactions of {stream.scoped_name}")
    while rest := tools.records.store.query(partition, limit=_RECORDS_PER_PAGE).records:
        tools.records.while_unchanged(stored, *(Delete(record.key, None) for record in rest))
        require_time_for_piece(f"deletion of the transactions of {stream.scoped_name}")
