"""The ledgers of a process: those of its stores, and those in S3 if the deployment has containers of this class."""

from __future__ import annotations

import asyncio
import random

from headrace.metadata.container_log import ContainerLogRecords, LogWriteOutcome, StoredLog
from headrace.metadata.fixed_settings import FixedSetting, check_fixed_setting
from headrace.model.container_logs import ContainerLog
from headrace.model.log_classes import ContainerLayout
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.ledger import LedgerStore
from headrace.ports.metadata_store import MetadataStore
from headrace.segmentstore.log.composite_ledgers import CompositeLedgers
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.objects.object_ledgers import ObjectLedgers
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgerStore
from segmentstore_fargate.replication import Replication


class ThreadedLogRecords:
    """Log records for `ObjectLedgers`, which runs on the event loop: each call runs in another thread."""

    def __init__(self, store: MetadataStore) -> None:
        self._records = ContainerLogRecords(store)

    async def read(self, container: int) -> StoredLog:
        return await asyncio.to_thread(self._records.read, container)

    async def write(self, container: int, log: ContainerLog, version: int, claim_epoch: int) -> LogWriteOutcome:
        return await asyncio.to_thread(self._records.write, container, log, version, claim_epoch)


def ledgers_of(
    classes: ContainerLayout,
    journal: Journal,
    replication: Replication | None,
    log_storage: ChunkStorage | None,
    metadata_store: MetadataStore,
) -> LedgerStore:
    """The ledgers of all containers that this process may open. `log_storage` holds logs in S3, if there are any."""
    stores: LedgerStore = OneCopyLedgerStore(journal) if replication is None else replication.ledgers
    if log_storage is None:
        return stores
    s3 = ObjectLedgers(log_storage, ThreadedLogRecords(metadata_store), random.random)
    return CompositeLedgers(classes, stores, s3)


def check_containers(store: MetadataStore, classes: ContainerLayout) -> None:
    """Check both numbers of containers against the recorded ones; raises as `check_fixed_setting` does."""
    check_fixed_setting(store, FixedSetting.CONTAINERS, classes.store_containers)
    check_fixed_setting(store, FixedSetting.S3_CONTAINERS, classes.s3_containers)
