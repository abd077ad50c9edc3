"""The states of reader groups in tier 2: how they are read, and what a restore moves back in them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest
from group_states import CONFIGURATION, after, segment

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.codec.events import frame_event
from headrace.codec.group_state import state_bytes, update_bytes
from headrace.codec.stored_objects import InitialEntry, UpdatesEntry, entry_bytes
from headrace.metadata.cluster_records import write_claim
from headrace.metadata.history_records import create_epoch
from headrace.metadata.restoration import RestoredContainer
from headrace.metadata.restored_positions import RestoredPositions
from headrace.metadata.stream import current_key, stream_body
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.truncation import write_truncation
from headrace.model.chunks import ChunkRun, object_count, packed_name
from headrace.model.containers import ContainerClaim
from headrace.model.errors import CorruptError
from headrace.model.group_state import Checkpoints, GroupState, SharedConfiguration, initial_state
from headrace.model.group_updates import AddReader, GroupUpdate
from headrace.model.log_classes import ContainerLayout
from headrace.model.names import segment_name
from headrace.model.reader_groups import (
    GroupStream,
    ReaderGroup,
    ReaderGroupConfiguration,
    new_reader_group,
    settled,
    state_stream_name,
)
from headrace.model.restore_plan import RestoredEpochs
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_cuts import PlacedCut, StreamCut
from headrace.model.stream_state import StreamState
from headrace.model.streams import new_stream
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import Create
from headrace.restore import groups
from headrace.restore.groups import GroupStates, restore_group_states
from headrace.segmentstore.tiering.chunk_directory import RUNS_PER_PAGE, ChunkDirectory

END = 7
"""Of each segment of s/t in tier 2."""
POINTER = 8
FIRST = initial_state(CONFIGURATION, {segment(0): END + 5}, {})


class World:
    """Records and objects of one container. The stream s/t has as many segments as the tests name."""

    def __init__(self) -> None:
        self.store, self.chunks, self.clock = MemoryMetadataStore(), MemoryChunkStorage(), ManualClock()
        self.claim = ContainerClaim("store-0", "10.0.0.1", 12345, "a")
        self.epoch = 0
        self.store.write(write_claim(0, self.claim, None))
        self.states = GroupStates(self.store, self.chunks, self.clock, ContainerLayout(1))
        self.objects = 0
        self.stream("t", 4)
        for number in range(4):
            self.put(segment_name("s", "t", number), b"x" * END)

    def stream(self, name: str, segments: int = 1) -> None:
        made = new_stream("s", name, StreamConfiguration(ScalingPolicy.fixed(segments)), 0, 1_000)
        made = replace(made, state=StreamState.ACTIVE, pending=None)
        current = Create(current_key(made.scope, made.name), stream_body(made))
        self.store.write(current, *create_epoch(made, made.epoch))

    def put(self, name: str, data: bytes, offset: int = 0) -> None:
        """Have bytes of a segment in tier 2, in an object of their own."""
        self.objects += 1
        packed = packed_name(0, 0, self.objects)
        asyncio.run(self.chunks.put(packed, [data]))
        run = ChunkRun(offset, len(data), packed, 0)
        asyncio.run(ChunkDirectory(self.store, 0, self.epoch, self.clock).add([(name, run)], {packed: len(data)}))

    def group(self, name: str, state: GroupState, updates: Sequence[GroupUpdate] = (), gap: int = 0) -> ReaderGroup:
        """A group whose state is in tier 2 with each of these updates in a run of its own, `gap` bytes apart."""
        self.stream(state_stream_name(name))
        streams = ReaderGroupConfiguration((GroupStream("s", "t"),))
        made = settled(new_reader_group("s", name, str(uuid.UUID(int=1)), streams, 0))
        entries = [InitialEntry(state_bytes(state)), *(UpdatesEntry([update_bytes(each)]) for each in updates)]
        end = 0
        for data in (frame_event(entry_bytes(entry)) for entry in entries):
            self.put(segment_name("s", state_stream_name(name), 0), data, end)
            end += len(data) + gap
        return made

    def restore(self, *restored: ReaderGroup) -> int:
        for version in range(self.epoch, POINTER + 1):
            self.store.write(write_claim(0, self.claim, version))
        self.epoch = POINTER + 1
        container = RestoredContainer(0, RestoredEpochs(POINTER, POINTER + 1), None)
        return restore_group_states(self.states, restored, RestoredPositions(self.store), {0: container}, self.chunks)

    def state_of(self, group: ReaderGroup) -> GroupState:
        found = self.states.load(group)
        assert found is not None
        return found.state


@pytest.mark.parametrize("updates", [RUNS_PER_PAGE - 2, RUNS_PER_PAGE - 1, RUNS_PER_PAGE, 2 * RUNS_PER_PAGE + 1])
def test_state_in_many_runs_is_read_to_its_end(updates: int):
    world = World()
    readers = [f"reader-{number}" for number in range(updates)]
    group = world.group("mail", FIRST, [AddReader(each) for each in readers])
    assert world.state_of(group).readers == tuple(readers)


@pytest.mark.parametrize("trimmed", [1, 2])
def test_updates_before_the_first_state_are_skipped(trimmed: int):
    """A compaction has written a state in the middle, and the runs before it are removed one by one."""
    world = World()
    compacted = after(FIRST, AddReader("a"), AddReader("b"))
    group = world.group("mail", FIRST, [AddReader("a"), AddReader("b")])
    found = world.states.load(group)
    assert found is not None
    world.put(found.segment, frame_event(entry_bytes(InitialEntry(state_bytes(compacted)))), found.end)
    directory = ChunkDirectory(world.store, 0, 0, world.clock)
    runs = asyncio.run(directory.page(found.segment))
    asyncio.run(directory.remove(found.segment, runs[:trimmed]))
    assert world.state_of(group) == compacted
    assert world.restore(group) == 1
    assert world.state_of(group).unassigned == {segment(0): END}


def test_state_of_updates_only_is_none():
    world = World()
    group = world.group("mail", FIRST, [AddReader("a")])
    found = world.states.load(group)
    assert found is not None
    directory = ChunkDirectory(world.store, 0, 0, world.clock)
    asyncio.run(directory.remove(found.segment, asyncio.run(directory.page(found.segment))[:1]))
    assert world.states.load(group) is None
    assert world.restore(group) == 0


def test_state_with_a_gap_is_not_read():
    world = World()
    group = world.group("mail", FIRST, [AddReader("a"), AddReader("b")], gap=1)
    with pytest.raises(CorruptError, match="has nothing of"):
        world.states.load(group)


def test_state_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch):
    world = World()
    group = world.group("mail", FIRST, [AddReader("a")])
    found = world.states.load(group)
    assert found is not None
    monkeypatch.setattr(groups, "STATE_BYTES_MAX", found.end)
    assert world.states.load(group) is not None
    monkeypatch.setattr(groups, "STATE_BYTES_MAX", found.end - 1)
    with pytest.raises(CorruptError, match="more than"):
        world.states.load(group)


def test_each_place_that_names_a_segment_is_moved_back():
    """Each names a segment that no other place names."""
    world = World()
    positions = [{segment(number): END + number + 1} for number in range(4)]
    cuts = SharedConfiguration({"s/t": {0: END + 1}}, {"s/t": {1: END + 2}}, generation=0)
    states = [
        initial_state(cuts, {}, {}),
        GroupState(CONFIGURATION, {}, {}, checkpoints=Checkpoints(("c",), {}, {"c": positions[2]})),
        GroupState(CONFIGURATION, {}, {}, checkpoints=Checkpoints(last=positions[3])),
        GroupState(CONFIGURATION, positions[0], {}),
        GroupState(CONFIGURATION, {}, positions[1]),
        GroupState(CONFIGURATION, {}, {}, assigned={"worker": positions[2]}),
        GroupState(CONFIGURATION, {}, {}, last_read=positions[3]),
    ]
    made = [world.group(f"group-{number}", state) for number, state in enumerate(states)]
    assert world.restore(*made) == len(states)
    first, kept, last, unassigned, ends, assigned, read = map(world.state_of, made)
    assert (first.configuration.starts, first.configuration.ends) == ({"s/t": {0: END}}, {"s/t": {1: END}})
    assert kept.checkpoints.positions == {"c": {segment(2): END}}
    assert last.checkpoints.last == {segment(3): END}
    assert (unassigned.unassigned, ends.ends) == ({segment(0): END}, {segment(1): END})
    assert (assigned.unassigned, read.last_read) == ({segment(2): END}, {segment(3): END})


def test_each_group_has_an_object_of_its_own():
    world = World()
    made = [world.group(name, replace(FIRST, unassigned={segment(n): END + 9})) for n, name in enumerate("abc")]
    assert world.restore(*reversed(made)) == 3
    assert [world.state_of(each).unassigned for each in made] == [{segment(n): END} for n in range(3)]
    page = asyncio.run(ChunkDirectory(world.store, 0, 0, world.clock).objects(after="", limit=100))
    written = [record for record in page.records if record.key.sort >= packed_name(0, POINTER, 0)]
    assert [record.key.sort for record in written] == [packed_name(0, POINTER, number) for number in (1, 2, 3)]
    counts = [object_count(record.body) for record in written]
    assert all(each.runs == 1 and 0 < each.run_bytes == each.length for each in counts)
    assert world.restore(*made) == 0, "a repetition has nothing to do"


def test_position_is_not_moved_before_the_head():
    """Tier 2 does not reach the head of the stream: no offset before the head is used again."""
    world = World()
    stream = StreamRecords(world.store).get("s", "t").stream
    head = PlacedCut(StreamCut.of("s", "t", dict.fromkeys(range(4), END + 3)), stream.epoch.segments)
    world.store.write(write_truncation(world.store, stream, Truncation(head, 0, 0)))
    made = world.group("mail", replace(FIRST, unassigned={segment(0): END + 2, segment(1): END + 4}))
    assert world.restore(made) == 1
    assert world.state_of(made).unassigned == {segment(0): END + 2, segment(1): END + 3}
