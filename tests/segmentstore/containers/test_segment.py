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
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from syntax_trees import syntax_tree

from headrace.codec import data_frames
from headrace.model.chunks import TableMark
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

    @rule()
    def flush(self) -> None:
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
