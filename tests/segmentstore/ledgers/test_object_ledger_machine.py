"""Object ledgers of several owners at once, under faults of chunk storage: what was acknowledged is in every recovery.

One loop runs everything, so a seed decides every interleaving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from ledger_worlds import LogRecordsInline, claim_container
from unreliable_chunks import Fate, UnreliableChunks

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.model.errors import FencedError, HeadraceError, ThrottledError, UnavailableError
from headrace.segmentstore.log.objects.log_object_chain import LogObjectReader
from headrace.segmentstore.log.objects.log_object_writer import ObjectLogLimits
from headrace.segmentstore.log.objects.object_ledgers import ObjectLedger, ObjectLedgers

pytestmark = pytest.mark.anyio

CONTAINER = 0
LIMITS = ObjectLogLimits(gather_s=0.0, object_bytes=400, puts_in_flight=3, retry_first_s=0.0, retry_most_s=0.0)
FATES = [Fate.ANSWER_LOST, Fate.CONFLICT, Fate.UNAVAILABLE, Fate.LATE]
STEPS = 60


@dataclass
class Owner:
    """A process that has opened the log once, and may have been taken over since."""

    store: ObjectLedgers
    epoch: int
    ledger: ObjectLedger
    acknowledged: int = 0


@dataclass
class Machine:
    """`log` has the entries of the newest recovery and what was acknowledged since."""

    random: Random
    metadata: MemoryMetadataStore = field(default_factory=MemoryMetadataStore)
    owners: list[Owner] = field(default_factory=list)
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    truncated_before: int = 0
    newest: int = -1
    recovered: dict[int, bytes] = field(default_factory=dict)
    faults: float = 0.25
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        random = self.random
        self.chunks = UnreliableChunks(
            lambda _name: random.choice(FATES) if random.random() < self.faults else Fate.DONE,
            lambda: random.random() < self.faults / 4,
            lambda: random.choice([0, 0, 1, 3, 12]),
        )

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)

    async def take_over(self) -> None:
        """A new process claims the container and opens its log, with a few attempts."""
        epoch = claim_container(self.metadata, CONTAINER)
        store = ObjectLedgers(self.chunks, LogRecordsInline(self.metadata), self.random.random, LIMITS)
        for _ in range(20):
            try:
                ledger = await store.open(CONTAINER, epoch)
                reader = LogObjectReader(self.chunks, CONTAINER)
                await self._note_opened(store, epoch, ledger, reader)
            except FencedError:
                return
            except (ThrottledError, UnavailableError):
                await store.release(CONTAINER)
            else:
                return

    async def _note_opened(
        self, store: ObjectLedgers, epoch: int, ledger: ObjectLedger, reader: LogObjectReader
    ) -> None:
        # From here on nothing of an older owner may be acknowledged that is not in this log.
        truncated_before, acknowledged = self.truncated_before, dict(self.acknowledged)
        payloads: dict[int, bytes] = {}
        for each in ledger.found_objects:
            for entry, payload in reader.decode(each, await self._fetch(reader, each), 0):
                assert entry not in payloads
                payloads[entry] = bytes(payload)
        assert list(payloads) == sorted(payloads)
        if epoch > self.newest:
            for entry, payload in acknowledged.items():
                if entry >= truncated_before:
                    assert payloads.get(entry) == payload, f"epoch {epoch} has not found the acknowledged entry {entry}"
            for entry, payload in payloads.items():
                assert acknowledged.get(entry, payload) == payload
            self.newest, self.recovered = epoch, payloads
        self.owners.append(Owner(store, epoch, ledger))

    async def _fetch(self, reader: LogObjectReader, each: Any) -> bytes:
        """Read at once: the test must not wait while it looks."""
        faults, self.faults = self.faults, 0.0
        turns, self.chunks.turns = self.chunks.turns, lambda: 0
        try:
            return await reader.fetch(each)
        finally:
            self.faults, self.chunks.turns = faults, turns

    def append(self, owner: Owner) -> None:
        for _ in range(self.random.randint(1, 6)):
            payload = b"%d:%d:" % (owner.epoch, owner.ledger.next_entry) + bytes(self.random.randint(0, 200))
            number = owner.ledger.next_entry

            def done(error: Exception | None, number: int = number, payload: bytes = payload) -> None:
                if error is None:
                    self.note_acknowledged(owner, number, payload)

            try:
                assert owner.ledger.append([payload], done) == number
            except HeadraceError:
                return

    def note_acknowledged(self, owner: Owner, number: int, payload: bytes) -> None:
        assert self.acknowledged.setdefault(number, payload) == payload
        owner.acknowledged = number + 1
        if owner.epoch < self.newest and number >= self.truncated_before:
            assert self.recovered.get(number) == payload, f"epoch {owner.epoch} acknowledged {number} after its end"

    def truncate(self, owner: Owner) -> None:
        before = self.random.randint(0, owner.acknowledged)
        try:
            owner.ledger.truncate(before)
        except HeadraceError:
            return
        self.truncated_before = max(self.truncated_before, before)

    async def release(self, owner: Owner) -> None:
        """Release and open again with the same epoch, as a store does after a failed step."""
        await owner.store.release(CONTAINER)
        try:
            ledger = await owner.store.open(CONTAINER, owner.epoch)
        except (FencedError, ThrottledError, UnavailableError):
            return
        self.owners.append(Owner(owner.store, owner.epoch, ledger, owner.acknowledged))

    async def forget(self, owner: Owner) -> None:
        """A shutdown after which tier 2 has everything that this owner has acknowledged."""
        await owner.store.release(CONTAINER)
        if owner.epoch >= self.newest:
            self.truncated_before = max(self.truncated_before, owner.ledger.next_entry)
        await owner.store.forget(CONTAINER)

    async def step(self) -> None:
        random = self.random
        owner = random.choice(self.owners) if self.owners else None
        draw = random.random()
        if owner is None or draw < 0.08:
            self.background(self.take_over())
        elif draw < 0.6:
            self.append(owner)
        elif draw < 0.75:
            self.truncate(owner)
        elif draw < 0.9:
            await self.chunks.deliver(random)
        elif draw < 0.93:
            self.owners.remove(owner)
            self.background(self.release(owner))
        elif draw < 0.94:
            self.owners.remove(owner)
            self.background(self.forget(owner))
        for _ in range(random.choice([0, 1, 1, 5, 40])):
            await asyncio.sleep(0)

    async def run(self) -> None:
        await self.take_over()
        for _ in range(STEPS):
            await self.step()
        await asyncio.gather(*self.tasks)
        self.faults = 0.0
        while self.chunks.late:
            await self.chunks.deliver(self.random)
        await self.take_over()
        await asyncio.gather(*(each.store.release(CONTAINER) for each in self.owners))


@pytest.mark.parametrize("seed", range(60))
async def test_acknowledged_entries_are_in_every_recovery(seed: int):
    machine = Machine(Random(seed))
    await machine.run()
    assert machine.acknowledged
