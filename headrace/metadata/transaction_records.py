"""Reads and writes of a stream's transactions, for the service that marks them and the workflows that complete them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from headrace.metadata.commit_records import (
    ORDER_FIRST,
    ORDER_LAST,
    commit_run_key,
    create_order,
    decode_commit_run,
    decode_order,
    order_key,
    order_number,
)
from headrace.metadata.record_layout import transactions_partition
from headrace.metadata.stream import current_key
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.metadata.transaction import (
    COMPLETED_FIRST,
    COMPLETED_LAST,
    OPEN_FIRST,
    OPEN_LAST,
    StoredTransaction,
    completed_body,
    completed_key,
    decode_completed,
    decode_transaction,
    done_key,
    open_key,
    open_sort,
    replace_open,
    stored_transaction,
    transaction_body,
)
from headrace.model.commit_sets import CommitRun, WaitingMark
from headrace.model.errors import CorruptError
from headrace.model.limits import PAGE_BYTES_MAX
from headrace.model.streams import Stream
from headrace.model.transactions import Transaction, TransactionState
from headrace.ports.metadata_store import (
    READS_PER_BATCH_MAX,
    Create,
    Delete,
    Key,
    MetadataStore,
    Record,
    Replace,
    Write,
    WriteConflictError,
)

WRITES_PER_MARK = 2


class TransactionRecords:
    """Reads several records of transactions in one batch. Callers write the writes of this module together."""

    def __init__(self, store: MetadataStore, streams: StreamRecords | None = None) -> None:
        self.store = store
        self._streams = streams or StreamRecords(store)

    def find(self, scope: str, stream: str, transaction_id: int) -> StoredTransaction | None:
        """The transaction, or None if it does not exist or its record has been removed; one batch read."""
        return self.find_to_mark(scope, stream, [transaction_id])[0][0]

    def state_before_completion(self, scope: str, stream: str, transaction_id: int) -> TransactionState | None:
        """OPEN, COMMITTING or ABORTING; None if the transaction is completed or does not exist. One read."""
        stored = stored_transaction(self.store.get(open_key(scope, stream, transaction_id)))
        return stored.transaction.state if stored is not None else None

    def find_to_mark(
        self, scope: str, stream: str, transaction_ids: Sequence[int], *others: Key
    ) -> tuple[list[StoredTransaction | None], list[Record | None]]:
        """The transactions, also completed ones, and the records at the keys `others`; one batch read.

        A batch read is not a snapshot: a transaction that is completed meanwhile may be found neither open nor done.
        """
        wanted = [open_key(scope, stream, each) for each in transaction_ids]
        wanted += [done_key(scope, stream, each) for each in transaction_ids]
        records = self.store.get_many([*wanted, *others])
        count = len(transaction_ids)
        transactions = [
            stored_transaction(opened or done)
            for opened, done in zip(records[:count], records[count : 2 * count], strict=True)
        ]
        return transactions, records[2 * count :]

    def find_many(self, wanted: Sequence[tuple[str, str, int]]) -> dict[tuple[str, str, int], StoredTransaction]:
        """Transactions by scope, stream and id; at most 50, in one batch read.

        Those that do not exist or cannot be decoded are left out.
        """
        if not wanted:
            return {}
        opened = [open_key(*each) for each in wanted]
        records = self.store.get_many([*opened, *(done_key(*each) for each in wanted)])
        either = zip(wanted, records[: len(wanted)], records[len(wanted) :], strict=True)
        transactions: dict[tuple[str, str, int], StoredTransaction] = {}
        for place, open_record, done in either:
            with contextlib.suppress(CorruptError):  # A read of this transaction alone reports the error.
                stored = stored_transaction(open_record or done)
                if stored is not None:
                    transactions[place] = stored
        return transactions

    def streams_of(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Stream | None]:
        """Streams by scope and name; at most 100, in one batch read. Those that cannot be decoded are left out."""
        places = list(dict.fromkeys(wanted))
        records = self.store.get_many([current_key(*place) for place in places]) if places else []
        streams: dict[tuple[str, str], Stream | None] = {}
        for place, record in zip(places, records, strict=True):
            with contextlib.suppress(CorruptError):
                stored = self._streams.stored(record)
                streams[place] = stored.stream if stored else None
        return streams

    def open_transactions(
        self, scope: str, stream: str, limit: int, after: int | None = None
    ) -> tuple[list[StoredTransaction], bool]:
        """The transactions that are not completed, ordered by id, after `after`; and whether more may follow.

        At most `limit` transactions and about PAGE_BYTES_MAX bytes; one query.
        """
        first = OPEN_FIRST if after is None else f"{open_sort(after)}\0"
        partition = transactions_partition(scope, stream)
        page = self.store.query(partition, first=first, last=OPEN_LAST, limit=limit, bytes_max=PAGE_BYTES_MAX)
        transactions = [StoredTransaction(decode_transaction(record.body), record.version) for record in page.records]
        return transactions, page.next_after is not None

    def newest_completed(self, scope: str, stream: str, limit: int) -> list[tuple[int, TransactionState]]:
        """Id and outcome of the transactions that were completed last, the newest first; one query."""
        partition = transactions_partition(scope, stream)
        page = self.store.query(partition, first=COMPLETED_FIRST, last=COMPLETED_LAST, limit=limit, descending=True)
        return [decode_completed(record.body) for record in page.records]

    def find_run(self, scope: str, stream: str) -> tuple[StoredStream | None, CommitRun | None]:
        """The stream and its running commit; one batch read, and a second one if a commit runs.

        All runs have the same key and start at version 0, so the two records alone do not show that they belong to the
        same run. Two equal reads in a row show it.

        Raises:
            WriteConflictError: a run began or ended between the two.
        """
        stream_and_run = self._read_run(scope, stream)
        if stream_and_run[1] is not None and self._read_run(scope, stream) != stream_and_run:
            raise WriteConflictError(f"a commit of {scope}/{stream} has just begun or ended", {})
        return stream_and_run

    def _read_run(self, scope: str, stream: str) -> tuple[StoredStream | None, CommitRun | None]:
        current, run = self.store.get_many([current_key(scope, stream), commit_run_key(scope, stream)])
        return self._streams.stored(current), decode_commit_run(run.body) if run else None

    def marks(self, scope: str, stream: str, limit: int) -> list[WaitingMark]:
        """The marks that wait for their commit, in commit order; one query."""
        partition = transactions_partition(scope, stream)
        page = self.store.query(partition, first=ORDER_FIRST, last=ORDER_LAST, limit=limit)
        return list(map(decode_order, page.records))

    def oldest_mark(self, scope: str, stream: str) -> WaitingMark | None:
        """The mark of the transaction that is committed next, or None if no transaction waits; one query."""
        partition = transactions_partition(scope, stream)
        page = self.store.query(partition, first=ORDER_FIRST, last=ORDER_LAST, limit=1)
        return decode_order(page.records[0]) if page.records else None

    def next_number(self, scope: str, stream: str) -> int:
        """A number above the numbers of all waiting marks; one query.

        A mark with this number is ordered after every mark that was written before the query: such a mark either still
        waits, or its commit is complete.
        """
        partition = transactions_partition(scope, stream)
        page = self.store.query(partition, first=ORDER_FIRST, last=ORDER_LAST, limit=1, descending=True)
        return order_number(page.records[0].key.sort) + 1 if page.records else 0

    def still_open(self, scope: str, stream: str, transaction_ids: Sequence[int]) -> list[StoredTransaction]:
        """The transactions among these that are not completed, in the given order."""
        transactions: list[StoredTransaction] = []
        for start in range(0, len(transaction_ids), READS_PER_BATCH_MAX):
            batch = transaction_ids[start : start + READS_PER_BATCH_MAX]
            records = self.store.get_many([open_key(scope, stream, each) for each in batch])
            transactions += [stored for record in records if (stored := stored_transaction(record)) is not None]
        return transactions


def mark_for_commit(
    scope: str, stream: str, stored: StoredTransaction, after: Transaction, now_ms: int
) -> tuple[Replace, Create]:
    """The writes of the marked transaction and its place in the commit order. No other mark writes these records."""
    if after.order is None:
        raise CorruptError(f"refusing to mark transaction {after.transaction_id:032x} without a place in the order")
    entry = create_order(scope, stream, WaitingMark(after.transaction_id, now_ms, after.order))
    return replace_open(scope, stream, stored, after), entry


def complete(scope: str, stream: str, stored: StoredTransaction, after: Transaction) -> list[Write]:
    """The writes that move a transaction from the open to the completed ones; at most four."""
    if after.completed_ms is None:
        raise CorruptError(f"refusing to complete transaction {after.transaction_id:032x} without a time")
    identifier = after.transaction_id
    writes: list[Write] = [
        Delete(open_key(scope, stream, identifier), stored.version),
        Create(done_key(scope, stream, identifier), transaction_body(after)),
        Create(completed_key(scope, stream, after.completed_ms, identifier), completed_body(after)),
    ]
    if after.order is not None:
        writes.append(Delete(order_key(scope, stream, after.order), None))
    return writes


def packed(groups: Sequence[Sequence[Write]], room: int, room_in_last: int) -> list[list[Write]]:
    """The groups in their order in pieces of at most `room` writes, the last piece of at most `room_in_last`.

    No group is split. The last piece may be empty.
    """
    start, in_last = len(groups), 0
    while start and in_last + len(groups[start - 1]) <= room_in_last:
        start -= 1
        in_last += len(groups[start])
    pieces: list[list[Write]] = []
    for group in groups[:start]:
        if not pieces or len(pieces[-1]) + len(group) > room:
            pieces.append([])
        pieces[-1] += group
    return [*pieces, [write for group in groups[start:] for write in group]]


def forget(scope: str, stream: str, transaction: Transaction) -> list[Write]:
    """The writes that remove the records of a completed transaction."""
    writes: list[Write] = [Delete(done_key(scope, stream, transaction.transaction_id), None)]
    if transaction.completed_ms is not None:
        key = completed_key(scope, stream, transaction.completed_ms, transaction.transaction_id)
        writes.append(Delete(key, None))
    return writes


def remove(scope: str, stream: str, stored: StoredTransaction) -> list[Write]:
    """The writes that remove a transaction in any state, whose incarnation of the stream no longer exists."""
    transaction = stored.transaction
    if transaction.completed_ms is not None:
        return forget(scope, stream, transaction)
    key = open_key(scope, stream, transaction.transaction_id)
    writes: list[Write] = [Delete(key, stored.version)]
    if transaction.order is not None:
        writes.append(Delete(order_key(scope, stream, transaction.order), None))
    return writes
