"""The record of a store's lease: golden value and key."""

from __future__ import annotations

from dataclasses import replace

import pytest
from golden_records import GoldenRecords

from headrace.metadata.store_lease import STORES_FIRST, STORES_LAST, decode_store_lease, lease_key, store_lease_body
from headrace.model.cluster import StoreLease, StoreState
from headrace.model.errors import CorruptError
from headrace.ports.metadata_store import Key

LEASE = StoreLease("store-0.1", "h", 9, "z", 100, "disk", "task", 60, 3, StoreState.LOST, 500, 600, 660)
GOLDEN = {
    "format": 1,
    "store": "store-0.1",
    "host": "h",
    "port": 9,
    "zone": "z",
    "capacity": 100,
    "volume": "disk",
    "task": "task",
    "take_over_after": 60,
    "incarnation": 3,
    "state": "LOST",
    "until": 500,
    "ended": 600,
    "take_over": 660,
}


class TestStoreLease(GoldenRecords):
    shapes = {"store lease": (LEASE, store_lease_body, decode_store_lease, GOLDEN)}


def test_key():
    assert lease_key("store-0") == Key("cluster", "store/store-0")
    assert STORES_FIRST < "store/\uffff" < STORES_LAST


def test_an_unknown_state_is_refused():
    with pytest.raises(CorruptError):
        decode_store_lease({**GOLDEN, "state": "TIRED"})


def test_a_lease_says_since_when_its_store_serves_nothing():
    unserved = replace(LEASE, unserved_since_ms=450)
    assert store_lease_body(unserved) == {**GOLDEN, "unserved_since": 450}
    assert decode_store_lease(store_lease_body(unserved)) == unserved
