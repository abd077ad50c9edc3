"""The record of a store's lease: golden value and key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from golden_records import GoldenRecords

from headrace.metadata.store_lease import STORES_FIRST, STORES_LAST, decode_store_lease, lease_key, store_lease_body
from headrace.model.cluster import ReplicationStatus, StoreLease, StoreState
from headrace.model.errors import CorruptError
from headrace.model.protocol_versions import FIRST_PROTOCOL, ProtocolVersions
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
"""Of a store with one copy of each log."""

REPLICATING = replace(
    LEASE,
    replica_id="0a" * 16,
    replica_port=12745,
    revision=17,
    replication=ReplicationStatus(isolated=True, blocked=(3, 12), under_replicated=5, stalled=True),
    volume_gone=True,
    replica_protocol=ProtocolVersions(2, 3),
)
REPLICATION_FIELDS = {
    "replica": "0a" * 16,
    "replica_port": 12745,
    "revision": 17,
    "isolated": True,
    "blocked": [3, 12],
    "under_replicated": 5,
    "stalled": True,
    "volume_gone": True,
    "replica_protocol": [2, 3],
}


class TestStoreLease(GoldenRecords):
    shapes = {"store lease": (LEASE, store_lease_body, decode_store_lease, GOLDEN)}


class TestReplicatingStoreLease(GoldenRecords):
    golden = {**GOLDEN, **REPLICATION_FIELDS}
    shapes = {"store lease": (REPLICATING, store_lease_body, decode_store_lease, golden)}
    left_out = {"store lease": set(REPLICATION_FIELDS)}


def test_a_lease_without_a_replica_replicates_nothing():
    found = decode_store_lease(GOLDEN)
    assert (found.replica_id, found.replica_port, found.revision) == ("", 0, 0)
    assert (found.replication, found.volume_gone) == (ReplicationStatus(False, (), 0), False)


@pytest.mark.parametrize(
    "change",
    [
        {"replica": "0A" * 16},
        {"replica": "0a" * 15},
        {"replica": " " + "0a" * 16},
        {"replica": 7},
        {"replica_port": 65_536},
        {"replica_port": -1},
        {"replica_port": True},
        {"revision": "17"},
        {"isolated": 1},
        {"stalled": "no"},
        {"blocked": [-1]},
        {"blocked": [10_000]},
        {"blocked": ["3"]},
        {"blocked": None},
        {"under_replicated": 1.0},
        {"volume_gone": "no"},
        {"replica_protocol": [0, 1]},
        {"replica_protocol": [2, 1]},
        {"replica_protocol": [1, 65_536]},
        {"replica_protocol": [1]},
        {"replica_protocol": [True, 1]},
        {"replica_protocol": 1},
        {"replica_protocol": None},
    ],
)
def test_invalid_replication_fields_are_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_store_lease({**GOLDEN, **REPLICATION_FIELDS, **change})


def test_a_lease_without_versions_speaks_the_first_one():
    fields = {name: value for name, value in REPLICATION_FIELDS.items() if name != "replica_protocol"}
    found = decode_store_lease({**GOLDEN, **fields})
    assert found.replica_protocol == FIRST_PROTOCOL == ProtocolVersions(1, 1)
    assert "replica_protocol" not in store_lease_body(found)


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
