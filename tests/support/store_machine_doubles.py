"""What machines of stores are made of: the model of a segment, gates for threads, a tier 2 with faults, a channel."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, NamedTuple

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.model.errors import UnavailableError
from headrace.model.segment_attributes import NO_VALUE

WAIT_S = 20.0


class Modelled(NamedTuple):
    """A segment as it should be."""

    data: bytes = b""
    start: int = 0
    sealed: bool = False
    attributes: tuple[tuple[int, int], ...] = ()

    def attribute(self, key: int) -> int:
        return dict(self.attributes).get(key, NO_VALUE)

    def with_attribute(self, key: int, value: int) -> Modelled:
        return self._replace(attributes=tuple(sorted({**dict(self.attributes), key: value}.items())))


State = dict[str, Modelled]


class Gate:
    """Lets a thread wait in the middle of something until the machine says go on."""

    def __init__(self) -> None:
        self.armed = False
        self.reached = threading.Event()
        self._open = threading.Event()

    def arm(self) -> None:
        self.armed = True
        self.reached.clear()
        self._open.clear()

    def pass_through(self) -> None:
        if self.armed:
            self.reached.set()
            assert self._open.wait(WAIT_S)

    def open(self) -> None:
        self.armed = False
        self._open.set()


class Faulty:
    """Tier 2's two halves, each call with the fault that is set."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadataStore(TornReads(0))
        self.chunks = MemoryChunkStorage()
        self.fault = "none"
        self.before_write, self.after_write = Gate(), Gate()

    def refuse(self, fault: str) -> None:
        if self.fault == fault:
            raise UnavailableError(fault)

    # MetadataStore

    def get(self, key: Any) -> Any:
        return self.metadata.get(key)

    def get_many(self, keys: Any) -> Any:
        return self.metadata.get_many(keys)

    def query(self, *args: Any, **fields: Any) -> Any:
        self.refuse("query refused")
        return self.metadata.query(*args, **fields)

    def write(self, *writes: Any) -> None:
        self.refuse("write refused")
        self.before_write.pass_through()
        self.metadata.write(*writes)
        self.after_write.pass_through()
        self.refuse("write answer lost")

    # ChunkStorage

    async def put(self, name: str, parts: Any) -> None:
        self.refuse("put refused")
        await self.chunks.put(name, parts)
        self.refuse("put answer lost")

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Any:
        return await self.chunks.list(prefix, after=after, limit=limit)

    async def delete(self, names: Any) -> None:
        await self.chunks.delete(names)

    async def read(self, name: str, position: int, length: int) -> bytes:
        await asyncio.sleep(0)
        return await self.chunks.read(name, position, length)


class Replies:
    """The channel of a session: keeps what is sent."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.closed = False

    def send(self, parts: Any) -> None:
        for part in parts:
            self.sent += part

    def pause_receiving(self) -> None: ...

    def resume_receiving(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    abort = close
