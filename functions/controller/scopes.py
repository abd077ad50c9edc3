"""Scopes over HTTP: create, get, list, delete."""

from __future__ import annotations

from http import HTTPStatus

from functions import wiring
from functions.controller.models_scopes import CreateScopeRequest, Scope, ScopeList, scope_list
from functions.controller.parameters import PAGE_LIMIT_DEFAULT, ContinuationToken, PageLimit, ScopeName, continue_after
from functions.http_api import http_api, lambda_handler

api = http_api()


@api.get("/v1/scopes", summary="List scopes by name", tags=["Scopes"])
def list_scopes(limit: PageLimit = PAGE_LIMIT_DEFAULT, continuationToken: ContinuationToken = None) -> ScopeList:
    return scope_list(wiring.scope_service().list_scopes(limit, continue_after(continuationToken)))


@api.post("/v1/scopes", summary="Create a scope", tags=["Scopes"], status_code=HTTPStatus.CREATED)
def create_scope(request: CreateScopeRequest) -> Scope:
    wiring.scope_service().create_scope(request.scopeName)
    return Scope(scopeName=request.scopeName)


@api.get("/v1/scopes/<scope>", summary="Get a scope", tags=["Scopes"])
def get_scope(scope: ScopeName) -> Scope:
    return Scope(scopeName=wiring.scope_service().get_scope(scope))


@api.delete("/v1/scopes/<scope>", summary="Delete an empty scope", tags=["Scopes"], status_code=HTTPStatus.NO_CONTENT)
def delete_scope(scope: ScopeName) -> None:
    wiring.scope_service().delete_scope(scope)


handler = lambda_handler(api)
