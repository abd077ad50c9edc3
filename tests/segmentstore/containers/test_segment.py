"""What is tiered was durable before, and what is durable was accepted before, whatever happens to a segment."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from syntax_trees import syntax_tree

from headrace.codec import data_frames
from headrace.model.chunks import TableMark
from headrace.model.names import transient_segment_name
from headrace.model.segment_attributes import CREATION_TIME, SEGMENT_TYPE, TABLE_KEY_LENGTH
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.segment import AcceptedState, DurableState, Segment, TieredState
from headrace.segmentstore.containers.settlements import PendingAppend
from headrace.segmentstore.tiering.object_uploads import pack

OBJECT_BYTES = 64
NAMES = ("a", "b", "c")
SOURCES = Path(__file__).resolve().parents[3] / "headrace" / "segmentstore"

some_name = st.sampled_from(NAMES)


def _tiered_end(segment: Segment) -> int:
    return segment.tiered.length


class SegmentStates(RuleBasedStateMachine):
    """Operations are accepted at once, become durable in their order, and tier 2 gets what is durable."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8 << 20, 64 << 10)
        self.metadata = ContainerMetadata(0, self.pool, lambda _segment: None)
        self.undone: deque[Callable[[], None]] = deque()
        self.entries = count()
        self.known: list[Segment] = []
        """All segments that ever were, with those that were merged or deleted."""

    def find(self, name: str) -> Segment | None:
        return self.metadata.segments.get(name)

    def apply(self, operation: data_frames.Operation) -> None:
        entry = next(self.entries)
        self.undone.append(self.metadata.apply(operation, entry, entry))

    @initialize(names=st.sets(some_name))
    def begin(self, names: set[str]) -> None:
        for name in sorted(names):
            self.create(name)

    @rule(name=some_name)
    def create(self, name: str) -> None:
        if name not in self.metadata.segments:
            self.apply(data_frames.CreateOperation(self.metadata.next_number, name, (), 0))
            self.known.append(self.metadata.segments[name])

    @rule(name=some_name, length=st.integers(0, 40))
    def append(self, name: str, length: int) -> None:
        segment = self.find(name)
        if segment is None or segment.accepted.sealed:
            return
        offset, entry = segment.accepted.length, next(self.entries)
        self.metadata.append(segment, offset + length, 1 << 128, entry, 1, 0)
        if length:
            reservation = self.pool.reserve(length)
            assert reservation is not None
            segment.index.add(offset, reservation, entry, (1 << 128, 0, 1))
        pending = PendingAppend(segment, offset + length, lambda _error: None)
        self.undone.append(lambda: pending(None))

    @rule(name=some_name)
    def seal(self, name: str) -> None:
        if (segment := self.find(name)) is not None:
            self.apply(data_frames.SealOperation(segment.number, 0))

    @rule(name=some_name, share=st.floats(0.0, 1.0))
    def truncate(self, name: str, share: float) -> None:
        if (segment := self.find(name)) is not None:
            self.apply(data_frames.TruncateOperation(segment.number, int(share * segment.accepted.length), 0))

    @rule(name=some_name)
    def delete(self, name: str) -> None:
        if (segment := self.find(name)) is not None:
            self.apply(data_frames.DeleteOperation(segment.number, 0))

    @rule(name=some_name, other=some_name)
    def merge(self, name: str, other: str) -> None:
        target, source = self.find(name), self.find(other)
        if target is None or source is None or target is source or target.accepted.sealed:
            return
        if not source.accepted.start_offset:
            offset, length = target.accepted.length, source.accepted.length
            self.apply(data_frames.MergeOperation(target.number, source.number, offset, length, (), 0))

    @rule(steps=st.integers(1, 5))
    def make_durable(self, steps: int) -> None:
        for _ in range(min(steps, len(self.undone))):
            self.undone.popleft()()

    @rule(steps=st.integers(0, 5))
    def flush(self, steps: int) -> None:
        self.make_durable(steps)
        for place, run in pack(list(self.metadata.segments.values()), "object", OBJECT_BYTES, _tiered_end, 1).runs:
            place.advance_tiered(run.end)

    @invariant()
    def states_agree(self) -> None:
        for segment in self.known:
            assert segment.broken_invariant is None, segment.name

    def teardown(self) -> None:
        self.make_durable(len(self.undone))
        for segment in self.known:
            accepted, durable = segment.accepted, segment.durable
            assert (durable.length, durable.start_offset) == (accepted.length, accepted.start_offset)
            assert durable.sealed == accepted.sealed


SegmentStates.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestSegmentStates = SegmentStates.TestCase


@pytest.mark.parametrize(
    ("accepted", "durable", "tiered"),
    [
        ({"length": 3}, DurableState(0, 4), TieredState(4)),
        ({"length": 4}, DurableState(0, 3), TieredState(4)),
        ({"length": 4}, DurableState(2, 4), TieredState(4)),
        ({"length": 4, "start_offset": 5}, DurableState(0, 4), TieredState(4)),
        ({"length": 4, "start_offset": 4}, DurableState(4, 3), TieredState(3)),
        ({"length": 4, "start_offset": 2}, DurableState(1, 4), TieredState(4, trimmed_offset=2)),
        ({"length": 4, "start_offset": 2}, DurableState(1, 4), TieredState(4, told_start=2)),
        ({"length": 4}, DurableState(0, 4, sealed=True), TieredState(4)),
    ],
)
def test_a_broken_invariant_is_named(accepted: dict[str, int], durable: DurableState, tiered: TieredState):
    state = AcceptedState({}, 0)
    for field, value in accepted.items():
        setattr(state, field, value)
    assert Segment(1, "a", BlockPool(1 << 20, 64 << 10), state, durable, tiered).broken_invariant is not None


OWNERS = {
    "accepted": {"containers/metadata.py"},
    "durable": {"containers/settlements.py"},
    "tiered": {"containers/segment.py", "tiering/directory_upkeep.py"},
}
"""`Segment.advance_tiered` changes several parts of a segment for the owner of the tiered state, which calls it."""

TIERED_BY = {"containers/metadata.py", "containers/segment.py", "tiering/directory_upkeep.py"}
"""The recovery replays `StoredOperation` in `ContainerMetadata`, before the owner exists."""


def _changed_states(tree: ast.AST) -> set[str]:
    """The states of which a module assigns a field: directly, or by a variable that has the state's name."""
    return {
        state
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        for state in [node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")]
        if state in OWNERS
    }


def test_only_its_owner_changes_a_state():
    for path in sorted(SOURCES.rglob("*.py")):
        name, tree = str(path.relative_to(SOURCES)), syntax_tree(path.read_text())
        for state in _changed_states(tree):
            assert name in OWNERS[state], f"{name} changes the {state} state"
        calls = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert "advance_tiered" not in calls or name in TIERED_BY, f"{name} advances the tiered state"


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("segment.accepted.length = 3", "accepted"),
        ("a, segment.durable.sealed = 1, True", "durable"),
        ("durable.length = end", "durable"),
        ("self.home.tiered.trimmed_offset += 1", "tiered"),
    ],
)
def test_a_change_of_a_state_is_found(line: str, state: str):
    assert _changed_states(syntax_tree(line)) == {state}


@pytest.mark.parametrize(
    ("accepted", "durable", "tiered", "change", "is_flushable", "is_stored"),
    [
        (1, 1, 0, {}, True, False),
        (1, 0, 0, {}, False, False),
        (3, 2, 1, {}, True, False),
        (3, 3, 3, {}, False, True),
        (3, 3, 2, {"quarantined": True}, False, False),
        (3, 3, 2, {"removed": True}, False, False),
        (3, 3, 3, {"removed": True}, False, True),
        (3, 3, 3, {"merges": (None,)}, False, False),
    ],
)
def test_segment_is_flushable_if_tier_2_lacks_durable_bytes(
    accepted: int, durable: int, tiered: int, change: dict[str, Any], *, is_flushable: bool, is_stored: bool
):
    state = AcceptedState({}, 0)
    state.length = accepted
    segment = Segment(1, "a", BlockPool(1 << 20, 64 << 10), state, DurableState(0, durable), TieredState(tiered))
    for field, value in change.items():
        setattr(state if field == "removed" else segment, field, value)
    assert (segment.is_flushable, segment.is_stored) == (is_flushable, is_stored)
    assert segment.untiered_bytes == durable - tiered


def test_table_is_marked_by_its_keys_and_creation():
    attributes = {SEGMENT_TYPE: 1, TABLE_KEY_LENGTH: 16, CREATION_TIME: 99}
    table = Segment(1, "a", BlockPool(1 << 20, 64 << 10), AcceptedState(attributes, 0))
    assert (table.is_table, table.table_mark) == (True, TableMark(16, 99))
    del attributes[SEGMENT_TYPE]
    assert (table.is_table, table.table_mark) == (False, None)


class Merged:
    """2 bytes of a target, then a merge of 3 bytes and, merged into it before, of 4 bytes; each came in one append."""

    def __init__(self) -> None:
        self.pool = BlockPool(8 << 20, 64 << 10)
        self.metadata = ContainerMetadata(0, self.pool, lambda _segment: None)
        self.target, self.middle, self.inner = (self._created(name, length) for name, length in LENGTHS.items())
        for entry, (target, source, offset, length) in enumerate(((2, 3, 3, 4), (1, 2, 2, 7)), 30):
            self.metadata.apply(data_frames.MergeOperation(target, source, offset, length, (), 0), entry, entry)()

    def _created(self, name: str, length: int) -> Segment:
        number = self.metadata.next_number
        self.metadata.apply(data_frames.CreateOperation(number, name, (), 0), 0, 1)()
        segment, reservation = self.metadata.segments[name], self.pool.reserve(length)
        assert reservation is not None
        self.metadata.append(segment, length, 1 << 128, 1, 1, 0)
        segment.index.add(0, reservation, LOGGED_IN[name], None)
        segment.times.note(0, number)
        segment.durable.length = length
        return segment


LENGTHS = {"target": 2, "middle": 3, "inner": 4}
LOGGED_IN = {"target": 18, "middle": 17, "inner": 19}


def test_merged_bytes_are_at_home_in_the_outermost_target():
    made = Merged()
    homes = [segment.home for segment in (made.target, made.middle, made.inner)]
    assert homes == [(made.target, 0), (made.target, 2), (made.target, 5)]


@pytest.mark.parametrize("first_from_inside", [True, False])
def test_bytes_are_tiered_under_the_names_of_their_sources(first_from_inside: bool):
    """Memory may evict exactly those that tier 2 has, wherever they are at home."""
    made = Merged()
    flushed = [(made.inner, 4), (made.middle, 3), (made.target, 2)]
    left = 9
    for segment, length in flushed if first_from_inside else reversed(flushed):
        assert made.pool.untiered_bytes == left
        segment.advance_tiered(length)
        left -= length
    assert (made.pool.untiered_bytes, made.target.tiered_end) == (0, 9)
    assert (len(made.target.merges), len(made.middle.merges)) == (1, 1)
    made.middle.advance_tiered(7)
    assert (made.middle.merges, made.inner.merged_into, made.middle.merged_into) == ((), None, (made.target, 2))
    made.target.advance_tiered(9)
    assert (made.target.merges, made.middle.merged_into, made.target.tiered.length) == ((), None, 9)


def test_log_keeps_the_oldest_entry_of_what_tier_2_lacks():
    """Merged bytes have older entries than the bytes before them, but behind the newest merge entries increase."""
    made = Merged()
    assert made.target.oldest_untiered_entry() == 17, "that of merged bytes"
    made.inner.advance_tiered(4)
    assert made.target.oldest_untiered_entry() == 17
    made.target.advance_tiered(2)
    made.middle.advance_tiered(3)
    made.middle.advance_tiered(7)
    made.target.advance_tiered(9)
    assert made.target.oldest_untiered_entry() is None
    for entry in (50, 60, 40):
        reservation = made.pool.reserve(1)
        assert reservation is not None
        offset = made.target.accepted.length
        made.metadata.append(made.target, offset + 1, 1 << 128, entry, 1, 0)
        made.target.index.add(offset, reservation, entry, None)
    assert made.target.oldest_untiered_entry() == 50


def test_times_stay_as_long_as_their_bytes_are_in_memory():
    made = Merged()
    made.metadata.append(made.target, 10, 1 << 128, 2, 1, 0)
    made.target.times.note(9, 40)
    made.target.durable.length = 10
    assert [made.target.boundary_in_memory(offset) for offset in (0, 1, 2, 3, 9, 10)] == [0, 2, 2, 5, 9, None]
    made.target.advance_tiered(9)
    assert len(made.target.times) == 3, "the bytes are in memory"
    made.target.index.release_before(9)
    made.target.advance_tiered(10)
    assert [point.offset for point in made.target.times] == [9]


def test_bytes_before_a_merge_stay_while_it_is_tiered_in_parts():
    made = Merged()
    made.inner.advance_tiered(4)
    for length in (3, 7):
        made.middle.advance_tiered(length)
    assert made.pool.untiered_bytes == 2


def log_of_two_merges(first_name: str, lengths: list[int]) -> tuple[ContainerMetadata, BlockPool, Segment]:
    """A target of 2 bytes, into which two segments were merged in the entries 8 and 9.

    The first one has appends of these lengths, the other one a byte.
    """
    pool = BlockPool(8 << 20, 64 << 10)
    metadata = ContainerMetadata(0, pool, lambda _segment: None)
    for number, (name, appends) in enumerate((("target", [2]), (first_name, lengths), ("second", [1])), 1):
        metadata.apply(data_frames.CreateOperation(number, name, (), 0), 0, number)()
        segment = metadata.segments[name]
        for length in appends:
            reservation, offset = pool.reserve(length), segment.accepted.length
            assert reservation is not None
            metadata.append(segment, offset + length, 1 << 128, 1, 1, 0)
            segment.index.add(offset, reservation, 20, None)
            segment.durable.length = offset + length
    metadata.segments["target"].times.note(0, 1)
    end = 2 + sum(lengths)
    for source, offset, length in ((2, 2, sum(lengths)), (3, end, 1)):
        metadata.apply(data_frames.MergeOperation(1, source, offset, length, (), 0), 6 + source, 6 + source)()
    return metadata, pool, metadata.segments["target"]


def test_later_merge_is_pending_when_an_earlier_one_is_tiered():
    _, _, target = log_of_two_merges("first", [3])
    target.advance_tiered(2)
    assert target.oldest_untiered_entry() == 8
    first, second = target.merges
    target.index.release_all()
    assert target.oldest_untiered_entry() == 8, "the entry of a merge whose bytes are not in memory"
    target.advance_tiered(first.end)
    assert list(target.merges) == [second]
    assert (first.source.merged_into, second.source.merged_into) == (None, (target, 5))
    assert target.oldest_untiered_entry() == 9


@pytest.mark.parametrize("tiered", [0, 2, 9])
def test_large_event_has_one_boundary(tiered: int):
    """Its pieces are appends to a transient segment. A reader must not begin with one of them."""
    _, _, target = log_of_two_merges(transient_segment_name("scope/stream/0.#epoch.0", 1, 2), [3, 4])
    target.advance_tiered(tiered)
    boundaries = [target.boundary_in_memory(offset) for offset in (2, 3, 5, 6, 9)]
    assert boundaries == [2, 9, 9, 9, 9]
