"""A claim that DynamoDB did not answer takes effect when its store has looked again and given the container up."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_members import member
from store_world import World

from headrace.controller.ticks.assign_containers import assign_containers
from headrace.metadata.cluster_records import ClusterRecords, claim_key
from headrace.model import containers
from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import UNANSWERED_WRITE_S, Write

pytestmark = pytest.mark.anyio

CONTAINERS = range(6)
LATE = (3, 4, 5)


async def test_a_late_claim_leaves_no_container_without_a_store(make_world: type[World], monkeypatch: Any) -> None:
    monkeypatch.setattr(containers, "RETRY_FIRST_S", 0.001)
    world = make_world(container_count=4, s3_containers=2)
    honest = world.metadata.write
    late: dict[int, tuple[Write, ...]] = {}

    def unanswered(*writes: Write) -> None:
        claimed = [each for each in LATE if writes[0].key == claim_key(each)]
        if claimed:
            late.setdefault(claimed[0], writes)
            raise UnavailableError("not answered")
        honest(*writes)

    async with member(world, "a", range(3)) as a:
        await a.serves(0, 1, 2)
        monkeypatch.setattr(world.metadata, "write", unanswered)
        assign_containers(ClusterRecords(world.metadata), len(CONTAINERS), world.clock.now_ms())
        await a.beat()
        await a.running.until(lambda: set(late) == set(LATE))
        async with member(world, "b") as b:
            moved = [each for each in b.membership.missing if each in LATE]
            assert moved
            await a.beat()
            await a.running.until(lambda: not any(each in a.running.store.openings for each in moved))
            await a.running.until(lambda: a.membership._map_done == a.membership.heartbeat.map.version)
            for each in moved:
                honest(*late[each])
            monkeypatch.setattr(world.metadata, "write", honest)
            await a.running.until(lambda: set(a.containers) >= set(moved))
            await a.beat()
            await a.running.until(lambda: not set(a.containers).intersection(moved))
            await b.beat()
            await b.running.until(lambda: set(b.containers) >= set(moved))


async def test_a_container_is_not_looked_after_for_ever(make_world: type[World]) -> None:
    world = make_world(container_count=4)
    async with member(world, "a", range(4)) as a, member(world, "b") as b:
        await a.beat()
        await b.beat()
        await b.running.until(lambda: len(b.containers) == 2)
        of_b = b.containers[0]
        a.membership._may_be_claimed(of_b)
        a.membership._settling.wake()
        reads = a.metadata.calls["get_many"]
        await a.running.until(lambda: a.metadata.calls["get_many"] > reads + 1)
        assert a.membership._looked_after
        world.clock.advance(UNANSWERED_WRITE_S)
        await a.running.until(lambda: not a.membership._looked_after)
        assert of_b in b.containers
