"""Links to objects in memory. Like links of S3 they are valid for one range and expire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.model.errors import InvalidRequestError, UnauthorizedError
from headrace.ports.chunk_links import ChunkLink

if TYPE_CHECKING:
    from headrace.ports.clock import Clock


class MemoryChunkLinks:
    """`ports.chunk_links.ChunkLinks` over a `MemoryChunkStorage`, and the GET that S3 would answer."""

    def __init__(self, storage: MemoryChunkStorage, expires_s: int, clock: Clock) -> None:
        self._storage = storage
        self._expires_s = expires_s
        self._clock = clock
        self._signed: dict[str, tuple[str, int, int, ChunkLink]] = {}

    def link(self, object_name: str, position: int, length: int) -> ChunkLink:
        if position < 0 or length < 1:
            raise InvalidRequestError(f"a link needs a range of at least one byte, not {length} at {position}")
        link = ChunkLink(
            f"memory://chunks/{object_name}?link={len(self._signed)}",
            {"Range": f"bytes={position}-{position + length - 1}"},
            self._clock.now_ms() + self._expires_s * 1000,
        )
        self._signed[link.url] = (object_name, position, length, link)
        return link

    def get(self, url: str, headers: Mapping[str, str]) -> bytes:
        """What a GET of the link returns.

        Raises:
            UnauthorizedError: the URL was not signed, it has expired, or the Range header is not the signed one.
            NotFoundError: the object is gone.
        """
        signed = self._signed.get(url)
        if signed is None:
            raise UnauthorizedError("this link was not signed")
        object_name, position, length, link = signed
        if headers.get("Range") != link.headers["Range"] or self._clock.now_ms() >= link.expires_at_ms:
            raise UnauthorizedError("the link was signed for another range or has expired")
        return self._storage.read_now(object_name, position, length)
