"""Chunks of a segment in tier 2, with links to read them. Offsets and lengths are bytes of the segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` bytes of a segment from `offset` on, which a GET of `url` with exactly `headers` returns.

    The link expires at `expires_at_ms`, in milliseconds since the Unix epoch.
    """

    offset: int
    length: int
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    expires_at_ms: int = 0

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Chunk:
        return cls(
            int(document["offset"]),
            int(document["length"]),
            str(document["url"]),
            dict(document["headers"]),
            int(document["expiresAt"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "offset": self.offset,
            "length": self.length,
            "url": self.url,
            "headers": dict(self.headers),
            "expiresAt": self.expires_at_ms,
        }


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks in order, without gaps, from the offset asked for.

    Tier 2 has the segment without a gap up to `stored_until`, the end of the page. When `next_offset` is not None, more
    follows from there; when it is None, what lies between `stored_until` and the end of the range is in no object yet.
    """

    chunks: tuple[Chunk, ...]
    stored_until: int
    next_offset: int | None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Chunks:
        following = document["next"]
        chunks = tuple(map(Chunk.from_json, document["chunks"]))
        return cls(chunks, int(document["storedUntil"]), None if following is None else int(following))

    def to_json(self) -> dict[str, Any]:
        return {
            "chunks": [one.to_json() for one in self.chunks],
            "storedUntil": self.stored_until,
            "next": self.next_offset,
        }
