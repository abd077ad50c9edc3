"""Counters and histograms of a segment store, and wrappers that measure its ports. To record a value is one addition.

Every counter and histogram has one writing thread. Readers on other threads see consistent single numbers, but not all
numbers of the same moment. Values that the metrics page can read directly, as queue lengths, are not counted here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.model.errors import HeadraceError
from headrace.ports.chunk_storage import ChunkStorage, StoredObject
from headrace.ports.clock import Clock
from headrace.ports.journal_disk import DiskSpace, JournalDisk, JournalFile
from headrace.ports.metadata_store import Key, MetadataStore, Page, Record, Write

if TYPE_CHECKING:
    from typing_extensions import Buffer


LATENCY_BOUNDS_S: Final = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
SIZE_BOUNDS_BYTES: Final = tuple(1 << shift for shift in range(10, 28, 2))


class Histogram:
    """The number of values up to each of the ascending `bounds`, last the number above all of them, and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def record(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


def percentile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The value below which `share` (0 to 1) of the counted values are; None if there are none.

    `counts` are as those of a `Histogram`. Values are taken as evenly spread in their bucket. Above the last bound
    nothing is known: the answer is that bound then, and the truth is larger.
    """
    rank, below = share * sum(counts), 0
    if not any(counts):
        return None
    lower = 0.0
    for upper, count in zip(bounds, counts, strict=False):
        if count and below + count >= rank:
            return lower + (upper - lower) * max(0.0, rank - below) / count
        below, lower = below + count, upper
    return lower


class RequestMetrics:
    """The durations of all requests to one service, and the number of failed requests by error code."""

    __slots__ = ("errors", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(LATENCY_BOUNDS_S)
        self.errors: dict[str, int] = {}

    def count_error(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1


class ContainerMetrics:
    """The metrics of one container since it was opened."""

    __slots__ = (
        "append_bytes",
        "append_events",
        "appends",
        "compacted_bytes",
        "evicted_segments",
        "flushed_bytes",
        "flushes",
        "recovery_s",
        "storage_refusals",
        "storage_retries",
    )

    def __init__(self) -> None:
        self.appends = 0
        self.append_bytes = 0
        self.append_events = 0
        self.compacted_bytes = 0
        self.evicted_segments = 0
        self.flushes = 0
        self.flushed_bytes = 0
        self.storage_refusals = 0
        self.storage_retries = 0
        self.recovery_s = 0.0


class StoreMetrics:
    """The metrics that the containers of a store share. `connections` is the current number; the rest are totals.

    `connections_refused` counts by the bound that was reached, `handshakes_failed` by the reason, and `tokens_refused`
    by the code of the error. `sent_bytes` counts what went to clients, before TLS, by the zone of their address.
    `plaintext_connections` are those that were opened without TLS. `reads` counts reads
    answered with data, `storage_reads` those of them that needed tier 2.
    """

    __slots__ = (
        "append_seconds",
        "connections",
        "connections_refused",
        "handshakes_failed",
        "plaintext_connections",
        "protocol_errors",
        "read_bytes",
        "reads",
        "sent_bytes",
        "storage_read_bytes",
        "storage_reads",
        "throttled_s",
        "tokens_refused",
    )

    def __init__(self) -> None:
        self.append_seconds = Histogram(LATENCY_BOUNDS_S)
        self.connections = 0
        self.connections_refused: Counter[str] = Counter()
        self.handshakes_failed: Counter[str] = Counter()
        self.plaintext_connections = 0
        self.protocol_errors = 0
        self.reads = 0
        self.read_bytes = 0
        self.sent_bytes: Counter[str] = Counter()
        self.storage_reads = 0
        self.storage_read_bytes = 0
        self.throttled_s = 0.0
        self.tokens_refused: Counter[str] = Counter()


class JournalMetrics:
    """The metrics of the journal, written by its thread."""

    __slots__ = ("commit_bytes", "commit_seconds")

    def __init__(self) -> None:
        self.commit_seconds = Histogram(LATENCY_BOUNDS_S)
        self.commit_bytes = Histogram(SIZE_BOUNDS_BYTES)


# Wrappers that measure the requests of a store to the journal's disk, tier 2 and the metadata store.
#
# Each wraps any implementation of its port, and does not change its behaviour.

T = TypeVar("T")


class MeasuredJournalDisk:
    """Measures commits: each lasts from the start of a write to the end of the next sync of the same file."""

    def __init__(self, disk: JournalDisk, clock: Clock) -> None:
        self.metrics = JournalMetrics()
        self._disk = disk
        self._clock = clock

    def names(self) -> list[str]:
        return self._disk.names()

    def create(self, name: str, size_bytes: int) -> None:
        self._disk.create(name, size_bytes)

    def open(self, name: str) -> JournalFile:
        return _MeasuredJournalFile(self._disk.open(name), self._clock, self.metrics)

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def remove(self, name: str) -> None:
        self._disk.remove(name)

    def space(self) -> DiskSpace:
        return self._disk.space()


class _MeasuredJournalFile:
    def __init__(self, file: JournalFile, clock: Clock, metrics: JournalMetrics) -> None:
        self.size_bytes = file.size_bytes
        self.read = file.read
        self.close = file.close
        self._file = file
        self._clock = clock
        self._metrics = metrics
        self._started_s = 0.0
        self._written_bytes = 0

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        self._begin(parts)
        self._file.write(position, parts)

    def sync(self) -> None:
        self._file.sync()
        if not self._written_bytes:
            return
        self._record()

    def write_durably(self, position: int, parts: Sequence[Buffer]) -> None:
        self._begin(parts)
        self._file.write_durably(position, parts)
        self._record()

    def _begin(self, parts: Sequence[Buffer]) -> None:
        if not self._written_bytes:
            self._started_s = self._clock.monotonic_s()
        self._written_bytes += sum(map(len, parts))  # type: ignore[arg-type]

    def _record(self) -> None:
        self._metrics.commit_seconds.record(self._clock.monotonic_s() - self._started_s)
        self._metrics.commit_bytes.record(self._written_bytes)
        self._written_bytes = 0


class _Stopwatch:
    """Measures requests by operation, under a lock, since requests end on any thread."""

    def __init__(self, clock: Clock, operations: Sequence[str]) -> None:
        self.requests: Mapping[str, RequestMetrics] = {operation: RequestMetrics() for operation in operations}
        self._clock = clock
        self._lock = Lock()

    @contextmanager
    def request(self, operation: str) -> Iterator[None]:
        metrics, error_code = self.requests[operation], ""
        started_s = self._clock.monotonic_s()
        try:
            yield
        except HeadraceError as error:
            error_code = error.specific_code
            raise
        finally:
            with self._lock:
                metrics.seconds.record(self._clock.monotonic_s() - started_s)
                if error_code:
                    metrics.count_error(error_code)


class MeasuredChunkStorage:
    """Measures requests to tier 2 by operation. Bytes count when the request has succeeded."""

    def __init__(self, storage: ChunkStorage, clock: Clock) -> None:
        self._storage = storage
        self._stopwatch = _Stopwatch(clock, ("put", "read", "delete", "list"))
        self.put_bytes = 0
        self.read_bytes = 0

    @property
    def requests(self) -> Mapping[str, RequestMetrics]:
        return self._stopwatch.requests

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        with self._stopwatch.request("put"):
            await self._storage.put(name, parts)
        self.put_bytes += sum(map(len, parts))  # type: ignore[arg-type]

    async def read(self, name: str, position: int, length: int) -> bytes:
        with self._stopwatch.request("read"):
            data = await self._storage.read(name, position, length)
        self.read_bytes += len(data)
        return data

    async def delete(self, names: Sequence[str]) -> None:
        with self._stopwatch.request("delete"):
            await self._storage.delete(names)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[StoredObject]:
        with self._stopwatch.request("list"):
            return await self._storage.list(prefix, after=after, limit=limit)


class MeasuredMetadataStore:
    """Measures requests to the metadata store by operation."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._stopwatch = _Stopwatch(clock, ("get", "query", "write"))

    @property
    def requests(self) -> Mapping[str, RequestMetrics]:
        return self._stopwatch.requests

    def get(self, key: Key) -> Record | None:
        return self._timed("get", lambda: self._store.get(key))

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        return self._timed("get", lambda: self._store.get_many(keys))

    def query(self, partition: str, **fields: Any) -> Page:
        return self._timed("query", lambda: self._store.query(partition, **fields))

    def write(self, *writes: Write) -> None:
        self._timed("write", lambda: self._store.write(*writes))

    def _timed(self, operation: str, call: Callable[[], T]) -> T:
        with self._stopwatch.request(operation):
            return call()
