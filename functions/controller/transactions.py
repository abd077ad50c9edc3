"""Transactions over HTTP: create, ping, commit, abort, get, list, and commit sets."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from pydantic import AfterValidator

from functions import wiring
from functions.controller import models_transactions as models
from functions.controller.parameters import PAGE_LIMIT_DEFAULT, ContinuationToken, PageLimit, ScopeName, StreamName
from functions.http_api import http_api, lambda_handler
from headrace.api.transactions import TransactionView
from headrace.model.transactions import Transaction, check_commit_set_key, parse_transaction_id, transaction_text

api = http_api()


def _transaction_id(text: str) -> str:
    return transaction_text(parse_transaction_id(unquote(text)))


def _commit_set_key(text: str) -> str:
    return check_commit_set_key(unquote(text))


TransactionId = Annotated[str, AfterValidator(_transaction_id), Path(description="32 lower-case hex digits")]
CommitSetKey = Annotated[str, AfterValidator(_commit_set_key), Path(description="What the set was committed under")]
Which = Annotated[
    Literal["open", "completed"],
    Query(description="Those not completed yet, by id and in pages; or the newest that are, up to 500"),
]


def _state_json(one: Transaction) -> dict[str, Any]:
    return TransactionView.of(one).state_json()


def _answer(one: Transaction) -> models.TransactionModel:
    return models.TransactionModel.model_validate(_state_json(one))


_STREAM = "/v1/scopes/<scope>/streams/<stream>"
_TRANSACTIONS = f"{_STREAM}/transactions"
_TRANSACTION = f"{_TRANSACTIONS}/<transaction>"


@api.get(_TRANSACTIONS, summary="List transactions", tags=["Transactions"])
def list_transactions(
    scope: ScopeName,
    stream: StreamName,
    which: Which = "open",
    limit: PageLimit = PAGE_LIMIT_DEFAULT,
    continuationToken: ContinuationToken = None,
) -> models.TransactionList | models.CompletedList:
    if which == "completed":
        completed = wiring.transaction_service().list_completed(scope, stream)
        return models.CompletedList.model_validate({"completed": [one.to_json() for one in completed]})
    after = parse_transaction_id(continuationToken) if continuationToken else None
    page = wiring.transaction_service().list_open(scope, stream, limit, after)
    return models.TransactionList.model_validate(page.to_json("transactions", _state_json))


@api.post(_TRANSACTIONS, summary="Begin a transaction", tags=["Transactions"], status_code=HTTPStatus.CREATED)
def create_transaction(scope: ScopeName, stream: StreamName, request: models.LeaseRequest) -> models.NewTransaction:
    return models.NewTransaction.from_value(
        wiring.transaction_service().create_transaction(scope, stream, request.lease)
    )


@api.get(_TRANSACTION, summary="Get a transaction with its segments", tags=["Transactions"])
def get_transaction(scope: ScopeName, stream: StreamName, transaction: TransactionId) -> models.NewTransaction:
    found = wiring.transaction_service().segments_of(scope, stream, int(transaction, 16))
    return models.NewTransaction.from_value(found)


@api.put(f"{_TRANSACTION}/lease", summary="Renew the lease of a transaction", tags=["Transactions"])
def ping_transaction(
    scope: ScopeName, stream: StreamName, transaction: TransactionId, request: models.LeaseRequest
) -> models.TransactionModel:
    service = wiring.transaction_service()
    return _answer(service.ping_transaction(scope, stream, int(transaction, 16), request.lease))


@api.put(
    f"{_TRANSACTION}/state",
    summary="Commit or abort a transaction",
    tags=["Transactions"],
    status_code=HTTPStatus.ACCEPTED,
)
def set_transaction_state(
    scope: ScopeName, stream: StreamName, transaction: TransactionId, request: models.TransactionStateRequest
) -> models.TransactionModel:
    service, identifier, noted = wiring.transaction_service(), int(transaction, 16), request.writer_time()
    if request.state == "ABORTING":
        return _answer(service.abort_transaction(scope, stream, identifier))
    return _answer(service.commit_transaction(scope, stream, identifier, noted))


@api.post(
    f"{_STREAM}/commit-sets",
    summary="Commit several transactions, all or none, once",
    tags=["Transactions"],
    status_code=HTTPStatus.ACCEPTED,
)
def commit_all(scope: ScopeName, stream: StreamName, request: models.CommitSetRequest) -> models.CommitSetModel:
    service = wiring.transaction_service()
    return models.CommitSetModel.from_value(service.commit_all(scope, stream, request.key, request.transaction_ids()))


@api.get(f"{_STREAM}/commit-sets/<key>", summary="What was committed under a key", tags=["Transactions"])
def get_commit_set(scope: ScopeName, stream: StreamName, key: CommitSetKey) -> models.CommitSetModel:
    return models.CommitSetModel.from_value(wiring.transaction_service().get_commit_set(scope, stream, key))


handler = lambda_handler(api)
