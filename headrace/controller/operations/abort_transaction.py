"""Abort transactions: delete their segments, and they are completed. Each by itself, as many at once as there are.

What a transaction holds was never in the stream, so nothing else has to wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from headrace.controller.workflow import Tools
from headrace.metadata import keys
from headrace.metadata.transaction_messages import ABORT, parse_message
from headrace.metadata.transaction_records import (
    StoredTransaction,
    TransactionRecords,
    complete,
    remove,
    replace_open,
)
from headrace.model.errors import NotFoundError
from headrace.model.streams import Stream
from headrace.model.transactions import (
    Transaction,
    TransactionState,
    aborted,
    is_of_former_incarnation,
    marked_for_abort,
    segment_of_transaction,
)
from headrace.ports.deadlines import require_time_for_piece
from headrace.ports.metadata_store import WriteConflictError

_TRANSACTIONS_PER_READ = 100


class TransactionAborts:
    """Safe for any number of threads and processes, also on the same transaction at the same time."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._transactions = TransactionRecords(tools.records.store)

    def process(self, message_body: Mapping[str, Any]) -> None:
        """Work on a message of the aborts queue: abort a transaction that is marked; any other stays as it is.

        Raises:
            InvalidRequestError: this is no abort message; it will never be one.
            UnavailableError, ThrottledError: deliver the message again.
        """
        message = parse_message(message_body, ABORT)
        (stored,), (current,) = self._transactions.find_to_mark(
            message.scope, message.stream, [message.transaction_id], keys.current_key(message.scope, message.stream)
        )
        found = self._tools.records.stored(current)
        if stored is None or stored.transaction.state is not TransactionState.ABORTING:
            return
        if found is not None:
            self._abort(found.stream, stored)
        else:
            self._forget_if_former(message.scope, message.stream, stored)

    def abort_all(self, stream: Stream) -> None:
        """Mark and abort what is open on a stream that is being sealed; what is marked for commit is left alone.

        Raises WriteConflictError if one of them is marked at this moment: look again.
        """
        after: int | None = None
        while True:
            page, has_more = self._transactions.open_transactions(
                stream.scope, stream.name, _TRANSACTIONS_PER_READ, after
            )
            for stored in page:
                if stored.transaction.state is TransactionState.OPEN:
                    stored = self._mark(stream, stored)
                if stored.transaction.state is TransactionState.ABORTING:
                    self._abort(stream, stored)
                    require_time_for_piece(f"aborts of {stream.scoped_name} before it is sealed")
            if not has_more:
                return
            after = page[-1].transaction.transaction_id

    def delete_segments(self, stream: Stream, transaction: Transaction) -> None:
        """Also of a transaction whose creator was so late that it made segments after the abort."""
        epoch = self._tools.history.epoch(stream, transaction.reference_epoch)
        identifier = transaction.transaction_id
        self._tools.segment_stores.delete_segments(
            [segment_of_transaction(stream.scope, stream.name, one, identifier) for one in epoch.segments]
        )

    def _mark(self, stream: Stream, stored: StoredTransaction) -> StoredTransaction:
        after = marked_for_abort(stored.transaction)
        self._transactions.store.write(replace_open(stream.scope, stream.name, stored, after))
        return StoredTransaction(after, stored.version + 1)

    def _forget_if_former(self, scope: str, name: str, stored: StoredTransaction) -> None:
        """Forget a transaction of a former incarnation: its creator died before it saw that the stream was deleted.

        Such a transaction never had a segment. The stream is read again, since it may have been read before the
        transaction was. One of an older version, without its incarnation, is known by an epoch that is still to come.
        """
        found = self._tools.records.find(scope, name)
        transaction = stored.transaction
        if (
            found is None
            or is_of_former_incarnation(transaction.first_segment_number, found.stream)
            or transaction.reference_epoch > found.stream.recorded_epoch
        ):
            with contextlib.suppress(WriteConflictError):
                self._transactions.store.write(*remove(scope, name, stored))

    def _abort(self, stream: Stream, stored: StoredTransaction) -> None:
        if is_of_former_incarnation(stored.transaction.first_segment_number, stream):
            self._forget_if_former(stream.scope, stream.name, stored)
            return
        try:
            self.delete_segments(stream, stored.transaction)
        except NotFoundError:
            # No epoch: the stream is being deleted, and its transactions with it, or it never had that one.
            self._forget_if_former(stream.scope, stream.name, stored)
            return
        done = aborted(stored.transaction, self._tools.clock.now_ms())
        try:
            self._transactions.store.write(*complete(stream.scope, stream.name, stored, done))
        except WriteConflictError:
            return  # Somebody else has completed it.
