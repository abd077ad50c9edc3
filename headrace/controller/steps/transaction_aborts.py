"""Abort transactions: delete their segments, then record them as aborted. Settle those of a stream that ends.

The events of an aborted transaction were never in the stream, so no other operation waits for an abort.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import suppress

from headrace.controller.engine import Tools
from headrace.controller.steps.commit_set_steps import CommitSets, leave_to_tick, prepared_by_set
from headrace.controller.steps.transaction_commits import TransactionCommits
from headrace.metadata.commit_records import read_commit_writers
from headrace.metadata.record_layout import transactions_partition
from headrace.metadata.stream_records import StoredStream
from headrace.metadata.transaction import StoredTransaction, read_completed, replace_open, transaction_left_open
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
from headrace.ports.clock import require_time_for_piece
from headrace.ports.metadata_store import Delete, WriteConflictError

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
        return _names(
            stream, transaction, [segment for segment in epoch.segments if late is None or segment.number in late]
        )

    def _mark(self, stream: Stream, stored: StoredTransaction) -> StoredTransaction:
        after = marked_for_abort(stored.transaction)
        self._transactions.store.write(replace_open(stream.scope, stream.name, stored, after))
        return StoredTransaction(after, stored.version + 1)

    def forget_if_former(self, scope: str, name: str, stored: StoredTransaction) -> None:
        """Delete the records of a transaction if it belongs to a former incarnation of the stream.

        Its creator stopped before it saw that the stream was deleted, and created no segment. The stream is read again,
        since it may have been read before the transaction was.
        """
        current = self._tools.records.find(scope, name)
        present = None if current is None else current.stream.first_segment_number
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
    return [segment_of_transaction(stream.scope, stream.name, segment, identifier) for segment in segments]


# The transactions of a stream that is sealed, frozen or deleted: steps of these operations.
#
# A seal or a freeze aborts the open transactions and commits those that were marked before. No transaction begins,
# since the stream is SEALING or FREEZING. A deletion removes all records of transactions. Their entries in the index of
# due work stay until the tick finds no transaction for them.

_RECORDS_PER_PAGE = 90
"""Below WRITES_PER_TRANSACTION_MAX, with room for the check of the current record."""

_SEGMENTS_PER_PIECE = 1_000
"""A piece may have more, because the segments of its last transaction are not split."""


def settle_transactions(tools: Tools, stored: StoredStream) -> None:
    """Complete all transactions. No other one can begin.

    First the commit sets of writers at home here are finished: none is begun any more, and their members in other
    streams must not wait for a stream that may be deleted. A commit set that is refused releases its members. So the
    search for open ones is repeated until it finds none that a set has prepared.
    """
    stream = stored.stream
    aborts, commits = TransactionAborts(tools), TransactionCommits(tools)
    _finish_sets_at_home(tools, stream)
    while True:
        has_sets = aborts.abort_all(stream)
        while commits.next_run(stream.scope, stream.name, while_sealing=True):
            require_time_for_piece(f"commits of {stream.scoped_name} before it is sealed")
        if not has_sets:
            return


def _finish_sets_at_home(tools: Tools, stream: Stream) -> None:
    sets = CommitSets(TransactionRecords(tools.records.store, tools.records), tools.clock, leave_to_tick)
    after: str | None = None
    while True:
        writers, after = read_commit_writers(tools.store, stream.scope, stream.name, after, _RECORDS_PER_PAGE)
        for writer in writers:
            if writer.pending is not None:
                sets.finish(stream.scope, stream.name, writer.name)
                require_time_for_piece(f"commit sets of {stream.scoped_name} before it is sealed")
        if after is None:
            return


def forget_transactions(tools: Tools, stored: StoredStream) -> None:
    """Delete all records in the partition of the transactions, before the epochs that name their segments.

    Each as it was read: a client that creates a segment meanwhile has noted it in the record, or finds no record
    afterwards and deletes the segment itself.

    Raises WriteConflictError if one of them is written at this moment: read again.
    """
    stream = stored.stream
    partition = transactions_partition(stream.scope, stream.name)
    aborts = TransactionAborts(tools)
    while True:
        completed = read_completed(tools.records.store, stream.scope, stream.name, _RECORDS_PER_PAGE)
        if not completed:
            break
        late: list[str] = []
        passed: list[Delete] = []
        for record, transaction in completed:
            late += aborts.late_segments(stream, transaction)
            passed.append(Delete(record.key, record.version))
            if len(late) >= _SEGMENTS_PER_PIECE:
                break
        if late:
            tools.segment_stores.delete_segments(late)
        tools.records.while_unchanged(stored, *passed)
        require_time_for_piece(f"deletion of the transactions of {stream.scoped_name}")
    while rest := tools.records.store.query(partition, limit=_RECORDS_PER_PAGE).records:
        for transaction in filter(None, map(transaction_left_open, rest)):
            # It was begun after the seal by a process that stopped, and another client may have written into it. If it
            # is of a former incarnation, the stream may not have its epoch, and no client could create its segments.
            with suppress(NotFoundError):
                aborts.delete_segments(stream, transaction)
        tools.records.while_unchanged(stored, *(Delete(record.key, record.version) for record in rest))
        require_time_for_piece(f"deletion of the transactions of {stream.scoped_name}")
