"""Random histories of one container against a simple model: operations, flush rounds, evictions, faults, held writes,
power cuts.

What a power cut leaves must be the state after some prefix of what was accepted, and never less than what was
acknowledged.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from object_counts import assert_counts_agree, counts_of
from segment_operations import ATTRIBUTE, NAMES, WRITERS, SegmentOperations, names
from store_machine_doubles import WAIT_S, Modelled

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.model.chunks import chunk_partition, chunk_run, is_link
from headrace.segmentstore.containers import operation_log
from headrace.segmentstore.tiering import chunk_directory
from headrace.segmentstore.tiering.storage_limits import StorageLimits

LIMITS = StorageLimits(
    flush_age_s=5.0, flush_bytes=1 << 40, object_bytes_max=1500, checkpoint_every_bytes=6000, compacted_runs_min=2,
    idle_segment_s=2.0, idle_segments_kept=0,
)  # fmt: skip
FAULTS = ["none", "put refused", "put answer lost", "write refused", "write answer lost", "query refused"]


class StoreMachine(SegmentOperations):
    """What the world around does to the store, and what must hold all the time."""

    journal_file_bytes = 16 << 10
    pool_bytes = 16 << 10
    block_bytes = 2 << 10
    limits = LIMITS

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(operation_log, "FRAME_BYTES_MAX", 900)  # operations are split, and torn in between
        self.patch.setattr(chunk_directory, "MOVES_PER_WRITE_MAX", 1)  # some merges take several transactions
        self.patch.setattr(chunk_directory, "LINKED_MOVES_PER_WRITE_MAX", 1)
        self.maintenance: asyncio.Task[None] | None = None

    def start(self) -> None:
        super().start()
        del self.owned.maintenance._tasks[2:]  # evictions have a rule of their own

    @initialize(sizes=st.dictionaries(names, st.lists(st.integers(1, 900), max_size=3)), flushes=st.integers(0, 2))
    def begin(self, sizes: dict[str, list[int]], flushes: int) -> None:
        """Some segments are there, with appends of these sizes."""
        self.start()
        for name in sorted(sizes):
            self.create(name)
            for size in sizes[name]:
                self.append(name, WRITERS[0], size, "a")
        self.flush("none", 10, flushes)

    @rule(
        chain=st.permutations(NAMES),
        runs=st.integers(1, 3),
        first=st.sampled_from(FAULTS),
        second=st.sampled_from(FAULTS),
    )
    def merge_on(self, chain: list[str], runs: int, first: str, second: str) -> None:
        """Bytes of tier 2 go from segment to segment, and nobody may know how far the last round brought them."""
        if self.sync.armed or self.writer_pass is not None:
            return
        for name in chain[:3]:
            if name in self.state:
                self.delete(name)
            self.create(name)
        for _ in range(runs):
            self.append(chain[0], WRITERS[0], 100, "a")
            self.flush("none", 10, 1)
        self.merge(chain[1], chain[0], True)
        self.flush(first, 10, 1)
        self.merge(chain[2], chain[1], True)
        self.flush(second, 10, 1)
        if chain[3] in self.state:
            self.merge(chain[3], chain[2], True)

    # Tier 2

    @rule(fault=st.sampled_from(FAULTS), seconds=st.sampled_from([1, 10]), times=st.integers(1, 4))
    def flush(self, fault: str, seconds: int, times: int) -> None:
        if self.writer_pass is not None:
            return
        self.clock.advance(seconds * 1000)
        self.tier_2.fault = fault
        for _ in range(times):
            self.wait(self.safe_pass())
        self.tier_2.fault = "none"

    @rule(fault=st.sampled_from(["none", "none", "write refused", "write answer lost"]), flushes=st.integers(0, 3))
    def evict(self, fault: str, flushes: int) -> None:
        """Whatever tier 2 has as a whole leaves memory."""
        if self.writer_pass is not None or self.sync.armed:
            return
        self.flush("none", 10, flushes)
        self.clock.advance(3_000)
        self.tier_2.fault = fault
        self.wait(self.safe_pass(evicts=True))
        self.tier_2.fault = "none"

    @rule(arrived=st.booleans(), lost=st.booleans(), evicts=st.booleans())
    def hold_directory(self, arrived: bool, lost: bool, evicts: bool) -> None:
        """A round gets stuck in its next write of the directory or of records, if it has any to do."""
        if self.writer_pass is not None or (evicts and self.sync.armed):
            return
        gate = self.tier_2.after_write if arrived else self.tier_2.before_write
        gate.arm()
        self.clock.advance(10_000)
        self.writer_pass = self.loop.create_task(self.safe_pass(evicts=evicts))
        while not self.writer_pass.done() and not gate.reached.is_set():
            self.wait(asyncio.sleep(0.0002))
        if lost:
            self.tier_2.fault = "write answer lost"
        if self.writer_pass.done():
            self.go_on()

    @rule()
    def go_on(self) -> None:
        if self.writer_pass is None:
            return
        writer_pass = self.writer_pass
        self.tier_2.before_write.open()
        self.tier_2.after_write.open()
        assert writer_pass is not None
        self.wait(writer_pass)
        self.writer_pass = None
        if self.maintenance is not None:
            self.wait(self.maintenance)
            self.maintenance = None
        self.tier_2.fault = "none"

    @rule(name=names, times=st.integers(1, 4))
    def get_small_runs(self, name: str, times: int) -> None:
        if self.sync.armed or self.writer_pass is not None:
            return
        if name not in self.state:
            self.create(name)
        for _ in range(times):
            self.append(name, WRITERS[0], 100, "a")
            self.flush("none", 10, 1)

    @rule(fault=st.sampled_from(FAULTS), collects=st.booleans())
    def do_maintenance(self, fault: str, collects: bool) -> None:
        """Compaction, and a sweep if it is time; they may meet a write of the directory that is held back."""
        self.clock.advance(int(LIMITS.sweep_every_s * 1000) if collects else 1000)
        _, compactor = self.owned.maintenance._tasks
        for name in NAMES:
            compactor._small_runs.look_again(name)  # type: ignore[attr-defined]
        if self.writer_pass is None:
            self.tier_2.fault = fault
            self.wait(self.safely(self.owned.maintenance.run_pass()))
            self.tier_2.fault = "none"
        elif self.maintenance is None:
            self.maintenance = self.loop.create_task(self.safely(self.owned.maintenance.run_pass()))
            self.turn()

    # Tier 1

    @rule(seed=st.integers(0, 1 << 16))
    def cut_power(self, seed: int) -> None:
        """What was in flight may be there or not; a write of the directory that is under way arrives or not."""
        survivor = self.lose_power(seed)
        if self.writer_pass is not None:
            self.go_on()
        self.cancel([])
        self.start_on(survivor)
        self._find_out()

    def _find_out(self) -> None:
        """The state after the restart is one of those that were possible."""
        for name in NAMES:
            self.wait(self.owned.container.find(name))
        found = {
            name: (state.length, state.start_offset, state.sealed, segment.attribute(ATTRIBUTE))
            for name, segment in self.owned.container.metadata.segments.items()
            for state in [segment.accepted]
        }
        possible = [state for state in self.history if found == {n: _shape(s) for n, s in state.items()}]
        assert possible, (found, self.history)
        self.history = [possible[-1]]
        self.read_everything()

    @rule(lost=st.booleans())
    def restart(self, lost: bool) -> None:
        """In good order: then memory is empty, and tier 2 has everything, with the volume and without."""
        if self.sync.armed or self.writer_pass is not None:
            return
        self.wait(self._close())
        before = self.pool
        self.start_on(MemoryJournalDisk() if lost else self.disk)
        assert before.untiered_bytes == 0
        assert not self.pool.untiered_bytes
        self._find_out()

    async def _close(self) -> None:
        self.owned.writer.start()
        await self.store.close(WAIT_S)

    # What must hold

    @rule()
    def read_everything(self) -> None:
        if self.sync.armed:
            return
        for name, segment in self.state.items():
            assert self.read(name, segment.start, len(segment.data)) == segment.data[segment.start :], name

    def read(self, name: str, offset: int, end: int) -> bytes:
        """By way of a session, as a client reads."""
        data = bytearray()
        while offset + len(data) < end:
            reply = self.wait(self.call(wire.ReadSegment(name, offset + len(data), 900, "", 3)))
            assert isinstance(reply, wire.SegmentRead), reply
            assert len(reply.data)
            data += reply.data
        return bytes(data)

    @invariant()
    def runs_are_contiguous(self) -> None:
        for name in NAMES:
            runs = self.runs(name)
            for before, after in pairwise(runs):
                assert before.end == after.offset, (name, runs)

    @invariant()
    def the_states_of_segments_agree(self) -> None:
        if self.owned is None:
            return
        segments = list(self.owned.container.metadata.segments.values())
        for segment in segments:  # with the sources of their merges, which are added here
            assert segment.broken_invariant is None, segment.name
            segments += [merge.source for merge in segment.merges]

    @invariant()
    def objects_are_counted(self) -> None:
        assert_counts_agree(self.tier_2.metadata)

    def runs(self, name: str) -> list[Any]:
        page = self.tier_2.metadata.query(chunk_partition(name), last="run/~", limit=10_000)
        return [chunk_run(record.key.sort, record.body) for record in page.records if not is_link(record.body)]

    def teardown(self) -> None:
        try:
            if self.owned is not None:
                self._end()
        finally:
            self.patch.undo()
            self.tier_2.before_write.open()
            self.tier_2.after_write.open()
            super().teardown()

    def _end(self) -> None:
        """Everything stored and released leaves nothing behind in the pool, nor in the directory."""
        if self.writer_pass is not None:
            self.go_on()
        if self.sync.armed:
            self.release_disk()
        self.settle()
        self.drain()
        assert self.pool.untiered_bytes == 0
        for name, segment in self.state.items():
            runs = self.runs(name)
            assert not runs or (runs[-1].end == len(segment.data) and runs[0].end > segment.start)
            assert runs or segment.start == len(segment.data)
            assert self.read(name, segment.start, len(segment.data)) == segment.data[segment.start :]
        for name in list(self.state):
            self.delete(name)
        self.drain()
        assert not any(count.runs for count in counts_of(self.tier_2.metadata).values())
        for name in NAMES:
            assert not self.tier_2.metadata.query(chunk_partition(name), limit=1).records
        pool = self.pool
        pooled = sum(block.pooled for block in pool._free) + (pool._current is not None)
        assert pooled == pool._made
        assert all(block.references == 0 for block in pool._free)

    def drain(self) -> None:
        for _ in range(200):
            container = self.owned.container
            self.clock.advance(10_000)
            self.wait(self.safe_pass())
            self.wait(container.log.durable())  # the thread of the journal may be slower than these passes
            self.turn()
            if not container.dirty and not container.metadata.deletions:
                return
        raise AssertionError("the storage writer does not come to an end")


def _shape(segment: Modelled) -> tuple[int, int, bool, int]:
    return len(segment.data), segment.start, segment.sealed, segment.attribute(ATTRIBUTE)


StoreMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStore = StoreMachine.TestCase


def test_moves_that_the_log_did_not_hear_of_are_found():
    """Bytes pass from segment to segment in the directory, and the power goes before the log knows of one move."""
    machine = StoreMachine()
    try:
        machine.start()
        machine.merge_on(chain=NAMES, runs=1, first="write refused", second="write refused")
        machine.hold_directory(arrived=False, evicts=False, lost=False)
        machine.cut_power(seed=0)
        machine.flush(fault="none", seconds=10, times=1)
    finally:
        machine.teardown()
