"""JSON of the scope routes."""

from __future__ import annotations

from pydantic import Field

from functions.controller.parameters import WireModel


class CreateScopeRequest(WireModel):
    scopeName: str


class Scope(WireModel):
    scopeName: str


class ScopeDetails(WireModel):
    scopeName: str
    deleting: bool = Field(description="It is being deleted with everything in it: nothing is created in it any more")


class ScopeList(WireModel):
    scopes: list[Scope]
    continuationToken: str | None
