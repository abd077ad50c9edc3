"""A whole segment store in one process on memory adapters, and a raw client of the wire protocol."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from ssl import SSLContext
from typing import Any

from ledger_worlds import LogRecordsInline

from headrace import wire
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.memory.scaling_reports import MemoryScalingReports
from headrace.adapters.tcp.arrivals import ServerTls
from headrace.adapters.tcp.listener import WireListener, bind_socket
from headrace.codec.delegation_tokens import TokenKeys
from headrace.metadata.cluster_records import claim_body, claim_sort
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.errors import HeadraceError
from headrace.model.log_classes import ContainerLayout
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.metadata_store import Create, Key, Replace
from headrace.segmentstore.log.composite_ledgers import CompositeLedgers
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.objects.log_object_writer import ObjectLogLimits
from headrace.segmentstore.log.objects.object_ledgers import ObjectLedgers
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgerStore
from headrace.segmentstore.store import SegmentStore
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering.storage_limits import StorageLimits
from headrace.zones import ZoneNetworks

WAIT_S = 20.0
"""Far beyond what any test needs: it only turns a hang into a failure."""


class ManualClock:
    """A clock that only a test advances."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000

    def advance(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)


class WireClient:
    """Sends commands, collects replies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._request_ids = itertools.count(1)

    def next_id(self) -> int:
        return next(self._request_ids)

    def send(self, *commands: wire.WireCommand) -> None:
        for command in commands:
            self._writer.write(wire.encode(command))

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain_to_server(self) -> None:
        """Make the server read what was sent so far separately from what follows."""
        await self._writer.drain()
        await asyncio.sleep(0)

    async def receive(self, wait_s: float | None = WAIT_S) -> wire.WireCommand:
        header = await asyncio.wait_for(self._reader.readexactly(8), wait_s)
        type_code, length = wire.decode_header(header)
        payload = await asyncio.wait_for(self._reader.readexactly(length), wait_s)
        return wire.decode(type_code, memoryview(payload))

    async def call(self, command: wire.WireCommand) -> Any:
        self.send(command)
        return await self.receive()

    async def closed(self) -> bool:
        """Wait until the server has closed the connection."""
        try:
            return await asyncio.wait_for(self._reader.read(), WAIT_S) is not None
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._writer.close()

    # Shorthands

    async def create(self, segment: str) -> None:
        assert await self.call(wire.CreateSegment(7, segment, 0, 0)) == wire.SegmentCreated(7, segment)

    async def set_up(self, segment: str, writer_id: int) -> int:
        reply = await self.call(wire.SetupAppend(8, writer_id, segment))
        assert isinstance(reply, wire.AppendSetup), reply
        return reply.last_event_number

    async def append(self, writer_id: int, number: int, data: bytes, count: int = 1) -> wire.DataAppended:
        reply = await self.call(wire.AppendBlockEnd(writer_id, len(data), data, count, number, 9))
        assert isinstance(reply, wire.DataAppended), reply
        return reply

    async def read_all(self, segment: str, *, start: int = 0) -> bytes:
        """The bytes from `start` to the present end of the segment."""
        info = await self.call(wire.GetStreamSegmentInfo(10, segment))
        assert isinstance(info, wire.StreamSegmentInfo), info
        data = bytearray()
        while start + len(data) < info.write_offset:
            reply = await self.call(wire.ReadSegment(segment, start + len(data), 1 << 20, "", 11))
            assert isinstance(reply, wire.SegmentRead), reply
            assert len(reply.data) > 0
            data += reply.data
        return bytes(data)


@dataclass
class World:
    """What outlives a store: disk, tier 2, metadata and time. Changed settings take effect at the next start."""

    disk: MemoryJournalDisk = field(default_factory=MemoryJournalDisk)
    metadata: MemoryMetadataStore = field(default_factory=MemoryMetadataStore)
    chunks: MemoryChunkStorage = field(default_factory=MemoryChunkStorage)
    clock: ManualClock = field(default_factory=ManualClock)
    reports: MemoryScalingReports = field(default_factory=MemoryScalingReports)
    container_count: int = 2
    s3_containers: int = 0
    """More containers, whose logs are in `log_chunks`."""
    log_chunks: ChunkStorage = field(default_factory=MemoryChunkStorage)
    object_limits: ObjectLogLimits = field(
        default_factory=lambda: ObjectLogLimits(gather_s=0.0, retry_first_s=0.01, retry_most_s=0.01)
    )
    opens: tuple[int, ...] | None = None
    """Containers that a store opens at its start; None: all."""
    cache_bytes: int = 8 << 20
    block_bytes: int = 64 << 10
    file_bytes: int = 4 << 20
    limits: StorageLimits = field(
        default_factory=lambda: StorageLimits(flush_age_s=1e6, flush_bytes=1 << 40, tick_s=0.01, retry_first_s=0.01)
    )
    table_limits: TableLimits = field(default_factory=TableLimits)
    token_keys: TokenKeys | None = None
    """None: requests need no delegation token."""
    failures: list[tuple[int, HeadraceError]] = field(default_factory=list)
    """The containers of its stores that have stopped for good, and why."""
    random: Random = field(default_factory=lambda: Random(42))
    tls: ServerTls = field(default_factory=ServerTls)
    networks: ZoneNetworks = field(default_factory=ZoneNetworks)
    """The zones of the clients of a store."""
    maintenance: bool = True
    """Whether the periodic tasks of containers run by themselves. Without them a test calls `maintenance.run_pass`."""

    @property
    def layout(self) -> ContainerLayout:
        return ContainerLayout(self.container_count, self.s3_containers)

    def claim(self, container: int) -> int:
        """Take over a container; return its new epoch."""
        key = Key(CLUSTER_PARTITION, claim_sort(container))
        body = claim_body(ContainerClaim("store-0", "127.0.0.1", 1, "local"))
        record = self.metadata.get(key)
        if record is None:
            self.metadata.write(Create(key, body))
            return 0
        self.metadata.write(Replace(key, body, record.version))
        return record.version + 1

    @asynccontextmanager
    async def running(self, *, graceful: bool = True) -> AsyncIterator[RunningStore]:
        """A store in this world. Without `graceful` it ends as if killed: nothing is flushed or checkpointed."""
        loop = asyncio.get_running_loop()
        journal = Journal(
            self.disk, lambda: self.random.getrandbits(64), loop.call_soon_threadsafe, file_bytes=self.file_bytes
        )
        journal.start()
        layout = self.layout
        on_disk = OneCopyLedgerStore(journal)
        in_s3 = ObjectLedgers(self.log_chunks, LogRecordsInline(self.metadata), self.random.random, self.object_limits)
        store = SegmentStore(
            CompositeLedgers(layout, on_disk, in_s3) if self.s3_containers else on_disk,
            self.cache_bytes,
            self.clock,
            self.metadata,
            self.chunks,
            container_count=self.container_count,
            s3_containers=self.s3_containers,
            block_bytes=self.block_bytes,
            on_failure=lambda container, error: self.failures.append((container.container, error)),
            limits=self.limits,
            scaling_reports=self.reports,
            table_limits=self.table_limits,
            needs_tokens=self.token_keys is not None,
        )
        if store.tokens is not None and self.token_keys is not None:
            store.tokens.use(self.token_keys)
        listener = WireListener(store, lambda: self.random.getrandbits(128), tls=self.tls, networks=self.networks)
        running = RunningStore(self, store, journal, listener)
        try:
            for container in range(layout.count) if self.opens is None else self.opens:
                await store.open_container(container, self.claim(container))
                if not self.maintenance:
                    await store.owned[container].maintenance.stop()
            bound = bind_socket("127.0.0.1", 0)
            running.port = bound.getsockname()[1]
            await listener.start(bound)
            yield running
        finally:
            for client in running.clients:
                client.close()
            await listener.stop()
            await store.close(WAIT_S if graceful else 0)
            await asyncio.to_thread(journal.close)


@dataclass
class RunningStore:
    """A store that serves, with its clients."""

    world: World
    store: SegmentStore
    journal: Journal
    listener: WireListener
    port: int = 0
    clients: list[WireClient] = field(default_factory=list)

    async def connect(
        self, version: int = wire.WIRE_VERSION, *, context: SSLContext | None = None, name: str | None = None
    ) -> WireClient:
        """A client that speaks this version of the protocol, and older ones; with a `context` over TLS."""
        client = WireClient(*await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=name))
        self.clients.append(client)
        hello = await client.call(wire.Hello(version, 5))
        assert hello == wire.Hello(17, 5)
        return client

    async def flush(self) -> None:
        """Move all durable bytes to tier 2.

        The clock jumps once, and again only for bytes that are too young after that: what else depends on time sees no
        more jumps on a slow machine.
        """
        clock, age_s = self.world.clock, self.world.limits.flush_age_s
        clock.advance(2e6)

        def flushed() -> bool:
            dirty = [segment for owned in self.store.owned.values() for segment in owned.container.dirty.values()]
            since_s = [segment.untiered_since_s for segment in dirty]
            if dirty and not any(each is not None and clock.monotonic_s() - each >= age_s for each in since_s):
                clock.advance(2e6)
            return not dirty

        await self.until(flushed)

    async def settle(self) -> None:
        """As `flush`, and finish what merges and removals leave to do in tier 2."""
        await self.flush()
        await self.until(lambda: not any(owned.container.metadata.deletions for owned in self.store.owned.values()))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop run until the condition holds."""

        async def poll() -> None:
            while not condition():
                for owned in self.store.owned.values():
                    owned.writer.wake()
                await asyncio.sleep(0.001)

        await asyncio.wait_for(poll(), WAIT_S)
