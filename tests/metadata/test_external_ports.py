"""The port outside of a store process: one process each, taken together with the lease."""

from __future__ import annotations

from dataclasses import replace

import pytest
from golden_records import GoldenRecords

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import ClusterRecords, find_external_addresses, write_lease
from headrace.metadata.external_ports import (
    TakenPort,
    decode_external_port,
    external_port_body,
    external_port_key,
    take_port,
)
from headrace.model.cluster import StoreLease, StoreState
from headrace.model.external_access import ExternalAddress, ExternalOffer
from headrace.ports.metadata_store import WriteConflictError

OFFER = ExternalOffer("store-0.streams.example.com", range(12345, 12347))
LEASE = StoreLease("a", "h", 9, "z", 100, "disk", "task", 60)


@pytest.fixture
def records() -> ClusterRecords:
    return ClusterRecords(MemoryMetadataStore())


def register(records: ClusterRecords, store_id: str, offer: ExternalOffer = OFFER) -> ExternalAddress | None:
    """Take a port, and write the lease with it."""
    taken = take_port(records, offer, store_id)
    stored = records.lease(store_id)
    lease = replace(LEASE, store_id=store_id, external=taken.address)
    records.store.write(write_lease(lease, None if stored is None else stored.version), *taken.writes)
    return taken.address


def end(records: ClusterRecords, store_id: str) -> None:
    stored = records.lease(store_id)
    assert stored is not None
    records.store.write(write_lease(replace(stored.lease, state=StoreState.LOST), stored.version))


def test_a_store_without_an_offer_takes_no_port(records: ClusterRecords):
    assert take_port(records, None, "a") == TakenPort()


def test_stores_take_different_ports_and_keep_them(records: ClusterRecords):
    first, second = register(records, "a"), register(records, "b")
    assert first == ExternalAddress("store-0.streams.example.com", 12345)
    assert second == ExternalAddress("store-0.streams.example.com", 12346)
    assert (register(records, "a"), register(records, "b")) == (first, second)


def test_without_a_free_port_a_store_has_no_address(records: ClusterRecords):
    register(records, "a"), register(records, "b")
    assert register(records, "c") is None
    assert set(find_external_addresses(records.store, ["a", "b", "c", "d"])) == {"a", "b"}


def test_the_port_of_an_ended_lease_is_free(records: ClusterRecords):
    first = register(records, "a")
    register(records, "b"), end(records, "a")
    assert register(records, "c") == first


def test_a_port_that_its_store_has_left_is_free(records: ClusterRecords):
    first = register(records, "a")
    register(records, "b")
    register(records, "a", replace(OFFER, ports=range(20000, 20001)))  # started again, with other ports
    assert register(records, "c") == first
    assert register(records, "b") == ExternalAddress("store-0.streams.example.com", 12346)


def test_a_store_that_returns_to_a_taken_port_gets_another(records: ClusterRecords):
    first = register(records, "a")
    register(records, "a", replace(OFFER, ports=range(20000, 20001)))
    late = take_port(records, OFFER, "a")
    assert register(records, "c") == first
    stored = records.lease("a")
    assert stored is not None
    with pytest.raises(WriteConflictError):
        records.store.write(write_lease(stored.lease, stored.version), *late.writes)
    assert register(records, "a") == ExternalAddress("store-0.streams.example.com", 12346)


def test_the_port_of_a_leaving_store_is_not_free(records: ClusterRecords):
    register(records, "a"), register(records, "b")
    stored = records.lease("a")
    assert stored is not None
    records.store.write(write_lease(replace(stored.lease, state=StoreState.LEAVING), stored.version))
    assert take_port(records, OFFER, "c") == TakenPort()


def test_two_stores_cannot_take_one_port(records: ClusterRecords):
    late = take_port(records, OFFER, "b")
    register(records, "a")
    with pytest.raises(WriteConflictError):
        records.store.write(write_lease(replace(LEASE, store_id="b"), None), *late.writes)


def test_a_store_that_returns_keeps_its_port_from_others(records: ClusterRecords):
    register(records, "a"), end(records, "a")
    late = take_port(records, OFFER, "b")
    register(records, "a")  # it is back, in the same port
    with pytest.raises(WriteConflictError):
        records.store.write(write_lease(replace(LEASE, store_id="b"), None), *late.writes)


def test_a_store_whose_port_was_taken_returns_elsewhere(records: ClusterRecords):
    first = register(records, "a")
    end(records, "a")
    late = take_port(records, OFFER, "a")
    assert register(records, "b") == first
    stored = records.lease("a")
    assert stored is not None
    with pytest.raises(WriteConflictError):
        records.store.write(write_lease(LEASE, stored.version), *late.writes)
    assert register(records, "a") == ExternalAddress("store-0.streams.example.com", 12346)


def test_keys_of_ports_have_five_digits():
    assert external_port_key(443).sort == "external/00443"


class TestExternalPort(GoldenRecords):
    shapes = {"external port": ("store-0", external_port_body, decode_external_port, {"format": 1, "store": "store-0"})}
