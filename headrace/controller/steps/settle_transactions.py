"""The transactions of a stream that is sealed, frozen or deleted: steps of these operations.

A seal or a freeze aborts the open transactions and commits those that were marked before. No transaction begins, since
the stream is SEALING or FREEZING. A deletion removes all records of transactions. Their entries in the index of due
work stay until the tick finds no transaction for them.
"""

from __future__ import annotations

from contextlib import suppress

from headrace.controller.engine import Tools
from headrace.controller.steps.commit_sets import CommitSets, leave_to_tick
from headrace.controller.steps.transaction_aborts import TransactionAborts
from headrace.controller.steps.transaction_commits import TransactionCommits
from headrace.metadata.commit_records import read_commit_writers
from headrace.metadata.record_layout import transactions_partition
from headrace.metadata.stream_records import StoredStream
from headrace.metadata.transaction import read_completed, transaction_left_open
from headrace.metadata.transaction_records import TransactionRecords
from headrace.model.errors import NotFoundError
from headrace.model.streams import Stream
from headrace.ports.deadlines import require_time_for_piece
from headrace.ports.metadata_store import Delete

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
