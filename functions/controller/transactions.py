"""Transactions over HTTP: create, ping, commit, abort, get, list, and commit sets."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from pydantic import AfterValidator

from functions import wiring
from functions.controller import models_transactions as models
from functions.controller.parameters import (
    PAGE_LIMIT_DEFAULT,
    ContinuationToken,
    PageLimit,
    ScopeName,
    StreamName,
    path_value,
)
from functions.error_responses import error_body, status_of
from functions.http_api import http_api, lambda_handler
from headrace.api.transactions import TransactionView
from headrace.model.commit_sets import check_set_writer
from headrace.model.errors import HeadraceError
from headrace.model.transactions import LABEL_CHARACTERS_MAX, Transaction, parse_transaction_id, transaction_text

api = http_api()


def _transaction_id(text: str) -> str:
    return transaction_text(parse_transaction_id(path_value(text)))


def _set_writer(text: str) -> str:
    return check_set_writer(path_value(text))


TransactionId = Annotated[str, AfterValidator(_transaction_id), Path(description="32 lower-case hex digits")]
SetWriter = Annotated[str, AfterValidator(_set_writer), Path(description="The writer of the sets")]
LabelPrefix = Annotated[
    str | None,
    Query(max_length=LABEL_CHARACTERS_MAX, description="Only open ones whose label begins so; pages may be short"),
]
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
    labelPrefix: LabelPrefix = None,
) -> models.TransactionList | models.CompletedList:
    if which == "completed":
        completed = wiring.transaction_service().list_completed(scope, stream)
        return models.CompletedList.model_validate({"completed": [one.to_json() for one in completed]})
    after = parse_transaction_id(continuationToken) if continuationToken else None
    page = wiring.transaction_service().list_open(scope, stream, limit, after, labelPrefix)
    return models.TransactionList.model_validate(page.to_json("transactions", _state_json))


@api.post(_TRANSACTIONS, summary="Begin a transaction", tags=["Transactions"], status_code=HTTPStatus.CREATED)
def create_transaction(
    scope: ScopeName, stream: StreamName, request: models.TransactionRequest
) -> models.NewTransaction:
    created = wiring.transaction_service().create_transaction(
        scope, stream, request.lease, label=request.label, on_demand=request.segments == "on-demand"
    )
    return models.NewTransaction.from_value(created)


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


@api.post(f"{_TRANSACTION}/segments", summary="Create segments of a transaction on demand", tags=["Transactions"])
def create_transaction_segments(
    scope: ScopeName, stream: StreamName, transaction: TransactionId, request: models.TransactionSegmentsRequest
) -> models.TransactionModel:
    service = wiring.transaction_service()
    return _answer(service.create_segments(scope, stream, int(transaction, 16), request.segments))


@api.post(
    f"{_STREAM}/transaction-aborts",
    summary="Abort open transactions by their labels, a page of them",
    tags=["Transactions"],
    status_code=HTTPStatus.ACCEPTED,
)
def abort_labelled(
    scope: ScopeName, stream: StreamName, request: models.LabelledAbortRequest
) -> models.LabelledAbortsModel:
    after = parse_transaction_id(request.continuationToken) if request.continuationToken else None
    aborted = wiring.transaction_service().abort_labelled(scope, stream, request.labelPrefix, after)
    return models.LabelledAbortsModel.from_value(aborted)


@api.post(f"{_STREAM}/transaction-leases", summary="Renew the leases of several transactions", tags=["Transactions"])
def ping_transactions(scope: ScopeName, stream: StreamName, request: models.LeasesRequest) -> models.LeaseOutcomes:
    service = wiring.transaction_service()
    outcomes = service.ping_transactions(scope, stream, request.identifiers(), request.lease)
    return models.LeaseOutcomes(leases=[_lease_outcome(one, outcome) for one, outcome in outcomes.items()])


def _lease_outcome(identifier: int, outcome: Transaction | HeadraceError) -> models.LeaseOutcome:
    name = transaction_text(identifier)
    if isinstance(outcome, HeadraceError):
        body = error_body(outcome)["error"]
        return models.LeaseOutcome(transaction=name, status=status_of(outcome), leaseEnd=None, error=body)
    return models.LeaseOutcome(transaction=name, status=HTTPStatus.OK, leaseEnd=outcome.lease_end_ms, error=None)


@api.post(
    f"{_STREAM}/commit-sets",
    summary="Commit transactions of several streams, all or none, once for each epoch of a writer",
    tags=["Transactions"],
    status_code=HTTPStatus.ACCEPTED,
)
def commit_all(scope: ScopeName, stream: StreamName, request: models.CommitSetRequest) -> models.CommitSetModel:
    committed = wiring.transaction_service().sets.commit_all(
        scope, stream, request.members(), writer=request.writer, epoch=request.epoch, abort_labels=request.abortLabels
    )
    return models.CommitSetModel.from_value(committed)


@api.get(f"{_STREAM}/commit-sets/<writer>", summary="The last committed epoch of a writer", tags=["Transactions"])
def committed_epoch(scope: ScopeName, stream: StreamName, writer: SetWriter) -> models.CommittedEpochModel:
    found = wiring.transaction_service().sets.committed_epoch(scope, stream, writer)
    return models.CommittedEpochModel.from_value(found)


handler = lambda_handler(api)
