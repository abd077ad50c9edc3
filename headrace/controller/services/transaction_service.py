"""Transactions: create, ping, commit, abort, state, labels and lists.

A commit or an abort only marks the transaction, with a conditional write on the version of its record, and sends a
message. Workflows do the rest. So the mark decides between concurrent commits, aborts, pings and time-outs. If the
message is lost, the transaction tick finds the mark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from headrace.api.listings import Listing
from headrace.api.transactions import CompletedTransaction, LabelledAborts, NewTransaction, TransactionSegmentView
from headrace.controller.services.commit_set_service import CommitSetService
from headrace.controller.services.paging import check_page_limit
from headrace.controller.services.transaction_marks import (
    TransactionMarks,
    check_accepts_transactions,
    is_closed,
    takes_transactions_of,
)
from headrace.controller.steps.commit_set_steps import CommitSets
from headrace.metadata import transaction_records as records
from headrace.metadata.bounded_cache import BoundedCache
from headrace.metadata.history_records import HistoryRecords
from headrace.metadata.optimistic_retry import ConflictBackoff, repeat_on_conflict
from headrace.metadata.stream import current_key, is_stream, no_such_stream
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.transaction import (
    DueEntry,
    StoredTransaction,
    create_due,
    create_open,
    delete_begun,
    replace_open,
)
from headrace.metadata.transaction_messages import TransactionQueues
from headrace.metadata.transaction_records import TransactionRecords
from headrace.model.errors import HeadraceError, InvalidRequestError, NotFoundError
from headrace.model.names import segment_name
from headrace.model.segments import segment_number
from headrace.model.streams import Stream
from headrace.model.transactions import (
    COMPLETED_LISTED_MAX,
    RANDOM_BITS,
    CommitOrder,
    Transaction,
    TransactionState,
    WriterTime,
    check_label,
    check_lease,
    has_prefix,
    is_of_former_incarnation,
    marked_for_abort,
    marked_for_commit,
    new_transaction,
    next_check_ms,
    no_such_transaction,
    pinged,
    segment_of_transaction,
    transaction_id_of,
    transaction_text,
    with_confirmed,
    with_segments,
)
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, WriteConflictError
from headrace.ports.segment_stores import SegmentScaleRate, SegmentStores
from headrace.ports.workers import InTurn, Workers

# The segments of transactions: their names, and their creation and deletion in the segment stores.


class TransactionSegments:
    """Safe for any number of threads."""

    def __init__(self, history: HistoryRecords, segment_stores: SegmentStores) -> None:
        self._history = history
        self._segment_stores = segment_stores

    def of(self, stream: Stream, transaction: Transaction) -> tuple[TransactionSegmentView, ...]:
        """One for each segment of the transaction's epoch, also those that are not created yet."""
        epoch = self._history.epoch(stream, transaction.reference_epoch)
        return tuple(
            TransactionSegmentView.written_to(
                segment,
                segment_name(stream.scope, stream.name, segment.segment_id),
                segment_of_transaction(stream.scope, stream.name, segment, transaction.transaction_id),
            )
            for segment in epoch.segments
        )

    def wanted(self, stream: Stream, transaction: Transaction, ids: frozenset[int]) -> list[TransactionSegmentView]:
        """Those for the segments with these ids. Raises InvalidRequestError, code "not_of_transaction"."""
        segments = [segment for segment in self.of(stream, transaction) if segment.segment_id in ids]
        if len(segments) != len(ids):
            unknown = sorted(ids - {segment.segment_id for segment in segments})
            raise InvalidRequestError(
                f"transaction {transaction_text(transaction.transaction_id)} has no segments {unknown[:10]}: ask for "
                "those that its description names",
                details={"segments": unknown},
                code="not_of_transaction",
            )
        return segments

    def create(self, stream: Stream, segments: Sequence[TransactionSegmentView]) -> None:
        """Those that exist stay as they are."""
        self._segment_stores.create_segments(
            [segment.transaction_segment for segment in segments],
            SegmentScaleRate(),
            stream.configuration.rollover_size_bytes,
        )

    def delete(self, segments: Sequence[TransactionSegmentView]) -> None:
        self._segment_stores.delete_segments([segment.transaction_segment for segment in segments])


OPEN_REMEMBERED_MAX = 10_000
"""The number of open transactions whose last written record a process keeps in memory: half a kilobyte each."""

LABELLED_PER_REQUEST = 1_000
"""The number of open transactions that one request of `abort_labelled` reads at most."""

STREAMS_REMEMBERED_MAX = 1_000
"""The number of streams whose last read record a process keeps in memory for the next transactions on them. The record
is read again after the transaction is written."""


class TransactionService:
    """Called by the transaction routes of the API; safe for any number of threads. `sets` commits several together.

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
        workers: Workers | None = None,
    ) -> None:
        self._store = store
        self._streams = StreamRecords(store)
        self._transactions = TransactionRecords(store)
        self._segments = TransactionSegments(self._streams.history, segment_stores)
        self._marks = TransactionMarks(self._transactions, queues, clock, workers or InTurn(), backoff)
        self.sets = CommitSetService(store, queues, clock, random_bits, backoff, workers)
        self._sets = CommitSets(self._transactions, clock, self._marks.request_set_commit, workers, backoff)
        self._clock = clock
        self._random_bits = random_bits
        self._backoff = backoff
        self._open: BoundedCache[tuple[str, str, int], StoredTransaction] = BoundedCache(
            OPEN_REMEMBERED_MAX, lambda _: 1
        )
        self._seen: BoundedCache[tuple[str, str], Stream] = BoundedCache(STREAMS_REMEMBERED_MAX, lambda _: 1)

    def create_transaction(
        self, scope: str, stream: str, lease_ms: int, *, label: str | None = None, on_demand: bool = False
    ) -> NewTransaction:
        """A new transaction with a segment for each segment of the active epoch, or of the one that this repeats.

        With `on_demand` the segments are only created by `create_segments`.

        Raises:
            InvalidRequestError: code "lease_too_small", "lease_too_large" or "invalid_label".
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed, or is being sealed.
            UnavailableError: the stream is being created; or a segment store does not answer, and the transaction
                that was begun will time out.
        """
        check_lease(lease_ms)
        if label is not None:
            check_label(label)

        def attempt() -> NewTransaction:
            current, transaction = self._try_to_create(scope, stream, lease_ms, label, on_demand)
            segments = self._segments.of(current, transaction)
            if not on_demand:
                self._create_all_segments(current, transaction, segments)
            return NewTransaction.having(transaction, segments)

        return repeat_on_conflict(attempt, backoff=self._backoff)

    def _create_all_segments(
        self, stream: Stream, transaction: Transaction, segments: Sequence[TransactionSegmentView]
    ) -> None:
        """The read afterwards finds out whether the transaction was ended before it had segments to delete.

        Raises:
            WriteConflictError: it was, by a seal of the stream, at the end of its lease, or by another client. No
                segment is left, or a commit that runs needs them.
        """
        self._segments.create(stream, segments)
        identifier = transaction.transaction_id
        state = self._transactions.state_before_completion(stream.scope, stream.name, identifier)
        if state is TransactionState.OPEN:
            return
        if state is not TransactionState.COMMITTING:
            self._segments.delete(segments)
        raise WriteConflictError(f"transaction {transaction_text(identifier)} was ended meanwhile", {})

    def create_segments(self, scope: str, stream: str, transaction_id: int, segment_ids: Sequence[int]) -> Transaction:
        """Create segments of an open transaction that creates them on demand. A repeat changes nothing.

        The segments are noted before they are created, so that the end of the transaction finds all of them, and are
        confirmed afterwards. Only a confirmed one can have events: a commit takes it for lost if it does not exist. So
        it is not created again, which would hide that loss.

        Raises:
            InvalidRequestError: code "not_of_transaction": a segment is not of the transaction's epoch.
            IllegalStateError: code "transaction_committed" or "transaction_aborted".
        """
        place, wanted = (scope, stream, transaction_id), frozenset(segment_ids)

        def note() -> tuple[Stream, StoredTransaction, list[TransactionSegmentView]]:
            current, stored = self._stream_and_transaction(*place)
            segments = self._segments.wanted(current, stored.transaction, wanted)
            after = with_segments(stored.transaction, (segment_number(segment.segment_id) for segment in segments))
            missing = [
                segment for segment in segments if segment_number(segment.segment_id) in after.unconfirmed_segments
            ]
            if after == stored.transaction:
                return current, stored, missing
            self._open.forget(place)
            self._store.write(replace_open(scope, stream, stored, after))
            return current, StoredTransaction(after, stored.version + 1), missing

        current, noted, missing = repeat_on_conflict(note, backoff=self._backoff)
        if not missing:
            return noted.transaction
        self._segments.create(current, missing)
        return self._confirm(scope, stream, noted, missing)

    def _confirm(
        self, scope: str, stream: str, noted: StoredTransaction, made: Sequence[TransactionSegmentView]
    ) -> Transaction:
        """Confirm segments that were created. If the transaction ended meanwhile, delete what was created too late.

        During a commit those stay that another request has confirmed: they may have events that are not merged yet.
        """
        place = scope, stream, noted.transaction.transaction_id
        just_written: StoredTransaction | None = noted

        def confirm() -> Transaction:
            nonlocal just_written
            stored, just_written = just_written or self._get(*place), None
            now = stored.transaction
            if now.state is not TransactionState.OPEN:
                self._settle_set(scope, stream, stored)  # It might release the transaction, which needs the segments.
                is_merging, empty = now.state is TransactionState.COMMITTING, now.unconfirmed_segments
                late = [segment for segment in made if not is_merging or segment_number(segment.segment_id) in empty]
                self._segments.delete(late)
            after = with_confirmed(now, (segment_number(segment.segment_id) for segment in made))
            if after != now:
                self._open.forget(place)
                self._store.write(replace_open(scope, stream, stored, after))
            return after

        try:
            return repeat_on_conflict(confirm, backoff=self._backoff)
        except NotFoundError:
            self._segments.delete(made)
            raise

    def ping_transaction(self, scope: str, stream: str, transaction_id: int, lease_ms: int) -> Transaction:
        """Renew the lease from now on; costs one write if this process was the last to create or ping the transaction.

        Raises:
            InvalidRequestError: code "lease_too_small" or "lease_too_large".
            IllegalStateError: code "transaction_committed", "transaction_aborted" or "max_execution_time_exceeded".
        """
        place = scope, stream, transaction_id

        def attempt() -> Transaction:
            current, stored = None, self._open.get(place)
            if stored is None:
                current, stored = self._stream_and_transaction(*place)
            after = pinged(stored.transaction, lease_ms, self._clock.now_ms())
            self._open.forget(place)  # After a failed write the content of the record is unknown.
            self._store.write(replace_open(scope, stream, stored, after))
            if current is None or not is_closed(current):  # a commit of a known one reads no stream
                self._open.put(place, StoredTransaction(after, stored.version + 1))
            return after

        check_lease(lease_ms)
        return repeat_on_conflict(attempt, backoff=self._backoff)

    def ping_transactions(
        self, scope: str, stream: str, transaction_ids: Sequence[int], lease_ms: int
    ) -> dict[int, Transaction | HeadraceError]:
        """Renew the leases of several transactions, each for itself: an error of one stops none of the others.

        Returns for each id the transaction, or the error that `ping_transaction` raised. Raises InvalidRequestError as
        there.
        """
        check_lease(lease_ms)
        outcomes: dict[int, Transaction | HeadraceError] = {}
        for each in transaction_ids:
            try:
                outcomes[each] = self.ping_transaction(scope, stream, each, lease_ms)
            except HeadraceError as error:
                outcomes[each] = error
        return outcomes

    def commit_transaction(
        self, scope: str, stream: str, transaction_id: int, writer_time: WriterTime | None = None
    ) -> Transaction:
        """Mark a transaction for commit; a repeat changes nothing.

        Raises:
            IllegalStateError: code "transaction_aborted".
            SealedError: the stream is sealed, or is being sealed.
        """
        place = scope, stream, transaction_id

        def attempt() -> Transaction:
            stored = self._open.get(place)
            if stored is None:
                current, stored = self._stream_and_transaction(*place)
                if stored.transaction.state is TransactionState.OPEN:  # perhaps begun after the seal, to be removed
                    check_accepts_transactions(current)
            self._settle_set(scope, stream, stored)
            if stored.transaction.state.is_commit:
                return stored.transaction
            order = CommitOrder(self._transactions.next_number(scope, stream), group=transaction_id)
            after = marked_for_commit(stored.transaction, order, writer_time)
            self._open.forget(place)
            self._store.write(*records.mark_for_commit(scope, stream, stored, after, self._clock.now_ms()))
            return after

        marked = repeat_on_conflict(attempt, backoff=self._backoff)
        if marked.state is TransactionState.COMMITTING:
            self._marks.request_commit(scope, stream, transaction_id)
        return marked

    def abort_transaction(self, scope: str, stream: str, transaction_id: int) -> Transaction:
        """Mark a transaction for abort; a repeat changes nothing.

        Raises:
            IllegalStateError: code "transaction_committed".
        """

        def attempt() -> Transaction:
            stored = self._get(scope, stream, transaction_id)
            self._settle_set(scope, stream, stored)
            if stored.transaction.state.is_abort:
                return stored.transaction
            after = marked_for_abort(stored.transaction)
            self._store.write(replace_open(scope, stream, stored, after))
            return after

        marked = repeat_on_conflict(attempt, backoff=self._backoff)
        if marked.state is TransactionState.ABORTING:
            self._marks.request_abort(scope, stream, transaction_id)
        return marked

    def get_transaction(self, scope: str, stream: str, transaction_id: int) -> Transaction:
        return self._get(scope, stream, transaction_id).transaction

    def segments_of(self, scope: str, stream: str, transaction_id: int) -> NewTransaction:
        """A transaction with its segments, for a writer that continues a transaction it has the id of."""
        current, stored = self._stream_and_transaction(scope, stream, transaction_id)
        return NewTransaction.having(stored.transaction, self._segments.of(current, stored.transaction))

    def list_open(
        self, scope: str, stream: str, limit: int, after: int | None = None, label_prefix: str | None = None
    ) -> Listing[Transaction]:
        """Transactions that are not completed, in the order of their ids; raises NotFoundError without the stream.

        With a `label_prefix` only those whose label begins so; a page then has fewer than `limit`, perhaps none.
        """
        if label_prefix is not None:
            check_label(label_prefix, "beginning of the label")
        transactions, has_more = self._transactions.open_transactions(scope, stream, check_page_limit(limit) + 1, after)
        if not transactions:
            self._streams.get(scope, stream)
        page = tuple(stored.transaction for stored in transactions[:limit])
        has_more = has_more or len(transactions) > limit
        shown = page if label_prefix is None else tuple(each for each in page if has_prefix(each.label, label_prefix))
        return Listing(shown, transaction_text(page[-1].transaction_id) if has_more else None)

    def abort_labelled(self, scope: str, stream: str, label_prefix: str, after: int | None = None) -> LabelledAborts:
        """Mark for abort the open transactions whose label begins so, in a page that starts after the id `after`.

        Raises:
            InvalidRequestError: code "invalid_label".
            NotFoundError: there is no such stream.
        """
        check_label(label_prefix, "beginning of the label")
        transactions, has_more = self._transactions.open_transactions(scope, stream, LABELLED_PER_REQUEST, after)
        if not transactions:
            self._streams.get(scope, stream)
        labelled = [stored for stored in transactions if has_prefix(stored.transaction.label, label_prefix)]
        aborted = self._marks.abort_open(scope, stream, labelled)
        last = transactions[-1].transaction.transaction_id if has_more else None
        return LabelledAborts(aborted=aborted, next_after=None if last is None else transaction_text(last))

    def list_completed(self, scope: str, stream: str) -> tuple[CompletedTransaction, ...]:
        """The last COMPLETED_LISTED_MAX completed transactions, newest first; raises as `list_open`."""
        completed = self._transactions.newest_completed(scope, stream, COMPLETED_LISTED_MAX)
        if not completed:
            self._streams.get(scope, stream)
        return tuple(CompletedTransaction(transaction_text(identifier), state) for identifier, state in completed)

    def _try_to_create(
        self, scope: str, name: str, lease_ms: int, label: str | None, on_demand: bool
    ) -> tuple[Stream, Transaction]:
        place = scope, name
        stream = self._seen.get(place) or check_accepts_transactions(self._streams.get(*place).stream)
        self._seen.forget(place)
        now_ms = self._clock.now_ms()
        identifier = transaction_id_of(stream.epoch.reference_epoch, self._random_bits(RANDOM_BITS))
        transaction = new_transaction(
            identifier, lease_ms, now_ms, stream.first_segment_number, label=label, on_demand=on_demand
        )
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
        self._seen.put(place, self._check_still_accepts(stream, transaction))
        self._open.put((scope, name, identifier), StoredTransaction(transaction, 0))
        return stream, transaction

    def _check_still_accepts(self, stream: Stream, transaction: Transaction) -> Stream:
        """The stream as it is after the transaction was written.

        A workflow that seals a stream aborts its open transactions, and must not miss one that is begun meanwhile. The
        workflow writes the stream's record and then lists the transactions. This method reads that record after the
        transaction was written. So at least one of the two sees the other. The transaction's own write needs no check
        of the stream's record, on which all transactions of the stream and all commits would contend.

        Raises:
            WriteConflictError: the stream no longer accepts transactions, or is in a newer epoch; the transaction was
                rolled back.
        """
        current = self._streams.find(stream.scope, stream.name)
        if current is not None and takes_transactions_of(current.stream, stream):
            return current.stream
        with contextlib.suppress(WriteConflictError):  # The workflow has aborted the transaction, or removed it.
            self._store.write(delete_begun(stream.scope, stream.name, transaction))
        raise WriteConflictError(f"{stream.scoped_name} was sealed, scaled or deleted meanwhile", {})

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

    def _settle_set(self, scope: str, stream: str, stored: StoredTransaction) -> None:
        """Finish the commit set of a transaction that is prepared by one: only its outcome tells what is possible.

        Raises WriteConflictError if the set has released the transaction.
        """
        commit_set, identifier = stored.transaction.commit_set, stored.transaction.transaction_id
        if stored.transaction.state is not TransactionState.COMMITTING or commit_set is None:
            return
        if not self._sets.settle(scope, stream, commit_set, [identifier]):
            raise WriteConflictError(f"transaction {transaction_text(identifier)} was just released", {})

    def _stream_and_transaction(self, scope: str, stream: str, transaction_id: int) -> tuple[Stream, StoredTransaction]:
        """A transaction with the stream; costs one read, or one more if a transaction is completed meanwhile."""
        (stored,), (current,) = self._transactions.find_to_mark(
            scope, stream, [transaction_id], current_key(scope, stream)
        )
        stored_stream = self._streams.stored(current)
        if stored_stream is None:
            raise no_such_stream(scope, stream)
        stored = stored or self._get(scope, stream, transaction_id)
        # One of a former incarnation counts as unknown: its creator, or the tick, is about to remove it.
        if is_of_former_incarnation(stored.transaction.first_segment_number, stored_stream.stream.first_segment_number):
            raise no_such_transaction(scope, stream, transaction_id)
        return stored_stream.stream, stored
