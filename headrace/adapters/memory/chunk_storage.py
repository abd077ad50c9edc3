"""Tier 2 in the memory of one process: the reference behaviour of `ports.chunk_storage`. Nothing is durable."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.model.errors import AlreadyExistsError, InvalidRequestError, NotFoundError, UnauthorizedError
from headrace.ports.chunk_storage import ChunkLink, StoredObject

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from headrace.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    last_modified_ms: int


class MemoryChunkStorage:
    """`ports.chunk_storage.ChunkStorage` for one process; without a clock every object dates from the year 1970."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._objects: dict[str, _Object] = {}

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        if not name:
            raise InvalidRequestError("an object needs a name")
        if name in self._objects:
            raise AlreadyExistsError(f"object {name} exists already")
        now_ms = self._clock.now_ms() if self._clock else 0
        self._objects[name] = _Object(b"".join(parts), now_ms)

    async def read(self, name: str, position: int, length: int) -> bytes:
        return self.read_now(name, position, length)

    def read_now(self, name: str, position: int, length: int) -> bytes:
        """`read` for callers outside an event loop."""
        if position < 0 or length < 0:
            raise InvalidRequestError(f"cannot read {length} bytes at {position} of {name}")
        if length == 0:
            return b""
        stored = self._objects.get(name)
        if stored is None or position + length > len(stored.data):
            raise NotFoundError(f"object {name} has no {length} bytes at {position}")
        return stored.data[position : position + length]

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._objects.pop(name, None)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[StoredObject]:
        if limit < 1:
            raise InvalidRequestError(f"a listing needs a limit of at least 1, not {limit}")
        names = sorted(name for name in self._objects if name.startswith(prefix))
        start = bisect_right(names, after)
        return [
            StoredObject(name, len(self._objects[name].data), self._objects[name].last_modified_ms)
            for name in names[start : start + limit]
        ]


# Links to objects in memory. Like links of S3 they are valid for one range and expire.


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
