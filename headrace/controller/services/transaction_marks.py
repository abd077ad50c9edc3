"""Marks of transactions: whether a stream accepts transactions, and what follows a mark."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace.metadata.optimistic_retry import ConflictBackoff, repeat_on_conflict
from headrace.metadata.transaction import StoredTransaction, replace_open
from headrace.metadata.transaction_messages import ABORT, COMMIT, TransactionMessage, TransactionQueues
from headrace.metadata.transaction_records import TransactionRecords
from headrace.model.errors import SealedError, ThrottledError, UnavailableError
from headrace.model.streams import Stream, frozen_error
from headrace.model.transactions import Transaction, TransactionState, marked_for_abort
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import WRITES_PER_TRANSACTION_MAX, WriteConflictError
from headrace.ports.workers import Workers

# What follows a mark of a transaction: the message to the workflow; and marks for abort on many transactions.
#
# A message that is not sent is not an error: the transaction tick finds the mark.

_log = logging.getLogger(__name__)

RESEND_AFTER_MS = 10_000
"""If the oldest mark is older than this, its message may be lost, and the commit of another transaction sends one. A
commit message takes less time than this."""


class TransactionMarks:
    """Safe for any number of threads."""

    def __init__(
        self,
        transactions: TransactionRecords,
        queues: TransactionQueues,
        clock: Clock,
        workers: Workers,
        backoff: ConflictBackoff | None,
    ) -> None:
        self._transactions = transactions
        self._queues = queues
        self._clock = clock
        self._workers = workers
        self._backoff = backoff

    def request_set_commit(self, scope: str, stream: str, first: int, none_waited: bool) -> None:
        """As `request_commit`, for a set with this first member.

        If no mark waited when the set was prepared, the message is sent without a look at the oldest one. An older
        mark may have come meanwhile. Then two messages are under way, and the later one finds nothing to do.
        """
        if none_waited:
            self._send(TransactionMessage(COMMIT, scope, stream, first))
        else:
            self.request_commit(scope, stream, first)

    def request_commit(self, scope: str, stream: str, marked: int) -> None:
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
        elif now_ms - oldest.marked_ms >= RESEND_AFTER_MS:
            self._send(message, attempt=now_ms // RESEND_AFTER_MS)

    def request_abort(self, scope: str, stream: str, marked: int) -> None:
        self._send(TransactionMessage(ABORT, scope, stream, marked))

    def abort_open(self, scope: str, stream: str, transactions: Sequence[StoredTransaction]) -> int:
        """Mark for abort those of the transactions that are still open, and request the aborts; their number."""
        marked = self.mark_open(scope, stream, transactions)
        self.request_aborts(scope, [(stream, each) for each in marked])
        return len(marked)

    def mark_open(self, scope: str, stream: str, transactions: Sequence[StoredTransaction]) -> list[int]:
        """Mark for abort those of the transactions that are still open, without messages; their ids.

        Many are marked in one transaction. If one of them has changed, each is marked by itself.
        """
        opened = [stored for stored in transactions if stored.transaction.state is TransactionState.OPEN]
        marked: list[int] = []
        for start in range(0, len(opened), WRITES_PER_TRANSACTION_MAX):
            marked += self._mark_all(scope, stream, opened[start : start + WRITES_PER_TRANSACTION_MAX])
        return marked

    def request_aborts(self, scope: str, marked: Sequence[tuple[str, int]]) -> None:
        """Send the messages of marked transactions, by stream and id; several at once."""
        if len(marked) == 1:
            self.request_abort(scope, *marked[0])
        elif marked:
            self._workers.each(lambda mark: self.request_abort(scope, *mark), iter(marked))

    def _mark_all(self, scope: str, stream: str, opened: Sequence[StoredTransaction]) -> list[int]:
        writes = [replace_open(scope, stream, stored, marked_for_abort(stored.transaction)) for stored in opened]
        try:
            self._transactions.store.write(*writes)
        except WriteConflictError:
            identifiers = [stored.transaction.transaction_id for stored in opened]
            return [identifier for identifier in identifiers if self._mark(scope, stream, identifier)]
        return [stored.transaction.transaction_id for stored in opened]

    def _mark(self, scope: str, stream: str, identifier: int) -> bool:
        """Mark one transaction if it is open now, with a pause after a conflict with its pings."""

        def attempt() -> Transaction | None:
            still_open = self._transactions.still_open(scope, stream, [identifier])
            if not still_open or still_open[0].transaction.state is not TransactionState.OPEN:
                return None
            after = marked_for_abort(still_open[0].transaction)
            self._transactions.store.write(replace_open(scope, stream, still_open[0], after))
            return after

        return repeat_on_conflict(attempt, backoff=self._backoff) is not None

    def _send(self, message: TransactionMessage, attempt: int = 0) -> None:
        try:
            self._queues.send(message, attempt)
        except (UnavailableError, ThrottledError) as error:
            _log.warning("%s of %s/%s not sent: %s", message.kind, message.scope, message.stream, error)


# Whether a stream accepts transactions, and those that were begun a moment ago.


def is_closed(stream: Stream) -> bool:
    """Whether the stream is sealed or frozen, or will be when the operation that runs is complete."""
    return not stream.shown_state.takes_events


def check_accepts_transactions(stream: Stream) -> Stream:
    """Raises UnavailableError, code "stream_not_ready", SealedError or FrozenError."""
    if not stream.state.is_readable:
        raise UnavailableError(
            f"stream {stream.scoped_name} is being created: repeat until it is ACTIVE", code="stream_not_ready"
        )
    if stream.shown_state.is_frozen:
        raise frozen_error(stream.scope, stream.name)
    if is_closed(stream):
        raise SealedError(
            f"stream {stream.scoped_name} is {stream.shown_state}: it accepts no transactions",
            details={"state": str(stream.shown_state)},
        )
    return stream


def takes_transactions_of(stream: Stream, earlier: Stream) -> bool:
    """Whether the stream is not closed, and transactions that were begun on it earlier merge into its segments."""
    return (stream.first_segment_number, stream.epoch.reference_epoch) == (
        earlier.first_segment_number,
        earlier.epoch.reference_epoch,
    ) and not is_closed(stream)
