"""Transactions by their ids, and commit sets: `admin.transactions`.

Use a transactional writer to write events in a transaction. These methods show the state of transactions, and commit or
abort those that other processes write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.api.transactions import CommitSetView, CompletedTransaction, TransactionView
from headrace.client.http_api import HttpApi, parsed
from headrace.client.polling import items_of_pages
from headrace.model.names import check_scope_name, check_stream_name
from headrace.model.transactions import check_commit_set_key, parse_transaction_id, transaction_text

LEASE_MS_DEFAULT = 60_000


class AsyncTransactionsAdmin:
    """Creates, shows and ends transactions. A transaction id is 32 lower-case hex digits."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def create(self, scope: str, stream: str, *, lease_ms: int = LEASE_MS_DEFAULT) -> TransactionView:
        """Creates a transaction. The controller aborts it some time after its lease expires, unless it is pinged.

        Raises:
            InvalidRequestError: code "lease_too_small" or "lease_too_large".
            SealedError: the stream is sealed.
        """
        return parsed(
            TransactionView.from_json, await self._api.request("POST", _path(scope, stream), body={"lease": lease_ms})
        )

    async def get(self, scope: str, stream: str, transaction: str) -> TransactionView:
        """Returns a transaction.

        Raises NotFoundError, code "transaction_not_found", if it never existed or was completed more than a day ago.
        """
        return parsed(TransactionView.from_json, await self._api.request("GET", _path(scope, stream, transaction)))

    async def ping(self, scope: str, stream: str, transaction: str, *, lease_ms: int) -> TransactionView:
        """Renews the lease for `lease_ms` from now.

        Raises:
            IllegalStateError: code "transaction_committed", "transaction_aborted" or "max_execution_time_exceeded".
        """
        path = f"{_path(scope, stream, transaction)}/lease"
        return parsed(TransactionView.from_json, await self._api.request("PUT", path, body={"lease": lease_ms}))

    async def commit(
        self, scope: str, stream: str, transaction: str, *, writer: str | None = None, time: int | None = None
    ) -> TransactionView:
        """Commits a transaction. Its events are added to the stream soon after.

        `writer` and `time` record for watermarks the time that this writer has reached.

        Raises:
            IllegalStateError: code "transaction_aborted".
        """
        body: dict[str, Any] = {"state": "COMMITTING"}
        if writer is not None or time is not None:
            body |= {"writer": writer, "time": time}
        return parsed(
            TransactionView.from_json,
            await self._api.request("PUT", f"{_path(scope, stream, transaction)}/state", body=body),
        )

    async def abort(self, scope: str, stream: str, transaction: str) -> TransactionView:
        """Aborts a transaction and deletes its events. Raises IllegalStateError, code "transaction_committed"."""
        path = f"{_path(scope, stream, transaction)}/state"
        return parsed(TransactionView.from_json, await self._api.request("PUT", path, body={"state": "ABORTING"}))

    async def list_open(self, scope: str, stream: str) -> list[TransactionView]:
        """Returns all transactions that are neither committed nor aborted, sorted by id."""
        return [
            one
            async for one in items_of_pages(self._api, _path(scope, stream), "transactions", TransactionView.from_json)
        ]

    async def list_completed(self, scope: str, stream: str) -> list[CompletedTransaction]:
        """Returns the ids and states of the newest completed transactions, newest first, at most 500."""
        answer = await self._api.request("GET", _path(scope, stream), query={"which": "completed"})
        return parsed(lambda found: list(map(CompletedTransaction.from_json, found["completed"])), answer)

    async def commit_all(self, scope: str, stream: str, key: str, transactions: Sequence[str]) -> CommitSetView:
        """Commits all of the transactions or none, once per key: a repeat with the same key changes nothing.

        Raises:
            InvalidRequestError: code "invalid_commit_set": an invalid key, or not 1 to 40 different transactions.
            IllegalStateError: code "transaction_committed" or "transaction_aborted": one was completed separately.
            AlreadyExistsError: code "commit_set_differs": other transactions were committed under the key.
        """
        body = {"key": check_commit_set_key(key), "transactions": list(transactions)}
        return parsed(CommitSetView.from_json, await self._api.request("POST", _sets_path(scope, stream), body=body))

    async def commit_set(self, scope: str, stream: str, key: str) -> CommitSetView:
        """Returns the transactions that were committed under a key.

        Raises NotFoundError, code "commit_set_not_found", if there were none, or if it was too long ago.
        """
        path = f"{_sets_path(scope, stream)}/{check_commit_set_key(key)}"
        return parsed(CommitSetView.from_json, await self._api.request("GET", path))


def _stream_path(scope: str, stream: str) -> str:
    return f"/v1/scopes/{check_scope_name(scope)}/streams/{check_stream_name(stream)}"


def _path(scope: str, stream: str, transaction: str | None = None) -> str:
    base = f"{_stream_path(scope, stream)}/transactions"
    return base if transaction is None else f"{base}/{transaction_text(parse_transaction_id(transaction))}"


def _sets_path(scope: str, stream: str) -> str:
    return f"{_stream_path(scope, stream)}/commit-sets"
