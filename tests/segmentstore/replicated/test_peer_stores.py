"""What a store makes of the leases of others: silent ones are ended, containers of isolated ones move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import ClusterRecords, write_lease
from headrace.model.cluster import (
    SILENT_S,
    UNCHANGED_S,
    UNCHANGED_WITHOUT_LINK_S,
    ProtocolVersions,
    ReplicationStatus,
    StoreLease,
    StoreState,
    may_be_taken_over,
    registered,
    renewed,
)
from headrace.model.container_logs import ReplicaId
from headrace.model.errors import UnavailableError
from headrace.model.replica_placement import ReplicaAddress
from segmentstore_fargate.peer_stores import PeerStores

pytestmark = pytest.mark.anyio

OWN, OTHER, NEW = (ReplicaId(bytes([number]) * 16) for number in (1, 2, 3))


class Watched:
    """Two stores; the first one watches the second."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.records = ClusterRecords(MemoryMetadataStore())
        self.silence: float | None = 0.0
        self.news = 0
        self.peers = PeerStores(self.records, self.clock, 4, self._silent_s, self.note)
        for name, replica, port in (("a", OWN, 1), ("b", OTHER, 2)):
            lease = StoreLease(
                name, "h", 1, f"zone-{name}", 100, "v", "", 0, replica_id=replica.hex(), replica_port=port
            )
            self.records.store.write(write_lease(registered(lease, None, self.clock.now_ms()), None))

    def _silent_s(self, replica: ReplicaId) -> float | None:
        return self.silence if replica == OTHER else 0.0

    async def note(self) -> None:
        self.news += 1

    def other(self) -> StoreLease:
        stored_lease = self.records.lease("b")
        assert stored_lease is not None
        return stored_lease.lease

    def write(self, **changes: object) -> None:
        stored_lease = self.records.lease("b")
        assert stored_lease is not None
        changed = replace(renewed(stored_lease.lease, self.clock.now_ms()), **changes)  # type: ignore[arg-type]
        self.records.store.write(write_lease(changed, stored_lease.version))


async def test_a_silent_store_whose_lease_does_not_change_is_ended():
    watched = Watched()
    await watched.peers.look()
    watched.silence = SILENT_S
    watched.clock.advance(int(UNCHANGED_S * 1000) - 1)
    await watched.peers.look()
    assert (watched.other().state, watched.news) == (StoreState.SERVING, 0)
    watched.clock.advance(1)
    await watched.peers.look()
    assert (watched.other().state, watched.news) == (StoreState.LOST, 1)
    assert set(watched.records.container_map().map.stores.values()) == {"a"}
    await watched.peers.look()
    assert watched.news == 1


async def test_a_store_without_a_link_is_ended_when_its_lease_ends():
    watched = Watched()
    watched.silence = None
    await watched.peers.look()
    watched.clock.advance(int(UNCHANGED_WITHOUT_LINK_S * 1000) - 1)
    await watched.peers.look()
    assert watched.other().state is StoreState.SERVING
    watched.clock.advance(1)
    await watched.peers.look()
    assert watched.other().state is StoreState.LOST


async def test_looks_cost_one_query_each():
    watched = Watched()
    calls, honest = [], watched.records.store

    class Counted:
        def __getattr__(self, name):
            calls.append(name)
            return getattr(honest, name)

    peers = PeerStores(ClusterRecords(Counted()), watched.clock, 4, lambda _replica: 0.0, watched.note)
    for _ in range(10):
        await peers.look()
        peers.plan(0, OWN, ())
    assert calls == ["query"] * 10


async def test_a_silent_store_that_renews_its_lease_is_left_alone():
    watched = Watched()
    watched.silence = 60.0
    for _ in range(5):
        await watched.peers.look()
        watched.clock.advance(int(UNCHANGED_S * 1000) - 1)
        watched.write()
    assert watched.other().state is StoreState.SERVING


async def test_a_quiet_lease_without_silence_is_left_alone():
    watched = Watched()
    await watched.peers.look()
    watched.clock.advance(60_000)
    await watched.peers.look()
    assert watched.other().state is StoreState.SERVING


async def test_containers_of_an_isolated_store_move_at_once():
    watched = Watched()
    await watched.peers.look()
    watched.write(replication=ReplicationStatus(isolated=True))
    await watched.peers.look()
    await watched.peers.look()
    assert watched.news == 1
    assert set(watched.records.container_map().map.stores.values()) == {"a"}
    assert may_be_taken_over(watched.other(), watched.clock.now_ms())


@pytest.mark.parametrize("state", [StoreState.LOST, StoreState.LEAVING, StoreState.LEFT])
async def test_a_store_that_gives_its_containers_away_is_noticed_once(state: StoreState):
    """Another store has ended its lease, or it leaves: this one takes its part without waiting for a heartbeat."""
    watched = Watched()
    await watched.peers.look()
    watched.write(state=state)
    await watched.peers.look()
    await watched.peers.look()
    assert watched.news == 1
    assert set(watched.records.container_map().map.stores.values()) == {"a"}


async def test_stores_that_were_away_before_are_no_news():
    watched = Watched()
    watched.write(state=StoreState.LOST)
    await watched.peers.look()
    await watched.peers.look()
    assert watched.news == 0


async def test_plans_are_made_once_for_each_look():
    watched = Watched()
    assert watched.peers.plan(0, OWN, ()).wanted == (OWN,)
    await watched.peers.look()
    plan = watched.peers.plan(0, OWN, ())
    assert plan.wanted == (OWN, OTHER)
    assert watched.peers.plan(0, OWN, ()) is plan
    assert watched.peers.address_of(OTHER) == ReplicaAddress("h", 2, zone="zone-b", store_id="b")
    await watched.peers.look()
    assert watched.peers.plan(0, OWN, ()) is not plan


async def test_new_member_is_not_destroyed_for_old_leases():
    """Its store registered after the leases were read, and a former owner made it a member."""
    watched = Watched()
    await watched.peers.look()
    stored_lease = watched.records.lease("b")
    assert stored_lease is not None
    new = replace(stored_lease.lease, store_id="c", zone="zone-c", replica_id=NEW.hex())
    watched.records.store.write(write_lease(new, None))
    assert watched.peers.plan(0, OWN, (OWN, OTHER, NEW)).placement.destroyed == set()
    await watched.peers.look()
    assert watched.peers.plan(0, OWN, (OWN, OTHER, NEW)).placement.destroyed == set()


async def test_member_without_a_lease_is_destroyed_at_the_next_look():
    watched = Watched()
    await watched.peers.look()
    for _ in range(2):
        assert watched.peers.plan(0, OWN, (OWN, OTHER, NEW)).placement.destroyed == set()
    for _ in range(2):
        await watched.peers.look()
        assert watched.peers.plan(0, OWN, (OWN, OTHER, NEW)).placement.destroyed == {NEW}


async def test_replaced_member_is_destroyed_at_the_look_that_shows_it():
    watched = Watched()
    await watched.peers.look()
    assert watched.peers.plan(0, OWN, (OWN, OTHER)).placement.destroyed == set()
    watched.write(replica_id=NEW.hex())
    await watched.peers.look()
    assert watched.peers.plan(0, OWN, (OWN, OTHER)).placement.destroyed == {OTHER}


async def test_member_named_during_a_look_waits_for_the_next(monkeypatch):
    watched = Watched()
    await watched.peers.look()
    honest = watched.records.leases

    def leases():
        read = honest()
        watched.peers.plan(0, OWN, (OWN, OTHER, NEW))  # its log was read after these leases
        return read

    monkeypatch.setattr(watched.records, "leases", leases)
    await watched.peers.look()
    assert watched.peers.plan(0, OWN, (OWN, OTHER, NEW)).placement.destroyed == set()
    await watched.peers.look()
    assert watched.peers.plan(0, OWN, (OWN, OTHER, NEW)).placement.destroyed == {NEW}


async def test_a_replica_without_a_common_version_is_not_dialed():
    watched = Watched()
    watched.write(replica_protocol=ProtocolVersions(7, 9))
    await watched.peers.look()
    with pytest.raises(UnavailableError, match=r"store b speaks versions 7 to 9 .* this store version 1: update"):
        watched.peers.address_of(OTHER)
    watched.write(replica_protocol=ProtocolVersions(1, 9))
    await watched.peers.look()
    assert watched.peers.address_of(OTHER) == ReplicaAddress("h", 2, zone="zone-b", store_id="b")
