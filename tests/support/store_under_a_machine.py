"""A segment store of one container that works only when a state machine says so, on doubles of what outlives it.

The machine decides when the disk syncs, when tier 2 answers and when the storage writer works, so that operations meet
each other half-way; it starts the store again on what a power cut left of its disk, or on another disk.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from random import Random
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, rule
from store_machine_doubles import WAIT_S, Faulty, Gate, Replies

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.containers import ContainerClaim
from headrace.model.errors import UnavailableError
from headrace.segmentstore.connections.receive_memory import ReceiveMemory
from headrace.segmentstore.connections.session import Session
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgerStore
from headrace.segmentstore.store import SegmentStore
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering.storage_limits import StorageLimits
from segmentstore_fargate.registration import claim_free_container


class StoreUnderAMachine(RuleBasedStateMachine):
    """`history` is what was accepted and may be undone by a power cut: its first state is acknowledged for sure."""

    journal_file_bytes: int
    pool_bytes: int
    block_bytes: int
    limits: StorageLimits
    table_limits: TableLimits | None = None

    def __init__(self, first: Any) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.disk = MemoryJournalDisk()
        self.tier_2 = Faulty()
        self.clock = ManualClock(1_000_000)
        self.random = Random(7)
        self.history: list[Any] = [first]
        self.running: list[tuple[asyncio.Task[Any], Any]] = []
        """What is under way, and how it must end."""
        self.journal: Journal | None = None
        self.owned: Any = None
        self.sync = Gate()
        self.power_is_gone = False
        self.counter = 0

    @property
    def state(self) -> Any:
        return self.history[-1]

    def start(self) -> None:
        self.owned = None  # the one before does nothing more
        self.journal = Journal(
            self.disk,
            lambda: self.random.getrandbits(64),
            self.loop.call_soon_threadsafe,
            file_bytes=self.journal_file_bytes,
        )
        gate = self.sync = Gate()
        self.power_is_gone = False

        def before(step: str) -> None:
            if step == "sync":
                gate.pass_through()
                if self.power_is_gone:
                    raise OSError("power is gone")

        self.disk.before = before
        self.journal.start()
        self.store = SegmentStore(
            OneCopyLedgerStore(self.journal), self.pool_bytes, self.clock, self.tier_2, self.tier_2,
            container_count=1, block_bytes=self.block_bytes, limits=self.limits, table_limits=self.table_limits,
        )  # fmt: skip
        self.pool = self.store.pool
        records = ClusterRecords(self.tier_2.metadata)
        (state,) = records.containers([0])
        claim = ContainerClaim("store-0", "127.0.0.1", 1, "local")
        epoch = claim_free_container(records, state, claim, self.clock.now_ms())
        assert epoch is not None
        self.wait(self.store.open_container(0, epoch))
        self.owned = self.store.owned[0]
        self.wait(self.owned.maintenance.stop())
        self.wait(self.owned.writer.stop())  # from here on it works when the machine says so

    def start_on(self, disk: MemoryJournalDisk) -> None:
        """Again, after the end of the store before."""
        assert self.journal is not None
        self.journal.close()
        self.disk = disk
        self.start()

    def lose_power(self, seed: int) -> MemoryJournalDisk:
        """The disk as it is found then: what was in flight may be there or not."""
        survivor = self.disk.cut_power(seed)
        self.power_is_gone = True
        self.sync.open()
        return survivor

    def cancel(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Nobody is told any more how what runs has ended."""
        cancelled = [*tasks, *(task for task, _ in self.running)]
        for task in cancelled:
            task.cancel()
        if cancelled:
            self.loop.run_until_complete(asyncio.wait(cancelled, timeout=WAIT_S))
        self.running = []

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, WAIT_S))

    async def safely(self, work: Any) -> None:
        """Work that tier 2 may refuse."""
        with contextlib.suppress(UnavailableError):
            await work

    async def call(self, command: wire.WireCommand) -> Any:
        """By way of a session, as a client asks."""
        replies = Replies()
        memory = ReceiveMemory(32 << 20, 100)
        session = Session(self.store, replies, memory, "machine", lambda: self.random.getrandbits(128))
        frame = wire.encode(command)
        position = 0
        while position < len(frame):
            target = session.assembler.writable()
            count = min(len(target), len(frame) - position)
            target[:count] = frame[position : position + count]
            session.received(count)
            position += count
        while len(replies.sent) < 8 and not replies.closed:
            await asyncio.sleep(0)
        assert not replies.closed
        type_code, length = wire.decode_header(replies.sent)
        session.disconnected()
        return wire.decode(type_code, memoryview(bytes(replies.sent[8 : 8 + length])))

    def settle(self) -> None:
        """Everything that runs ends, as it should; then it is acknowledged."""
        raise AssertionError("each machine knows how its operations end")

    @rule()
    def hold_disk(self) -> None:
        if self.sync.armed:
            return
        self.settle()
        self.sync.arm()

    @rule()
    def release_disk(self) -> None:
        if not self.sync.armed:
            return
        self.sync.open()
        self.settle()

    def teardown(self) -> None:
        self.sync.open()
        if self.journal is not None:
            self.journal.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
