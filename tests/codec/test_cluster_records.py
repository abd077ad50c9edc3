"""The persisted shapes of the cluster: golden values, keys, and refusal of what does not decode."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from golden_records import GoldenRecords, Shape
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.records import container_map_record, store_lease_record
from headrace.model.cluster import ContainerMap, StoreLease, StoreState
from headrace.model.errors import CorruptError

LEASE = StoreLease("store-0.1", "h", 9, "z", 100, "disk", "task", 60, 3, StoreState.LOST, 500, 600, 660)
CONTAINER_MAP = ContainerMap({0: "store-0", 1: "store-1", 2: "store-0"}, {1: 7})
SHAPES: dict[str, Shape] = {
    "store lease": (
        LEASE,
        store_lease_record.store_lease_body,
        store_lease_record.store_lease_of_body,
        {
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
        },
    ),
    "container map": (
        CONTAINER_MAP,
        container_map_record.container_map_body,
        container_map_record.container_map_of_body,
        {"format": 1, "stores": {"store-0": [0, 2], "store-1": [1]}, "given_up": [[1, 7]]},
    ),
}


def test_keys_are_where_they_always_were():
    assert store_lease_record.store_lease_sort("store-0") == "store/store-0"
    assert store_lease_record.STORES_FIRST < "store/\uffff" < store_lease_record.STORES_LAST
    assert container_map_record.CONTAINER_MAP_SORT == "map"


class TestClusterRecords(GoldenRecords):
    shapes = SHAPES


def test_a_store_in_no_known_state_is_refused():
    with pytest.raises(CorruptError):
        store_lease_record.store_lease_of_body({**SHAPES["store lease"][3], "state": "TIRED"})


@given(
    st.dictionaries(st.integers(0, 999), st.sampled_from(["a", "b", "c.1"])),
    st.dictionaries(st.integers(0), st.integers(0)),
)
def test_maps_come_back(stores: dict[int, str], discarded: dict[int, int]):
    made = ContainerMap(stores, discarded)
    text = json.dumps(container_map_record.container_map_body(made))
    assert container_map_record.container_map_of_body(json.loads(text)) == made


def test_a_lease_says_since_when_its_store_serves_nothing():
    unserved = replace(LEASE, unserved_since_ms=450)
    body = store_lease_record.store_lease_body(unserved)
    assert body == {**SHAPES["store lease"][3], "unserved_since": 450}
    assert store_lease_record.store_lease_of_body(body) == unserved
