"""Who reads what, from the state of a group."""

from __future__ import annotations

from headrace.client.groups.group_positions import GroupStatus, ReaderStatus, status_of_state
from headrace.model.group_balance import CLOCK_LAG_MS_MIN
from headrace.model.group_state import LAG_MS_MIN, GroupState, SharedConfiguration
from headrace.model.names import StreamSegmentName

ONE, TWO, THREE, FOUR = (StreamSegmentName("s", "t", number) for number in range(1, 5))


def test_status_has_what_readers_told_last():
    state = GroupState(
        SharedConfiguration.__new__(SharedConfiguration),
        unassigned={THREE: 30},
        ends={},
        assigned={"b": {TWO: 20, ONE: 10}, "a": {}, "near": {}, "java": {}},
        future={FOUR: frozenset({3})},
        last_read={TWO: 25},
        lags_ms={"b": 90_000, "near": LAG_MS_MIN, "java": CLOCK_LAG_MS_MIN},
    )
    status = status_of_state(state)
    assert status == GroupStatus(
        (
            ReaderStatus("a", {}, None),
            ReaderStatus("b", {ONE: 10, TWO: 25}, 90.0),
            ReaderStatus("java", {}, None),  # it told the time of its clock
            ReaderStatus("near", {}, 0.0),
        ),
        {THREE: 30},
        (FOUR,),
    )
    assert list(status.readers[1].positions) == [ONE, TWO]
