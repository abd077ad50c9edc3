"""`TransactionsAdmin` for programs without an event loop; thread-safe.

Generated from `transactions_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.transactions import CommitSetView, CompletedTransaction, TransactionView
from headrace.client.loop_thread import LoopThread
from headrace.client.transactions_admin import LEASE_MS_DEFAULT, AsyncTransactionsAdmin


class TransactionsAdmin:
    """A transaction is named by its id: 32 lower-case hex digits."""

    def __init__(self, thread: LoopThread, core: AsyncTransactionsAdmin) -> None:
        self._thread = thread
        self._core = core

    def create(self, scope: str, stream: str, *, lease_ms: int = LEASE_MS_DEFAULT) -> TransactionView:
        """A new transaction; it is aborted some time after its lease ends, unless it is pinged.

        Raises:
            InvalidRequestError: code "lease_too_small" or "lease_too_large".
            SealedError: the stream takes no more events.
        """
        return self._thread.run(self._core.create(scope, stream, lease_ms=lease_ms))

    def get(self, scope: str, stream: str, transaction: str) -> TransactionView:
        """Raises NotFoundError, code "transaction_not_found": it never was, or was completed more than a day ago."""
        return self._thread.run(self._core.get(scope, stream, transaction))

    def ping(self, scope: str, stream: str, transaction: str, *, lease_ms: int) -> TransactionView:
        """The lease begins anew.

        Raises:
            IllegalStateError: code "transaction_committed", "transaction_aborted" or "max_execution_time_exceeded".
        """
        return self._thread.run(self._core.ping(scope, stream, transaction, lease_ms=lease_ms))

    def commit(
        self, scope: str, stream: str, transaction: str, *, writer: str | None = None, time: int | None = None
    ) -> TransactionView:
        """Its events will be in the stream soon. `writer` and `time` tell how far that writer is, for watermarks.

        Raises:
            IllegalStateError: code "transaction_aborted".
        """
        return self._thread.run(self._core.commit(scope, stream, transaction, writer=writer, time=time))

    def abort(self, scope: str, stream: str, transaction: str) -> TransactionView:
        """Its events will never be in the stream. Raises IllegalStateError, code "transaction_committed"."""
        return self._thread.run(self._core.abort(scope, stream, transaction))

    def list_open(self, scope: str, stream: str) -> list[TransactionView]:
        """All that are not committed or aborted yet, by id."""
        return self._thread.run(self._core.list_open(scope, stream))

    def list_completed(self, scope: str, stream: str) -> list[CompletedTransaction]:
        """Id and state of those that were completed last, the newest first; 500 at most."""
        return self._thread.run(self._core.list_completed(scope, stream))

    def commit_all(self, scope: str, stream: str, key: str, transactions: Sequence[str]) -> CommitSetView:
        """Commits all of the transactions or none, once for each key: a repeat changes nothing.

        Raises:
            InvalidRequestError: code "invalid_commit_set": no such key, or not 1 to 40 different transactions.
            IllegalStateError: code "transaction_committed" or "transaction_aborted": one was completed otherwise.
            AlreadyExistsError: code "commit_set_differs": other transactions were committed under the key.
        """
        return self._thread.run(self._core.commit_all(scope, stream, key, transactions))

    def commit_set(self, scope: str, stream: str, key: str) -> CommitSetView:
        """Raises NotFoundError, code "commit_set_not_found": nothing was committed under the key, or long ago."""
        return self._thread.run(self._core.commit_set(scope, stream, key))
