"""Transactions: create, ping, commit, abort, state, lists, and commit sets.

A commit or an abort only marks the transaction, with a conditional write on the version of its record, and sends a
message. Workflows do the rest. So the mark decides between concurrent commits, aborts, pings and time-outs. If the
message is lost, the transaction tick finds the mark.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from headrace.api.pages import Listing
from headrace.api.transactions import CommitSetView, CompletedTransaction, TransactionSegmentView, TransactionView
from headrace.controller.services.paging import check_page_limit
from headrace.metadata import transaction_records as records
from headrace.metadata.bounded_cache import BoundedCache
from headrace.metadata.commit_set import commit_set_key, create_commit_set, read_commit_set
from headrace.metadata.optimistic_retry import ConflictBackoff, repeat_on_conflict
from headrace.metadata.stream import current_key, is_stream, no_such_stream
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.transaction import StoredTransaction, create_open, delete_begun, replace_open
from headrace.metadata.transaction_due import DueEntry, create_due
from headrace.metadata.transaction_messages import ABORT, COMMIT, TransactionMessage, TransactionQueues
from headrace.metadata.transaction_records import TransactionRecords
from headrace.model.errors import AlreadyExistsError, NotFoundError, SealedError, ThrottledError, UnavailableError
from headrace.model.names import segment_name
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream
from headrace.model.transactions import (
    COMMIT_SET_KEPT_MS,
    COMPLETED_LISTED_MAX,
    RANDOM_BITS,
    CommitOrder,
    CommitSet,
    Transaction,
    TransactionState,
    WriterTime,
    check_commit_set,
    check_commit_set_key,
    check_lease,
    marked_for_abort,
    marked_for_commit,
    new_transaction,
    next_check_ms,
    no_such_transaction,
    parse_transaction_id,
    pinged,
    segment_of_transaction,
    transaction_id_of,
    transaction_text,
)
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, Write, WriteConflictError
from headrace.ports.segment_stores import SegmentScaleRate, SegmentStores

_log = logging.getLogger(__name__)

OPEN_REMEMBERED_MAX = 10_000
"""The number of open transactions whose last written record a process keeps in memory: half a kilobyte each."""

RESEND_AFTER_MS = 10_000
"""If the oldest mark is older than this, its message may be lost, and the commit of another transaction sends one. A
commit message takes less time than this."""

STREAMS_REMEMBERED_MAX = 1_000
"""The number of streams whose last read record a process keeps in memory for the next transactions on them. The record
is read again after the transaction is written."""

_TAKES_NO_MORE = (StreamState.SEALING, StreamState.SEALED)


class TransactionService:
    """Called by the transaction routes of the API; safe for any number of threads.

    `random_bits(n)` returns n random bits. Every method except `create_transaction` raises NotFoundError, code
    "transaction_not_found", for a transaction that is unknown, or was completed too long ago.
    """

    def __init__(
        self,
        store: MetadataStore,
        segment_stores: SegmentStores,
        queues: TransactionQueues,
        clock: Clock,
        random_bits: Callable[[int], int],
        backoff: ConflictBackoff | None = None,
    ) -> None:
        self._store = store
        self._streams = StreamRecords(store)
        self._history = self._streams.history
        self._transactions = TransactionRecords(store)
        self._segment_stores = segment_stores
        self._queues = queues
        self._clock = clock
        self._random_bits = random_bits
        self._backoff = backoff
        self._open: BoundedCache[tuple[str, str, int], StoredTransaction] = BoundedCache(
            OPEN_REMEMBERED_MAX, lambda _: 1
        )
        self._seen: BoundedCache[tuple[str, str], Stream] = BoundedCache(STREAMS_REMEMBERED_MAX, lambda _: 1)

    def create_transaction(self, scope: str, stream: str, lease_ms: int) -> TransactionView:
        """A new transaction with a segment for each segment of the active epoch, or of the one that this repeats.

        Raises:
            InvalidRequestError: code "lease_too_small" or "lease_too_large".
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed, or is being sealed.
            UnavailableError: the stream is being created; or a segment store does not answer, and the transaction
                that was begun will time out.
        """
        check_lease(lease_ms)
        found, transaction = repeat_on_conflict(
            lambda: self._try_to_create(scope, stream, lease_ms), backoff=self._backoff
        )
        segments = self._segments(found, transaction)
        self._segment_stores.create_segments(
            [one.transaction_segment for one in segments],
            SegmentScaleRate(),
            found.configuration.rollover_size_bytes,
        )
        return TransactionView.of(transaction, segments)

    def ping_transaction(self, scope: str, stream: str, transaction_id: int, lease_ms: int) -> Transaction:
        """Renew the lease from now on; costs one write if this process was the last to create or ping the transaction.

        Raises:
            InvalidRequestError: code "lease_too_small" or "lease_too_large".
            IllegalStateError: code "transaction_committed", "transaction_aborted" or "max_execution_time_exceeded".
        """
        place = scope, stream, transaction_id

        def attempt() -> Transaction:
            stored = self._open.get(place) or self._get(*place)
            after = pinged(stored.transaction, lease_ms, self._clock.now_ms())
            self._open.forget(place)  # After a failed write the content of the record is unknown.
            self._store.write(replace_open(scope, stream, stored, after))
            self._open.put(place, StoredTransaction(after, stored.version + 1))
            return after

        check_lease(lease_ms)
        return repeat_on_conflict(attempt, backoff=self._backoff)

    def commit_transaction(
        self, scope: str, stream: str, transaction_id: int, writer_time: WriterTime | None = None
    ) -> Transaction:
        """Mark a transaction for commit; a repeat changes nothing.

        Raises:
            IllegalStateError: code "transaction_aborted".
        """

        place = scope, stream, transaction_id

        def attempt() -> Transaction:
            stored = self._open.get(place) or self._get(*place)
            if stored.transaction.state.is_commit:
                return stored.transaction
            order = CommitOrder(self._transactions.next_number(scope, stream), group=transaction_id)
            after = marked_for_commit(stored.transaction, order, writer_time)
            self._open.forget(place)
            self._store.write(*records.mark_for_commit(scope, stream, stored, after, self._clock.now_ms()))
            return after

        marked = repeat_on_conflict(attempt, backoff=self._backoff)
        if marked.state is TransactionState.COMMITTING:
            self._request_commit(scope, stream, transaction_id)
        return marked

    def abort_transaction(self, scope: str, stream: str, transaction_id: int) -> Transaction:
        """Mark a transaction for abort; a repeat changes nothing.

        Raises:
            IllegalStateError: code "transaction_committed".
        """

        def attempt() -> Transaction:
            stored = self._get(scope, stream, transaction_id)
            if stored.transaction.state.is_abort:
                return stored.transaction
            after = marked_for_abort(stored.transaction)
            self._store.write(replace_open(scope, stream, stored, after))
            return after

        marked = repeat_on_conflict(attempt, backoff=self._backoff)
        if marked.state is TransactionState.ABORTING:
            self._send(TransactionMessage(ABORT, scope, stream, transaction_id))
        return marked

    def get_transaction(self, scope: str, stream: str, transaction_id: int) -> Transaction:
        return self._get(scope, stream, transaction_id).transaction

    def segments_of(self, scope: str, stream: str, transaction_id: int) -> TransactionView:
        """A transaction with its segments, for a writer that continues a transaction it has the id of."""
        (stored,), (current,) = self._transactions.find_to_mark(
            scope, stream, [transaction_id], current_key(scope, stream)
        )
        found = self._streams.stored(current)
        if found is None:
            raise no_such_stream(scope, stream)
        transaction = (stored or self._get(scope, stream, transaction_id)).transaction
        return TransactionView.of(transaction, self._segments(found.stream, transaction))

    def list_open(self, scope: str, stream: str, limit: int, after: int | None = None) -> Listing[Transaction]:
        """Transactions that are not completed, in the order of their ids; raises NotFoundError without the stream."""
        found, has_more = self._transactions.open_transactions(scope, stream, check_page_limit(limit) + 1, after)
        if not found:
            self._streams.get(scope, stream)
        page = tuple(one.transaction for one in found[:limit])
        has_more = has_more or len(found) > limit
        return Listing(page, transaction_text(page[-1].transaction_id) if has_more else None)

    def list_completed(self, scope: str, stream: str) -> tuple[CompletedTransaction, ...]:
        """The last COMPLETED_LISTED_MAX completed transactions, newest first; raises as `list_open`."""
        found = self._transactions.newest_completed(scope, stream, COMPLETED_LISTED_MAX)
        if not found:
            self._streams.get(scope, stream)
        return tuple(CompletedTransaction(transaction_text(identifier), state) for identifier, state in found)

    def commit_all(self, scope: str, stream: str, key: str, transaction_ids: Sequence[int]) -> CommitSetView:
        """Mark all of these transactions for commit, or none of them. A repeat with the same key changes nothing.

        Raises:
            InvalidRequestError: code "invalid_commit_set".
            IllegalStateError: code "transaction_committed" or "transaction_aborted": another request has done so.
            AlreadyExistsError: code "commit_set_differs": other transactions were committed under this key.
        """
        members = check_commit_set(tuple(transaction_ids))
        check_commit_set_key(key)
        view = repeat_on_conflict(lambda: self._try_to_commit_all(scope, stream, key, members), backoff=self._backoff)
        self._request_commit(scope, stream, parse_transaction_id(view.transactions[0]))
        return view

    def get_commit_set(self, scope: str, stream: str, key: str) -> CommitSetView:
        """The commit set under a key; raises NotFoundError, code "commit_set_not_found", for an unknown or old one."""
        check_commit_set_key(key)
        found = read_commit_set(self._store.get(commit_set_key(scope, stream, key)))
        if found is None:
            raise _no_such_commit_set(scope, stream, key)
        return CommitSetView.of(found.key, found.transactions, found.marked_ms, new=False)

    def _try_to_create(self, scope: str, name: str, lease_ms: int) -> tuple[Stream, Transaction]:
        place = scope, name
        stream = self._seen.get(place) or _writable(self._streams.get(*place).stream)
        self._seen.forget(place)
        now_ms = self._clock.now_ms()
        identifier = transaction_id_of(stream.epoch.reference_epoch, self._random_bits(RANDOM_BITS))
        transaction = new_transaction(identifier, lease_ms, now_ms, stream.first_segment_number)
        self._store.write(
            create_open(scope, name, transaction),
            create_due(
                DueEntry(
                    next_check_ms(transaction, now_ms),
                    scope,
                    name,
                    identifier,
                    first_segment_number=stream.first_segment_number,
                )
            ),
        )
        self._seen.put(place, self._still_writable(stream, transaction))
        self._open.put((scope, name, identifier), StoredTransaction(transaction, 0))
        return stream, transaction

    def _still_writable(self, stream: Stream, transaction: Transaction) -> Stream:
        """The stream as it is after the transaction was written.

        A workflow that seals a stream aborts its open transactions, and must not miss one that is begun meanwhile. The
        workflow writes the stream's record and then lists the transactions. This method reads that record after the
        transaction was written. So at least one of the two sees the other. The transaction's own write needs no check
        of the stream's record, on which all transactions of the stream and all commits would contend.

        Raises:
            WriteConflictError: the stream no longer accepts transactions, or is in a newer epoch; the transaction was
                rolled back.
        """
        found = self._streams.find(stream.scope, stream.name)
        if (
            found is not None
            and found.stream.shown_state not in _TAKES_NO_MORE
            and _is_of_same_epoch(found.stream, stream)
        ):
            return found.stream
        with contextlib.suppress(WriteConflictError):  # The workflow has aborted the transaction, or removed it.
            self._store.write(delete_begun(stream.scope, stream.name, transaction))
        raise WriteConflictError(f"{stream.scoped_name} was sealed, scaled or deleted meanwhile", {})

    def _try_to_commit_all(self, scope: str, stream: str, key: str, members: tuple[int, ...]) -> CommitSetView:
        found, (set_record,) = self._transactions.find_to_mark(
            scope, stream, members, commit_set_key(scope, stream, key)
        )
        known = read_commit_set(set_record)
        if known is not None:
            if set(known.transactions) != set(members):
                raise _commit_set_differs(known)
            return CommitSetView.of(key, known.transactions, known.marked_ms, new=False)
        number, now_ms = self._transactions.next_number(scope, stream), self._clock.now_ms()
        marked = CommitSet(key, members, now_ms)
        opened = [one or self._get(scope, stream, identifier) for identifier, one in zip(members, found, strict=True)]
        incarnation = opened[0].transaction.first_segment_number
        forget_ms = now_ms + COMMIT_SET_KEPT_MS
        writes: list[Write] = [
            create_commit_set(scope, stream, marked),
            create_due(DueEntry(forget_ms, scope, stream, commit_set=key, first_segment_number=incarnation)),
        ]
        for index, stored in enumerate(opened):
            after = marked_for_commit(stored.transaction, CommitOrder(number, members[0], index))
            writes += records.mark_for_commit(scope, stream, stored, after, now_ms)
        self._store.write(*writes)
        return CommitSetView.of(key, members, now_ms, new=True)

    def _get(self, scope: str, stream: str, transaction_id: int) -> StoredTransaction:
        """A transaction; costs one read, or two if the first does not find it.

        The first read is not a snapshot, so it may miss a transaction that is completed at the same time.
        """
        stored = self._transactions.find(scope, stream, transaction_id)
        if stored is None:
            (stored,), (current,) = self._transactions.find_to_mark(
                scope, stream, [transaction_id], current_key(scope, stream)
            )
            if not is_stream(current):
                raise no_such_stream(scope, stream)
        if stored is None:
            raise no_such_transaction(scope, stream, transaction_id)
        return stored

    def _segments(self, stream: Stream, transaction: Transaction) -> tuple[TransactionSegmentView, ...]:
        epoch = self._history.epoch(stream, transaction.reference_epoch)
        return tuple(
            TransactionSegmentView.of(
                one,
                segment_name(stream.scope, stream.name, one.segment_id),
                segment_of_transaction(stream.scope, stream.name, one, transaction.transaction_id),
            )
            for one in epoch.segments
        )

    def _request_commit(self, scope: str, stream: str, marked: int) -> None:
        """Send a commit message if no message is under way that will commit the transaction `marked`.

        The message of the oldest mark is handled until no mark is left, so later marks need no message. If the oldest
        mark has waited for long, its message may be lost. Then any mark sends another, at most one per RESEND_AFTER_MS.
        """
        oldest, now_ms = self._transactions.oldest_mark(scope, stream), self._clock.now_ms()
        if oldest is None:
            return
        message = TransactionMessage(COMMIT, scope, stream, oldest.transaction_id)
        if oldest.transaction_id == marked:
            self._send(message)
        elif oldest.marked_ms is None or now_ms - oldest.marked_ms >= RESEND_AFTER_MS:
            self._send(message, attempt=now_ms // RESEND_AFTER_MS)

    def _send(self, message: TransactionMessage, attempt: int = 0) -> None:
        try:
            self._queues.send(message, attempt)
        except (UnavailableError, ThrottledError) as error:
            _log.warning("%s of %s/%s not sent: %s", message.kind, message.scope, message.stream, error)


def _is_of_same_epoch(one: Stream, other: Stream) -> bool:
    """Whether transactions begun on the one and the other can be merged into the same segments."""
    return (one.first_segment_number, one.epoch.reference_epoch) == (
        other.first_segment_number,
        other.epoch.reference_epoch,
    )


def _writable(stream: Stream) -> Stream:
    if stream.state is StreamState.CREATING:
        raise UnavailableError(
            f"stream {stream.scoped_name} is being created: repeat until it is ACTIVE", code="stream_not_ready"
        )
    if stream.shown_state in _TAKES_NO_MORE:
        raise SealedError(
            f"stream {stream.scoped_name} is {stream.shown_state}: it accepts no transactions",
            details={"state": str(stream.shown_state)},
        )
    return stream


def _no_such_commit_set(scope: str, stream: str, key: str) -> NotFoundError:
    return NotFoundError(
        f"there is no commit set with the key {key!r} on stream {scope}/{stream}, or it has expired",
        details={"scope": scope, "stream": stream, "key": key},
        code="commit_set_not_found",
    )


def _commit_set_differs(known: CommitSet) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"other transactions were committed under the key {known.key!r}: use a new key",
        details={"key": known.key, "transactions": len(known.transactions)},
        code="commit_set_differs",
    )
