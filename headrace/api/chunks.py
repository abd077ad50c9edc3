"""Chunks of a segment in tier 2, with links to read them. Offsets and lengths are in bytes of the segment."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.model.documents import Document, about


class Chunk(Document, frozen=True):
    """`length` bytes of a segment, starting at `offset`. A GET of `url` with exactly `headers` returns them.

    The link expires at `expires_at_ms`, in milliseconds since the Unix epoch.
    """

    offset: int
    length: int
    url: Annotated[str, about("GET it with exactly these headers; the signed Range among them")]
    headers: dict[str, str]
    expires_at_ms: Annotated[int, about("Milliseconds since 1970")]


class Chunks(Document, frozen=True):
    """A page of chunks, sorted by offset and without gaps, from the requested offset to `stored_until`.

    When `next_offset` is not None, the next page starts there. When that is None, tier 2 has no bytes yet between
    `stored_until` and the end of the requested range.
    """

    chunks: tuple[Chunk, ...]
    stored_until: Annotated[int, about("Offset up to which S3 has the segment without a gap")]
    next_offset: Annotated[int | None, about("Where to go on; null at the end")] = field(name="next")
