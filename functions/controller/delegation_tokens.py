"""Delegation tokens over HTTP: GET for one that reads, POST for one that also updates, PUT for one that also manages.

IAM decides who may call which route. The handlers read no metadata: a token for a stream that does not exist opens
nothing, and the answer does not tell whether it exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functions import token_wiring
from functions.controller import models_delegation_tokens as models
from functions.controller.parameters import ReaderGroupName, ScopeName, StreamName, TableName
from functions.http_api import HttpResolver, caller_of, http_api, lambda_handler
from headrace.model.access import Access, reader_group_resource, stream_resource, table_resource

api = http_api(uses_metadata=False)

_SCOPE = "/v1/scopes/<scope>"
_STREAM = f"{_SCOPE}/streams/<stream>/delegation-token"
_TABLE = f"{_SCOPE}/key-value-tables/<table>/delegation-token"
_GROUP = f"{_SCOPE}/reader-groups/<group>/delegation-token"
_TAGS = ["Delegation tokens"]


def _keep_out_of_caches(api: HttpResolver, next_middleware: Callable[[HttpResolver], Any]) -> Any:
    response = next_middleware(api)
    response.headers["Cache-Control"] = "no-store"
    return response


api.use([_keep_out_of_caches])


def _issue(resource: str, access: Access) -> models.DelegationToken:
    return models.DelegationToken.from_value(token_wiring.delegation_tokens().issue(caller_of(api), {resource: access}))


@api.get(_STREAM, summary="A token to read a stream", tags=_TAGS)
def read_stream(scope: ScopeName, stream: StreamName) -> models.DelegationToken:
    return _issue(stream_resource(scope, stream), Access.READ)


@api.post(_STREAM, summary="A token to write and read a stream", tags=_TAGS)
def update_stream(scope: ScopeName, stream: StreamName) -> models.DelegationToken:
    return _issue(stream_resource(scope, stream), Access.READ_UPDATE)


@api.put(_STREAM, summary="A token to truncate, seal, write and read a stream", tags=_TAGS)
def manage_stream(scope: ScopeName, stream: StreamName) -> models.DelegationToken:
    return _issue(stream_resource(scope, stream), Access.MANAGE)


@api.get(_TABLE, summary="A token to read a key-value table", tags=_TAGS)
def read_table(scope: ScopeName, table: TableName) -> models.DelegationToken:
    return _issue(table_resource(scope, table), Access.READ)


@api.post(_TABLE, summary="A token to update and read a key-value table", tags=_TAGS)
def update_table(scope: ScopeName, table: TableName) -> models.DelegationToken:
    return _issue(table_resource(scope, table), Access.READ_UPDATE)


@api.get(_GROUP, summary="A token to read the state of a reader group", tags=_TAGS)
def read_group(scope: ScopeName, group: ReaderGroupName) -> models.DelegationToken:
    return _issue(reader_group_resource(scope, group), Access.READ)


@api.post(_GROUP, summary="A token to read in a reader group, which updates its state", tags=_TAGS)
def update_group(scope: ScopeName, group: ReaderGroupName) -> models.DelegationToken:
    return _issue(reader_group_resource(scope, group), Access.READ_UPDATE)


handler = lambda_handler(api)
