"""A delegation token as the API gives it out: what a client sends to the segment stores with each request."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import field

from headrace.model.documents import Document, about


class IssuedToken(Document, frozen=True):
    """A token, and when it ends in milliseconds since 1970.

    A deployment without tokens issues the empty one, which has no end: 0.
    """

    token: Annotated[str, about("For the segment stores; empty in a deployment without tokens")]
    expires_ms: Annotated[int, about("Milliseconds since 1970; 0 if the token is empty")] = field(name="expiresMs")

    def __repr__(self) -> str:
        return f"IssuedToken(expires_ms={self.expires_ms})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("expires_ms", self.expires_ms)]
