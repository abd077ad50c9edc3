"""Containers whose logs are in S3 do not wait for the disk of a lost store; the others do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_members import CONTAINERS, GRACE_MS, Member, look, member
from store_world import World

from headrace import wire
from headrace.controller.ticks.assign_containers import assign_containers
from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.cluster import ContainerHold
from headrace.model.errors import UnavailableError
from headrace.model.log_classes import NUMBER_BLOCK
from headrace.model.names import segment_name
from headrace.model.segments import segment_id
from segmentstore_fargate import membership

pytestmark = pytest.mark.anyio

S3_CONTAINERS = (4, 5)
IN_S3 = segment_name("s", "t", segment_id(0, NUMBER_BLOCK))
WRITER = 3


@pytest.fixture
def s3_world(world: World) -> World:
    return replace(world, s3_containers=len(S3_CONTAINERS))


async def written(a: Member) -> None:
    """An append to a segment whose log is in S3, acknowledged and not in tier 2."""
    client = await a.running.connect()
    assert await client.call(wire.CreateSegment(1, IN_S3, 0, 0)) == wire.SegmentCreated(1, IN_S3)
    await client.set_up(IN_S3, WRITER)
    await client.append(WRITER, 1, b"acknowledged")


async def content_in_s3(*members: Member) -> bytes:
    container = members[0].running.store.layout.container_of_segment(IN_S3)
    (owner,) = [each for each in members if container in each.containers]
    return await (await owner.running.connect()).read_all(IN_S3)


async def test_only_containers_on_the_lost_disk_wait(s3_world: World):
    async with member(s3_world, "a", range(6), graceful=False) as a:
        await a.serves(*range(6))
        await written(a)
        holds = [state.hold for state in ClusterRecords(s3_world.metadata).containers(range(6))]
        assert [hold is not None and hold.log_in_s3 for hold in holds] == [False] * 4 + [True] * 2
    async with member(s3_world, "b") as b:
        assert b.containers == []
        s3_world.clock.advance(13)
        await b.beat()
        checked = look(s3_world)
        assert (checked.newly_lost, checked.discarded_logs) == (("a",), ())
        await b.beat()
        await b.serves(*S3_CONTAINERS)
        client = await b.running.connect()
        assert await client.set_up(IN_S3, WRITER) == 1
        assert await client.read_all(IN_S3) == b"acknowledged"
        s3_world.clock.advance(GRACE_MS / 1000)
        await b.beat()
        assert look(s3_world).discarded_logs == tuple(range(CONTAINERS))
        await b.beat()
        await b.serves(*range(6))


async def test_living_store_hands_its_s3_containers_over(s3_world: World):
    """Nothing is claimed from a store with a lease: it flushes first, and leaves an empty log."""
    async with member(s3_world, "a", range(6)) as a:
        await a.serves(*range(6))
        await written(a)
        async with member(s3_world, "b") as b:
            await a.beat()
            await a.running.until(lambda: len(a.containers) == 3)
            await b.beat()
            await b.running.until(lambda: len(b.containers) == 3)
            taker = b if set(b.containers) & set(S3_CONTAINERS) else a
            assert sorted(a.containers + b.containers) == list(range(6))
            records = ClusterRecords(s3_world.metadata).containers(taker.containers)
            assert {state.hold.store_id for state in records if isinstance(state.hold, ContainerHold)} == {
                taker.membership.identity.store_id
            }


async def test_a_container_that_stops_on_its_way_is_opened_again(s3_world: World, monkeypatch, caplog):
    """The store that is to take it over waits for this one, and nothing of its log is on this disk to remind of it."""
    monkeypatch.setattr(membership, "DEADLINE_S", 0.05)
    honest, failure = s3_world.chunks.put, UnavailableError("not now")

    async def away(name, parts):
        raise failure

    async with member(s3_world, "a", range(6)) as a:
        await a.serves(*range(6))
        await written(a)
        s3_world.chunks.put = away
        async with member(s3_world, "b") as b:
            await a.beat()
            await a.running.until(lambda: caplog.text.count("event=hand_over_put_off") == 3)
            moving = set(b.membership.missing).intersection(S3_CONTAINERS).pop()
            stopped = a.running.store.owned[moving].container
            stopped.log.fail(failure)
            a.membership.container_failed(moving, failure)
            assert moving not in a.containers
            await a.running.until(lambda: moving in a.containers)
            assert a.running.store.owned[moving].container is not stopped
            s3_world.chunks.put = honest
            monkeypatch.setattr(membership, "DEADLINE_S", 20)
            s3_world.clock.advance(membership.RETRY_FIRST_S)
            await a.beat()
            await a.running.until(lambda: len(a.containers) == 3)
            await b.beat()
            await b.running.until(lambda: moving in b.containers)
            assert await content_in_s3(a, b) == b"acknowledged"


async def test_store_ignores_containers_that_it_does_not_know(world: World):
    """Stores with a newer configuration have put them on the map."""
    async with member(world, "a", range(CONTAINERS)) as a:
        made = assign_containers(ClusterRecords(world.metadata), 6, world.clock.now_ms())
        assert made.map.containers_of("a") == tuple(range(6))
        await a.beat()
        await a.serves(*range(CONTAINERS))
        assert a.membership.missing == []
        assert ClusterRecords(world.metadata).containers([4])[0].claim is None
