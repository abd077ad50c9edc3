"""What outlives the processes that open ledgers, for each implementation of the ledger port."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Protocol

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import claim_key, write_claim
from headrace.metadata.container_log import ContainerLogRecords, LogWriteOutcome, StoredLog
from headrace.model.container_logs import ContainerLog
from headrace.model.containers import ContainerClaim
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.ledger import Ledger, LedgerStore
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.objects.log_object_writer import ObjectLogLimits
from headrace.segmentstore.log.objects.object_ledgers import ObjectLedgers
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgerStore

CLAIM = ContainerClaim("store-0", "localhost", 1, "local")


class LedgerWorld(Protocol):
    """Starts processes one after the other, and claims containers for them."""

    def start(self) -> LedgerStore:
        """A new process; the one before has ended without a release."""
        ...

    def claim(self, container: int) -> int:
        """The epoch of the next owner."""
        ...

    def end(self) -> None: ...


class OneCopyWorld:
    """A journal on a disk in memory."""

    def __init__(self) -> None:
        self._disk = MemoryJournalDisk()
        self._random = Random(1)
        self._journal: Journal | None = None
        self._epochs: dict[int, int] = {}

    def start(self) -> LedgerStore:
        self.end()
        call = asyncio.get_running_loop().call_soon_threadsafe
        self._journal = Journal(self._disk, lambda: self._random.getrandbits(64), call, file_bytes=4 << 20)
        self._journal.start()
        return OneCopyLedgerStore(self._journal)

    def claim(self, container: int) -> int:
        self._epochs[container] = self._epochs.get(container, 0) + 1
        return self._epochs[container]

    def end(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None


class LogRecordsInline:
    """Log records of a metadata store in memory, read and written without threads."""

    def __init__(self, store: MemoryMetadataStore) -> None:
        self._records = ContainerLogRecords(store)

    async def read(self, container: int) -> StoredLog:
        return self._records.read(container)

    async def write(self, container: int, log: ContainerLog, version: int, claim_epoch: int) -> LogWriteOutcome:
        return self._records.write(container, log, version, claim_epoch)


def claim_container(store: MemoryMetadataStore, container: int) -> int:
    """Claim the container for a new owner; returns its epoch."""
    record = store.get(claim_key(container))
    store.write(write_claim(container, CLAIM, None if record is None else record.version))
    claimed = store.get(claim_key(container))
    assert claimed is not None
    return claimed.version


class ObjectWorld:
    """Chunk storage, by default in memory, and metadata in memory."""

    limits = ObjectLogLimits(gather_s=0.0, retry_first_s=0.0, retry_most_s=0.0)

    def __init__(self, chunks: ChunkStorage | None = None) -> None:
        self.chunks = chunks or MemoryChunkStorage()
        self.metadata = MemoryMetadataStore()

    def start(self) -> LedgerStore:
        return ObjectLedgers(self.chunks, LogRecordsInline(self.metadata), Random(2).random, self.limits)

    def claim(self, container: int) -> int:
        return claim_container(self.metadata, container)

    def end(self) -> None:
        return None


class Reports:
    """The outcomes of entries, in the order in which they were reported."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, Exception | None]] = []
        self.released: list[int] = []
        self._appended = 0
        self._changed = asyncio.Event()

    def append(self, ledger: Ledger, *payloads: bytes | Sequence[bytes]) -> list[int]:
        """Append entries without waiting; returns their numbers."""
        return [self._append(ledger, payload) for payload in payloads]

    def _append(self, ledger: Ledger, payload: bytes | Sequence[bytes]) -> int:
        parts = [payload] if isinstance(payload, bytes) else payload
        numbers: list[int] = []

        def done(error: Exception | None) -> None:
            self.outcomes.append((numbers[0], error))
            self._changed.set()

        numbers.append(ledger.append(parts, done, lambda: self.released.append(numbers[0])))
        self._appended += 1
        return numbers[0]

    async def all(self) -> list[tuple[int, Exception | None]]:
        """Wait until every entry is reported."""
        while len(self.outcomes) < self._appended:
            self._changed.clear()
            await self._changed.wait()
        return self.outcomes


async def read_back(ledger: Ledger, first_entry: int = 0) -> dict[int, bytes]:
    """The entries that a recovery finds, checked to be in order and without gaps."""
    found = await asyncio.to_thread(lambda: [(each.entry, bytes(each.payload)) for each in ledger.recover(first_entry)])
    numbers = [entry for entry, _ in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else not found
    return dict(found)
