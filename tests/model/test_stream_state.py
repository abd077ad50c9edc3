"""Every kind of request on a stream has one entry, and the transitions that follow from the entries."""

from __future__ import annotations

from itertools import product

from headrace.model.requests import RequestKind, ResourceKind
from headrace.model.stream_state import STREAM_OPERATIONS, StreamState, may_become

ALLOWED = {
    "CREATING": "ACTIVE",
    "ACTIVE": "UPDATING SCALING COMMITTING_TXN TRUNCATING SEALING SEALED",
    "UPDATING": "ACTIVE",
    "SCALING": "ACTIVE",
    "COMMITTING_TXN": "ACTIVE UPDATING SCALING TRUNCATING SEALING",
    "TRUNCATING": "ACTIVE",
    "SEALING": "SEALED",
    "SEALED": "",
}


def test_every_request_on_a_stream_has_an_entry():
    assert set(STREAM_OPERATIONS) == {kind for kind in RequestKind if kind.resource is ResourceKind.STREAM}
    assert {one.state for one in STREAM_OPERATIONS.values()} == set(StreamState) - {StreamState.ACTIVE}


def test_every_pair_of_states():
    for before, after in product(StreamState, StreamState):
        expected = before is after or str(after) in ALLOWED[str(before)].split()
        assert may_become(before, after) == expected, (before, after)
