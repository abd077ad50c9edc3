"""Key-value tables over HTTP: create, get, list, segments, endpoints, delete."""

from __future__ import annotations

from http import HTTPStatus

from functions import wiring
from functions.controller.parameters import (
    PAGE_LIMIT_DEFAULT,
    ContinuationToken,
    NetworkOfClient,
    PageLimit,
    ScopeName,
    SegmentId,
    TableName,
    continue_after,
    network_of,
)
from functions.http_api import HttpApi, lambda_handler
from headrace.api.key_value_tables import CreateTableRequest, TableList, TableSegments, TableStateAnswer, TableView
from headrace.api.segments import SegmentEndpoint
from headrace.model.key_value_tables import segments_owner

api = HttpApi()

_TABLES = "/v1/scopes/<scope>/key-value-tables"
_TABLE = f"{_TABLES}/<table>"
_TAG = "Key-value tables"


@api.route("GET", _TABLES, summary="List the key-value tables of a scope by name", tag=_TAG)
def list_tables(
    scope: ScopeName, limit: PageLimit = PAGE_LIMIT_DEFAULT, continuation_token: ContinuationToken = None
) -> TableList:
    page = wiring.table_service().list_tables(scope, limit, continue_after(continuation_token))
    return TableList(tables=page.items, next_after=page.next_after)


@api.route("POST", _TABLES, summary="Create a key-value table", tag=_TAG, status=HTTPStatus.CREATED)
def create_table(scope: ScopeName, request: CreateTableRequest) -> TableView:
    return TableView.of(wiring.table_service().create_table(scope, request.table, request.configuration))


@api.route("GET", _TABLE, summary="Get a key-value table", tag=_TAG)
def get_table(scope: ScopeName, table: TableName) -> TableView:
    return TableView.of(wiring.table_service().get_table(scope, table))


@api.route("DELETE", _TABLE, summary="Delete a key-value table", tag=_TAG, status=HTTPStatus.ACCEPTED)
def delete_table(scope: ScopeName, table: TableName) -> TableStateAnswer:
    return TableStateAnswer(wiring.table_service().delete_table(scope, table).state)


@api.route("GET", f"{_TABLE}/segments", summary="Segments of a key-value table and their key ranges", tag=_TAG)
def list_table_segments(scope: ScopeName, table: TableName) -> TableSegments:
    return TableSegments.of(wiring.table_service().segments_of_table(scope, table))


@api.route("GET", f"{_TABLE}/segments/<segment>/endpoint", summary="The store that serves a table's segment", tag=_TAG)
def table_endpoint(
    scope: ScopeName, table: TableName, segment: SegmentId, network: NetworkOfClient = "vpc"
) -> SegmentEndpoint:
    return wiring.segment_endpoints().endpoint(scope, segments_owner(table), segment, network_of(network))


handler = lambda_handler(api)
