"""DynamoDB and S3 for simulated stores: latency, failures before and after the effect, late effects, and outages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.codec.log_objects import log_object_name
from headrace.metadata.cluster_records import claim_sort
from headrace.model.errors import CorruptError, HeadraceError, NotFoundError, UnavailableError
from headrace.ports.chunk_storage import ChunkStorage, StoredObject
from headrace.ports.metadata_store import Key, Page, Record, Write, WriteConflictError
from headrace.segmentstore.log.objects.log_object_chain import LogObject, LogObjectReader
from simulation.scheduler import MS, SECOND
from simulation.world.loop import SimulatedLoop, SimulatedProcess, current_process

_T = TypeVar("_T")

_CLAIMS: Final = claim_sort(0).rstrip("0")

_METADATA_DELAY: Final = 4 * MS
_CHUNK_DELAY: Final = 15 * MS
_SLOW: Final = (200 * MS, 3 * SECOND)
_LATE_MAX: Final = 2 * SECOND
NOT_ANSWERED: Final = "the simulated request was not answered"
"""What a client is told of a request to tier 2 that has met a fault."""

_TIME_OUT: Final = SECOND
"""A caller learns after so long that a request was not answered."""


class SimulatedClock:
    """`ports.clock.Clock` on virtual time. `skew_ms` is what this machine's wall clock is ahead."""

    def __init__(self, loop: SimulatedLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self._start_ms = ManualClock().now_ms() + skew_ms

    def now_ms(self) -> int:
        return self._start_ms + self._loop.scheduler.now // MS

    def monotonic_s(self) -> float:
        return self._loop.time()


class TierTwo:
    """What all stores share. `rates` has the probabilities of failures by kind; empty when faults have ended."""

    def __init__(self, loop: SimulatedLoop, rates: dict[str, float], faults: Counter[str]) -> None:
        self.loop = loop
        self.rates = rates
        self.faults = faults
        self.metadata = MemoryMetadataStore()
        self.chunks = MemoryChunkStorage(SimulatedClock(loop))
        self.metadata_out_until = 0
        self.chunks_out_until = 0
        self.writers: dict[Key, SimulatedProcess | None] = {}
        """The process that wrote a record last; None if the write took effect late, so that no process knew of it."""

    def heal(self) -> None:
        self.rates = {}
        self.metadata_out_until = self.chunks_out_until = 0

    def write_metadata(self, writes: Sequence[Write], writer: SimulatedProcess | None) -> None:
        self.metadata.write(*writes)
        for each in writes:
            self.writers[each.key] = writer

    def happens(self, kind: str) -> bool:
        """Whether a failure of this kind meets the present request."""
        if not self.loop.draws.happens(self.rates.get(kind, 0.0), kind):
            return False
        self.faults[kind] += 1
        return True


class SimulatedMetadataStore:
    """`ports.metadata_store.MetadataStore` for functions that run in threads of a simulated process."""

    def __init__(self, tier_two: TierTwo) -> None:
        self._tier_two = tier_two
        self._loop = tier_two.loop
        self._store = tier_two.metadata

    def get(self, key: Key) -> Record | None:
        return self._read(lambda: self._store.get(key))

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        return self._read(lambda: self._store.get_many(keys))

    def query(self, partition: str, **options: Any) -> Page:
        return self._read(lambda: self._store.query(partition, **options))

    def write(self, *writes: Write) -> None:
        self._wait()
        tier_two = self._tier_two
        if tier_two.happens("metadata fails before"):
            raise self._unanswered()
        if tier_two.happens("metadata late"):
            delay = self._loop.draws.between(0, _LATE_MAX, "late write")
            self._loop.scheduler.after(delay, "late write", lambda: self._write_late(writes))
            raise self._unanswered()
        tier_two.write_metadata(writes, current_process())
        is_claim = writes[0].key.sort.startswith(_CLAIMS)
        if tier_two.happens("metadata fails after") or (is_claim and tier_two.happens("claim fails after")):
            raise self._unanswered()

    def _write_late(self, writes: Sequence[Write]) -> None:
        with suppress(WriteConflictError):
            self._tier_two.write_metadata(writes, None)

    def _read(self, read: Callable[[], _T]) -> _T:
        self._wait()
        if self._tier_two.happens("metadata fails before"):
            raise self._unanswered()
        return read()

    def _wait(self) -> None:
        draws, loop = self._loop.draws, self._loop
        if not loop.in_thread:
            raise AssertionError("a request to the metadata store blocks the event loop")
        loop.add_latency(draws.heavy_tail(_METADATA_DELAY, SECOND, "metadata delay"))
        if self._tier_two.happens("metadata slow"):
            loop.add_latency(draws.between(*_SLOW, "metadata slow"))
        if self._tier_two.metadata_out_until > loop.scheduler.now:
            raise self._unanswered()

    def _unanswered(self) -> UnavailableError:
        self._loop.add_latency(_TIME_OUT)
        return UnavailableError(NOT_ANSWERED)


class SimulatedChunkStorage:
    """`ports.chunk_storage.ChunkStorage`. A request that is under way takes effect although its process is killed."""

    def __init__(self, tier_two: TierTwo) -> None:
        self._tier_two = tier_two
        self._loop = tier_two.loop

    async def put(self, name: str, parts: Sequence[Any]) -> None:
        data = b"".join(parts)
        await self._request(lambda: self._tier_two.chunks.put(name, [data]))

    async def read(self, name: str, position: int, length: int) -> bytes:
        found: bytes = await self._request(lambda: self._tier_two.chunks.read(name, position, length))
        return found

    async def delete(self, names: Sequence[str]) -> None:
        names = list(names)
        await self._request(lambda: self._tier_two.chunks.delete(names))

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[StoredObject]:
        found: Sequence[StoredObject] = await self._request(
            lambda: self._tier_two.chunks.list(prefix, after=after, limit=limit)
        )
        return found

    async def _request(self, effect: Callable[[], Any]) -> Any:
        loop, tier_two, draws = self._loop, self._tier_two, self._loop.draws
        process, answer = current_process(), loop.create_future()
        delay = draws.heavy_tail(_CHUNK_DELAY, 2 * SECOND, "chunk delay")
        if tier_two.happens("chunk slow"):
            delay += draws.between(*_SLOW, "chunk slow")
        is_out = tier_two.chunks_out_until > loop.scheduler.now
        fails_before = is_out or tier_two.happens("chunk fails before")
        fails_after = not fails_before and tier_two.happens("chunk fails after")

        def arrive() -> None:
            result: Any = None
            error: HeadraceError | None = None
            if not fails_before:
                try:
                    result = _run_now(effect())
                except HeadraceError as refused:
                    error = refused
            if fails_before or fails_after:
                error = UnavailableError(NOT_ANSWERED)
            _reply(process, delay // 2 + (_TIME_OUT if fails_before or fails_after else 0), answer, result, error)

        loop.scheduler.after(delay - delay // 2, "chunk request", arrive)
        return await answer


class SimulatedLogReader(LogObjectReader):
    """Reads the objects of a log in the thread that wants them, because no simulated thread can wait for the loop."""

    def __init__(self, tier_two: TierTwo, storage: ChunkStorage, container: int) -> None:
        super().__init__(storage, container)
        self._tier_two = tier_two

    def begin_fetch(self, each: LogObject) -> Future[bytes]:
        loop, fetched = self._tier_two.loop, Future[bytes]()
        loop.add_latency(loop.draws.heavy_tail(_CHUNK_DELAY, 2 * SECOND, "chunk delay"))
        if self._tier_two.chunks_out_until > loop.scheduler.now or self._tier_two.happens("chunk fails before"):
            loop.add_latency(_TIME_OUT)
            fetched.set_exception(UnavailableError(NOT_ANSWERED))
        else:
            fetched.set_result(_run_now(self._read_now(each)))
        return fetched

    async def _read_now(self, each: LogObject) -> bytes:
        name = log_object_name(self._container, each.epoch, each.sequence)
        try:
            return await self._tier_two.chunks.read(name, 0, each.stored_bytes)
        except NotFoundError as error:
            raise CorruptError(f"object {name}, which the log needs, does not exist any more") from error


def _run_now(coroutine: Any) -> Any:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the memory adapter waits")


def _reply(
    process: SimulatedProcess, delay: int, answer: asyncio.Future[Any], result: Any, error: HeadraceError | None
) -> None:
    def arrive() -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    process.after(delay, "chunk answer", lambda: process.call_soon(arrive))
