"""The state machine, written out as the facts have it."""

from __future__ import annotations

from itertools import product

from headrace.model.stream_state import StreamState, may_become

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


def test_every_pair_of_states():
    for before, after in product(StreamState, StreamState):
        expected = before is after or str(after) in ALLOWED[str(before)].split()
        assert may_become(before, after) == expected, (before, after)
