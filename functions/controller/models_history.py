"""JSON of the history route."""

from __future__ import annotations

from pydantic import Field

from functions.controller.parameters import WireModel


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
