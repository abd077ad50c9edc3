"""Key-value tables over HTTP: create, get, list, segments, endpoints, delete."""

from __future__ import annotations

from http import HTTPStatus

from functions import wiring
from functions.controller import models_key_value_tables as models
from functions.controller import models_segments
from functions.controller.parameters import (
    PAGE_LIMIT_DEFAULT,
    ContinuationToken,
    PageLimit,
    ScopeName,
    SegmentId,
    TableName,
    continue_after,
)
from functions.http_api import http_api, lambda_handler
from headrace.api.key_value_tables import TableSegments, TableView
from headrace.model.key_value_tables import segments_owner

api = http_api()

_TABLES = "/v1/scopes/<scope>/key-value-tables"
_TABLE = f"{_TABLES}/<table>"
_TAGS = ["Key-value tables"]


@api.get(_TABLES, summary="List the key-value tables of a scope by name", tags=_TAGS)
def list_tables(
    scope: ScopeName, limit: PageLimit = PAGE_LIMIT_DEFAULT, continuationToken: ContinuationToken = None
) -> models.TableList:
    page = wiring.table_service().list_tables(scope, limit, continue_after(continuationToken))
    return models.TableList.model_validate(page.to_json("tables", str))


@api.post(_TABLES, summary="Create a key-value table", tags=_TAGS, status_code=HTTPStatus.CREATED)
def create_table(scope: ScopeName, request: models.CreateTableRequest) -> models.KeyValueTable:
    created = wiring.table_service().create_table(scope, request.tableName, request.configuration())
    return models.KeyValueTable.from_value(TableView.of(created))


@api.get(_TABLE, summary="Get a key-value table", tags=_TAGS)
def get_table(scope: ScopeName, table: TableName) -> models.KeyValueTable:
    return models.KeyValueTable.from_value(TableView.of(wiring.table_service().get_table(scope, table)))


@api.delete(_TABLE, summary="Delete a key-value table", tags=_TAGS, status_code=HTTPStatus.ACCEPTED)
def delete_table(scope: ScopeName, table: TableName) -> models.TableState:
    return models.TableState(state=wiring.table_service().delete_table(scope, table).state.value)


@api.get(f"{_TABLE}/segments", summary="Segments of a key-value table and their key ranges", tags=_TAGS)
def list_table_segments(scope: ScopeName, table: TableName) -> models.TableSegmentList:
    found = wiring.table_service().segments_of_table(scope, table)
    return models.TableSegmentList.from_value(TableSegments.of(found))


@api.get(f"{_TABLE}/segments/<segment>/endpoint", summary="The store that serves a table's segment", tags=_TAGS)
def table_endpoint(scope: ScopeName, table: TableName, segment: SegmentId) -> models_segments.Endpoint:
    return models_segments.Endpoint.from_value(
        wiring.segment_service().endpoint(scope, segments_owner(table), int(segment))
    )


handler = lambda_handler(api)
