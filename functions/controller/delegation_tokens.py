"""Delegation tokens over HTTP: GET for one that reads, POST for one that also updates, PUT for one that also manages.

IAM decides who may call which route. The handlers read no metadata: a token for a stream that does not exist opens
nothing, and the answer does not tell whether it exists.
"""

from __future__ import annotations

from functions import token_wiring
from functions.controller.parameters import ReaderGroupName, ScopeName, StreamName, TableName
from functions.http_api import HttpApi, lambda_handler
from headrace.api.delegation_tokens import IssuedToken
from headrace.model.access import Access, reader_group_resource, stream_resource, table_resource

api = HttpApi(uses_metadata=False, headers={"Cache-Control": "no-store"})

_SCOPE = "/v1/scopes/<scope>"
_STREAM = f"{_SCOPE}/streams/<stream>/delegation-token"
_TABLE = f"{_SCOPE}/key-value-tables/<table>/delegation-token"
_GROUP = f"{_SCOPE}/reader-groups/<group>/delegation-token"
_TAG = "Delegation tokens"


def _issue(resource: str, access: Access) -> IssuedToken:
    return token_wiring.delegation_tokens().issue(api.caller, {resource: access})


@api.route("GET", _STREAM, summary="A token to read a stream", tag=_TAG)
def read_stream(scope: ScopeName, stream: StreamName) -> IssuedToken:
    return _issue(stream_resource(scope, stream), Access.READ)


@api.route("POST", _STREAM, summary="A token to write and read a stream", tag=_TAG)
def update_stream(scope: ScopeName, stream: StreamName) -> IssuedToken:
    return _issue(stream_resource(scope, stream), Access.READ_UPDATE)


@api.route("PUT", _STREAM, summary="A token to truncate, seal, write and read a stream", tag=_TAG)
def manage_stream(scope: ScopeName, stream: StreamName) -> IssuedToken:
    return _issue(stream_resource(scope, stream), Access.MANAGE)


@api.route("GET", _TABLE, summary="A token to read a key-value table", tag=_TAG)
def read_table(scope: ScopeName, table: TableName) -> IssuedToken:
    return _issue(table_resource(scope, table), Access.READ)


@api.route("POST", _TABLE, summary="A token to update and read a key-value table", tag=_TAG)
def update_table(scope: ScopeName, table: TableName) -> IssuedToken:
    return _issue(table_resource(scope, table), Access.READ_UPDATE)


@api.route("GET", _GROUP, summary="A token to read the state of a reader group", tag=_TAG)
def read_group(scope: ScopeName, group: ReaderGroupName) -> IssuedToken:
    return _issue(reader_group_resource(scope, group), Access.READ)


@api.route("POST", _GROUP, summary="A token to read in a reader group, which updates its state", tag=_TAG)
def update_group(scope: ScopeName, group: ReaderGroupName) -> IssuedToken:
    return _issue(reader_group_resource(scope, group), Access.READ_UPDATE)


handler = lambda_handler(api)
