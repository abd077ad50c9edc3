"""How long a container takes to come back from its log: one process, a journal on disk, nothing else around it."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.touched_pool import touched_pool
from headrace.adapters.disk import DiskJournalDisk
from headrace.adapters.system_clock import SystemClock
from headrace.codec import data_frames
from headrace.codec.data_frames import CreateOperation, Operation, StoredOperation
from headrace.model.errors import HeadraceError
from headrace.segmentstore.cache.block_pool import BLOCK_BYTES
from headrace.segmentstore.containers.operation_log import OperationLog, OrderingClock
from headrace.segmentstore.containers.recovery import Recovery
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers

CONTAINER = 0
NUMBER = 1
FLUSH_EVERY_BYTES = 8 * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Recovered:
    """`scan_s` is the journal's part, for all containers; `replay_s` the container's until it takes appends; `load_s`
    from then on until everything can be read. Bytes are those of the log, and those of them that came into the cache
    because tier 2 did not have them."""

    scan_s: float
    replay_s: float
    load_s: float
    log_bytes: int
    loaded_bytes: int

    @property
    def seconds(self) -> float:
        return self.until_appends_s + self.load_s

    @property
    def until_appends_s(self) -> float:
        return self.scan_s + self.replay_s


def recover(directory: Path, log_bytes: int, append_bytes: int, stored_share: float) -> Recovered:
    """Write a log of `append_bytes` per append into the empty `directory`, then bring it back.

    Tier 2 has `stored_share` of it, but the log was not truncated yet.
    """
    asyncio.run(_write(directory, log_bytes // append_bytes, append_bytes, stored_share))
    return asyncio.run(_bring_back(directory, log_bytes))


async def _write(directory: Path, appends: int, append_bytes: int, stored_share: float) -> None:
    disk, journal = _open(directory)
    log = OperationLog(OneCopyLedgers(journal).open(CONTAINER, 0), OrderingClock(SystemClock()))
    _log(log, CreateOperation(NUMBER, "benchmark/recovery/0.#epoch.0", (), 0))
    data = memoryview(secrets.token_bytes(append_bytes))
    for number in range(appends):
        fields = data_frames.append_fields(NUMBER, number * append_bytes, 1, number, 1, 0)
        log.append([fields, data], _unwatched)
        if number * append_bytes % FLUSH_EVERY_BYTES < append_bytes:
            await log.durable()
    _log(log, StoredOperation(((NUMBER, int(appends * stored_share) * append_bytes),)))
    await log.durable()
    log.close()
    await asyncio.to_thread(journal.close)
    disk.close()


async def _bring_back(directory: Path, log_bytes: int) -> Recovered:
    pool = touched_pool(log_bytes + 2 * BLOCK_BYTES)
    started_s = time.perf_counter()
    disk, journal = _open(directory)
    scanned_s = time.perf_counter()
    ledger = OneCopyLedgers(journal).open(CONTAINER, 1)
    recovery = Recovery(CONTAINER, pool, SystemClock())
    load = await recovery.run(ledger)
    replayed_s = time.perf_counter()
    await load.load()
    ended_s = time.perf_counter()
    await asyncio.to_thread(journal.close)
    disk.close()
    return Recovered(
        scanned_s - started_s, replayed_s - scanned_s, ended_s - replayed_s, ledger.held_bytes, load.loaded_bytes
    )


def _open(directory: Path) -> tuple[DiskJournalDisk, Journal]:
    disk = DiskJournalDisk(directory)
    journal = Journal(disk, lambda: secrets.randbits(64), asyncio.get_running_loop().call_soon_threadsafe)
    journal.start()
    return disk, journal


def _log(log: OperationLog, operation: Operation) -> None:
    log.append(data_frames.encode_operation(operation), _unwatched)


def _unwatched(_error: HeadraceError | None) -> None:
    """`durable` waits for all of them."""
