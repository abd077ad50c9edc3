"""Abort transactions: delete their segments, then record them as aborted.

The events of an aborted transaction were never in the stream, so no other operation waits for an abort.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from headrace.controller.engine import Tools
from headrace.controller.steps.commit_sets import CommitSets, leave_to_tick, prepared_by_set
from headrace.metadata.transaction import StoredTransaction, replace_open
from headrace.metadata.transaction_records import TransactionRecords, complete, remove
from headrace.model.errors import NotFoundError
from headrace.model.segments import StreamSegment
from headrace.model.streams import Stream
from headrace.model.transactions import (
    Transaction,
    TransactionState,
    aborted,
    is_of_former_incarnation,
    marked_for_abort,
    numbers_created_late,
    segment_of_transaction,
    segments_created,
)
from headrace.ports.deadlines import require_time_for_piece
from headrace.ports.metadata_store import WriteConflictError

_TRANSACTIONS_PER_READ = 100


class TransactionAborts:
    """Safe for any number of threads and processes, also on the same transaction at the same time."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._transactions = TransactionRecords(tools.records.store)
        self._sets = CommitSets(self._transactions, tools.clock, leave_to_tick)

    def abort_all(self, stream: Stream) -> bool:
        """Mark and abort the open transactions of a stream that is being sealed, except for those marked for commit.

        The commit sets that have prepared transactions of it are finished. If there is one, the answer is True: it may
        have released transactions, which are open again.

        Raises WriteConflictError if one of them is marked at this moment: read again.
        """
        after: int | None = None
        has_sets = False
        while True:
            page, has_more = self._transactions.open_transactions(
                stream.scope, stream.name, _TRANSACTIONS_PER_READ, after
            )
            for commit_set, members in prepared_by_set(page).items():
                has_sets = True
                self._sets.settle(stream.scope, stream.name, commit_set, members)
                require_time_for_piece(f"commit sets of {stream.scoped_name} before it is sealed")
            for stored in page:
                if stored.transaction.state is TransactionState.OPEN:
                    stored = self._mark(stream, stored)
                if stored.transaction.state is TransactionState.ABORTING:
                    self.abort(stream, stored)
                    require_time_for_piece(f"aborts of {stream.scoped_name} before it is sealed")
            if not has_more:
                return has_sets
            after = page[-1].transaction.transaction_id

    def delete_segments(self, stream: Stream, transaction: Transaction) -> None:
        """Delete the segments of a transaction that is aborted."""
        epoch = self._tools.history.epoch(stream, transaction.reference_epoch)
        names = _names(stream, transaction, segments_created(transaction, epoch.segments))
        self._tools.segment_stores.delete_segments(names)

    def late_segments(self, stream: Stream, transaction: Transaction) -> list[str]:
        """The names of segments of a completed transaction that may have been created after it ended.

        Empty if the stream no longer has the epoch: its deletion has deleted them.
        """
        late = numbers_created_late(transaction)
        if late is not None and not late:
            return []
        try:
            epoch = self._tools.history.epoch(stream, transaction.reference_epoch)
        except NotFoundError:
            return []
        return _names(stream, transaction, [one for one in epoch.segments if late is None or one.number in late])

    def _mark(self, stream: Stream, stored: StoredTransaction) -> StoredTransaction:
        after = marked_for_abort(stored.transaction)
        self._transactions.store.write(replace_open(stream.scope, stream.name, stored, after))
        return StoredTransaction(after, stored.version + 1)

    def forget_if_former(self, scope: str, name: str, stored: StoredTransaction) -> None:
        """Delete the records of a transaction if it belongs to a former incarnation of the stream.

        Its creator stopped before it saw that the stream was deleted, and created no segment. The stream is read again,
        since it may have been read before the transaction was.
        """
        found = self._tools.records.find(scope, name)
        present = None if found is None else found.stream.first_segment_number
        if is_of_former_incarnation(stored.transaction.first_segment_number, present):
            with contextlib.suppress(WriteConflictError):
                self._transactions.store.write(*remove(scope, name, stored))

    def abort(self, stream: Stream, stored: StoredTransaction) -> None:
        """Abort a transaction that is marked for abort; nothing if another process has completed it."""
        if is_of_former_incarnation(stored.transaction.first_segment_number, stream.first_segment_number):
            self.forget_if_former(stream.scope, stream.name, stored)
            return
        try:
            self.delete_segments(stream, stored.transaction)
        except NotFoundError:
            # No epoch: the stream is being deleted with its transactions, or it never had this epoch.
            self.forget_if_former(stream.scope, stream.name, stored)
            return
        done = aborted(stored.transaction, self._tools.clock.now_ms())
        try:
            self._transactions.store.write(*complete(stream.scope, stream.name, stored, done))
        except WriteConflictError:
            return  # Another process has completed it.


def _names(stream: Stream, transaction: Transaction, segments: Sequence[StreamSegment]) -> list[str]:
    identifier = transaction.transaction_id
    return [segment_of_transaction(stream.scope, stream.name, one, identifier) for one in segments]
