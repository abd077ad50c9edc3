"""`TransactionsAdmin` for programs without an event loop; thread-safe.

Generated from `administration.transactions_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.api.transactions import (
    CommitSetView,
    CommittedEpochView,
    CompletedTransaction,
    NewTransaction,
    TransactionView,
)
from headrace.client.administration.transactions_admin import AsyncTransactionsAdmin
from headrace.client.defaults import LEASE_MS_DEFAULT
from headrace.client.loop_thread import LoopCaller
from headrace.model.errors import HeadraceError


class TransactionsAdmin:
    """Creates, shows and ends transactions. A transaction id is 32 lower-case hex digits."""

    def __init__(self, thread: LoopCaller, core: AsyncTransactionsAdmin) -> None:
        self._thread = thread
        self._core = core

    def create(
        self,
        scope: str,
        stream: str,
        *,
        lease_ms: int = LEASE_MS_DEFAULT,
        label: str | None = None,
        on_demand: bool = False,
    ) -> NewTransaction:
        """Creates a transaction. The controller aborts it some time after its lease expires, unless it is pinged.

        With a `label` another process can find it without its id. With `on_demand` its segments are only created by
        `create_segments`.

        Raises:
            InvalidRequestError: code "lease_too_small", "lease_too_large" or "invalid_label".
            SealedError: the stream is sealed.
        """
        return self._thread.run(self._core.create(scope, stream, lease_ms=lease_ms, label=label, on_demand=on_demand))

    def create_segments(self, scope: str, stream: str, transaction: str, segments: Sequence[int]) -> TransactionView:
        """Creates segments of an open transaction that creates them on demand. A repeat changes nothing.

        `segments` are ids of segments of the stream, as the transaction's view names them.

        Raises:
            InvalidRequestError: code "not_of_transaction": the transaction has no such segment.
            IllegalStateError: code "transaction_committed" or "transaction_aborted".
        """
        return self._thread.run(self._core.create_segments(scope, stream, transaction, segments))

    def get(self, scope: str, stream: str, transaction: str) -> NewTransaction:
        """Returns a transaction with its segments.

        Raises NotFoundError, code "transaction_not_found", if it never existed or was completed more than a day ago.
        """
        return self._thread.run(self._core.get(scope, stream, transaction))

    def ping(
        self, scope: str, stream: str, transaction: str, *, lease_ms: int, retry_s: float | None = None
    ) -> TransactionView:
        """Renews the lease for `lease_ms` from now. A failed request is retried for `retry_s`, if not as the client's.

        Raises:
            IllegalStateError: code "transaction_committed", "transaction_aborted" or "max_execution_time_exceeded".
        """
        return self._thread.run(self._core.ping(scope, stream, transaction, lease_ms=lease_ms, retry_s=retry_s))

    def ping_many(
        self, scope: str, stream: str, transactions: Sequence[str], *, lease_ms: int, retry_s: float | None = None
    ) -> dict[str, HeadraceError | None]:
        """Renews the leases of at most 100 transactions, each for itself, as `ping` does for one.

        Returns None for each one that was renewed, and for each other the error that `ping` would have raised.
        """
        return self._thread.run(self._core.ping_many(scope, stream, transactions, lease_ms=lease_ms, retry_s=retry_s))

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

    def list_open(self, scope: str, stream: str, *, label_prefix: str | None = None) -> list[TransactionView]:
        """Returns all transactions that are neither committed nor aborted, sorted by id.

        With a `label_prefix` only those whose label begins with it. The controller reads all of them nevertheless.
        """
        return self._thread.run(self._core.list_open(scope, stream, label_prefix=label_prefix))

    def abort_labelled(self, scope: str, stream: str, label_prefix: str) -> int:
        """Aborts all open transactions whose label begins with `label_prefix`, and returns their number.

        A transaction that was committed, or that a commit set is just committing, is not touched.
        """
        return self._thread.run(self._core.abort_labelled(scope, stream, label_prefix))

    def list_completed(self, scope: str, stream: str) -> list[CompletedTransaction]:
        """Returns the ids and states of the newest completed transactions, newest first, at most 500."""
        return self._thread.run(self._core.list_completed(scope, stream))

    def commit_all(
        self,
        scope: str,
        stream: str,
        transactions: Sequence[str] | Mapping[str, Sequence[str]],
        *,
        writer: str,
        epoch: int,
        abort_labels: str | None = None,
        note: str | None = None,
    ) -> CommitSetView:
        """Commits all of the transactions or none, once for each epoch of the writer.

        If this epoch or a later one was committed before, the answer has `new=False`, and those of the transactions
        that are still open are aborted. So the same call can be repeated at any time, as long as `stream` exists.

        Args:
            stream: The home of the writer, which keeps the epoch.
            transactions: Ids of transactions of `stream`, or a mapping from names of streams of the scope to ids.
                At most 2,500 of 40 streams.
            writer: 1 to 250 letters, digits, '.', ':', '_' and '-'.
            epoch: From 0 to 2^63 - 1; it grows from set to set.
            abort_labels: Afterwards, abort the open transactions of these streams with the label `<abort_labels>/<k>`
                or `<abort_labels>/<k>/...` and k up to `epoch`.
            note: Text that is kept with the epoch, for `committed`, for example the position in the input. At most
                64 KiB as UTF-8.

        Raises:
            InvalidRequestError: code "invalid_commit_set" or "invalid_label".
            IllegalStateError: code "transaction_committed" or "transaction_aborted": one was completed separately.
            NotFoundError: code "transaction_not_found", or there is no such stream.
            SealedError: the home stream is sealed.
        """
        return self._thread.run(
            self._core.commit_all(
                scope, stream, transactions, writer=writer, epoch=epoch, abort_labels=abort_labels, note=note
            )
        )

    def committed_epoch(self, scope: str, stream: str, writer: str) -> int | None:
        """Returns the last epoch of a writer that was committed, or None if there is none. See `committed`."""
        return self._thread.run(self._core.committed_epoch(scope, stream, writer))

    def committed(self, scope: str, stream: str, writer: str) -> CommittedEpochView:
        """Returns the last epoch of a writer that was committed, and its note; None for those of a new writer.

        A commit that another process began and did not finish is finished first. So the answer tells whether its
        transactions are committed, and it does not change later unless another commit is requested.
        """
        return self._thread.run(self._core.committed(scope, stream, writer))
