"""The record of the container map: golden value and key."""

from __future__ import annotations

import json

from golden_records import GoldenRecords
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.container_map import MAP_KEY, container_map_body, decode_container_map
from headrace.model.cluster import ContainerMap
from headrace.ports.metadata_store import Key

CONTAINER_MAP = ContainerMap({0: "store-0", 1: "store-1", 2: "store-0"}, {1: 7})


class TestContainerMap(GoldenRecords):
    shapes = {
        "container map": (
            CONTAINER_MAP,
            container_map_body,
            decode_container_map,
            {"format": 1, "stores": {"store-0": [0, 2], "store-1": [1]}, "given_up": [[1, 7]]},
        )
    }


def test_key():
    assert Key("cluster", "map") == MAP_KEY


@given(
    st.dictionaries(st.integers(0, 999), st.sampled_from(["a", "b", "c.1"])),
    st.dictionaries(st.integers(0), st.integers(0)),
)
def test_maps_come_back(stores: dict[int, str], discarded: dict[int, int]):
    made = ContainerMap(stores, discarded)
    assert decode_container_map(json.loads(json.dumps(container_map_body(made)))) == made
