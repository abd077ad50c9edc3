"""The targets of the load balancer outside follow the leases of stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.adapters.memory.external_targets import MemoryExternalTargets
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.controller.ticks.keep_external_targets import keep_targets
from headrace.metadata.cluster_records import ClusterRecords, write_lease
from headrace.model.cluster import StoreLease, StoreState
from headrace.model.errors import ThrottledError, UnavailableError
from headrace.model.external_access import ExternalAddress
from headrace.ports.external_targets import Target

LEASE = StoreLease("a", "10.0.0.1", 12345, "z", 100, "disk", "task", 0)


class World:
    """Stores by id, and a load balancer with four ports."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore()
        self.balancer = MemoryExternalTargets(range(20_000, 20_004))

    def lease(self, store_id: str, host: str, port: int | None, state: StoreState = StoreState.SERVING) -> None:
        external = None if port is None else ExternalAddress("store-0.streams.example.com", port)
        stored = ClusterRecords(self.store).lease(store_id)
        lease = replace(LEASE, store_id=store_id, host=host, external=external, state=state)
        self.store.write(write_lease(lease, None if stored is None else stored.version))

    @property
    def targets(self) -> dict[int, set[str]]:
        found = {port: {target.host for target in self.balancer.targets(port)} for port in self.balancer.ports()}
        return {port: hosts for port, hosts in found.items() if hosts}


@pytest.fixture
def world() -> World:
    return World()


def test_stores_with_a_lease_become_targets(world: World):
    world.lease("a", "10.0.0.1", 20_000)
    world.lease("b", "10.0.0.2", 20_002)
    assert keep_targets(world.store, world.balancer).added == ("a", "b")
    assert world.targets == {20_000: {"10.0.0.1"}, 20_002: {"10.0.0.2"}}
    again = keep_targets(world.store, world.balancer)
    assert (again.added, again.removed, again.unreachable) == ((), (), ())


def test_a_store_that_leaves_is_a_target_until_its_end(world: World):
    world.lease("a", "10.0.0.1", 20_000)
    keep_targets(world.store, world.balancer)
    world.lease("a", "10.0.0.1", 20_000, StoreState.LEAVING)
    assert keep_targets(world.store, world.balancer).removed == ()
    world.lease("a", "10.0.0.1", 20_000, StoreState.LOST)
    assert keep_targets(world.store, world.balancer).removed == (Target("10.0.0.1", 12345),)
    assert world.targets == {}


def test_a_port_that_changes_hands_has_one_target(world: World):
    world.lease("a", "10.0.0.1", 20_000)
    keep_targets(world.store, world.balancer)
    world.lease("a", "10.0.0.1", 20_000, StoreState.LEFT)
    world.lease("b", "10.0.0.2", 20_000)
    kept = keep_targets(world.store, world.balancer)
    assert (kept.added, kept.removed) == (("b",), (Target("10.0.0.1", 12345),))
    assert world.targets == {20_000: {"10.0.0.2"}}


def test_stores_that_are_not_reached_are_named(world: World):
    world.lease("a", "10.0.0.1", 20_000)
    world.lease("b", "10.0.0.2", None)
    world.lease("c", "10.0.0.3", 30_000)
    assert keep_targets(world.store, world.balancer).unreachable == ("b", "c")
    world.balancer.unhealthy.add(Target("10.0.0.1", 12345))
    assert keep_targets(world.store, world.balancer).unreachable == ("a", "b", "c")


def test_a_store_that_came_after_the_look_stays(world: World):
    """Another run may have added it between the two reads of this one."""
    world.lease("a", "10.0.0.1", 20_000)
    found = world.balancer.targets

    def late(port: int) -> dict[Target, bool]:
        seen = found(port)
        world.balancer.add(20_000, Target("10.0.0.1", 12345))
        return seen

    world.balancer.targets = late
    assert keep_targets(world.store, world.balancer).removed == ()
    world.balancer.targets = found
    assert world.targets == {20_000: {"10.0.0.1"}}


@pytest.mark.parametrize("refused", ["targets", "add", "remove"])
def test_a_refused_port_does_not_stop_the_others(world: World, refused: str, monkeypatch: pytest.MonkeyPatch):
    world.balancer.add(20_000, Target("10.0.0.9", 12345))
    world.balancer.add(20_002, Target("10.0.0.9", 12345))
    world.lease("a", "10.0.0.1", 20_000)
    world.lease("b", "10.0.0.2", 20_002)
    usual = getattr(world.balancer, refused)

    def refuse(port: int, *rest: object) -> object:
        if port == 20_000:
            raise UnavailableError("the load balancer does not serve port 20000: InvalidTarget")
        return usual(port, *rest)

    monkeypatch.setattr(world.balancer, refused, refuse)
    with pytest.raises(UnavailableError, match="port 20000"):
        keep_targets(world.store, world.balancer)
    monkeypatch.undo()
    assert world.targets[20_002] == {"10.0.0.2"}


def test_throttling_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def throttle(port: int) -> dict[Target, bool]:
        asked.append(port)
        raise ThrottledError("slow down")

    monkeypatch.setattr(world.balancer, "targets", throttle)
    with pytest.raises(ThrottledError):
        keep_targets(world.store, world.balancer)
    assert asked == [20_000]
