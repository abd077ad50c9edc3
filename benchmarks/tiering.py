"""`python -m benchmarks.tiering`: how fast one hot segment reaches tier 2, with one PUT at a time and with several.

One process, a journal on disk, and an S3 double that keeps nothing: it answers after the time to the first byte and the
time that one connection takes for the bytes, so the figure is bounded by what the store does with its connections. The
memory of the cache is written to before. Both settings take turns within each round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import machine_facts, versions
from benchmarks.results import Results, document
from headrace.adapters.disk import DiskJournalDisk
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.system_clock import SystemClock
from headrace.metadata.cluster_records import claim_body, claim_sort
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.errors import HeadraceError
from headrace.ports.metadata_store import Create, Key
from headrace.segmentstore.cache.block_pool import BLOCK_BYTES, BlockPool
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgerStore
from headrace.segmentstore.store import SegmentStore
from headrace.segmentstore.tiering.storage_limits import StorageLimits

if TYPE_CHECKING:
    from typing_extensions import Buffer

SEGMENT = "benchmark/tiering/0.#epoch.0"
WRITER = 1
APPEND_BYTES = 1 << 20
SLACK_BYTES = 64 << 20
DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class Tier2:
    """What a connection to the S3 double gives; 0 bytes a second: no limit."""

    name: str
    first_byte_s: float
    bytes_per_s: float

    def seconds(self, length: int) -> float:
        return self.first_byte_s + (length / self.bytes_per_s if self.bytes_per_s else 0.0)


TIERS = (Tier2("S3, 30 ms and 90 MB/s a connection", 0.030, 90e6), Tier2("a double that costs nothing", 0.0, 0.0))


class _PacedChunkStorage(MemoryChunkStorage):
    """Takes the time of a PUT and keeps nothing. Nothing is stored before `opened`."""

    def __init__(self, tier: Tier2) -> None:
        super().__init__()
        self._tier = tier
        self.opened = asyncio.Event()

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        await self.opened.wait()
        await asyncio.sleep(self._tier.seconds(sum(memoryview(part).nbytes for part in parts)))


async def flushed_mb_per_s(directory: Path, tier: Tier2, in_flight_max: int, total_bytes: int) -> float:
    """Fill the cache with durable bytes of one segment, then let tier 2 answer, and time the flush of them all."""
    disk = DiskJournalDisk(directory)
    journal = Journal(disk, lambda: secrets.randbits(64), asyncio.get_running_loop().call_soon_threadsafe)
    journal.start()
    metadata = MemoryMetadataStore()
    claim = ContainerClaim("store", "localhost", 1, "local")
    metadata.write(Create(Key(CLUSTER_PARTITION, claim_sort(0)), claim_body(claim)))
    cache_bytes = 2 * total_bytes + SLACK_BYTES
    chunks = _PacedChunkStorage(tier)
    limits = StorageLimits(flush_age_s=DEADLINE_S, flush_bytes=1 << 62, objects_in_flight_max=in_flight_max)
    store = SegmentStore(
        OneCopyLedgerStore(journal), cache_bytes, SystemClock(), metadata, chunks, container_count=1, limits=limits
    )
    await store.open_container(0, 0)
    await _fill(store.owned[0].container, store.pool, total_bytes)
    started_s = time.perf_counter()
    chunks.opened.set()
    await store.close(DEADLINE_S)
    seconds = time.perf_counter() - started_s
    await asyncio.to_thread(journal.close)
    disk.close()
    return total_bytes / seconds / 1e6


async def _fill(container: SegmentContainer, pool: BlockPool, total_bytes: int) -> None:
    await container.create(SEGMENT, ())
    segment = await container.existing(SEGMENT)
    data = memoryview(secrets.token_bytes(APPEND_BYTES))
    for number in range(total_bytes // APPEND_BYTES):
        reservation = pool.reserve(APPEND_BYTES)
        if reservation is None:
            raise AssertionError("the cache is too small for this benchmark")
        reservation.fill([data])
        previous = segment.attribute(WRITER)
        container.append(segment, WRITER, previous, number + 1, 1, reservation, _unwatched)
        if number % 8 == 0:
            await container.log.durable()
    await container.log.durable()


def _unwatched(_error: HeadraceError | None) -> None:
    """`durable` waits for all of them."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiering", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds to take medians of")
    parser.add_argument("--mib", type=int, default=512, help="bytes of the segment, in MiB")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for results and data")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    facts, results = machine_facts(), Results()
    several = StorageLimits().objects_in_flight_max
    for _ in range(options.rounds):
        for tier in TIERS:
            for in_flight_max in (1, several):
                with tempfile.TemporaryDirectory(dir=options.output) as directory:
                    work = flushed_mb_per_s(Path(directory), tier, in_flight_max, options.mib * BLOCK_BYTES)
                    figure = asyncio.run(work)
                puts = "one PUT at a time" if in_flight_max == 1 else f"up to {in_flight_max} PUTs"
                results.add(f"one hot segment to {tier.name}, {puts}", figure, "MB/s")
    settings = {"mib": options.mib, "rounds": options.rounds}
    written = document(results, machine=facts, versions=versions(), settings=settings)
    (options.output / "tiering.json").write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
