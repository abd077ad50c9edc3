"""Random programs on tables: clients with models, evictions, hand-overs, restarts, failing tier 2."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.connections import MemoryConnection
from fuzz.faulty_ports import deliver_chunk
from fuzz.memory_store import CONTAINER, MemoryWorld, RunningStore
from fuzz.program_trace import Trace
from fuzz.randomness import Random
from fuzz.table_model import TableClient, TableRemover
from headrace import wire
from headrace.segmentstore.owned_container import OwnedContainer
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering.storage_limits import StorageLimits

CLIENTS: Final = 4
REMOVERS: Final = 2
STEPS: Final = 100
_TABLE: Final = "scope/_tables/0.#epoch.0"
_LIMITS: Final = StorageLimits(
    flush_bytes=20_000,
    flush_age_s=0.02,
    tick_s=0.002,
    retry_first_s=0.001,
    retry_max_s=0.004,
    snapshot_every_s=1.0,
    idle_segment_s=0.02,
    idle_segments_kept=0,
)
_CHUNK_SHARES: Final = (0.0, 0.01, 0.03)
_METADATA_SHARES: Final = (0.0, 0.01, 0.05)
_SLOW_SHARES: Final = (0.0, 0.2, 0.5)
_PAUSES_S: Final = (0.0, 0.0005, 0.001, 0.003, 0.01)
_DEADLINES_S: Final = (0.0, 0.003, 0.02, 5.0)


def table_limits(random: Random) -> TableLimits:
    """So small that a few hundred keys outgrow memory."""
    return TableLimits(
        tail_memory_bytes=20_000,
        replay_segment_bytes=64 << 10,
        all_tails_memory_bytes=random.choice((20_000, 200_000)),
        cached_blocks_bytes=random.choice((600, 8 << 10)),
        index_block_bytes=512,
        index_object_bytes=4 << 10,
        compaction_segment_bytes=16 << 10,
        retry_first_s=0.001,
        retry_max_s=0.004,
    )


async def run_table_program(seed: int, trace: Trace, *, steps: int = STEPS) -> Counter[str]:
    """Run the program of a seed, with so many steps of each client. Counts what happened.

    Raises:
        WrongStateError: a table is not as it must be, or the store has stopped.
    """
    return await _TableProgram(Random(seed), trace).run(steps)


class _TableProgram:
    """`table_model.TableStore`, and what happens to the store under its clients."""

    def __init__(self, random: Random, trace: Trace) -> None:
        self.interruptions = 0
        self.happened: Counter[str] = Counter()
        self._random = random
        self._trace = trace
        self._world = MemoryWorld(random, _LIMITS, table_limits(random))
        faults = self._world.faults
        faults.chunk_share, faults.metadata_share = random.choice(_CHUNK_SHARES), random.choice(_METADATA_SHARES)
        faults.slow_share, faults.turns_max = random.choice(_SLOW_SHARES), 4
        self._running: RunningStore | None = None
        self._served = asyncio.Event()
        clients: list[TableClient] = [
            TableClient(self, number, _TABLE, self._new_random(), trace) for number in range(CLIENTS)
        ]
        removers = [TableRemover(self, 10 + number, self._new_random(), trace) for number in range(REMOVERS)]
        self._clients = [*clients, *removers]

    async def connect(self) -> MemoryConnection:
        await self._served.wait()
        assert self._running is not None
        return self._running.connect()

    async def run(self, steps: int) -> Counter[str]:
        await self._start()
        pacing = asyncio.ensure_future(self._pass_time())
        try:
            reply = await self._clients[0].ask_until_answered(wire.CreateTableSegment(1, _TABLE))
            if not isinstance(reply, wire.SegmentCreated):
                raise WrongStateError(f"the table was not created: {reply}")
            await self._live(steps)
            await self._end_trouble()
            for client in self._clients:
                await client.check_all()
        finally:
            self._world.faults.is_calm = True
            pacing.cancel()
            if self._running is not None:
                await self._running.close()
        return self.happened

    async def _live(self, steps: int) -> None:
        """Let all clients take their steps, with trouble until the last one has ended."""
        clients = [asyncio.ensure_future(self._take_steps(client, steps)) for client in self._clients]
        trouble = asyncio.ensure_future(self._trouble(lambda: all(each.done() for each in clients)))
        tasks = [*clients, trouble]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_trouble(self) -> None:
        faults, running = self._world.faults, self._running
        assert running is not None
        faults.is_calm, faults.log_is_full = True, False
        running.store.tick_rates()
        if running.owned is None:
            await self._serve(running)

    async def _take_steps(self, client: TableClient, steps: int) -> None:
        for _ in range(steps):
            await client.step()
            if self._random.random() < 0.5:  # else a table would always be in use, and never be evicted
                await asyncio.sleep(self._random.choice(_PAUSES_S))

    async def _pass_time(self) -> None:
        while True:
            self._world.advance(0.005)
            await asyncio.sleep(0.001)

    # Trouble

    async def _trouble(self, is_over: Callable[[], bool]) -> None:
        random, faults = self._random, self._world.faults
        choices: dict[Callable[[RunningStore, OwnedContainer], Awaitable[None]], float] = {
            self._evict_table: 24,
            self._evict_bytes: 10,
            self._stop_tables: 3,
            self._hand_over: 3,
            self._fail: 0.5,
            self._kill: 0.5,
            self._rest: 59,
        }
        while not is_over():
            await asyncio.sleep(random.choice(_PAUSES_S))
            if random.random() < 0.05:
                faults.is_calm, faults.log_is_full = random.random() < 0.2, random.random() < 0.1
            await deliver_chunk(faults, self._world.chunks)
            running = self._running
            assert running is not None
            running.check_failures()
            running.store.tick_rates()  # measures the log
            if running.owned is None:
                await self._serve(running)
            else:
                (choice,) = random.choices(list(choices), list(choices.values()))
                await choice(running, running.owned)

    async def _evict_table(self, running: RunningStore, _owned: OwnedContainer) -> None:
        """Evict a table that is not in use, as when the tables take too much memory."""
        name = self._random.choice(self._clients).name
        resident = running.store.table_memory.get(CONTAINER, name)
        if resident is not None and not resident.table.users:
            running.store.table_memory.drop(CONTAINER, name)
            self.happened["evicted tables"] += 1

    async def _evict_bytes(self, _running: RunningStore, owned: OwnedContainer) -> None:
        """Evict the bytes that tier 2 has, as a full cache does."""
        for segment in owned.container.metadata.segments.values():
            if not segment.untiered_bytes and segment.durable.length == segment.accepted.length:
                segment.index.release_all()

    async def _stop_tables(self, _running: RunningStore, owned: OwnedContainer) -> None:
        """Stop and resume the tables, as a hand-over does that is undone."""
        self._note("stop and resume the tables")
        if self._random.random() < 0.5:
            owned.tables.cancel()
            await asyncio.sleep(self._random.choice(_PAUSES_S))
        await owned.tables.stop()
        await asyncio.sleep(self._random.choice(_PAUSES_S))
        if owned.container.failure is None:
            owned.tables.resume()

    async def _hand_over(self, running: RunningStore, _owned: OwnedContainer) -> None:
        self.interruptions += 1
        is_clean = await running.store.hand_over(CONTAINER, self._random.choice(_DEADLINES_S))
        self.interruptions += 1
        self._note("handed over" if is_clean else "lost in a hand-over" if running.owned is None else "stayed")

    async def _fail(self, running: RunningStore, _owned: OwnedContainer) -> None:
        self._note("fail the container")
        self.interruptions += 1
        running.fail_container()

    async def _kill(self, running: RunningStore, _owned: OwnedContainer) -> None:
        self._note("kill the store")
        self.interruptions += 1
        self._served.clear()
        self._running = None
        await running.kill()
        await self._start()

    async def _rest(self, _running: RunningStore, _owned: OwnedContainer) -> None:
        """Let the clients work."""

    async def _start(self) -> None:
        self._running = self._world.start()
        await self._serve(self._running)
        self._served.set()

    async def _serve(self, running: RunningStore) -> None:
        owned = await running.open()
        self._trace.note(f"opened epoch {owned.container.epoch}")

    def _note(self, what: str) -> None:
        self._trace.note(what)
        self.happened[what] += 1

    def _new_random(self) -> Random:
        return Random(self._random.random())
