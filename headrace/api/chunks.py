"""Chunks of a segment in tier 2, with links to read them. Offsets and lengths are in bytes of the segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` bytes of a segment, starting at `offset`. A GET of `url` with exactly `headers` returns them.

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
    """A page of chunks, sorted by offset and without gaps, from the requested offset to `stored_until`.

    When `next_offset` is not None, the next page starts there. When that is None, tier 2 has no bytes yet between
    `stored_until` and the end of the requested range.
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
