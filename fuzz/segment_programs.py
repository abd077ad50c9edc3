"""Random programs on the segments of one container, with restarts, hand-overs, failing tier 2 and a full log.

Requests run at the same time, and some are cancelled. `segment_model` says what must be there at each moment.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest import mock

from fuzz.checker import WrongStateError
from fuzz.faulty_ports import deliver_chunk
from fuzz.memory_store import MemoryWorld, RunningStore
from fuzz.program_trace import Trace
from fuzz.randomness import Random
from fuzz.segment_model import WRITER, SegmentModel, require
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptError,
    FencedError,
    HeadraceError,
    IllegalStateError,
    NotFoundError,
    SealedError,
    ThrottledError,
    TruncatedError,
    UnavailableError,
)
from headrace.model.segment_attributes import NO_VALUE
from headrace.segmentstore.containers import backfill
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.merges import merge, merge_batch
from headrace.segmentstore.owned_container import OwnedContainer
from headrace.segmentstore.tables.table import read_segment
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering import chunk_directory
from headrace.segmentstore.tiering.storage_limits import StorageLimits

STORES: Final = 3
STEPS: Final = 250
TARGETS: Final = tuple(f"scope/stream/{number}.#epoch.0" for number in range(3))
_REFUSALS: Final = (
    NotFoundError, AlreadyExistsError, SealedError, ConflictError, IllegalStateError, TruncatedError,
    ThrottledError, UnavailableError, FencedError,
)  # fmt: skip
_CHUNK_SHARE: Final = 0.15
_METADATA_SHARE: Final = 0.06
_MOVES_PER_WRITE: Final = (49, 49, 1, 3)
_SLICES_BYTES: Final = (1, 500, 1 << 20)
_PASSES_MAX: Final = 5_000


def storage_limits(random: Random) -> StorageLimits:
    """So small that a few hundred requests cause flushes, checkpoints, compactions and evictions."""
    return StorageLimits(
        flush_bytes=3_000,
        flush_age_s=5,
        object_bytes_max=random.choice((800, 3_000, 20_000)),
        objects_in_flight_max=3,
        checkpoint_every_bytes=8_000,
        retry_first_s=0.001,
        retry_max_s=0.004,
        tick_s=0.002,
        snapshot_every_s=5,
        snapshot_soon_s=1,
        sweep_every_s=50,
        object_grace_s=100,
        compaction_bytes_per_s=1 << 30,
        compacted_runs_min=3,
        idle_segment_s=20,
        idle_segments_kept=0,
    )


async def run_segment_program(seed: int, trace: Trace, *, stores: int = STORES, steps: int = STEPS) -> Counter[str]:
    """Run the program of a seed: so many stores one after the other, and so many steps in each. Counts what happened.

    Raises:
        WrongStateError: a segment is not as it must be, or the store has stopped.
    """
    random = Random(seed)
    program = SegmentProgram(
        random, trace, MemoryWorld(random, storage_limits(random), TableLimits()), SegmentModel(trace)
    )
    with small_sizes(random):
        for _ in range(stores):
            await program.run_store(steps)
    return program.model.happened


@contextmanager
def small_sizes(random: Random) -> Iterator[None]:
    """Some seeds move runs and load bytes in so small steps that a few of them need several."""
    with ExitStack() as patches:
        moves, slice_bytes = random.choice(_MOVES_PER_WRITE), random.choice(_SLICES_BYTES)
        patches.enter_context(mock.patch.object(chunk_directory, "MOVES_PER_WRITE_MAX", moves))
        patches.enter_context(mock.patch.object(chunk_directory, "LINKED_MOVES_PER_WRITE_MAX", moves))
        patches.enter_context(mock.patch.object(backfill, "SLICE_BYTES", slice_bytes))
        yield


class SegmentProgram:
    """Requests to one store after the other, all in the same world."""

    def __init__(self, random: Random, trace: Trace, world: MemoryWorld, model: SegmentModel) -> None:
        self.model = model
        self._random = random
        self._trace = trace
        self._world = world
        faults = self._world.faults
        faults.chunk_share, faults.metadata_share = _CHUNK_SHARE, _METADATA_SHARE
        faults.turns_max = random.choice((4, 60))
        self._numbers = 0
        self._requests: list[asyncio.Future[None]] = []
        self._hand_over: asyncio.Future[bool] | None = None
        self._choices: dict[Callable[[OwnedContainer, str], Awaitable[None]], float] = {
            self._append: 0.45,
            self._create: 0.10,
            self._merge: 0.15,
            self._truncate: 0.06,
            self._delete: 0.015,
            self._seal: 0.005,
            self._read: 0.22,
        }

    async def run_store(self, steps: int) -> None:
        """One store process, from its start to its end."""
        running = self._world.start()
        is_killed = False
        try:
            await self._open(running)
            for step in range(steps):
                await self._step(running, step)
            is_killed = await self._end(running)
        finally:
            self._world.faults.is_calm, self._world.faults.log_is_full = True, False
            await (running.kill() if is_killed else running.close())
            await self._end_requests()

    async def _end(self, running: RunningStore) -> bool:
        """Come to the end of a store. Returns whether it is to be killed."""
        if self._random.random() < 0.3:
            self._trace.note("kill the store")
            return True
        await self._settle(running)
        return False

    async def _open(self, running: RunningStore) -> None:
        faults = self._world.faults
        owned = await running.open()
        calm, faults.is_calm = faults.is_calm, True
        full, faults.log_is_full = faults.log_is_full, False
        running.store.tick_rates()
        await self._check_opened(owned)
        self.model.follow(owned.container)
        faults.is_calm, faults.log_is_full = calm, full
        self.model.happened["opened"] += 1

    async def _check_opened(self, owned: OwnedContainer) -> None:
        await self.model.check_recovered(owned.container)

    async def _step(self, running: RunningStore, step: int) -> None:
        random, world = self._random, self._world
        if step % 10 == 0:
            world.faults.is_calm = random.random() < 0.5
        if step % 7 == 0:
            world.faults.log_is_full = random.random() < 0.15
        self._requests.append(asyncio.ensure_future(self._request(running)))
        if random.random() < 0.1:
            world.advance(random.choice((0.5, 2, 6)))
        if random.random() < 0.02:
            world.advance(25)
        running.store.tick_rates()
        if random.random() < 0.1:
            random.choice(self._requests).cancel()
        if random.random() < 0.01 and running.owned is not None:
            self._trace.note("fail the container")
            running.fail_container()
        await self._move(running)
        if random.random() < 0.1:
            await deliver_chunk(world.faults, world.chunks)
        for _ in range(random.randrange(1, 6)):
            await asyncio.sleep(0)
        if random.random() < 0.3:
            await asyncio.sleep(0.002)
        self._collect()
        self._check(running)

    async def _move(self, running: RunningStore) -> None:
        """Hand the container over sometimes, and open it again once it is free."""
        random = self._random
        if self._hand_over is None and running.owned is not None and random.random() < 0.03:
            self._world.faults.log_is_full = False
            deadline_s = random.choice((0.0, 0.003, 0.01, 0.03, 5.0))
            self._trace.note(f"hand over within {deadline_s} s")
            self._hand_over = asyncio.ensure_future(running.store.hand_over(0, deadline_s))
        if self._hand_over is not None and self._hand_over.done():
            is_clean, self._hand_over = self._hand_over.result(), None
            outcome = "handed over" if is_clean else "lost in a hand-over" if running.owned is None else "stayed"
            self._trace.note(outcome)
            self.model.happened[outcome] += 1
        if self._hand_over is None and running.owned is None:
            await self._open(running)

    def _collect(self) -> None:
        """Raise the error of a request that failed as none may."""
        for request in self._requests:
            if request.done() and not request.cancelled() and (error := request.exception()) is not None:
                raise error
        self._requests = [request for request in self._requests if not request.done()]

    def _check(self, running: RunningStore) -> None:
        running.check_failures()
        if running.owned is None:
            return
        container = running.owned.container
        for segment in container.metadata.segments.values():
            require("the invariants of", segment.name, None, segment.broken_invariant)
            is_told = segment.is_stored and segment.tiered.trimmed_offset >= segment.accepted.start_offset
            if not is_told and segment.number not in container.dirty:
                raise WrongStateError(f"{segment.name} has bytes that tier 2 lacks, and is not marked for a flush")

    async def _settle(self, running: RunningStore) -> None:
        """Without faults all requests end, everything can be read, and in the end tier 2 has it."""
        faults = self._world.faults
        if self._hand_over is not None:
            await self._hand_over
            self._hand_over = None
        if running.owned is None:
            await self._open(running)
        faults.is_calm, faults.log_is_full = True, False
        running.store.tick_rates()
        owned = running.owned
        assert owned is not None
        await self._pass_time(owned, lambda: all(each.done() for each in self._requests), "requests do not end")
        self._collect()
        await owned.container.log.durable()
        for name in list(self.model.live):
            await self._read_bytes(owned, name, None)
        if self._random.random() < 0.4:
            container = owned.container
            await self._pass_time(
                owned,
                lambda: not container.dirty and not container.metadata.deletions,
                "tier 2 does not get everything",
            )
            require("bytes that tier 2 lacks in", "the cache", 0, running.store.pool.untiered_bytes)
            self.model.happened["flushed"] += 1
        self._check(running)

    async def _pass_time(self, owned: OwnedContainer, is_done: Callable[[], bool], problem: str) -> None:
        for _ in range(_PASSES_MAX):
            if is_done():
                return
            self._world.advance(1)
            owned.writer.wake()
            await asyncio.sleep(0.002)
        raise WrongStateError(f"{problem}: dirty {owned.container.dirty}, deleted {owned.container.metadata.deletions}")

    async def _end_requests(self) -> None:
        left = [*self._requests, *((self._hand_over,) if self._hand_over is not None else ())]
        for request in left:
            request.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._requests, self._hand_over = [], None

    # Requests

    async def _request(self, running: RunningStore) -> None:
        owned = running.owned
        if owned is None:
            return
        (choice,) = self._random.choices(list(self._choices), list(self._choices.values()))
        try:
            await choice(owned, self._random.choice(TARGETS))
        except _REFUSALS as error:
            self.model.happened[f"refused: {type(error).__name__}"] += 1

    async def _append(self, owned: OwnedContainer, name: str) -> None:
        random, container = self._random, owned.container
        others = [each for each in self.model.live if each not in TARGETS]
        if others and random.random() < 0.4:
            name = random.choice(others)
        segment = await container.find(name)
        if segment is None:
            if name in TARGETS:
                await container.create(name, ())
            return
        length = random.choice((1, 10, 100, 700))
        data = container.pool.reserve(length)
        if data is None:
            return
        self._numbers += 1
        payload = (b"%08d" % self._numbers * (length // 8 + 1))[:length]
        data.fill([memoryview(payload)])
        previous = segment.attribute(WRITER)
        model = self.model.live.get(segment.name)
        end = len(model.data) + length if model is not None else 0
        expected = end - length + random.choice((0, 0, 1)) if model is not None and random.random() < 0.2 else None
        self.model.appended = payload

        def done(error: HeadraceError | None) -> None:
            if error is None and model is not None:
                model.note_durable(end)

        number = 1 if previous == NO_VALUE else previous + 1
        try:
            container.append(segment, WRITER, previous, number, 1, data, done, expected_offset=expected)
        except HeadraceError:
            container.pool.release(data)
            raise
        self.model.happened["append"] += 1
        if expected not in (None, end - length):
            raise WrongStateError(f"{name}: an append at {expected} was accepted at {end - length}")

    async def _create(self, owned: OwnedContainer, name: str) -> None:
        self._numbers += 1
        is_transaction = self._random.random() < 0.7
        await owned.container.create(f"{name}#transaction.{self._numbers:032x}" if is_transaction else name, ())

    async def _merge(self, owned: OwnedContainer, name: str) -> None:
        random, container = self._random, owned.container
        sources = [each for each in self.model.live if each != name and (each not in TARGETS or random.random() < 0.2)]
        if random.random() < 0.1 and self.model.live:
            name = random.choice(list(self.model.live))
        if not sources:
            return
        random.shuffle(sources)
        if random.random() < 0.5:
            await merge(container, name, sources[0])
        else:
            await merge_batch(container, name, sources[:3])

    async def _truncate(self, owned: OwnedContainer, name: str) -> None:
        model = self.model.live.get(name)
        if model is not None:
            await owned.container.truncate(name, self._random.randrange(len(model.data) + 2))

    async def _delete(self, owned: OwnedContainer, name: str) -> None:
        await owned.container.delete(self._random.choice(list(self.model.live) or [name]))

    async def _seal(self, owned: OwnedContainer, name: str) -> None:
        await owned.container.seal(name)

    async def _read(self, owned: OwnedContainer, name: str) -> None:
        await self._read_bytes(owned, name, self._random.randrange(1, 400))

    async def _read_bytes(self, owned: OwnedContainer, name: str, length: int | None) -> None:
        """Read so many bytes from anywhere, or everything, and compare them."""
        container: SegmentContainer = owned.container
        segment = await container.find(name)
        model = self.model.live.get(name)
        if segment is None or model is None:
            return
        await owned.backfill.wait()
        if container.failure is not None:
            return  # its memory is released
        first, end = segment.accepted.start_offset, segment.durable.length
        if first >= end:
            return
        if length is not None:
            first = self._random.randrange(first, end)
            end = min(end, first + length)
        try:
            found = await read_segment(segment, owned.reader, first, end - first)
        except (NotFoundError, CorruptError) as error:
            if segment.accepted.removed or first < segment.accepted.start_offset or container.failure is not None:
                return
            raise WrongStateError(f"{name}: bytes from {first} to {end} cannot be read: {error}") from error
        if not segment.accepted.removed and container.failure is None:
            require(f"the bytes from {first} to {end} of", name, bytes(model.data[first:end]), found)
