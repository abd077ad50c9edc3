"""Chunk storage and metadata as one store process sees them: requests fail, lose their answers or take effect later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fuzz.randomness import Random
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.model.errors import AlreadyExistsError, ThrottledError, UnavailableError
from headrace.ports.chunk_storage import StoredObject, chunk_storage_refused
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import (
    UNANSWERED_WRITE_S,
    Key,
    Page,
    Record,
    Write,
    WriteConflictError,
    metadata_store_refused,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_REFUSED_EVERY: Final = 3
"""Of the requests that fail. They are refused as by a policy, a key or a clock."""

_WAITS_S: Final = (0.0, 0.0, 0.001, 0.005, 0.03)
_LATE_MS_MAX: Final = int(0.75 * UNANSWERED_WRITE_S * 1000)

_Result = TypeVar("_Result")


@dataclass(slots=True)
class Faults:
    """What may happen to requests, and what is still under way. Nothing happens while `is_calm`.

    The shares are those of requests that fail, `slow_share` that of requests that take a while.
    """

    random: Random
    clock: Clock
    chunk_share: float
    metadata_share: float
    slow_share: float
    turns_max: int
    is_calm: bool = True
    log_is_full: bool = False
    late_chunks: list[tuple[str, bytes]] = field(default_factory=list)
    late_writes: list[tuple[int, tuple[Write, ...]]] = field(default_factory=list)
    failures: int = 0

    def failure(self, what: str, refused: Callable[[str, str], UnavailableError]) -> UnavailableError:
        """The error of a request that has had no effect."""
        self.failures += 1
        is_refusal = self.failures % _REFUSED_EVERY == 0
        return refused(what, "AccessDenied") if is_refusal else UnavailableError(f"{what}: no answer")

    def happens(self, share: float) -> bool:
        return not self.is_calm and self.random.random() < share

    async def travel(self) -> None:
        """Some turns of the loop, and sometimes some time."""
        if not self.is_calm:
            for _ in range(self.random.randrange(self.turns_max)):
                await asyncio.sleep(0)
            if self.happens(self.slow_share):
                await asyncio.sleep(self.random.choice(_WAITS_S))


class FaultyChunks:
    """`ports.chunk_storage.ChunkStorage` of one process."""

    def __init__(self, stored: MemoryChunkStorage, faults: Faults) -> None:
        self._stored = stored
        self._faults = faults
        self._has_ended = False

    def end(self) -> None:
        """The process is killed: it does nothing more."""
        self._has_ended = True

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        faults = self._faults
        await self._ask(f"creating {name}")
        if faults.happens(faults.chunk_share):
            faults.late_chunks.append((name, b"".join(parts)))
            raise UnavailableError(f"creating {name}: no answer yet")
        await self._stored.put(name, parts)
        await self._answer(f"creating {name}")

    async def read(self, name: str, position: int, length: int) -> bytes:
        await self._ask(f"reading {name}")
        data = await self._stored.read(name, position, length)
        await self._answer(f"reading {name}")
        return data

    async def delete(self, names: Sequence[str]) -> None:
        await self._ask("a deletion")
        await self._stored.delete(names)
        await self._answer("a deletion")

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[StoredObject]:
        await self._ask("a listing")
        found = await self._stored.list(prefix, after=after, limit=limit)
        await self._answer("a listing")
        return found

    async def _ask(self, what: str) -> None:
        await self._faults.travel()
        if self._has_ended or self._faults.happens(self._faults.chunk_share):
            if self._faults.happens(0.3):
                raise ThrottledError(f"{what}: slow down")
            raise self._faults.failure(what, chunk_storage_refused)

    async def _answer(self, what: str) -> None:
        await self._faults.travel()
        if self._faults.happens(self._faults.chunk_share):
            raise UnavailableError(f"{what}: no answer")


class FaultyMetadata:
    """`ports.metadata_store.MetadataStore` of one process."""

    def __init__(self, stored: MemoryMetadataStore, faults: Faults) -> None:
        self._stored = stored
        self._faults = faults
        self._has_ended = False

    def end(self) -> None:
        """As `FaultyChunks.end`."""
        self._has_ended = True

    def get(self, key: Key) -> Record | None:
        return self._read(lambda: self._stored.get(key))

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        return self._read(lambda: self._stored.get_many(keys))

    def query(self, partition: str, **arguments: Any) -> Page:
        return self._read(lambda: self._stored.query(partition, **arguments))

    def write(self, *writes: Write) -> None:
        faults = self._faults
        if self._has_ended or faults.happens(faults.metadata_share):
            raise faults.failure("a write", metadata_store_refused)
        if faults.happens(faults.metadata_share):
            faults.late_writes.append((faults.clock.now_ms() + faults.random.randrange(_LATE_MS_MAX), writes))
            raise UnavailableError("a write: no answer yet")
        self._stored.write(*writes)
        if faults.happens(faults.metadata_share):
            raise UnavailableError("a write: no answer")

    def _read(self, read: Callable[[], _Result]) -> _Result:
        if self._has_ended or self._faults.happens(self._faults.metadata_share):
            raise self._faults.failure("a read", metadata_store_refused)
        return read()


async def deliver_chunk(faults: Faults, stored: MemoryChunkStorage) -> None:
    """Let one late PUT arrive, if there is one."""
    if faults.late_chunks:
        name, data = faults.late_chunks.pop(faults.random.randrange(len(faults.late_chunks)))
        with suppress(AlreadyExistsError):
            await stored.put(name, [data])


def deliver_writes(faults: Faults, stored: MemoryMetadataStore, until_ms: int) -> None:
    """Let the late writes arrive that are due by then."""
    due = sorted((each for each in faults.late_writes if each[0] <= until_ms), key=lambda each: each[0])
    for each in due:
        faults.late_writes.remove(each)
        with suppress(WriteConflictError):
            stored.write(*each[1])
