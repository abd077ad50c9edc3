"""Transactions over HTTP: create, ping, commit, abort, get, list, and commit sets."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal

from msgspec import Meta

from functions import wiring
from functions.controller.parameters import (
    PAGE_LIMIT_DEFAULT,
    ContinuationToken,
    PageLimit,
    ScopeName,
    StreamName,
    path_name,
    path_value,
)
from functions.error_responses import error_body, status_of
from functions.http_api import HttpApi, lambda_handler
from functions.operations import PathParameter, QueryParameter
from headrace.api.transactions import (
    CommitSetRequest,
    CommitSetView,
    CommittedEpochView,
    CompletedList,
    LabelledAbortRequest,
    LabelledAborts,
    LeaseOutcome,
    LeaseOutcomes,
    LeaseRequest,
    LeasesRequest,
    NewTransaction,
    TransactionList,
    TransactionRequest,
    TransactionSegmentsRequest,
    TransactionStateRequest,
    TransactionView,
)
from headrace.model.commit_sets import check_set_writer
from headrace.model.errors import HeadraceError
from headrace.model.formats import COMMIT_NOTES
from headrace.model.transactions import LABEL_CHARACTERS_MAX, Transaction, parse_transaction_id, transaction_text

api = HttpApi()


TransactionId = Annotated[
    int, PathParameter("32 lower-case hex digits", lambda text: parse_transaction_id(path_value(text)))
]
SetWriter = Annotated[str, path_name("The writer of the sets", check_set_writer)]
LabelPrefix = Annotated[
    Annotated[str, Meta(max_length=LABEL_CHARACTERS_MAX)] | None,
    QueryParameter("Only open ones whose label begins so; pages may be short", "labelPrefix"),
]
Which = Annotated[
    Literal["open", "completed"],
    QueryParameter("Those not completed yet, by id and in pages; or the newest that are, up to 500"),
]

_STREAM = "/v1/scopes/<scope>/streams/<stream>"
_TRANSACTIONS = f"{_STREAM}/transactions"
_TRANSACTION = f"{_TRANSACTIONS}/<transaction>"


@api.route("GET", _TRANSACTIONS, summary="List transactions", tag="Transactions")
def list_transactions(
    scope: ScopeName,
    stream: StreamName,
    which: Which = "open",
    limit: PageLimit = PAGE_LIMIT_DEFAULT,
    continuation_token: ContinuationToken = None,
    label_prefix: LabelPrefix = None,
) -> TransactionList | CompletedList:
    if which == "completed":
        completed = wiring.transaction_service().list_completed(scope, stream)
        return CompletedList(tuple(completed))
    after = parse_transaction_id(continuation_token) if continuation_token else None
    page = wiring.transaction_service().list_open(scope, stream, limit, after, label_prefix)
    return TransactionList(transactions=tuple(map(TransactionView.of, page.items)), next_after=page.next_after)


@api.route("POST", _TRANSACTIONS, summary="Begin a transaction", tag="Transactions", status=HTTPStatus.CREATED)
def create_transaction(scope: ScopeName, stream: StreamName, request: TransactionRequest) -> NewTransaction:
    return wiring.transaction_service().create_transaction(
        scope, stream, request.lease_ms, label=request.label, on_demand=request.segments == "on-demand"
    )


@api.route("GET", _TRANSACTION, summary="Get a transaction with its segments", tag="Transactions")
def get_transaction(scope: ScopeName, stream: StreamName, transaction: TransactionId) -> NewTransaction:
    return wiring.transaction_service().segments_of(scope, stream, transaction)


@api.route("PUT", f"{_TRANSACTION}/lease", summary="Renew the lease of a transaction", tag="Transactions")
def ping_transaction(
    scope: ScopeName, stream: StreamName, transaction: TransactionId, request: LeaseRequest
) -> TransactionView:
    service = wiring.transaction_service()
    return TransactionView.of(service.ping_transaction(scope, stream, transaction, request.lease_ms))


@api.route(
    "PUT",
    f"{_TRANSACTION}/state",
    summary="Commit or abort a transaction",
    tag="Transactions",
    status=HTTPStatus.ACCEPTED,
)
def set_transaction_state(
    scope: ScopeName, stream: StreamName, transaction: TransactionId, request: TransactionStateRequest
) -> TransactionView:
    service, noted = wiring.transaction_service(), request.writer_time()
    if request.state == "ABORTING":
        return TransactionView.of(service.abort_transaction(scope, stream, transaction))
    return TransactionView.of(service.commit_transaction(scope, stream, transaction, noted))


@api.route("POST", f"{_TRANSACTION}/segments", summary="Create segments of a transaction on demand", tag="Transactions")
def create_transaction_segments(
    scope: ScopeName, stream: StreamName, transaction: TransactionId, request: TransactionSegmentsRequest
) -> TransactionView:
    service = wiring.transaction_service()
    return TransactionView.of(service.create_segments(scope, stream, transaction, request.segments))


@api.route(
    "POST",
    f"{_STREAM}/transaction-aborts",
    summary="Abort open transactions by their labels, a page of them",
    tag="Transactions",
    status=HTTPStatus.ACCEPTED,
)
def abort_labelled(scope: ScopeName, stream: StreamName, request: LabelledAbortRequest) -> LabelledAborts:
    after = parse_transaction_id(request.after) if request.after else None
    return wiring.transaction_service().abort_labelled(scope, stream, request.label_prefix, after)


@api.route(
    "POST", f"{_STREAM}/transaction-leases", summary="Renew the leases of several transactions", tag="Transactions"
)
def ping_transactions(scope: ScopeName, stream: StreamName, request: LeasesRequest) -> LeaseOutcomes:
    service = wiring.transaction_service()
    outcomes = service.ping_transactions(scope, stream, request.identifiers(), request.lease_ms)
    return LeaseOutcomes(tuple(_lease_outcome(transaction, outcome) for transaction, outcome in outcomes.items()))


def _lease_outcome(identifier: int, outcome: Transaction | HeadraceError) -> LeaseOutcome:
    name = transaction_text(identifier)
    if isinstance(outcome, HeadraceError):
        return LeaseOutcome(name, int(status_of(outcome)), None, error_body(outcome)["error"])
    return LeaseOutcome(name, int(HTTPStatus.OK), outcome.lease_end_ms, None)


@api.route(
    "POST",
    f"{_STREAM}/commit-sets",
    summary="Commit transactions of several streams, all or none, once for each epoch of a writer",
    tag="Transactions",
    status=HTTPStatus.ACCEPTED,
)
def commit_all(scope: ScopeName, stream: StreamName, request: CommitSetRequest) -> CommitSetView:
    if request.note is not None:
        wiring.format_gate().check(COMMIT_NOTES)
    return wiring.transaction_service().sets.commit_all(
        scope,
        stream,
        request.members(),
        writer=request.writer,
        epoch=request.epoch,
        abort_labels=request.abort_labels,
        note=request.note,
    )


@api.route("GET", f"{_STREAM}/commit-sets/<writer>", summary="The last committed epoch of a writer", tag="Transactions")
def committed_epoch(scope: ScopeName, stream: StreamName, writer: SetWriter) -> CommittedEpochView:
    return wiring.transaction_service().sets.committed_epoch(scope, stream, writer)


handler = lambda_handler(api)
