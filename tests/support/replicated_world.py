"""Processes that hold copies of each other's logs, on one event loop: memory disks, links and metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.memory.replicas import MemoryReplicaNetwork
from headrace.adapters.system_clock import SystemClock
from headrace.metadata.cluster_records import find_claim, write_claim
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.container_logs import COPIES, ReplicaId
from headrace.model.containers import ContainerClaim
from headrace.model.errors import UnavailableError
from headrace.model.replica_placement import Placement
from headrace.ports.replicas import ReplicaLinks
from headrace.replication.bounds import RecoveryBounds, WriterBounds
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.replicated.replica_sessions import ReplicaSessions, recovered_logs
from headrace.segmentstore.log.replicated.replicated_ledgers import ReplicatedLedger, ReplicatedLedgers
from headrace.segmentstore.log.replicated.shared_log_resources import LogPlan

FILE_BYTES = 4 << 20
LOG = 3
WAIT_S = 30.0


@dataclass
class ReplicaNode:
    """One process with its volume."""

    name: str
    disk: MemoryJournalDisk
    journal: Journal
    sessions: ReplicaSessions
    ledgers: ReplicatedLedgers
    damages: list[int] = field(default_factory=list)

    @property
    def replica(self) -> ReplicaId:
        return self.sessions.replica


class ReplicatedWorld:
    """The cluster: node n is in a zone of its own. `destroyed` replicas are known to be gone."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadataStore()
        self.records = ContainerLogRecords(self.metadata)
        self.network = MemoryReplicaNetwork()
        self.random = Random(7)
        self.nodes: dict[str, ReplicaNode] = {}
        self.destroyed: set[ReplicaId] = set()
        self.zones: dict[ReplicaId, str] = {}
        self.open_patience_s = 1.0
        self.compresses = False
        self.writer_bounds = WriterBounds(silence_ms=300, pulse_ms=50)

    def claim(self, container: int) -> int:
        """Take over a container; return its new epoch."""
        claim = find_claim(self.metadata, container)
        self.metadata.write(write_claim(container, ContainerClaim("x", "h", 1, "z"), claim[1] if claim else None))
        return claim[1] + 1 if claim else 0

    def plan(self, own: str) -> LogPlan:
        wanted = {node.name: node.replica for node in self.nodes.values()}
        replicas = (wanted[own], *(replica for name, replica in wanted.items() if name != own)) if own in wanted else ()
        return LogPlan(replicas, COPIES, Placement(wanted, dict(self.zones), frozenset(self.destroyed)))

    async def start(self, name: str, disk: MemoryJournalDisk | None = None) -> ReplicaNode:
        """Start a process on a volume, by default an empty one."""
        disk = disk or MemoryJournalDisk()
        loop = asyncio.get_running_loop()
        journal = Journal(
            disk, lambda: self.random.getrandbits(64), loop.call_soon_threadsafe, file_bytes=FILE_BYTES, copies=COPIES
        )
        await asyncio.to_thread(journal.start)
        damages: list[int] = []
        sessions = ReplicaSessions(
            journal, recovered_logs(journal), lambda container, _error: damages.append(container)
        )
        ledgers = ReplicatedLedgers(
            journal,
            self.records,
            SystemClock(),
            lambda _container: self.plan(name),
            lambda container, _error: damages.append(container),
            writer_bounds=self.writer_bounds,
            recovery_bounds=RecoveryBounds(fence_grace_ms=20, retry_ms=100),
            open_patience_s=self.open_patience_s,
            compresses=self.compresses,
        )
        links = await self.connect(sessions)
        node = self.nodes[name] = ReplicaNode(name, disk, journal, sessions, ledgers, damages)
        self.zones[node.replica] = name
        ledgers.start(sessions, links)
        return node

    async def connect(self, sessions: ReplicaSessions) -> ReplicaLinks:
        """Let the other nodes reach the replicas of a new one; return its links to theirs."""
        self.network.serve(sessions)
        return self.network.links(sessions.replica)

    async def disconnect(self, replica: ReplicaId) -> None:
        """The process of a replica ends."""
        self.network.kill(replica)

    async def stop(self, node: ReplicaNode) -> None:
        """End a process, as a kill does for the others: it answers nothing any more."""
        await self.disconnect(node.replica)
        if self.nodes.get(node.name) is node:
            del self.nodes[node.name]
        await node.ledgers.close()
        await asyncio.to_thread(node.journal.close)

    async def destroy(self, node: ReplicaNode) -> None:
        """End a process, and its volume with it."""
        self.destroyed.add(node.replica)
        await self.stop(node)


@asynccontextmanager
async def replicated_world(
    names: str = "abc", make: Callable[[], ReplicatedWorld] = ReplicatedWorld
) -> AsyncIterator[ReplicatedWorld]:
    world = make()
    for name in names:
        await world.start(name)
    try:
        yield world
    finally:
        for node in list(world.nodes.values()):
            await world.stop(node)


async def append(ledger: ReplicatedLedger, *payloads: bytes) -> None:
    """Append, and wait until everything is acknowledged."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []
    for payload in payloads:
        future: asyncio.Future[None] = loop.create_future()
        waiting.append(future)
        ledger.append([payload], _resolve(future))
    await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)


def _resolve(future: asyncio.Future[None]) -> Callable[[Exception | None], None]:
    def done(error: Exception | None) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return done


def payloads(ledger: ReplicatedLedger, first: int = 0) -> list[bytes]:
    return [bytes(entry.payload) for entry in ledger.recover(first)]


async def until(condition: Callable[[], object]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), WAIT_S)


def numbered(first: int, count: int) -> Sequence[bytes]:
    return [b"entry %d" % number for number in range(first, first + count)]


async def opened(world: ReplicatedWorld, name: str, container: int = LOG) -> ReplicatedLedger:
    """The log of a container, claimed by a node. On a slow machine it may need more than the patience of one call."""
    epoch = world.claim(container)
    async with asyncio.timeout(WAIT_S):
        while True:
            with suppress(UnavailableError):
                return await world.nodes[name].ledgers.open(container, epoch)


def members(world: ReplicatedWorld, container: int = LOG) -> set[str]:
    """The nodes that the record names."""
    log = world.records.read(container).log
    return set() if log is None else {world.zones[member] for member in log.members}
