"""Transactions by their ids, and commit sets: `admin.transactions`.

To write in a transaction use a transactional writer; this is for looking at transactions, and for committing what
others wrote.
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
    """A transaction is named by its id: 32 lower-case hex digits."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def create(self, scope: str, stream: str, *, lease_ms: int = LEASE_MS_DEFAULT) -> TransactionView:
        """A new transaction; it is aborted some time after its lease ends, unless it is pinged.

        Raises:
            InvalidRequestError: code "lease_too_small" or "lease_too_large".
            SealedError: the stream takes no more events.
        """
        return parsed(
            TransactionView.from_json, await self._api.request("POST", _path(scope, stream), body={"lease": lease_ms})
        )

    async def get(self, scope: str, stream: str, transaction: str) -> TransactionView:
        """Raises NotFoundError, code "transaction_not_found": it never was, or was completed more than a day ago."""
        return parsed(TransactionView.from_json, await self._api.request("GET", _path(scope, stream, transaction)))

    async def ping(self, scope: str, stream: str, transaction: str, *, lease_ms: int) -> TransactionView:
        """The lease begins anew.

        Raises:
            IllegalStateError: code "transaction_committed", "transaction_aborted" or "max_execution_time_exceeded".
        """
        path = f"{_path(scope, stream, transaction)}/lease"
        return parsed(TransactionView.from_json, await self._api.request("PUT", path, body={"lease": lease_ms}))

    async def commit(
        self, scope: str, stream: str, transaction: str, *, writer: str | None = None, time: int | None = None
    ) -> TransactionView:
        """Its events will be in the stream soon. `writer` and `time` tell how far that writer is, for watermarks.

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
        """Its events will never be in the stream. Raises IllegalStateError, code "transaction_committed"."""
        path = f"{_path(scope, stream, transaction)}/state"
        return parsed(TransactionView.from_json, await self._api.request("PUT", path, body={"state": "ABORTING"}))

    async def list_open(self, scope: str, stream: str) -> list[TransactionView]:
        """All that are not committed or aborted yet, by id."""
        return [
            one
            async for one in items_of_pages(self._api, _path(scope, stream), "transactions", TransactionView.from_json)
        ]

    async def list_completed(self, scope: str, stream: str) -> list[CompletedTransaction]:
        """Id and state of those that were completed last, the newest first; 500 at most."""
        answer = await self._api.request("GET", _path(scope, stream), query={"which": "completed"})
        return parsed(lambda found: list(map(CompletedTransaction.from_json, found["completed"])), answer)

    async def commit_all(self, scope: str, stream: str, key: str, transactions: Sequence[str]) -> CommitSetView:
        """Commits all of the transactions or none, once for each key: a repeat changes nothing.

        Raises:
            InvalidRequestError: code "invalid_commit_set": no such key, or not 1 to 40 different transactions.
            IllegalStateError: code "transaction_committed" or "transaction_aborted": one was completed otherwise.
            AlreadyExistsError: code "commit_set_differs": other transactions were committed under the key.
        """
        body = {"key": check_commit_set_key(key), "transactions": list(transactions)}
        return parsed(CommitSetView.from_json, await self._api.request("POST", _sets_path(scope, stream), body=body))

    async def commit_set(self, scope: str, stream: str, key: str) -> CommitSetView:
        """Raises NotFoundError, code "commit_set_not_found": nothing was committed under the key, or long ago."""
        path = f"{_sets_path(scope, stream)}/{check_commit_set_key(key)}"
        return parsed(CommitSetView.from_json, await self._api.request("GET", path))


def _stream_path(scope: str, stream: str) -> str:
    return f"/v1/scopes/{check_scope_name(scope)}/streams/{check_stream_name(stream)}"


def _path(scope: str, stream: str, transaction: str | None = None) -> str:
    base = f"{_stream_path(scope, stream)}/transactions"
    return base if transaction is None else f"{base}/{transaction_text(parse_transaction_id(transaction))}"


def _sets_path(scope: str, stream: str) -> str:
    return f"{_stream_path(scope, stream)}/commit-sets"
