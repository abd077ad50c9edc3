"""`python -m benchmarks.takeover_pauses`: the longest pause of a store's event loop while it takes over a log.

Three processes' worth of journals on disk share one event loop, with links in memory. One of them owns a log that
tier 2 has nothing of, and ends. Another one takes the log over, and reads all of it back. It is also a member of a
log of the third one, whose acknowledgements need it: their times are measured before and during the takeover.
The third one starts when the log is there, and receives all of it first.
The work of the other two is on the same loop, so the pauses are an upper bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.latencies import Latencies
from benchmarks.machine import machine_facts, versions
from benchmarks.results import Results, document
from benchmarks.settings import KIB, MIB
from benchmarks.touched_pool import touched_pool
from headrace.adapters.disk import DiskJournalDisk
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.memory.replicas import MemoryReplicaNetwork
from headrace.adapters.system_clock import SystemClock
from headrace.codec import data_frames
from headrace.codec.data_frames import CreateOperation
from headrace.metadata.cluster_records import find_claim, write_claim
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.container_logs import COPIES, ReplicaId
from headrace.model.containers import ContainerClaim
from headrace.model.replica_placement import Placement
from headrace.segmentstore.cache.block_pool import BLOCK_BYTES
from headrace.segmentstore.containers.operation_log import OperationLog, OrderingClock
from headrace.segmentstore.containers.recovery import Recovery
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.replicated.replica_sessions import ReplicaSessions, recovered_logs
from headrace.segmentstore.log.replicated.replicated_ledgers import ReplicatedLedger, ReplicatedLedgers
from headrace.segmentstore.log.replicated.shared_log_resources import LogPlan
from segmentstore_fargate.__main__ import SWITCH_INTERVAL_S
from segmentstore_fargate.garbage import QuietCollector

NAMES: Final = ("a", "b", "c")
TAKEN_OVER, OTHER = 0, 1
"""Containers: the one whose owner ends, and one of another owner."""

NUMBER: Final = 1
FLUSH_EVERY_BYTES: Final = 8 * BLOCK_BYTES
PROBE_S: Final = 0.001
APPEND_EVERY_S: Final = 0.005
CAUGHT_UP_S: Final = 120.0
ACKNOWLEDGED_S: Final = 60.0
"""Far beyond what they take: they only turn a hang into a failure."""


@dataclass(frozen=True, slots=True)
class TakeoverSettings:
    """One run."""

    rounds: int = 3
    log_bytes: int = 1024 * MIB
    append_bytes: tuple[int, ...] = (MIB, 16 * KIB)
    before_s: float = 5.0


QUICK: Final = TakeoverSettings(1, 16 * MIB, (256 * KIB,), 0.3)
"""Proves that the benchmark runs. Its figures mean nothing."""


@dataclass(slots=True)
class _Node:
    disk: DiskJournalDisk
    journal: Journal
    sessions: ReplicaSessions
    ledgers: ReplicatedLedgers


class _Cluster:
    """Nodes in three zones, each with a journal in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._metadata = MemoryMetadataStore()
        self._network = MemoryReplicaNetwork()
        self._destroyed: set[ReplicaId] = set()
        self.nodes: dict[str, _Node] = {}

    async def start(self, name: str) -> None:
        disk = DiskJournalDisk(self._directory / name)
        deliver = asyncio.get_running_loop().call_soon_threadsafe
        journal = Journal(disk, lambda: secrets.randbits(64), deliver, copies=COPIES)
        await asyncio.to_thread(journal.start)
        sessions = ReplicaSessions(journal, recovered_logs(journal), _damaged)
        records, clock = ContainerLogRecords(self._metadata), SystemClock()
        ledgers = ReplicatedLedgers(journal, records, clock, lambda _container: self._plan(name), _damaged)
        self._network.serve(sessions)
        self.nodes[name] = _Node(disk, journal, sessions, ledgers)
        ledgers.start(sessions, self._network.links(sessions.replica))

    async def stop(self, name: str) -> None:
        node = self.nodes.pop(name)
        self._destroyed.add(node.sessions.replica)
        self._network.kill(node.sessions.replica)
        await node.ledgers.close()
        await asyncio.to_thread(node.journal.close)
        node.disk.close()

    async def opened(self, name: str, container: int) -> ReplicatedLedger:
        """The log of a container, claimed by a node."""
        found = find_claim(self._metadata, container)
        epoch = found[1] if found else None
        self._metadata.write(write_claim(container, ContainerClaim(name, "h", 1, name), epoch))
        return await self.nodes[name].ledgers.open(container, 0 if epoch is None else epoch + 1)

    async def all_have(self, container: int) -> float:
        """Wait until every node is a member of a log and has all its entries. Returns for how many seconds."""
        started_s = time.perf_counter()
        async with asyncio.timeout(CAUGHT_UP_S):
            while True:
                log, _ = ContainerLogRecords(self._metadata).read(container)
                ends = {node.sessions.log(container).durable_end for node in self.nodes.values()}
                if log is not None and len(log.members) == COPIES and len(ends) == 1:
                    return time.perf_counter() - started_s
                await asyncio.sleep(APPEND_EVERY_S)

    def _plan(self, own: str) -> LogPlan:
        wanted = {name: node.sessions.replica for name, node in self.nodes.items()}
        others = (replica for name, replica in wanted.items() if name != own)
        replicas = (wanted[own], *others) if own in wanted else ()
        zones = {replica: name for name, replica in wanted.items()}
        return LogPlan(replicas, COPIES, Placement(wanted, zones, frozenset(self._destroyed)))


def main() -> int:
    name = "python -m benchmarks.takeover_pauses"
    parser = argparse.ArgumentParser(prog=name, description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs; figures mean nothing")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for results and data")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    settings = QUICK if options.quick else TakeoverSettings()
    facts, results = machine_facts(), Results()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    for _ in range(settings.rounds):
        for append_bytes in settings.append_bytes:
            with tempfile.TemporaryDirectory(dir=options.output) as directory:
                uvloop.run(measure(results, Path(directory), settings, append_bytes))
    written = document(results, machine=facts, versions=versions(), settings=asdict(settings))
    (options.output / "takeover-pauses.json").write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


async def measure(results: Results, directory: Path, settings: TakeoverSettings, append_bytes: int) -> None:
    """One takeover of a log with appends of this size."""
    pool = touched_pool(settings.log_bytes + 2 * BLOCK_BYTES)  # first: it stops the loop for seconds
    cluster = _Cluster(directory)
    openings: list[int] = []
    # As in the process of a store, which is never quiet here.
    collector = QuietCollector(count().__next__, lambda: bool(openings))
    collector.start()
    *first, last = NAMES
    for name in first:
        await cluster.start(name)
    await _write(await cluster.opened("a", TAKEN_OVER), settings.log_bytes // append_bytes, append_bytes)
    await cluster.start(last)
    copied_s = await cluster.all_have(TAKEN_OVER)
    other = await cluster.opened("c", OTHER)
    await cluster.stop("a")
    log = f"{settings.log_bytes // MIB} MiB, appends of {append_bytes // KIB} KiB"
    what = f"takeover of {log}"
    async with _probed(other) as before:
        await asyncio.sleep(settings.before_s)
    async with _probed(other) as during:
        started_s = time.perf_counter()
        openings.append(TAKEN_OVER)
        ledger = await cluster.opened("b", TAKEN_OVER)
        recovery = Recovery(TAKEN_OVER, pool, SystemClock())
        backfill = await recovery.run(ledger)
        appends_s = time.perf_counter() - started_s
        openings.clear()
        await backfill.load()
        seconds = time.perf_counter() - started_s
    collector.stop()
    for name in list(cluster.nodes):
        await cluster.stop(name)
    if backfill.loaded_bytes < settings.log_bytes // append_bytes * append_bytes:
        raise RuntimeError(f"only {backfill.loaded_bytes} bytes were read back")
    idle = "pause of the loop, no takeover, longest"
    results.add(idle, max(before.pauses_ms), "ms")
    results.add(f"pause of the loop, {what}, longest", max(during.pauses_ms), "ms", beside=idle)
    for part in ("p50_ms", "p99_ms"):
        alone = f"acknowledged for another store, no takeover, {part[:3]}"
        results.add(alone, getattr(Latencies.of_ns(before.acknowledged_ns), part), "ms")
        taken = getattr(Latencies.of_ns(during.acknowledged_ns), part)
        results.add(f"acknowledged for another store, {what}, {part[:3]}", taken, "ms", beside=alone)
    results.add(f"a new member has {log}", copied_s, "s")
    results.add(f"{what}, until appends are taken", appends_s, "s")
    results.add(f"{what}, until all is in memory", seconds, "s")


async def _write(ledger: ReplicatedLedger, appends: int, append_bytes: int) -> None:
    log = OperationLog(ledger, OrderingClock(SystemClock()))
    create = CreateOperation(NUMBER, "benchmark/takeover/0.#epoch.0", (), 0)
    log.append(data_frames.encode_operation(create), _ignore)
    data = memoryview(secrets.token_bytes(append_bytes))
    for number in range(appends):
        log.append([data_frames.append_fields(NUMBER, number * append_bytes, 1, number, 1, 0), data], _ignore)
        if number * append_bytes % FLUSH_EVERY_BYTES < append_bytes:
            await log.durable()
    await log.durable()


class _Probes:
    def __init__(self) -> None:
        self.pauses_ms: list[float] = []
        """What each millisecond of the loop took beyond it."""

        self.acknowledged_ns: list[int] = []
        self._sent = 0

    async def all_acknowledged(self) -> None:
        async with asyncio.timeout(ACKNOWLEDGED_S):
            while len(self.acknowledged_ns) < self._sent:
                await asyncio.sleep(APPEND_EVERY_S)

    async def look(self) -> None:
        while True:
            due_s = time.perf_counter() + PROBE_S
            await asyncio.sleep(PROBE_S)
            self.pauses_ms.append(max(0.0, time.perf_counter() - due_s) * 1e3)

    async def append(self, ledger: ReplicatedLedger) -> None:
        while True:
            sent_ns = time.perf_counter_ns()
            self._sent += 1
            ledger.append([bytes(KIB)], partial(self._acknowledged, sent_ns))
            await asyncio.sleep(APPEND_EVERY_S)

    def _acknowledged(self, sent_ns: int, error: Exception | None) -> None:
        if error is not None:
            raise RuntimeError("an append to the other log has failed") from error
        self.acknowledged_ns.append(time.perf_counter_ns() - sent_ns)


@asynccontextmanager
async def _probed(ledger: ReplicatedLedger) -> AsyncIterator[_Probes]:
    """Look at the loop, and append to another log, until the block ends."""
    probes = _Probes()
    tasks = [asyncio.create_task(probes.look()), asyncio.create_task(probes.append(ledger))]
    try:
        yield probes
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await probes.all_acknowledged()


def _damaged(container: int, error: Exception) -> None:
    raise RuntimeError(f"the journal of container {container} is damaged") from error


def _ignore(_error: Exception | None) -> None:
    """`durable` waits for all of them."""


if __name__ == "__main__":
    raise SystemExit(main())
