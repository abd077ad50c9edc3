"""Short-lived links with which a reader fetches part of a tier-2 object straight from S3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ChunkLink:
    """A GET of `url` with exactly the headers `headers` (the signed Range among them) returns the bytes."""

    url: str
    headers: dict[str, str]
    expires_at_ms: int


class ChunkLinks(Protocol):
    """Makes links; needs no network."""

    def link(self, object_name: str, position: int, length: int) -> ChunkLink:
        """Sign a ranged GET; the Range header is part of the signature. No request is made."""
        ...
