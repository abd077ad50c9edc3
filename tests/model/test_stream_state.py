"""Every kind of request on a stream has one entry, and the transitions that follow from the entries."""

from __future__ import annotations

from itertools import product

from headrace.model.requests import RequestKind, ResourceKind
from headrace.model.stream_state import STREAM_OPERATIONS, StreamState, may_become

ALLOWED = {
    "CREATING": "ACTIVE",
    "ACTIVE": "UPDATING SCALING COMMITTING_TXN TRUNCATING SEALING FREEZING",
    "UPDATING": "ACTIVE",
    "SCALING": "ACTIVE",
    "COMMITTING_TXN": "ACTIVE UPDATING SCALING TRUNCATING SEALING FREEZING",
    "TRUNCATING": "ACTIVE",
    "SEALING": "SEALED",
    "SEALED": "",
    "FREEZING": "FROZEN",
    "FROZEN": "UNFREEZING SEALING",
    "UNFREEZING": "ACTIVE",
}
AT_REST = {StreamState.ACTIVE, StreamState.FROZEN}


def test_every_request_on_a_stream_has_an_entry():
    assert set(STREAM_OPERATIONS) == {kind for kind in RequestKind if kind.resource is ResourceKind.STREAM}
    assert {operation.state for operation in STREAM_OPERATIONS.values()} == set(StreamState) - AT_REST


def test_every_pair_of_states():
    for before, after in product(StreamState, StreamState):
        expected = before is after or str(after) in ALLOWED[str(before)].split()
        assert may_become(before, after) == expected, (before, after)


def test_what_each_state_allows():
    allowed = {
        state.value: (state.is_readable, state.takes_events, state.is_idle, state.is_sealed) for state in StreamState
    }
    assert allowed == {
        "CREATING": (False, True, False, False),
        "ACTIVE": (True, True, True, False),
        "UPDATING": (True, True, False, False),
        "SCALING": (True, True, False, False),
        "COMMITTING_TXN": (True, True, False, False),
        "TRUNCATING": (True, True, False, False),
        "SEALING": (True, False, False, False),
        "SEALED": (True, False, False, True),
        "FREEZING": (True, False, False, False),
        "FROZEN": (True, False, False, False),
        "UNFREEZING": (True, True, False, False),
    }


def test_a_state_tells_which_operation_runs():
    running = {state: [kind for kind in STREAM_OPERATIONS if state.runs(kind)] for state in StreamState}
    for state in (*AT_REST, StreamState.SEALED):
        assert running.pop(state) == []
    assert running == {STREAM_OPERATIONS[kind].state: [kind] for (kind,) in running.values()}


def test_a_stream_is_frozen_until_it_is_unfrozen():
    assert {state for state in StreamState if state.is_frozen} == {StreamState.FREEZING, StreamState.FROZEN}
    assert {state for state in StreamState if state.settles_transactions} == {StreamState.FREEZING, StreamState.SEALING}
