"""Random histories of one container against a simple model: operations, flush rounds, evictions, faults, held writes,
power cuts.

The machine decides when the disk syncs, when tier 2 answers and when the storage writer works, so that operations meet
each other half-way. What a power cut leaves must be the state after some prefix of what was accepted, and never less
than what was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from object_counts import assert_counts_agree, counts_of
from store_machine_doubles import Faulty, Gate, Modelled, Replies

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec import wire_commands as wire
from headrace.model.chunks import chunk_partition, chunk_run
from headrace.model.containers import ContainerClaim
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    HeadraceError,
    IllegalStateError,
    NotFoundError,
    SealedError,
    TruncatedError,
    UnavailableError,
)
from headrace.segmentstore.containers import operation_log
from headrace.segmentstore.containers.attribute_updates import AttributeUpdate, UpdateKind
from headrace.segmentstore.containers.attributes import NO_VALUE
from headrace.segmentstore.log.journal import Journal
from headrace.segmentstore.log.journal_ledgers import JournalLedgers
from headrace.segmentstore.reading.block_pool import BlockPool
from headrace.segmentstore.sessions.limits import CONTROL_FRAME_BYTES_MAX
from headrace.segmentstore.sessions.session import Session
from headrace.segmentstore.storage.limits import StorageLimits
from headrace.segmentstore.store import SegmentStore
from segmentstore_fargate.registration import claim_container

State = dict[str, Modelled]

WAIT_S = 20.0
NAMES = [f"scope/stream/{number}.#epoch.0" for number in range(4)]
WRITERS = [1, 2]
ATTRIBUTE = 77
LIMITS = StorageLimits(
    flush_age_s=5.0, flush_bytes=1 << 40, object_bytes_max=4000, checkpoint_every_bytes=6000, compacted_runs_min=2,
    idle_segment_s=2.0, idle_segments_kept=0,
)  # fmt: skip
FAULTS = ["none", "put refused", "put answer lost", "write refused", "write answer lost", "query refused"]

names = st.sampled_from(NAMES)


class StoreMachine(RuleBasedStateMachine):
    """`history` is what was accepted and may be undone by a power cut: its first state is acknowledged for sure."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(operation_log, "FRAME_BYTES_MAX", 900)  # operations are split, and torn in between
        self.loop = asyncio.new_event_loop()
        self.disk = MemoryJournalDisk()
        self.tier_2 = Faulty()
        self.clock = ManualClock(1_000_000)
        self.random = Random(7)
        self.history: list[State] = [{}]
        self.running: list[tuple[asyncio.Task[Any], type[HeadraceError] | None]] = []
        self.round: asyncio.Task[None] | None = None
        self.chores: asyncio.Task[None] | None = None
        self.sync = Gate()
        self.power_is_gone = False
        self.counter = 0

    @property
    def state(self) -> State:
        return self.history[-1]

    @initialize()
    def start(self) -> None:
        self.journal = Journal(
            self.disk, lambda: self.random.getrandbits(64), self.loop.call_soon_threadsafe, file_bytes=16 << 10
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
        self.pool = BlockPool(16 << 10, 2 << 10)
        self.store = SegmentStore(
            JournalLedgers(self.journal), self.pool, self.clock, self.tier_2, self.tier_2,  # type: ignore[arg-type]
            container_count=1, limits=LIMITS,
        )  # fmt: skip
        epoch = claim_container(self.tier_2.metadata, 0, ContainerClaim("store-0", "127.0.0.1", 1, "local"))
        self.wait(self.store.open_container(0, epoch))
        self.owned = self.store.owned[0]
        self.wait(self.owned.chores.stop())
        del self.owned.chores._chores[2:]  # type: ignore[attr-defined]  # evictions have a rule of their own
        self.wait(self.owned.writer.stop())  # from here on it works when the machine says so

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, WAIT_S))

    def turn(self) -> None:
        """Let everything run that can, without waiting for anything but records that are looked up."""

        async def some_turns() -> None:
            looking_up = True
            while looking_up:
                for _ in range(4):
                    await asyncio.sleep(0)
                looking_up = bool(self.owned.container.idle._waiting)

        self.wait(some_turns())

    # Operations

    def operate(self, work: Any, after: State, error: type[HeadraceError] | None) -> None:
        """Start an operation whose outcome is known; wait for it unless the disk is held."""
        task = self.loop.create_task(work)
        self.running.append((task, error))
        if error is None:
            self.history.append(after)
        if self.sync.armed:
            self.turn()
        else:
            self.settle()

    def settle(self) -> None:
        """Everything that runs ends, as it should; then it is acknowledged."""
        running, self.running = self.running, []
        for task, error in running:
            raised = self.wait(self._finish(task))
            assert type(raised) is (error or type(None)), raised
        self.history = [self.state]

    async def _finish(self, task: asyncio.Task[Any]) -> Any:
        """A removed name is free again only after rounds, perhaps after a flush for its age."""
        while not task.done():
            if self.round is None:
                self.clock.advance(1000)
                await self._safe_round()
            await asyncio.wait([task], timeout=0.002)
        return task.exception()

    async def _safe_round(self, *, evicts: bool = False) -> None:
        await self._safely(self.owned.evictor.sweep() if evicts else self.owned.writer.round())

    async def _safely(self, work: Any) -> None:
        with contextlib.suppress(UnavailableError):
            await work

    def with_segment(self, name: str, segment: Modelled | None) -> State:
        state = dict(self.state)
        state.pop(name, None)
        if segment is not None:
            state[name] = segment
        return state

    def blocked(self, name: str) -> bool:
        """Whether an operation on this segment would wait for a directory write or a removal that is held back."""
        container = self.owned.container
        segment = container.metadata.segments.get(name)
        return name in container.metadata.deletions or (
            segment is not None and (segment.flushing is not None or segment.number in container.idle.recording)
        )

    @rule(name=names)
    def create(self, name: str) -> None:
        if self.blocked(name) and (self.sync.armed or self.round):
            return
        self.tier_2.fault = "none"
        known = name in self.state
        after = self.with_segment(name, Modelled())
        self.operate(self.owned.container.create(name, ()), after, AlreadyExistsError if known else None)

    @rule(name=names, writer=st.sampled_from(WRITERS), size=st.integers(0, 2500), kind=st.sampled_from("aaaaocn"))
    def append(self, name: str, writer: int, size: int, kind: str) -> None:
        """a: plain, o: at the right offset, c: at a wrong one, n: behind another number."""
        segment = self.wait(self.owned.container.find(name))
        assert (segment is None) == (name not in self.state)
        if segment is None:
            return
        data = self.pool.reserve(size)
        if data is None:
            return
        self.counter += 1
        content = (b"%06d " % self.counter * 400)[:size]
        position = 0
        for part in data.parts:
            part[:] = content[position : position + len(part)]
            position += len(part)
        model = self.state[name]
        previous = model.attribute(writer)
        number = max(previous, 0) + 1
        after = model._replace(data=model.data + content).with_attribute(writer, number)
        future = self.loop.create_future()
        future.add_done_callback(lambda done: done.exception())
        refused: HeadraceError | None = None
        try:
            self.owned.container.append(
                segment, writer, previous + (kind == "n"), number, 1, data,
                lambda error: future.set_exception(error) if error else future.set_result(None),
                expected_offset={"o": len(model.data), "c": len(model.data) + 1}.get(kind),
            )  # fmt: skip
        except (SealedError, ConflictError) as error:
            refused = error
        assert type(refused) is (SealedError if model.sealed else ConflictError if kind in "cn" else type(None))
        if refused is not None:
            self.pool.release(data)
            return
        self.operate(_outcome(future), self.with_segment(name, after), None)

    @rule(name=names)
    def seal(self, name: str) -> None:
        segment = self.state.get(name)
        error = NotFoundError if segment is None else SealedError if segment.sealed else None
        after = self.with_segment(name, segment and segment._replace(sealed=True))
        self.operate(self.owned.container.seal(name), after, error)

    @rule(name=names, share=st.floats(0, 1.1))
    def truncate(self, name: str, share: float) -> None:
        segment = self.state.get(name)
        offset = int(len(segment.data) * share) if segment else 0
        error = None
        if segment is None:
            error = NotFoundError
        elif offset > len(segment.data):
            error = TruncatedError
        else:
            segment = segment._replace(start=max(offset, segment.start))
        self.operate(self.owned.container.truncate(name, offset), self.with_segment(name, segment), error)

    @rule(name=names)
    def delete(self, name: str) -> None:
        if self.blocked(name) and self.round:
            return
        error = None if name in self.state else NotFoundError
        self.operate(self.owned.container.delete(name), self.with_segment(name, None), error)

    @rule(into_name=names, out_of_name=names, holds=st.booleans())
    def merge(self, into_name: str, out_of_name: str, holds: bool) -> None:
        target, source = into_name, out_of_name
        if self.blocked(source) and self.round:
            return
        into, out_of = self.state.get(target), self.state.get(source)
        after, error = self.state, None
        current = into.attribute(ATTRIBUTE) if into else NO_VALUE
        update = AttributeUpdate(ATTRIBUTE, UpdateKind.REPLACE_IF_EQUALS, 5, current if holds else current - 1)
        if into is None or out_of is None:
            error = NotFoundError
        elif into.sealed:
            error = SealedError
        elif source == target or out_of.start:
            error = IllegalStateError
        elif not holds:
            error = ConflictError
        else:
            merged = into._replace(data=into.data + out_of.data).with_attribute(ATTRIBUTE, 5)
            after = self.with_segment(source, None) | {target: merged}
        self.operate(self.owned.container.merge(target, source, [update]), after, error)

    @rule(chain=st.permutations(NAMES), first=st.sampled_from(FAULTS), second=st.sampled_from(FAULTS))
    def merge_on(self, chain: list[str], first: str, second: str) -> None:
        """Bytes of tier 2 go from segment to segment, and nobody may know how far the last round brought them."""
        if self.sync.armed or self.round is not None:
            return
        for name in chain[:3]:
            if name in self.state:
                self.delete(name)
            self.create(name)
        self.append(chain[0], WRITERS[0], 100, "a")
        self.flush("none", 10, 1)
        self.merge(chain[1], chain[0], True)
        self.flush(first, 10, 1)
        self.merge(chain[2], chain[1], True)
        self.flush(second, 10, 1)
        if chain[3] in self.state:
            self.merge(chain[3], chain[2], True)

    @rule(name=names, value=st.integers(-5, 5))
    def update_attribute(self, name: str, value: int) -> None:
        segment = self.state.get(name)
        after = self.with_segment(name, segment and segment.with_attribute(ATTRIBUTE, value))
        updates = [AttributeUpdate(ATTRIBUTE, UpdateKind.REPLACE, value)]
        error = None if segment else NotFoundError
        self.operate(self.owned.container.update_attributes(name, updates), after, error)

    # Tier 2

    @rule(fault=st.sampled_from(FAULTS), seconds=st.sampled_from([1, 10]), times=st.integers(1, 4))
    def flush(self, fault: str, seconds: int, times: int) -> None:
        if self.round is not None:
            return
        self.clock.advance(seconds * 1000)
        self.tier_2.fault = fault
        for _ in range(times):
            self.wait(self._safe_round())
        self.tier_2.fault = "none"

    @rule(fault=st.sampled_from(["none", "none", "write refused", "write answer lost"]), flushes=st.integers(0, 3))
    def evict(self, fault: str, flushes: int) -> None:
        """Whatever tier 2 has as a whole leaves memory."""
        if self.round is not None or self.sync.armed:
            return
        self.flush("none", 10, flushes)
        self.clock.advance(3_000)
        self.tier_2.fault = fault
        self.wait(self._safe_round(evicts=True))
        self.tier_2.fault = "none"

    @rule(arrived=st.booleans(), lost=st.booleans(), evicts=st.booleans())
    def hold_directory(self, arrived: bool, lost: bool, evicts: bool) -> None:
        """A round gets stuck in its next write of the directory or of records, if it has any to do."""
        if self.round is not None or (evicts and self.sync.armed):
            return
        gate = self.tier_2.after_write if arrived else self.tier_2.before_write
        gate.arm()
        self.clock.advance(10_000)
        self.round = self.loop.create_task(self._safe_round(evicts=evicts))
        while not self.round.done() and not gate.reached.is_set():
            self.wait(asyncio.sleep(0.0002))
        if lost:
            self.tier_2.fault = "write answer lost"
        if self.round.done():
            self.go_on()

    @rule()
    def go_on(self) -> None:
        if self.round is None:
            return
        round_ = self.round
        self.tier_2.before_write.open()
        self.tier_2.after_write.open()
        assert round_ is not None
        self.wait(round_)
        self.round = None
        if self.chores is not None:
            self.wait(self.chores)
            self.chores = None
        self.tier_2.fault = "none"

    @rule(name=names, times=st.integers(1, 4))
    def get_small_runs(self, name: str, times: int) -> None:
        if self.sync.armed or self.round is not None:
            return
        if name not in self.state:
            self.create(name)
        for _ in range(times):
            self.append(name, WRITERS[0], 100, "a")
            self.flush("none", 10, 1)

    @rule(fault=st.sampled_from(FAULTS), collects=st.booleans())
    def do_chores(self, fault: str, collects: bool) -> None:
        """Compaction, and a sweep if it is time; they may meet a write of the directory that is held back."""
        self.clock.advance(int(LIMITS.sweep_every_s * 1000) if collects else 1000)
        _, compactor = self.owned.chores._chores
        for name in NAMES:
            compactor._small_runs.look_again(name)  # type: ignore[attr-defined]
        if self.round is None:
            self.tier_2.fault = fault
            self.wait(self._safely(self.owned.chores.round()))
            self.tier_2.fault = "none"
        elif self.chores is None:
            self.chores = self.loop.create_task(self._safely(self.owned.chores.round()))
            self.turn()

    # Tier 1

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

    @rule(seed=st.integers(0, 1 << 16))
    def cut_power(self, seed: int) -> None:
        """What was in flight may be there or not; a write of the directory that is under way arrives or not."""
        survivor = self.disk.cut_power(seed)
        self.power_is_gone = True
        self.sync.open()
        if self.round is not None:
            self.go_on()
        for task, _ in self.running:
            task.cancel()
        if self.running:
            self.wait(asyncio.wait([task for task, _ in self.running]))
        self.running = []
        self.journal.close()
        self.disk = survivor
        self.start()
        self._find_out()

    def _find_out(self) -> None:
        """The state after the restart is one of those that were possible."""
        for name in NAMES:
            self.wait(self.owned.container.find(name))
        found = {
            name: (segment.length, segment.start_offset, segment.sealed, segment.attribute(ATTRIBUTE))
            for name, segment in self.owned.container.metadata.segments.items()
        }
        possible = [state for state in self.history if found == {n: _shape(s) for n, s in state.items()}]
        assert possible, (found, self.history)
        self.history = [possible[-1]]
        self.read_everything()

    @rule(lost=st.booleans())
    def restart(self, lost: bool) -> None:
        """In good order: then memory is empty, and tier 2 has everything, with the volume and without."""
        if self.sync.armed or self.round is not None:
            return
        self.wait(self._close())
        self.journal.close()
        assert self.pool.unstored_bytes == 0
        if lost:
            self.disk = MemoryJournalDisk()
        self.start()
        assert not self.pool.unstored_bytes
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
            reply = self.wait(self._ask(wire.ReadSegment(name, offset + len(data), 900, "", 3)))
            assert isinstance(reply, wire.SegmentRead), reply
            assert len(reply.data)
            data += reply.data
        return bytes(data)

    async def _ask(self, command: wire.WireCommand) -> wire.WireCommand:
        replies = Replies()
        scratch = memoryview(bytearray(CONTROL_FRAME_BYTES_MAX))
        session = Session(self.store, replies, scratch, "machine", lambda: self.random.getrandbits(128))
        frame = wire.encode(command)
        session.assembler.writable()[: len(frame)] = frame
        session.received(len(frame))
        while len(replies.sent) < 8:
            await asyncio.sleep(0)
        type_code, length = wire.decode_header(replies.sent)
        session.disconnected()
        return wire.decode(type_code, memoryview(bytes(replies.sent[8 : 8 + length])))

    @invariant()
    def runs_are_contiguous(self) -> None:
        for name in NAMES:
            runs = self.runs(name)
            for before, after in pairwise(runs):
                assert before.end == after.offset, (name, runs)

    @invariant()
    def objects_are_counted(self) -> None:
        assert_counts_agree(self.tier_2.metadata)

    def runs(self, name: str) -> list[Any]:
        page = self.tier_2.metadata.query(chunk_partition(name), last="run/~", limit=10_000)
        return [chunk_run(record.key.sort, record.body) for record in page.records]

    def teardown(self) -> None:
        try:
            if hasattr(self, "owned"):
                self._end()
        finally:
            self.patch.undo()
            self.sync.open()
            self.tier_2.before_write.open()
            self.tier_2.after_write.open()
            if hasattr(self, "journal"):
                self.journal.close()
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def _end(self) -> None:
        """Everything stored and released leaves nothing behind in the pool, nor in the directory."""
        if self.round is not None:
            self.go_on()
        if self.sync.armed:
            self.release_disk()
        self.settle()
        self.drain()
        assert self.pool.unstored_bytes == 0
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
            self.wait(self._safe_round())
            self.turn()
            if not container.dirty and not container.metadata.deletions:
                return
        raise AssertionError("the storage writer does not come to an end")


def _shape(segment: Modelled) -> tuple[int, int, bool, int]:
    return len(segment.data), segment.start, segment.sealed, segment.attribute(ATTRIBUTE)


async def _outcome(future: asyncio.Future[None]) -> None:
    await future


StoreMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStore = StoreMachine.TestCase
