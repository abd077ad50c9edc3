"""Looks after transactions of which nothing is heard: one bounded piece of work on a bucket per tick.

An open transaction whose lease ran out is aborted, a mark whose message seems lost is sent again, a completed one is
forgotten in time, and so is a commit set. All of them are found by when they are due, so that missed ticks are caught
up; whatever is looked at moves on or goes away, so that nothing keeps the rest from its turn.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace.codec.records.transaction_due_record import DueEntry, due_last, due_of_body, due_partition
from headrace.metadata import transaction_keys
from headrace.metadata import transaction_records as records
from headrace.metadata.transaction_messages import ABORT, COMMIT, TransactionMessage, TransactionQueues
from headrace.metadata.transaction_records import StoredTransaction, TransactionRecords
from headrace.model.errors import HeadraceError
from headrace.model.transactions import (
    CHECK_EVERY_MS,
    COMMIT_SET_KEPT_MS,
    COMPLETED_KEPT_MS,
    Due,
    due,
    marked_for_abort,
    next_check_ms,
)
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Delete, MetadataStore, Record, Write, WriteConflictError
from headrace.ports.workers import Workers
from headrace.workflows.due_work import DuePage, DueWork, DueWorkTicks

TICK = "transactions"
ENTRIES_PER_READ_MAX = 200
_ENTRIES_PER_BATCH = 50
"""Two records may have to be read for each."""

_log = logging.getLogger(__name__)


def transaction_ticks(
    store: MetadataStore,
    queues: TransactionQueues,
    clock: Clock,
    workers: Workers | None = None,
    kept_ms: int = COMPLETED_KEPT_MS,
) -> DueWorkTicks[Sequence[Record]]:
    """Ticks that do what is due in a shard, in batches of entries that are read together.

    Completed transactions are forgotten after `kept_ms`.
    """

    def read(shard: int, after: str) -> DuePage[Sequence[Record]]:
        first = f"{after}\0" if after else ""
        page = store.query(due_partition(shard), first=first, last=due_last(clock.now_ms()), limit=ENTRIES_PER_READ_MAX)
        batches = [
            page.records[start : start + _ENTRIES_PER_BATCH]
            for start in range(0, len(page.records), _ENTRIES_PER_BATCH)
        ]
        return DuePage([(batch[-1].key.sort, batch) for batch in batches], page.next_after)

    def look_after(batch: Sequence[Record]) -> None:
        _Caretaker(store, queues, clock, kept_ms).look_after(batch)

    def put_off(batch: Sequence[Record], error: HeadraceError) -> None:
        """What was looked at has moved on; the others stay due, behind nothing that could keep them from their turn."""
        _log.warning("up to %d due transactions wait for a later tick: %s", len(batch), error)

    return DueWorkTicks(store, clock, DueWork(TICK, read, look_after, put_off), workers)


def expire_transactions(store: MetadataStore, queues: TransactionQueues, clock: Clock, bucket: int) -> bool:
    """One tick; whether more is due than it did.

    Raises:
        UnavailableError, ThrottledError: the store does not answer; a later tick goes on.
    """
    return transaction_ticks(store, queues, clock).run(bucket)


class _Caretaker:
    def __init__(self, store: MetadataStore, queues: TransactionQueues, clock: Clock, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        self._store = store
        self._queues = queues
        self._clock = clock
        self._transactions = TransactionRecords(store)
        self._committing: set[tuple[str, str]] = set()

    def look_after(self, due_records: Sequence[Record]) -> None:
        entries = [due_of_body(record.body) for record in due_records]
        found = self._transactions.find_many(
            [(one.scope, one.stream, one.transaction_id) for one in entries if one.transaction_id is not None]
        )
        for entry in entries:
            stored = None
            if entry.transaction_id is not None:
                wanted = entry.scope, entry.stream, entry.transaction_id
                # One that was completed amid the batch read may be missing from it: that is not to be taken for gone.
                stored = found.get(wanted) or self._transactions.find(*wanted)
            try:
                message = self._settle(entry, stored)
            except WriteConflictError:
                continue  # Pinged, marked or completed at this moment: its entry stays for the next tick.
            if message is not None and self._is_news(message):
                self._queues.send(message, attempt=self._clock.now_ms() // CHECK_EVERY_MS)

    def _is_news(self, message: TransactionMessage) -> bool:
        """One commit message works on everything that is marked on a stream: one per stream and batch is enough."""
        if message.kind != COMMIT:
            return True
        stream = message.scope, message.stream
        is_first = stream not in self._committing
        self._committing.add(stream)
        return is_first

    def _settle(self, entry: DueEntry, stored: StoredTransaction | None) -> TransactionMessage | None:
        """The message to send once what had to be written is written."""
        gone: Write = Delete(transaction_keys.due_key(entry), 0)
        if stored is None:
            self._store.write(gone, *self._forget_set(entry))
            return None
        transaction, now_ms = stored.transaction, self._clock.now_ms()
        scope, stream = entry.scope, entry.stream
        decision = due(transaction, now_ms, self._kept_ms)
        if decision is Due.COLLECT:
            self._store.write(gone, *records.forget(scope, stream, transaction))
            return None
        writes: list[Write] = [gone]
        if decision is Due.EXPIRE:
            transaction = marked_for_abort(transaction)
            writes.append(records.replace_open(scope, stream, stored, transaction))
            _log.info("transaction %032x of %s/%s has timed out", transaction.transaction_id, scope, stream)
        check_ms = next_check_ms(transaction, now_ms, self._kept_ms)
        writes.append(records.create_due(DueEntry(check_ms, scope, stream, transaction.transaction_id)))
        self._store.write(*writes)
        if decision is Due.WAIT:
            return None
        kind = COMMIT if decision is Due.RESEND_COMMIT else ABORT
        return TransactionMessage(kind, scope, stream, transaction.transaction_id)

    def _forget_set(self, entry: DueEntry) -> list[Write]:
        if entry.commit_set is None:
            return []
        marked_ms = entry.due_ms - COMMIT_SET_KEPT_MS
        return self._transactions.forget_set(entry.scope, entry.stream, entry.commit_set, marked_ms)
