"""Scopes over HTTP: create, get, list, delete."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from aws_lambda_powertools.event_handler import Response, content_types
from aws_lambda_powertools.event_handler.openapi.params import Query

from functions import wiring
from functions.controller.models_scopes import CreateScopeRequest, Scope, ScopeDetails, ScopeList
from functions.controller.parameters import PAGE_LIMIT_DEFAULT, ContinuationToken, PageLimit, ScopeName, continue_after
from functions.http_api import http_api, lambda_handler

api = http_api()

Recursive = Annotated[bool, Query(description="With all reader groups, streams and tables: answered 202, done later")]


@api.get("/v1/scopes", summary="List scopes by name", tags=["Scopes"])
def list_scopes(limit: PageLimit = PAGE_LIMIT_DEFAULT, continuationToken: ContinuationToken = None) -> ScopeList:
    page = wiring.scope_service().list_scopes(limit, continue_after(continuationToken))
    return ScopeList.model_validate(page.to_json("scopes", lambda name: {"scopeName": name}))


@api.post("/v1/scopes", summary="Create a scope", tags=["Scopes"], status_code=HTTPStatus.CREATED)
def create_scope(request: CreateScopeRequest) -> Scope:
    wiring.scope_service().create_scope(request.scopeName)
    return Scope(scopeName=request.scopeName)


@api.get("/v1/scopes/<scope>", summary="Get a scope", tags=["Scopes"])
def get_scope(scope: ScopeName) -> ScopeDetails:
    return ScopeDetails(scopeName=scope, deleting=wiring.scope_service().is_deleting(scope))


@api.delete(
    "/v1/scopes/<scope>",
    summary="Delete an empty scope, or one with everything in it",
    tags=["Scopes"],
    responses={
        204: {"description": "The empty scope is gone"},
        202: {"description": "The scope is being deleted with everything in it"},
    },
)
def delete_scope(scope: ScopeName, recursive: Recursive = False) -> Response[ScopeDetails | None]:
    if not recursive:
        wiring.scope_service().delete_scope(scope)
        return Response(HTTPStatus.NO_CONTENT)
    wiring.scope_deletion_service().delete_scope_recursively(scope)
    accepted = ScopeDetails(scopeName=scope, deleting=True)
    return Response(HTTPStatus.ACCEPTED, content_type=content_types.APPLICATION_JSON, body=accepted)


handler = lambda_handler(api)
