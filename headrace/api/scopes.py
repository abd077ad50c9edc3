"""Scopes."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.api.pages import Page
from headrace.model.documents import Document, about


class Scope(Document, frozen=True):
    scope: str = field(name="scopeName")


class CreateScopeRequest(Scope, frozen=True):
    pass


class ScopeDetails(Scope, frozen=True):
    is_deleting: Annotated[
        bool, about("It is being deleted with everything in it: nothing is created in it any more")
    ] = field(name="deleting")


class ScopeList(Page, frozen=True, kw_only=True):
    scopes: tuple[Scope, ...]
