"""Only the claim says who owns a container: what a store held back is acknowledged by its owner or by no store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_members import CONTAINERS, GRACE_MS, WRITER, Member, lease, look, member
from cluster_members import SEGMENT_OF_CONTAINER_0 as SEGMENT
from segment_writes import created_segment
from store_world import WireClient, World

from headrace import wire
from headrace.controller.ticks.assign_containers import assign_containers
from headrace.metadata.cluster_records import MAP_KEY, ClusterRecords, claim_sort, lease_key
from headrace.model.containers import CLUSTER_PARTITION, OpeningStep
from headrace.model.errors import FencedError, UnavailableError
from headrace.ports.metadata_store import Key

pytestmark = pytest.mark.anyio

ACKNOWLEDGED, HELD = b"one", b"two"


async def shared_out(a: Member, b: Member) -> None:
    """Each store serves its half. One that opens its first container while the clock jumps counts as too late."""
    await a.beat()
    await a.serves(0, 1)
    await b.serves(2, 3)


async def silenced(world: World, a: Member) -> WireClient:
    """A client of `a`, whose first append tier 2 and its snapshot have, and whose second one `a` holds back."""
    client = await created_segment(a.running, SEGMENT, ACKNOWLEDGED, writer=WRITER, first=1)
    owned = a.running.store.owned[0]
    sequence, snapshots = owned.container.log.last_sequence, owned.writer._snapshots
    await a.running.flush()
    world.clock.advance(world.limits.snapshot_every_s)
    await a.beat()
    await a.running.until(lambda: snapshots._sequence is not None and snapshots._sequence >= sequence)
    world.clock.advance(9)
    client.send(wire.AppendBlockEnd(WRITER, 3, HELD, 1, 2, 9))
    await a.running.until(lambda: a.running.store.gate.held > 0)
    return client


async def told(client: WireClient) -> bytes:
    """What a client still gets before its connection ends."""
    return bytes(await asyncio.wait_for(client._reader.read(), 20))


async def give_up(world: World, *others: Member) -> None:
    """The silent store's time is over, and the map names its logs as given up."""
    world.clock.advance(4)
    for other in others:
        await other.beat()
    assert look(world).newly_lost == ("a",)
    world.clock.advance(GRACE_MS / 1000)
    for other in others:
        await other.beat()
    assert look(world).discarded_logs


async def taken_over(b: Member) -> None:
    await b.beat()
    await b.serves(0, 1, 2, 3)
    other = await b.running.connect()
    assert await other.set_up(SEGMENT, WRITER) == 1
    await other.append(WRITER, 2, b"too")


async def test_a_changed_map_does_not_free_what_was_held(world: World):
    """A third store joins after the takeover: the map no longer says that the log was given up."""

    async with member(world, "a", range(CONTAINERS)) as a, member(world, "b") as b:
        await shared_out(a, b)
        client = await silenced(world, a)
        await give_up(world, b)
        await taken_over(b)
        async with member(world, "c") as c:
            await c.beat()
            assert not ClusterRecords(world.metadata).container_map().map.discarded_logs
            await a.beat()
            assert a.running.store.gate.is_open
            assert 0 not in a.containers
            assert await told(client) == b"", "nothing is acknowledged"
            assert not a.fatal


async def test_a_map_written_after_the_new_lease_frees_nothing(world: World):
    """The tick writes the map between the new lease of the store and its look at the map."""

    async with member(world, "a", range(CONTAINERS)) as a, member(world, "b") as b:
        await shared_out(a, b)
        client = await silenced(world, a)
        await give_up(world, b)
        await taken_over(b)
        honest = world.metadata.write

        def tick_follows(*writes):
            honest(*writes)
            if writes[0].key == lease_key("a"):
                world.metadata.write = honest
                assign_containers(ClusterRecords(world.metadata), CONTAINERS, world.clock.now_ms())

        world.metadata.write = tick_follows
        await a.beat()
        assert lease(world, "a").lease.incarnation == 2
        assert await told(client) == b"", "nothing is acknowledged"


async def test_a_store_that_is_back_is_not_taken_over(world: World):
    """The map says that the log was given up, and no store had claimed the container: its owner hands it over."""

    async with member(world, "a", range(CONTAINERS)) as a, member(world, "b") as b:
        await shared_out(a, b)
        client = await silenced(world, a)
        await give_up(world, b)
        await a.beat()
        reply = await client.receive()
        assert isinstance(reply, wire.DataAppended)
        assert reply.event_number == 2
        await b.beat()
        await a.beat()
        await b.serves(0, 1, 2, 3)
        other = await b.running.connect()
        assert await other.set_up(SEGMENT, WRITER) == 2
        assert await other.read_all(SEGMENT) == ACKNOWLEDGED + HELD


@pytest.mark.parametrize("lapse_s", [8.9, 9.1])
async def test_a_lease_that_ends_while_claims_are_read_opens_no_gate(world: World, lapse_s):
    async with member(world, "a", range(CONTAINERS)) as a:
        client = await silenced(world, a)
        honest = world.metadata.get_many

        def slow(keys):
            found = honest(keys)
            world.clock.advance(lapse_s)
            return found

        world.metadata.get_many = slow
        await a.beat()
        world.metadata.get_many = honest
        assert a.running.store.gate.is_open == (lapse_s < 9)
        assert bool(a.running.store.gate.held) == (lapse_s > 9)
        await a.beat()
        assert isinstance(await client.receive(), wire.DataAppended)


async def test_store_acknowledges_nothing_without_confirmed_claims(world: World):
    async with member(world, "a", range(CONTAINERS)) as a:
        client = await silenced(world, a)
        honest = world.metadata.get_many

        def refused(keys):
            raise UnavailableError("not now")

        world.metadata.get_many = refused
        with pytest.raises(UnavailableError):
            await a.beat()
        assert not a.running.store.gate.is_open
        assert a.containers == [0, 1, 2, 3]
        world.metadata.get_many = honest
        await a.beat()
        assert isinstance(await client.receive(), wire.DataAppended)


async def test_claims_are_read_after_the_lease_and_with_the_map(world: World):
    async with member(world, "a", range(CONTAINERS)) as a:
        asked: list[Any] = []
        honest_read, honest_write = world.metadata.get_many, world.metadata.write
        world.metadata.get_many = lambda keys: (asked.append(list(keys)), honest_read(keys))[1]
        world.metadata.write = lambda *writes: (asked.append("lease"), honest_write(*writes))[1]
        await a.beat()
        world.metadata.get_many, world.metadata.write = honest_read, honest_write
        claims = [Key(CLUSTER_PARTITION, claim_sort(each)) for each in range(CONTAINERS)]
        assert asked == ["lease", [MAP_KEY, *claims]]


async def test_a_claim_that_came_while_others_were_read_is_read_too(world: World):
    """Its write may have been done long ago, under a lease that was ended since."""

    async with member(world, "a", range(CONTAINERS)) as a:
        lost = a.running.store.owned.pop(0)  # its claim's answer is on its way
        honest = world.metadata.get_many

        def answer_comes(keys):
            found = honest(keys)
            if Key(CLUSTER_PARTITION, claim_sort(0)) not in keys:
                a.running.store.owned[0] = lost
            return found

        world.claim(0)  # another store has it by now
        world.metadata.get_many = answer_comes
        a.running.store.gate.close()
        await a.beat()
        assert a.running.store.gate.is_open
        assert 0 not in a.containers
        assert lost.container.failure is not None


async def test_a_store_whose_claim_is_gone_stops_that_container_only(world: World):
    async with member(world, "a", range(CONTAINERS)) as a:
        client = await created_segment(a.running, SEGMENT, writer=WRITER)
        world.claim(0)
        await a.beat()
        assert 0 not in a.containers
        assert {1, 2, 3} <= set(a.containers)
        assert await client.call(wire.AppendBlockEnd(WRITER, 1, b"x", 1, 1, 9)) == wire.WrongHost(9, SEGMENT)
        await asyncio.sleep(0)
        assert not a.fatal


async def test_hand_over_is_not_acknowledged_without_its_claim(world: World):
    """The claim was lost while tier 2 was waited for."""

    async def prepared() -> None:
        """Before the append that is held back."""

    async with member(world, "a", range(CONTAINERS), graceful=False) as a:
        client = await silenced(world, a)
        a.running.store.owned[0].writer.prepare_drain = prepared
        handed_over = asyncio.ensure_future(a.running.store.hand_over(0, 1e6))
        await a.running.until(lambda: 0 not in a.containers)
        world.claim(0)
        await a.beat()
        assert a.running.store.gate.is_open
        assert not await handed_over
        assert await told(client) == b"", "nothing is acknowledged"


async def test_container_claimed_by_another_store_is_not_served(world: World):
    async with member(world, "a", (1, 2, 3)) as a:
        store = a.running.store
        opening = store.begin_opening(0)
        opening.claimed(world.claim(0))
        while opening.progress.step is not OpeningStep.CONFIRM:
            await opening.advance()
        world.claim(0)
        with pytest.raises(FencedError, match="taken over"):
            await a.membership.heartbeat.confirm(0, opening.epoch)
        store.cancel_opening(opening)
        await store.retired(0)
        assert 0 not in a.containers
        assert 0 not in store.claims
        assert store.is_free(0)
