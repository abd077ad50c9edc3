"""The record of the container map: golden value and key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from golden_records import GoldenRecords
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import (
    MAP_KEY,
    STORES_FIRST,
    STORES_LAST,
    check_claim,
    claim_body,
    claim_key,
    container_map_body,
    decode_claim,
    decode_container_map,
    decode_snapshot_pointer,
    decode_store_lease,
    find_claim,
    find_claims,
    lease_key,
    snapshot_body,
    snapshot_key,
    store_lease_body,
    write_claim,
)
from headrace.model.cluster import (
    FIRST_PROTOCOL,
    ContainerMap,
    ProtocolVersions,
    ReplicationStatus,
    StoreLease,
    StoreState,
)
from headrace.model.containers import ContainerClaim, SnapshotPointer
from headrace.model.errors import CorruptError
from headrace.model.external_access import ExternalAddress
from headrace.ports.metadata_store import Check, Key, Record

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


CLAIM = ContainerClaim("store-0", "10.0.0.1", 12345, "use1-az1")
GOLDEN = {"store": "store-0", "host": "10.0.0.1", "port": 12345, "zone": "use1-az1"}


def test_golden_values():
    assert claim_body(CLAIM) == GOLDEN
    assert decode_claim(GOLDEN) == CLAIM
    clean = ContainerClaim("store-0", "10.0.0.1", 12345, "use1-az1", from_clean=True)
    assert claim_body(clean) == GOLDEN | {"from_clean": True}
    assert decode_claim(claim_body(clean)) == clean
    in_s3 = ContainerClaim("store-0", "10.0.0.1", 12345, "use1-az1", log_in_s3=True)
    assert claim_body(in_s3) == GOLDEN | {"log_in_s3": True}
    assert decode_claim(claim_body(in_s3)) == in_s3
    with_tls = ContainerClaim("store-0", "10.0.0.1", 12345, "use1-az1", tls_name="store-0.headrace.internal")
    assert claim_body(with_tls) == GOLDEN | {"tls_name": "store-0.headrace.internal"}
    assert decode_claim(claim_body(with_tls)) == with_tls


def test_key_of_container_claim():
    assert claim_key(7) == Key("cluster", "container/0007")
    assert check_claim(7, 3) == Check(Key("cluster", "container/0007"), 3)


def test_each_claim_has_the_next_epoch():
    store = MemoryMetadataStore()
    assert find_claim(store, 7) is None
    store.write(write_claim(7, CLAIM, None))
    assert find_claim(store, 7) == (CLAIM, 0)
    store.write(write_claim(7, CLAIM, 0))
    assert find_claim(store, 7) == (CLAIM, 1)


@pytest.mark.parametrize(
    "change",
    [{"store": 1}, {"port": "x"}, {"port": -1}, {"zone": None}, {"from_clean": 1}, {"log_in_s3": 1}, {"tls_name": 1}],
)
def test_an_invalid_claim_is_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_claim(GOLDEN | change)


def test_many_claims_are_read_a_hundred_at_a_time(monkeypatch: pytest.MonkeyPatch):
    store = MemoryMetadataStore()
    for container in range(0, 250, 2):
        store.write(write_claim(container, CLAIM, None))
    read = store.get_many
    batches: list[int] = []

    def counted(keys: Sequence[Key]) -> list[Record | None]:
        batches.append(len(keys))
        return read(keys)

    monkeypatch.setattr(store, "get_many", counted)
    assert find_claims(store, [3, *range(250), 4]) == dict.fromkeys(range(0, 250, 2), (CLAIM, 0))
    assert batches == [100, 100, 50]
    assert find_claims(store, []) == {}


POINTER = SnapshotPointer("snapshots/container-0003/0000000007-0000000001", 120, 99, 7, True)
SNAPSHOT_POINTER_GOLDEN = {
    "object": "snapshots/container-0003/0000000007-0000000001",
    "length": 120,
    "crc32c": 99,
    "epoch": 7,
    "clean": True,
}


def test_golden_value():
    assert snapshot_body(POINTER) == SNAPSHOT_POINTER_GOLDEN
    assert decode_snapshot_pointer(SNAPSHOT_POINTER_GOLDEN) == POINTER
    restored = replace(POINTER, restored=True)
    assert snapshot_body(restored) == SNAPSHOT_POINTER_GOLDEN | {"restored": True}
    assert decode_snapshot_pointer(SNAPSHOT_POINTER_GOLDEN | {"restored": True}) == restored


def test_key_of_snapshot_pointer():
    assert snapshot_key(3) == Key("cluster", "snapshot/0003")


@pytest.mark.parametrize("change", [{"object": 1}, {"length": "x"}, {"epoch": -1}, {"clean": 1}, {"restored": 1}])
def test_an_invalid_pointer_is_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_snapshot_pointer(SNAPSHOT_POINTER_GOLDEN | change)


LEASE = StoreLease("store-0.1", "h", 9, "z", 100, "disk", "task", 60, 3, StoreState.LOST, 500, 600, 660)
STORE_LEASE_GOLDEN = {
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
    tls_name="store-0.headrace.internal",
    external=ExternalAddress("store-0.streams.example.com", 12346),
    release="0.3",
    starts_ms=(100, 450),
    unflushed_since_ms=470,
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
    "tls_name": "store-0.headrace.internal",
    "external": {"name": "store-0.streams.example.com", "port": 12346},
    "release": "0.3",
    "starts": [100, 450],
    "unflushed_since": 470,
}


class TestStoreLease(GoldenRecords):
    shapes = {"store lease": (LEASE, store_lease_body, decode_store_lease, STORE_LEASE_GOLDEN)}


class TestReplicatingStoreLease(GoldenRecords):
    golden = {**STORE_LEASE_GOLDEN, **REPLICATION_FIELDS}
    shapes = {"store lease": (REPLICATING, store_lease_body, decode_store_lease, golden)}
    left_out = {"store lease": set(REPLICATION_FIELDS)}


def test_a_lease_without_a_replica_replicates_nothing():
    lease = decode_store_lease(STORE_LEASE_GOLDEN)
    assert (lease.replica_id, lease.replica_port, lease.revision) == ("", 0, 0)
    assert (lease.replication, lease.volume_gone) == (ReplicationStatus(False, (), 0), False)


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
        {"tls_name": 1},
        {"replica_protocol": None},
        {"external": None},
        {"external": ["store-0.streams.example.com", 12346]},
        {"external": {"name": "store-0.streams.example.com"}},
        {"external": {"name": "not a name", "port": 12346}},
        {"external": {"name": "store-0.streams.example.com", "port": 0}},
        {"external": {"name": "store-0.streams.example.com", "port": 65_536}},
        {"external": {"name": "store-0.streams.example.com", "port": 12346, "host": 1}},
        {"release": 3},
        {"release": "newest"},
        {"release": ""},
        {"starts": [1.5]},
        {"starts": 450},
        {"starts": [-1]},
        {"unflushed_since": "470"},
        {"unflushed_since": None},
    ],
)
def test_invalid_replication_fields_are_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_store_lease({**STORE_LEASE_GOLDEN, **REPLICATION_FIELDS, **change})


def test_a_lease_without_versions_speaks_the_first_one():
    fields = {name: value for name, value in REPLICATION_FIELDS.items() if name != "replica_protocol"}
    lease = decode_store_lease({**STORE_LEASE_GOLDEN, **fields})
    assert lease.replica_protocol == FIRST_PROTOCOL == ProtocolVersions(1, 1)
    assert "replica_protocol" not in store_lease_body(lease)


def test_an_address_outside_may_have_a_host():
    outside = ExternalAddress("store-0.external.headrace.internal", 40_000, "127.0.0.1")
    body = store_lease_body(replace(LEASE, external=outside))
    assert body["external"] == {"name": outside.name, "port": 40_000, "host": "127.0.0.1"}
    assert decode_store_lease(body).external == outside
    assert (outside.reached_at, ExternalAddress("a.b", 1).reached_at) == ("127.0.0.1", "a.b")


def test_key_of_store_lease():
    assert lease_key("store-0") == Key("cluster", "store/store-0")
    assert STORES_FIRST < "store/\uffff" < STORES_LAST


def test_an_unknown_state_is_refused():
    with pytest.raises(CorruptError):
        decode_store_lease({**STORE_LEASE_GOLDEN, "state": "TIRED"})


def test_a_lease_says_since_when_its_store_serves_nothing():
    unserved = replace(LEASE, unserved_since_ms=450)
    assert store_lease_body(unserved) == {**STORE_LEASE_GOLDEN, "unserved_since": 450}
    assert decode_store_lease(store_lease_body(unserved)) == unserved
