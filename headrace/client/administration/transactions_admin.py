"""Transactions by their ids, and commit sets: `admin.transactions`.

Use a transactional writer to write events in a transaction. These methods show the state of transactions, and commit or
abort those that other processes write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.api.transactions import (
    CommitSetRequest,
    CommitSetView,
    CommittedEpochView,
    CompletedList,
    CompletedTransaction,
    LabelledAbortRequest,
    LabelledAborts,
    LeaseOutcome,
    LeaseOutcomes,
    LeaseRequest,
    LeasesRequest,
    NewTransaction,
    TransactionRequest,
    TransactionSegmentsRequest,
    TransactionStateRequest,
    TransactionView,
)
from headrace.client.administration.polling import items_of_pages
from headrace.client.defaults import LEASE_MS_DEFAULT
from headrace.client.http_api import HttpApi, error_from_json, parsed
from headrace.model.arguments import checked_calls
from headrace.model.commit_sets import check_set_epoch, check_set_note, check_set_writer
from headrace.model.errors import HeadraceError
from headrace.model.names import check_scope_name, check_stream_name
from headrace.model.transactions import check_label, parse_transaction_id, transaction_text
from headrace.model.writer_marks import check_writer_name


@checked_calls()
class AsyncTransactionsAdmin:
    """Creates, shows and ends transactions. A transaction id is 32 lower-case hex digits."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def create(
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
        checked_label = None if label is None else check_label(label)
        body = TransactionRequest(lease_ms, checked_label, "on-demand" if on_demand else "all").to_json()
        return parsed(NewTransaction.from_json, await self._api.request("POST", _path(scope, stream), body=body))

    async def create_segments(
        self, scope: str, stream: str, transaction: str, segments: Sequence[int]
    ) -> TransactionView:
        """Creates segments of an open transaction that creates them on demand. A repeat changes nothing.

        `segments` are ids of segments of the stream, as the transaction's view names them.

        Raises:
            InvalidRequestError: code "not_of_transaction": the transaction has no such segment.
            IllegalStateError: code "transaction_committed" or "transaction_aborted".
        """
        path = f"{_path(scope, stream, transaction)}/segments"
        answer = await self._api.request("POST", path, body=TransactionSegmentsRequest(tuple(segments)).to_json())
        return parsed(TransactionView.from_json, answer)

    async def get(self, scope: str, stream: str, transaction: str) -> NewTransaction:
        """Returns a transaction with its segments.

        Raises NotFoundError, code "transaction_not_found", if it never existed or was completed more than a day ago.
        """
        return parsed(NewTransaction.from_json, await self._api.request("GET", _path(scope, stream, transaction)))

    async def ping(
        self, scope: str, stream: str, transaction: str, *, lease_ms: int, retry_s: float | None = None
    ) -> TransactionView:
        """Renews the lease for `lease_ms` from now. A failed request is retried for `retry_s`, if not as the client's.

        Raises:
            IllegalStateError: code "transaction_committed", "transaction_aborted" or "max_execution_time_exceeded".
        """
        path = f"{_path(scope, stream, transaction)}/lease"
        answer = await self._api.request("PUT", path, body=LeaseRequest(lease_ms).to_json(), retry_s=retry_s)
        return parsed(TransactionView.from_json, answer)

    async def ping_many(
        self,
        scope: str,
        stream: str,
        transactions: Sequence[str],
        *,
        lease_ms: int,
        retry_s: float | None = None,
    ) -> dict[str, HeadraceError | None]:
        """Renews the leases of at most 100 transactions, each for itself, as `ping` does for one.

        Returns None for each one that was renewed, and for each other the error that `ping` would have raised.
        """
        path = f"{_stream_path(scope, stream)}/transaction-leases"
        body = LeasesRequest(lease_ms, tuple(transactions)).to_json()
        answer = await self._api.request("POST", path, body=body, retry_s=retry_s)
        return dict(map(_outcome, parsed(LeaseOutcomes.from_json, answer).leases))

    async def commit(
        self, scope: str, stream: str, transaction: str, *, writer: str | None = None, time: int | None = None
    ) -> TransactionView:
        """Commits a transaction. Its events are added to the stream soon after.

        `writer` and `time` record for watermarks the time that this writer has reached.

        Raises:
            IllegalStateError: code "transaction_aborted".
        """
        noted_by = None if writer is None else check_writer_name(writer)
        body = TransactionStateRequest("COMMITTING", noted_by, time).to_json()
        return parsed(
            TransactionView.from_json,
            await self._api.request("PUT", f"{_path(scope, stream, transaction)}/state", body=body),
        )

    async def abort(self, scope: str, stream: str, transaction: str) -> TransactionView:
        """Aborts a transaction and deletes its events. Raises IllegalStateError, code "transaction_committed"."""
        path = f"{_path(scope, stream, transaction)}/state"
        return parsed(
            TransactionView.from_json,
            await self._api.request("PUT", path, body=TransactionStateRequest("ABORTING").to_json()),
        )

    async def list_open(self, scope: str, stream: str, *, label_prefix: str | None = None) -> list[TransactionView]:
        """Returns all transactions that are neither committed nor aborted, sorted by id.

        With a `label_prefix` only those whose label begins with it. The controller reads all of them nevertheless.
        """
        query = None if label_prefix is None else {"labelPrefix": check_label(label_prefix, "beginning of the label")}
        pages = items_of_pages(self._api, _path(scope, stream), "transactions", TransactionView.from_json, query)
        return [transaction async for transaction in pages]

    async def abort_labelled(self, scope: str, stream: str, label_prefix: str) -> int:
        """Aborts all open transactions whose label begins with `label_prefix`, and returns their number.

        A transaction that was committed, or that a commit set is just committing, is not touched.
        """
        path, aborted = f"{_stream_path(scope, stream)}/transaction-aborts", 0
        request = LabelledAbortRequest(check_label(label_prefix, "beginning of the label"))
        while True:
            page = parsed(LabelledAborts.from_json, await self._api.request("POST", path, body=request.to_json()))
            aborted += page.aborted
            if page.next_after is None:
                return aborted
            request = LabelledAbortRequest(request.label_prefix, page.next_after)

    async def list_completed(self, scope: str, stream: str) -> list[CompletedTransaction]:
        """Returns the ids and states of the newest completed transactions, newest first, at most 500."""
        answer = await self._api.request("GET", _path(scope, stream), query={"which": "completed"})
        return list(parsed(CompletedList.from_json, answer).completed)

    async def commit_all(
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
        members = transactions if isinstance(transactions, Mapping) else {stream: transactions}
        body = CommitSetRequest(
            check_set_writer(writer),
            check_set_epoch(epoch),
            {name: tuple(ids) for name, ids in members.items()},
            None if abort_labels is None else check_label(abort_labels, "beginning of the label"),
            check_set_note(note),
        ).to_json()
        if note is None:
            del body["note"]  # controllers of former releases refuse a field that they do not know
        return parsed(CommitSetView.from_json, await self._api.request("POST", _sets_path(scope, stream), body=body))

    async def committed_epoch(self, scope: str, stream: str, writer: str) -> int | None:
        """Returns the last epoch of a writer that was committed, or None if there is none. See `committed`."""
        return (await self.committed(scope, stream, writer)).epoch

    async def committed(self, scope: str, stream: str, writer: str) -> CommittedEpochView:
        """Returns the last epoch of a writer that was committed, and its note; None for those of a new writer.

        A commit that another process began and did not finish is finished first. So the answer tells whether its
        transactions are committed, and it does not change later unless another commit is requested.
        """
        path = f"{_sets_path(scope, stream)}/{check_set_writer(writer)}"
        return parsed(CommittedEpochView.from_json, await self._api.request("GET", path))


def _outcome(outcome: LeaseOutcome) -> tuple[str, HeadraceError | None]:
    return outcome.transaction, None if outcome.error is None else error_from_json(outcome.status, outcome.error)


def _stream_path(scope: str, stream: str) -> str:
    return f"/v1/scopes/{check_scope_name(scope)}/streams/{check_stream_name(stream)}"


def _path(scope: str, stream: str, transaction: str | None = None) -> str:
    base = f"{_stream_path(scope, stream)}/transactions"
    return base if transaction is None else f"{base}/{transaction_text(parse_transaction_id(transaction))}"


def _sets_path(scope: str, stream: str) -> str:
    return f"{_stream_path(scope, stream)}/commit-sets"
