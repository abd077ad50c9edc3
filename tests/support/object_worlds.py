"""Ledgers as objects in S3 whose PUTs fail, come late or lose their answers, and the records that belong to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from ledger_worlds import LogRecordsInline, claim_container
from unreliable_chunks import Fate, UnreliableChunks

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.codec.log_objects import container_log_prefix
from headrace.model.container_logs import ContainerLog
from headrace.segmentstore.log.objects.log_object_writer import ObjectLogLimits
from headrace.segmentstore.log.objects.object_ledgers import ObjectLedger, ObjectLedgers

CONTAINER = 9
LIMITS = ObjectLogLimits(gather_s=0.0, retry_first_s=0.0, retry_most_s=0.0)


class World:
    """Chunk storage whose PUTs have the fates that a test puts into `fates`, and the records of logs and claims."""

    def __init__(self, limits: ObjectLogLimits = LIMITS) -> None:
        self.fates: list[Fate] = []
        self.chunks = UnreliableChunks(lambda _name: self.fates.pop(0) if self.fates else Fate.DONE)
        self.metadata = MemoryMetadataStore()
        self.records = LogRecordsInline(self.metadata)
        self.limits = limits

    def start(self) -> ObjectLedgers:
        return ObjectLedgers(self.chunks, self.records, Random(3).random, self.limits)

    async def open(self) -> ObjectLedger:
        """A new process takes the container over."""
        return await self.start().open(CONTAINER, claim_container(self.metadata, CONTAINER))

    async def log(self) -> ContainerLog:
        log = (await self.records.read(CONTAINER)).log
        assert log is not None
        return log

    async def names(self) -> list[str]:
        """The objects of the log, as epoch-sequence; a tombstone has a cross."""
        found = await self.chunks.names(container_log_prefix(CONTAINER))
        short = {name.rpartition("/")[2]: length for name, length in found.items()}
        return [
            "-".join(str(int(number)) for number in name.split("-")) + ("" if length else "x")
            for name, length in short.items()
        ]


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def failures(outcomes: Sequence[tuple[int, Exception | None]]) -> list[type[BaseException] | None]:
    return [None if error is None else type(error) for _, error in outcomes]
