"""JSON of the history route."""

from __future__ import annotations

from pydantic import Field

from functions.controller.parameters import WireModel
from headrace.controller.history import ChunkPage


class Chunk(WireModel):
    offset: int
    length: int
    url: str = Field(description="GET it with exactly these headers; the signed Range among them")
    headers: dict[str, str]
    expiresAt: int = Field(description="Milliseconds since 1970")


class ChunkList(WireModel):
    chunks: list[Chunk]
    storedUntil: int = Field(description="Offset up to which S3 has the segment without a gap")
    next: int | None = Field(description="Where to go on; null at the end")


def chunk_list(page: ChunkPage) -> ChunkList:
    chunks = [
        Chunk(
            offset=one.offset,
            length=one.length,
            url=one.link.url,
            headers=one.link.headers,
            expiresAt=one.link.expires_at_ms,
        )
        for one in page.chunks
    ]
    return ChunkList(chunks=chunks, storedUntil=page.stored_until, next=page.next_offset)
