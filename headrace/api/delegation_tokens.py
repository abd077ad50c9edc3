"""A delegation token as the API gives it out: what a client sends to the segment stores with each request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token, and when it ends in milliseconds since 1970.

    A deployment without tokens issues the empty one, which has no end: 0.
    """

    token: str = field(repr=False)
    expires_ms: int

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> IssuedToken:
        return cls(str(document["token"]), int(document["expiresMs"]))

    def to_json(self) -> dict[str, Any]:
        return {"token": self.token, "expiresMs": self.expires_ms}
