"""Who reads what, from the state of a group."""

from __future__ import annotations

from headrace.client.groups.group_positions import GroupStatus, ReaderStatus, status_of_state
from headrace.model.group_state import GroupState, SharedConfiguration
from headrace.model.names import StreamSegmentName

ONE, TWO, THREE, FOUR = (StreamSegmentName("s", "t", number) for number in range(1, 5))


def test_status_has_what_readers_told_last():
    state = GroupState(
        SharedConfiguration.__new__(SharedConfiguration),
        unassigned={THREE: 30},
        ends={},
        assigned={"b": {TWO: 20, ONE: 10}, "a": {}},
        future={FOUR: frozenset({3})},
        last_read={TWO: 25},
        lags_ms={"b": 1500},
    )
    status = status_of_state(state)
    assert status == GroupStatus(
        (ReaderStatus("a", {}, None), ReaderStatus("b", {ONE: 10, TWO: 25}, 1.5)), {THREE: 30}, (FOUR,)
    )
    assert list(status.readers[1].positions) == [ONE, TWO]
