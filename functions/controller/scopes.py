"""Scopes over HTTP: create, get, list, delete."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from functions import wiring
from functions.controller.parameters import PAGE_LIMIT_DEFAULT, ContinuationToken, PageLimit, ScopeName, continue_after
from functions.http_api import HttpApi, lambda_handler
from functions.operations import QueryParameter
from headrace.api.scopes import CreateScopeRequest, Scope, ScopeDetails, ScopeList

api = HttpApi()

Recursive = Annotated[bool, QueryParameter("With all reader groups, streams and tables: answered 202, done later")]


@api.route("GET", "/v1/scopes", summary="List scopes by name", tag="Scopes")
def list_scopes(limit: PageLimit = PAGE_LIMIT_DEFAULT, continuation_token: ContinuationToken = None) -> ScopeList:
    page = wiring.scope_service().list_scopes(limit, continue_after(continuation_token))
    return ScopeList(scopes=tuple(map(Scope, page.items)), next_after=page.next_after)


@api.route("POST", "/v1/scopes", summary="Create a scope", tag="Scopes", status=HTTPStatus.CREATED)
def create_scope(request: CreateScopeRequest) -> Scope:
    wiring.scope_service().create_scope(request.scope)
    return Scope(request.scope)


@api.route("GET", "/v1/scopes/<scope>", summary="Get a scope", tag="Scopes")
def get_scope(scope: ScopeName) -> ScopeDetails:
    return ScopeDetails(scope, wiring.scope_service().is_deleting(scope))


@api.route(
    "DELETE",
    "/v1/scopes/<scope>",
    summary="Delete an empty scope, or one with everything in it",
    tag="Scopes",
    status=HTTPStatus.ACCEPTED,
    descriptions={204: "The empty scope is gone", 202: "The scope is being deleted with everything in it"},
)
def delete_scope(scope: ScopeName, recursive: Recursive = False) -> ScopeDetails | None:
    if not recursive:
        wiring.scope_service().delete_scope(scope)
        return None
    wiring.scope_deletion_service().delete_scope_recursively(scope)
    return ScopeDetails(scope, is_deleting=True)


handler = lambda_handler(api)
