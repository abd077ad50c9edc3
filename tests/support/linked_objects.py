"""Reads the links that the functions sign, out of the memory in which the chunks are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from functions import wiring
from headrace.adapters.memory.chunk_storage import MemoryChunkLinks
from headrace.client.reading.object_reads import ObjectReadError

WINDOW_BYTES = 30_000


class LinkedObjects:
    """Instead of `ObjectReads`. `read_bytes` counts what it gave to all readers of a test."""

    read_bytes = 0
    failing = False

    def __init__(self, _timeout_s: float = 0) -> None:
        """As `ObjectReads`."""

    def read(self, url: str, headers: Mapping[str, str], length: int) -> Iterator[bytearray]:
        if LinkedObjects.failing:
            raise ObjectReadError("S3 does not answer")
        links = wiring.chunk_links()
        assert isinstance(links, MemoryChunkLinks)
        data = links.get(url, headers)
        LinkedObjects.read_bytes += len(data)
        for start in range(0, len(data), WINDOW_BYTES):
            yield bytearray(data[start : start + WINDOW_BYTES])

    def abort(self) -> None:
        """Reads at once."""

    def close(self) -> None:
        """Holds nothing open."""
