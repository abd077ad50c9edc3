"""JSON of the routes for delegation tokens."""

from __future__ import annotations

from pydantic import Field

from functions.controller.parameters import WireModel


class DelegationToken(WireModel):
    token: str = Field(description="For the segment stores; empty in a deployment without tokens")
    expiresMs: int = Field(description="Milliseconds since 1970; 0 if the token is empty")
