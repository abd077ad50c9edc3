"""`TransactionsAdmin` for programs without an event loop; thread-safe.

Generated from `transactions_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.transactions import CommitSetView, CompletedTransaction, TransactionView
from headrace.client.loop_thread import LoopThread
from headrace.client.transactions_admin import LEASE_MS_DEFAULT, AsyncTransactionsAdmin


class TransactionsAdmin:
    """Creates, shows and ends transactions. A transaction id is 32 lower-case hex digits."""

    def __init__(self, thread: LoopThread, core: AsyncTransactionsAdmin) -> None:
        self._thread = thread
        self._core = core

    def create(self, scope: str, stream: str, *, lease_ms: int = LEASE_MS_DEFAULT) -> TransactionView:
        """Creates a transaction. The controller aborts it some time after its lease expires, unless it is pinged.

        Raises:
            InvalidRequestError: code "lease_too_small" or "lease_too_large".
            SealedError: the stream is sealed.
        """
        return self._thread.run(self._core.create(scope, stream, lease_ms=lease_ms))

    def get(self, scope: str, stream: str, transaction: str) -> TransactionView:
        """Returns a transaction.

        Raises NotFoundError, code "transaction_not_found", if it never existed or was completed more than a day ago.
        """
        return self._thread.run(self._core.get(scope, stream, transaction))

    def ping(self, scope: str, stream: str, transaction: str, *, lease_ms: int) -> TransactionView:
        """Renews the lease for `lease_ms` from now.

        Raises:
            IllegalStateError: code "transaction_committed", "transaction_aborted" or "max_execution_time_exceeded".
        """
        return self._thread.run(self._core.ping(scope, stream, transaction, lease_ms=lease_ms))

    def commit(
        self, scope: str, stream: str, transaction: str, *, writer: str | None = None, time: int | None = None
    ) -> TransactionView:
        """Commits a transaction. Its events are added to the stream soon after.

        `writer` and `time` record for watermarks the time that this writer has reached.

        Raises:
            IllegalStateError: code "transaction_aborted".
        """
        return self._thread.run(self._core.commit(scope, stream, transaction, writer=writer, time=time))

    def abort(self, scope: str, stream: str, transaction: str) -> TransactionView:
        """Aborts a transaction and deletes its events. Raises IllegalStateError, code "transaction_committed"."""
        return self._thread.run(self._core.abort(scope, stream, transaction))

    def list_open(self, scope: str, stream: str) -> list[TransactionView]:
        """Returns all transactions that are neither committed nor aborted, sorted by id."""
        return self._thread.run(self._core.list_open(scope, stream))

    def list_completed(self, scope: str, stream: str) -> list[CompletedTransaction]:
        """Returns the ids and states of the newest completed transactions, newest first, at most 500."""
        return self._thread.run(self._core.list_completed(scope, stream))

    def commit_all(self, scope: str, stream: str, key: str, transactions: Sequence[str]) -> CommitSetView:
        """Commits all of the transactions or none, once per key: a repeat with the same key changes nothing.

        Raises:
            InvalidRequestError: code "invalid_commit_set": an invalid key, or not 1 to 40 different transactions.
            IllegalStateError: code "transaction_committed" or "transaction_aborted": one was completed separately.
            AlreadyExistsError: code "commit_set_differs": other transactions were committed under the key.
        """
        return self._thread.run(self._core.commit_all(scope, stream, key, transactions))

    def commit_set(self, scope: str, stream: str, key: str) -> CommitSetView:
        """Returns the transactions that were committed under a key.

        Raises NotFoundError, code "commit_set_not_found", if there were none, or if it was too long ago.
        """
        return self._thread.run(self._core.commit_set(scope, stream, key))
