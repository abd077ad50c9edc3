"""`python -m benchmarks.counted_store`: a segment store whose instructions are counted, in a process of its own.

The listener, sessions, cache, container and journal are the real ones. The disk, the metadata and tier 2 cost nothing,
so that nothing else is counted. It prints `ready PORT` and ends with its input. Then it prints how many appends came,
and with how many commits they became durable.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import uvloop

from benchmarks.journal_appends import FreeDisk
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.system_clock import SystemClock
from headrace.adapters.tcp.listener import WireListener, bind_socket
from headrace.metadata.cluster_records import claim_body, claim_sort
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.ports.journal_disk import JournalDisk
from headrace.ports.metadata_store import Create, Key
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgerStore
from headrace.segmentstore.store import SegmentStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

SEGMENT = "benchmark/counted/0.#epoch.0"
LOOPBACK = "127.0.0.1"
CACHE_BYTES = 256 << 20
STOP_DEADLINE_S = 60.0


class FreeChunkStorage(MemoryChunkStorage):
    """Keeps nothing, and needs no time for it."""

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Read nothing of the parts."""


async def serve(disk: JournalDisk) -> None:
    """Serve one segment on this disk until the input ends. Metadata and tier 2 cost nothing."""
    loop = asyncio.get_running_loop()
    journal = Journal(disk, lambda: secrets.randbits(64), loop.call_soon_threadsafe)
    journal.start()
    metadata = MemoryMetadataStore()
    claim = ContainerClaim("store", LOOPBACK, 1, "local")
    metadata.write(Create(Key(CLUSTER_PARTITION, claim_sort(0)), claim_body(claim)))
    store = SegmentStore(
        OneCopyLedgerStore(journal), CACHE_BYTES, SystemClock(), metadata, FreeChunkStorage(), container_count=1
    )
    await store.open_container(0, 0)
    await store.owned[0].container.create(SEGMENT, ())
    listener = WireListener(store, lambda: secrets.randbits(128))
    bound = bind_socket(LOOPBACK, 0)
    port = bound.getsockname()[1]
    await listener.start(bound)
    gc.disable()  # the store's own collector runs by time
    print(f"ready {port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(f"appends {store.owned[0].container.metrics.appends} commits {journal.synced_commits}", flush=True)
    await listener.stop()
    await store.close(STOP_DEADLINE_S)
    await asyncio.to_thread(journal.close)


if __name__ == "__main__":
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve(FreeDisk()))
