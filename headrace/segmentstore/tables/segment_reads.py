"""Reads parts of a table's segment in the same way as for stream readers: from memory, else from tier 2."""

from __future__ import annotations

from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tiering.storage_reader import StorageReader


def read_in_memory(segment: Segment, offset: int, length: int) -> bytes | None:
    """Exactly these bytes, durable or not; None unless memory has all of them."""
    pieces: list[memoryview] = []
    while length:
        parts, _ = segment.index.read(offset, length)
        if not parts:
            return None
        taken = sum(map(len, parts))
        pieces.extend(parts)
        offset += taken
        length -= taken
    return b"".join(pieces)


async def read_segment(segment: Segment, reader: StorageReader, offset: int, length: int) -> bytes:
    """Exactly these bytes, durable or not.

    Raises:
        NotFoundError: the segment was removed or truncated.
        ThrottledError, UnavailableError, CorruptError: as `StorageReader.read`.
    """
    pieces: list[bytes | memoryview] = []
    while length:
        parts, _ = segment.index.read(offset, length)
        if parts:
            piece: bytes | memoryview = b"".join(parts)
        else:
            in_memory = segment.index.next_in_memory(offset)
            wanted = length if in_memory is None else min(length, in_memory - offset)
            piece = (await reader.read(segment, offset, wanted)).data
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return b"".join(pieces)
