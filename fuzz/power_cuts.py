"""Power cuts of a whole store in this process: every step that survives it is recorded, then it is cut anywhere.

A load runs once, with kills in between, while a trace notes every write, sync, rename and so on of the journal's disk
and every write to tier 2. Then the world is built anew as it was after some step of the trace, with what was written
and not synced kept, dropped, torn or reordered; a store recovers from it and is checked against what had been
acknowledged until then. That recovery is traced and cut too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Final

from fuzz.checker import Verdict, WrongStateError, check
from fuzz.connections import MemoryConnection
from fuzz.histories import History
from fuzz.lanes import Lane, Load
from fuzz.randomness import Random
from fuzz.table_lane import TableLane
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.journal_disk import MemoryJournalDisk, MemoryJournalFile
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.system_clock import SystemClock
from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.containers import ContainerClaim
from headrace.model.errors import UnavailableError
from headrace.ports.chunk_storage import StoredObject
from headrace.ports.journal_disk import DiskSpace, JournalFile
from headrace.ports.metadata_store import Key, Page, Record, Write
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgerStore
from headrace.segmentstore.store import SegmentStore
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering.storage_limits import StorageLimits
from segmentstore_fargate.registration import claim_free_container

CONTAINERS: Final = 2
LANES: Final = 3
JOURNAL_FILE_BYTES: Final = 24 << 10
COPY_FROM_FILES: Final = 3
CACHE_BYTES: Final = 2 << 20
CACHE_BLOCK_BYTES: Final = 32 << 10
PAYLOAD_BYTES_MAX: Final = 700
STEPS_PER_LIFE: Final = (5, 300)
LIVES_PER_TRACE: Final = 3
LIMITS: Final = StorageLimits(
    flush_bytes=6_000,
    flush_age_s=0.004,
    object_bytes_max=4_000,
    checkpoint_every_bytes=8_000,
    retry_first_s=0.001,
    tick_s=0.002,
    snapshot_every_s=0.02,
    snapshot_soon_s=0.003,
    sweep_every_s=0.05,
    compacted_runs_min=4,
    idle_segment_s=0.02,
    idle_segments_kept=1,
)
TABLE_LIMITS: Final = TableLimits(
    tail_memory_bytes=4_000,
    replay_segment_bytes=8_000,
    index_block_bytes=512,
    index_object_bytes=2_000,
    compaction_segment_bytes=6_000,
    retry_first_s=0.001,
)
_CLAIM: Final = ContainerClaim("store-0", "127.0.0.1", 1, "local")

Step = tuple[str, tuple[Any, ...]]


@dataclass(slots=True)
class Survivor:
    """What outlives a store: its disk and tier 2."""

    disk: MemoryJournalDisk = field(default_factory=MemoryJournalDisk)
    writes: list[tuple[Write, ...]] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)


class Trace:
    """All steps that a survivor has taken since it was `origin`."""

    def __init__(self, origin: Survivor) -> None:
        self.origin = origin
        self.steps: list[Step] = []
        self.lock = Lock()

    @property
    def position(self) -> int:
        return len(self.steps)


class Replay:
    """A survivor as it was after some step of a trace; `advance` goes forward only."""

    def __init__(self, trace: Trace) -> None:
        self.position = 0
        self._trace = trace
        self._disk = trace.origin.disk.cut_power(0)
        self._files: dict[int, MemoryJournalFile] = {}
        self._writes = list(trace.origin.writes)
        self._objects = dict(trace.origin.objects)

    def advance(self, position: int) -> None:
        for name, arguments in self._trace.steps[self.position : position]:
            if name == "open":
                self._files[arguments[0]] = self._disk.open(arguments[1])
            elif name == "write":
                self._files[arguments[0]].write(*arguments[1:])
            elif name == "sync":
                self._files[arguments[0]].sync()
            elif name == "metadata":
                self._writes.append(arguments)
            elif name == "put":
                self._objects[arguments[0]] = arguments[1]
            elif name == "delete":
                self._objects.pop(arguments[0], None)
            else:
                getattr(self._disk, name)(*arguments)
        self.position = position

    def cut(self, seed: int) -> Survivor:
        """What is left if the power goes now."""
        return Survivor(self._disk.cut_power(seed), list(self._writes), dict(self._objects))


class TracedPorts:
    """The disk and tier 2 of one store process, step by step into a trace; they end with the process.

    `on_death` is called when the process dies, in any thread.
    """

    def __init__(
        self,
        trace: Trace,
        disk: MemoryJournalDisk,
        metadata: MemoryMetadataStore,
        chunks: MemoryChunkStorage,
        on_death: Callable[[], object] = lambda: None,
    ) -> None:
        self.alive = True
        self.steps_left = -1  # before the process dies; negative: it does not
        self._on_death = on_death
        self._trace = trace
        self._disk = disk
        self._metadata = metadata
        self._chunks = chunks

    def end(self) -> None:
        """Every step from now on fails."""
        with self._trace.lock:
            self._die()

    def _die(self) -> None:
        self.alive = False
        self._on_death()

    def step(self, name: str, arguments: tuple[Any, ...], take: Callable[[], None]) -> None:
        with self._trace.lock:
            if self.steps_left == 0 and self.alive:
                self._die()
            if not self.alive:
                raise OSError("the process is dead")
            self.steps_left -= 1
            take()
            self._trace.steps.append((name, arguments))

    # JournalDisk

    def names(self) -> list[str]:
        return self._disk.names()

    def create(self, name: str, size_bytes: int) -> None:
        self.step("create", (name, size_bytes), lambda: self._disk.create(name, size_bytes))

    def open(self, name: str) -> _TracedFile:
        file = _TracedFile(self, self._disk.open(name))
        self.step("open", (id(file), name), lambda: None)
        return file

    def rename(self, old: str, new: str) -> None:
        self.step("rename", (old, new), lambda: self._disk.rename(old, new))

    def remove(self, name: str) -> None:
        self.step("remove", (name,), lambda: self._disk.remove(name))

    def space(self) -> DiskSpace:
        return self._disk.space()

    # MetadataStore

    def get(self, key: Key) -> Record | None:
        return self._metadata.get(key)

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        return self._metadata.get_many(keys)

    def query(self, partition: str, **arguments: Any) -> Page:
        return self._metadata.query(partition, **arguments)

    def write(self, *writes: Write) -> None:
        try:
            self.step("metadata", writes, lambda: self._metadata.write(*writes))
        except OSError as error:
            raise UnavailableError("the process is dead") from error

    # ChunkStorage

    async def put(self, name: str, parts: Sequence[Any]) -> None:
        data = b"".join(parts)
        await self._chunks.put(name, [data])
        with contextlib.suppress(OSError):  # the dead do not see that it arrived
            self.step("put", (name, data), lambda: None)

    async def read(self, name: str, position: int, length: int) -> bytes:
        return await self._chunks.read(name, position, length)

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.step("delete", (name,), lambda: None)
        await self._chunks.delete(names)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[StoredObject]:
        return await self._chunks.list(prefix, after=after, limit=limit)


class _TracedFile(JournalFile):
    """One open file; a trace knows it by its identity, since files change their names while they are open."""

    def __init__(self, ports: TracedPorts, file: MemoryJournalFile) -> None:
        self._ports = ports
        self._file = file

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def write(self, position: int, parts: Sequence[Any]) -> None:
        copies = [bytes(part) for part in parts]
        self._ports.step("write", (id(self), position, copies), lambda: self._file.write(position, copies))

    def sync(self) -> None:
        self._ports.step("sync", (id(self),), self._file.sync)

    def read(self, position: int, length: int) -> bytes:
        return self._file.read(position, length)

    def close(self) -> None:
        self._file.close()


class World:
    """A survivor that goes on: stores run on it one after the other, and all that they do is traced."""

    def __init__(self, origin: Survivor, random: Random) -> None:
        self.trace = Trace(origin)
        self._random = random
        self._disk = origin.disk.cut_power(0)
        self._metadata = MemoryMetadataStore()
        for writes in origin.writes:
            self._metadata.write(*writes)
        self._objects = origin.objects
        self._chunks = MemoryChunkStorage()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RunningStore]:
        """A store, recovered from what is there. It ends as by kill -9."""
        if self._objects:
            for name, data in self._objects.items():
                await self._chunks.put(name, [data])
            self._objects = {}
        random, loop = Random(self._random.random()), asyncio.get_running_loop()
        connections: list[MemoryConnection] = []

        def break_off() -> None:
            for connection in connections:
                connection.break_off()

        on_death = partial(loop.call_soon_threadsafe, break_off)
        ports = TracedPorts(self.trace, self._disk, self._metadata, self._chunks, on_death)
        journal = Journal(
            ports,
            lambda: random.getrandbits(64),
            loop.call_soon_threadsafe,
            file_bytes=JOURNAL_FILE_BYTES,
            copy_from_files=COPY_FROM_FILES,
        )
        store = SegmentStore(
            OneCopyLedgerStore(journal), CACHE_BYTES, SystemClock(), ports, ports,
            container_count=CONTAINERS, block_bytes=CACHE_BLOCK_BYTES, limits=LIMITS, table_limits=TABLE_LIMITS,
        )  # fmt: skip
        running = RunningStore(store, ports, connections, lambda: random.getrandbits(128))
        try:
            journal.start()
            records = ClusterRecords(ports)
            for state in records.containers(range(CONTAINERS)):
                epoch = claim_free_container(records, state, _CLAIM, SystemClock().now_ms())
                assert epoch is not None, "no other store claims it"
                await store.open_container(state.container, epoch)
            yield running
        finally:
            running.kill()
            await store.close(0)
            await asyncio.to_thread(journal.close)


class RunningStore:
    """A store and the connections to it, which are added to `connections`."""

    def __init__(
        self,
        store: SegmentStore,
        ports: TracedPorts,
        connections: list[MemoryConnection],
        random_uuid: Callable[[], int],
    ) -> None:
        self.store = store
        self._ports = ports
        self._random_uuid = random_uuid
        self._connections = connections

    @property
    def is_dead(self) -> bool:
        return not self._ports.alive

    async def connect(self) -> MemoryConnection:
        if self.is_dead:
            raise ConnectionError("the process is dead")
        self._connections.append(MemoryConnection(self.store, self._random_uuid))
        return self._connections[-1]

    def kill(self, after_steps: int = 0) -> None:
        """Nothing that it does from then on has an effect."""
        if after_steps:
            self._ports.steps_left = after_steps
        else:
            self._ports.end()


async def live(
    running: RunningStore, lanes: Sequence[Lane | TableLane], history: History, steps: int, trace: Trace
) -> None:
    """Load until the store has taken so many steps, then kill it in the middle of whatever it does."""
    running.kill(after_steps=steps)
    load = Load(history, running.connect, lambda: trace.position, lambda: None, PAYLOAD_BYTES_MAX)
    try:
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(lane.live(load))
    except* ConnectionError:
        if not running.is_dead:
            raise


async def check_survivor(survivor: Survivor, history: History, moment: int, random: Random, depth: int) -> Verdict:
    """Recover and check; then cut that recovery `depth` times more, and check what is left each time."""
    world = World(survivor, random)
    async with world.running() as running:
        verdict = await check(await running.connect(), history, moment)
        told_at = world.trace.position
    if depth:
        replay = Replay(world.trace)
        cut_at = random.choice([random.randint(0, told_at), told_at])
        replay.advance(cut_at)
        again = await check_survivor(replay.cut(random.getrandbits(32)), history, moment, random, depth - 1)
        if cut_at == told_at and set(again.decided) != set(verdict.decided):
            raise WrongStateError("a power cut after a recovery took back what the recovery had told")
    return verdict


async def torture(seed: int, *, generations: int, cuts: int) -> int:
    """Load, cuts anywhere in its trace, then more load on what one of them left; the number of cuts.

    Raises:
        WrongStateError, ContentError: something acknowledged was lost, or something else is there.
    """
    random = Random(seed)
    history, survivor, done = History(), Survivor(), 0
    lanes: list[Lane | TableLane] = [Lane(f"scope/stream/{number}", Random(random.random())) for number in range(LANES)]
    lanes.append(TableLane("scope/table", Random(random.random())))
    for _ in range(generations):
        world = World(survivor, random)
        for _ in range(random.randint(1, LIVES_PER_TRACE)):
            async with world.running() as running:
                verdict = await check(await running.connect(), history)
                verdict.settle(world.trace.position)
                await live(running, lanes, history, random.randint(*STEPS_PER_LIFE), world.trace)
        replay = Replay(world.trace)
        for moment in sorted(random.randint(0, world.trace.position) for _ in range(cuts)):
            replay.advance(moment)
            cut_seed = random.getrandbits(32)
            verdict = await check_survivor(replay.cut(cut_seed), history, moment, random, random.choice((0, 0, 1, 2)))
            done += 1
        survivor = replay.cut(cut_seed)
        history.forget_later(moment)
        verdict.settle(-1)
    return done
