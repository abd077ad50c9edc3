"""The transaction tick: aborts transactions whose lease has expired, and does the other work that is due.

It sends the message of a mark again if that seems lost, finishes commit sets whose process has stopped, and deletes the
records of completed transactions when their retention time is over. Before that it deletes the segments that were
created after their transaction had ended. Entries are indexed by the time at which they are due, so a missed tick only
delays them. Each processed entry moves to a later time or is deleted, even if it fails or belongs to a former
incarnation of its stream. So no entry blocks the others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.controller.engine import Tools
from headrace.controller.steps.commit_set_steps import CommitSets
from headrace.controller.steps.transaction_aborts import TransactionAborts
from headrace.controller.ticks.due_work import DuePage, DueWork, DueWorkTicks, NoteUndecodable
from headrace.deployment_defaults import COMPLETED_TRANSACTIONS_KEPT_MS
from headrace.metadata import transaction_records as records
from headrace.metadata.transaction import (
    DueEntry,
    StoredTransaction,
    create_due,
    put_off_due,
    read_due_entries,
    replace_open,
)
from headrace.metadata.transaction_messages import ABORT, COMMIT, TransactionMessage, TransactionQueues
from headrace.metadata.transaction_records import TransactionRecords
from headrace.model.backoff import backoff_ms
from headrace.model.errors import CorruptError, HeadraceError, OutOfTimeError
from headrace.model.streams import Stream
from headrace.model.transactions import (
    CHECK_EVERY_MS,
    Due,
    Transaction,
    due,
    is_of_former_incarnation,
    marked_for_abort,
    next_check_ms,
    numbers_created_late,
    transaction_text,
)
from headrace.ports.metadata_store import Delete, Record, Write, WriteConflictError
from headrace.ports.workers import Workers

TICK = "transactions"
ENTRIES_PER_READ_MAX = 200
_ENTRIES_PER_BATCH = 50
"""Two records may have to be read for each, in one batch read of at most 100; those of the streams are read apart."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A due entry with its record."""

    entry: DueEntry
    record: Record


@dataclass(slots=True)
class DueBatch:
    """Entries whose records are read together; `left` are those that are not processed yet."""

    entries: Sequence[StoredEntry]
    left: list[StoredEntry] = field(init=False)

    def __post_init__(self) -> None:
        self.left = list(self.entries)


@dataclass(frozen=True, slots=True)
class _BatchReads:
    """The records of a batch, and what was done for several of its entries at once.

    Those are the streams whose commit message was sent, and the parts of commit sets that were settled.
    """

    transactions: Mapping[tuple[str, str, int], StoredTransaction]
    streams: Mapping[tuple[str, str], Stream | None]
    committing: set[tuple[str, str]] = field(default_factory=set)
    settled: set[tuple[str, str, str]] = field(default_factory=set)

    def may_ask_stores(self, stored: StoredEntry) -> bool:
        """Whether the transaction is completed and may have late segments, which its removal deletes."""
        entry = stored.entry
        known = self.transactions.get((entry.scope, entry.stream, entry.transaction_id))
        return (
            known is not None
            and known.transaction.completed_ms is not None
            and numbers_created_late(known.transaction) != frozenset()
        )

    def prepared_by(self, commit_set: str, scope: str, stream: str) -> list[int]:
        """The members of a commit set in a stream that are not completed, among those of the batch."""
        return [
            identifier
            for (its_scope, its_stream, identifier), stored in self.transactions.items()
            if (its_scope, its_stream, stored.transaction.commit_set) == (scope, stream, commit_set)
            and stored.transaction.completed_ms is None
        ]


def transaction_ticks(
    tools: Tools,
    queues: TransactionQueues,
    workers: Workers | None = None,
    kept_ms: int = COMPLETED_TRANSACTIONS_KEPT_MS,
    note_undecodable: NoteUndecodable | None = None,
) -> DueWorkTicks[DueBatch]:
    """Ticks that process the due entries of a shard in batches.

    The records of a completed transaction are deleted after `kept_ms`. Segment stores are called only for one that was
    aborted, or that was committed without a segment that a process was about to create.
    """
    store, clock = tools.store, tools.clock
    expiry = _TransactionExpiry(tools, queues, kept_ms)

    def read(shard: int, after: str) -> DuePage[DueBatch]:
        page = read_due_entries(store, shard, clock.now_ms(), after, ENTRIES_PER_READ_MAX)
        entries = [StoredEntry(entry, record) for record, entry in page.entries]
        batches = [
            DueBatch(entries[start : start + _ENTRIES_PER_BATCH])
            for start in range(0, len(entries), _ENTRIES_PER_BATCH)
        ]
        return DuePage(
            [(batch.entries[-1].record.key.sort, batch) for batch in batches], page.next_after, page.undecodable
        )

    due_work = DueWork(TICK, read, expiry.process_batch, expiry.put_off)
    return DueWorkTicks(store, clock, due_work, workers, note_undecodable)


class _TransactionExpiry:
    """Processes due entries; safe for any number of threads."""

    def __init__(self, tools: Tools, queues: TransactionQueues, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        self._store = tools.store
        self._queues = queues
        self._clock = tools.clock
        self._transactions = TransactionRecords(tools.store)
        self._segment_stores = tools.segment_stores
        self._aborts = TransactionAborts(tools)
        self._sets = CommitSets(self._transactions, tools.clock, self._request_commit)

    def process_batch(self, batch: DueBatch) -> None:
        """Process each entry of a batch. An entry that fails is postponed, and the batch continues with the others.

        Those with late segments come last: their segment store may use up the time, and no client waits for them.
        """
        entries = [stored.entry for stored in batch.entries]
        transactions = self._transactions.find_many(
            [(entry.scope, entry.stream, entry.transaction_id) for entry in entries]
        )
        streams = self._transactions.streams_of((entry.scope, entry.stream) for entry in entries)
        reads = _BatchReads(transactions, streams)
        for stored in sorted(batch.entries, key=reads.may_ask_stores):
            try:
                self._process(stored, reads)
            except OutOfTimeError:
                raise  # The other entries have no time left either, so this one counts as no more failed than they do.
            except WriteConflictError:
                pass  # The transaction was pinged, marked or completed meanwhile; its entry stays for the next tick.
            except HeadraceError as error:
                self._put_off(stored, error)
            batch.left.remove(stored)

    def put_off(self, batch: DueBatch, error: HeadraceError) -> None:
        """Postpone the entries of a batch that were not processed."""
        for stored in batch.left:
            self._put_off(stored, error)

    def _put_off(self, stored: StoredEntry, error: HeadraceError) -> None:
        """Postpone an entry. Only ticks write entries, so after a conflict another tick has moved it already."""
        entry, failures = stored.entry, stored.entry.failures + 1
        _log.warning("due %s of %s/%s is put off: %s", _what(entry), entry.scope, entry.stream, error)
        later, due_ms = replace(entry, failures=failures), self._clock.now_ms() + backoff_ms(failures)
        try:
            self._store.write(*put_off_due(stored.record, later, due_ms))
        except WriteConflictError:
            _log.info("due %s of %s/%s was moved by another tick", _what(entry), entry.scope, entry.stream)

    def _process(self, stored: StoredEntry, reads: _BatchReads) -> None:
        entry = stored.entry
        wanted = entry.scope, entry.stream, entry.transaction_id
        # A transaction that is completed during the batch read may be missing from its answer though it exists.
        transaction = reads.transactions.get(wanted) or self._transactions.find(*wanted)
        place = entry.scope, entry.stream
        if place not in reads.streams:
            raise CorruptError(f"the record of stream {entry.scope}/{entry.stream} does not decode")
        stream = reads.streams[place]
        if is_of_former_incarnation(entry.first_segment_number, stream.first_segment_number if stream else None):
            self._remove(stored, transaction)
            return
        if transaction is not None:
            self._settle_set(entry, transaction.transaction, reads)
        message = self._settle(stored, transaction, stream)
        if message is not None and _is_needed(message, reads.committing):
            self._send(message)

    def _settle_set(self, entry: DueEntry, transaction: Transaction, reads: _BatchReads) -> None:
        """Finish the commit set that has prepared the transaction: the process that began it may have stopped.

        A transaction that the set releases is checked again like any open one.
        """
        scope, stream, commit_set = entry.scope, entry.stream, transaction.commit_set
        if commit_set is None or transaction.completed_ms is not None or (scope, stream, commit_set) in reads.settled:
            return
        members = reads.prepared_by(commit_set, scope, stream) or [transaction.transaction_id]
        self._sets.settle(scope, stream, commit_set, members)
        reads.settled.add((scope, stream, commit_set))

    def _request_commit(self, scope: str, stream: str, first: int, _none_waited: bool) -> None:
        self._send(TransactionMessage(COMMIT, scope, stream, first))

    def _send(self, message: TransactionMessage) -> None:
        """Send a message. If that fails, the next check sends it: the entry has been moved to that time already."""
        try:
            self._queues.send(message, attempt=self._clock.now_ms() // CHECK_EVERY_MS)
        except HeadraceError as error:
            _log.warning("%s of %s/%s not sent: %s", message.kind, message.scope, message.stream, error)

    def _remove(self, stored: StoredEntry, transaction: StoredTransaction | None) -> None:
        """Delete an entry of a former incarnation, with its transaction if there is one."""
        entry = stored.entry
        others = [] if transaction is None else records.remove(entry.scope, entry.stream, transaction)
        self._store.write(_delete(stored), *others)
        _log.info("due %s of a former %s/%s is removed", _what(entry), entry.scope, entry.stream)

    def _settle(
        self, due_entry: StoredEntry, stored: StoredTransaction | None, current: Stream | None
    ) -> TransactionMessage | None:
        """Do what is due for a transaction; return the message that must be sent afterwards, if any."""
        entry, gone = due_entry.entry, _delete(due_entry)
        if stored is None:
            self._store.write(gone)
            return None
        transaction, now_ms = stored.transaction, self._clock.now_ms()
        scope, stream = entry.scope, entry.stream
        decision = due(transaction, now_ms, self._kept_ms)
        if decision is Due.COLLECT:
            late = [] if current is None else self._aborts.late_segments(current, transaction)
            if late:
                self._segment_stores.delete_segments(late)
            self._store.write(gone, *records.forget(scope, stream, transaction))
            return None
        writes: list[Write] = [gone]
        if decision is Due.EXPIRE:
            transaction = marked_for_abort(transaction)
            writes.append(replace_open(scope, stream, stored, transaction))
            _log.info("transaction %032x of %s/%s has timed out", transaction.transaction_id, scope, stream)
        check_ms = next_check_ms(transaction, now_ms, self._kept_ms)
        writes.append(create_due(replace(entry, due_ms=check_ms, failures=0)))
        self._store.write(*writes)
        if decision is Due.WAIT:
            return None
        kind = COMMIT if decision is Due.RESEND_COMMIT else ABORT
        return TransactionMessage(kind, scope, stream, transaction.transaction_id)


def _delete(stored: StoredEntry) -> Delete:
    return Delete(stored.record.key, stored.record.version)


def _is_needed(message: TransactionMessage, committing: set[tuple[str, str]]) -> bool:
    """False for a second commit message of a stream in this batch: one message commits all marked transactions."""
    if message.kind != COMMIT:
        return True
    stream = message.scope, message.stream
    is_first = stream not in committing
    committing.add(stream)
    return is_first


def _what(entry: DueEntry) -> str:
    return f"transaction {transaction_text(entry.transaction_id)}"
