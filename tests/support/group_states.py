"""States of reader groups with few segments, for tests."""

from __future__ import annotations

from headrace.model.group_state import GroupState, SharedConfiguration, initial_state
from headrace.model.group_updates import AddReader, GroupUpdate
from headrace.model.names import StreamSegmentName

CONFIGURATION = SharedConfiguration({"s/t": None}, {"s/t": None})


def segment(number: int, stream: str = "t") -> StreamSegmentName:
    return StreamSegmentName("s", stream, number)


def group(segments: int, *readers: str) -> GroupState:
    state = initial_state(CONFIGURATION, {segment(number): 0 for number in range(segments)}, {})
    return after(state, *map(AddReader, readers))


def after(state: GroupState, *updates: GroupUpdate) -> GroupState:
    for update in updates:
        state = update.applied_to(state)
    return state
