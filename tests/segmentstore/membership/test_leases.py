"""The lease of a store: what a beat costs, what happens when it has run out, and two processes with one name."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cluster_members import (
    CONTAINERS,
    SEGMENT_OF_CONTAINER_0,
    WRITER,
    Member,
    lease,
    look,
    member,
    write,
)
from segment_writes import created_segment
from store_world import World

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.controller.ticks.assign_containers import end_lease_of_task
from headrace.metadata.cluster_records import StoredMap, write_lease
from headrace.model.cluster import FLUSH_LAG_S_MAX, ContainerMap, lost, registered
from headrace.model.errors import FencedError, UnavailableError
from headrace.model.external_access import ExternalOffer
from segmentstore_fargate import heartbeat as heartbeat_module

pytestmark = pytest.mark.anyio


async def test_a_beat_costs_a_write_and_a_read(world: World):
    async with member(world, "a", range(CONTAINERS)) as a:
        a.metadata.calls.clear()
        for _ in range(3):
            await a.beat()
        await asyncio.sleep(0.01)
        assert a.metadata.calls == {"write": 3, "get_many": 3}


async def test_a_lease_says_since_when_data_waits_for_tier_2(world: World):
    async with member(world, "a", range(CONTAINERS)) as a:
        writers = [owned.writer for owned in a.running.store.owned.values()]
        for writer in writers:
            await writer.stop()
        written_ms = world.clock.now_ms()
        await write(a.running, b"event")
        world.clock.advance(FLUSH_LAG_S_MAX)
        await a.beat()
        assert lease(world, "a").lease.unflushed_since_ms is None
        world.clock.advance(1)
        await a.beat()
        assert lease(world, "a").lease.unflushed_since_ms == written_ms
        for writer in writers:
            writer.start()
        await a.running.flush()
        await a.beat()
        assert lease(world, "a").lease.unflushed_since_ms is None


OFFER = ExternalOffer("store-0.streams.example.com", range(12345, 12347))


async def test_an_address_outside_costs_no_more_beats(world: World):
    async with member(world, "a", range(CONTAINERS), offer=OFFER) as a:
        assert lease(world, "a").lease.external == OFFER.address(12345)
        a.metadata.calls.clear()
        await a.beat()
        assert a.metadata.calls == {"write": 1, "get_many": 1}
        assert lease(world, "a").lease.external == OFFER.address(12345)


async def test_a_port_that_becomes_free_is_taken(world: World):
    """During a deployment more stores may run than there are ports, until the lease of a crashed one has ended."""
    offer = ExternalOffer(OFFER.name, range(12345, 12346))
    async with member(world, "a", range(CONTAINERS), offer=offer), member(world, "b", offer=offer) as b:
        assert lease(world, "b").lease.external is None
        await b.beat()
        assert lease(world, "b").lease.external is None
        stored_lease = lease(world, "a")
        world.metadata.write(write_lease(lost(stored_lease.lease, world.clock.now_ms()), stored_lease.version))
        await b.beat()
        assert lease(world, "b").lease.external == offer.address(12345)


async def test_a_store_that_returns_takes_another_port(world: World):
    async with member(world, "a", range(CONTAINERS), offer=OFFER) as a:
        stored_lease = lease(world, "a")
        world.metadata.write(write_lease(lost(stored_lease.lease, world.clock.now_ms()), stored_lease.version))
        async with member(world, "b", offer=OFFER):
            assert lease(world, "b").lease.external == OFFER.address(12345)
            await a.beat()
            assert lease(world, "a").lease.external == OFFER.address(12346)


async def test_a_port_whose_answer_was_lost_stays(world: World):
    """The conflict of the next renewal is this store's own write, which has the port."""
    offer = ExternalOffer(OFFER.name, range(12345, 12346))
    async with member(world, "a", range(CONTAINERS), offer=offer), member(world, "b", offer=offer) as b:
        stored_lease = lease(world, "a")
        world.metadata.write(write_lease(lost(stored_lease.lease, world.clock.now_ms()), stored_lease.version))
        honest = world.metadata.write

        def deaf(*writes):
            honest(*writes)
            raise UnavailableError("who knows")

        world.metadata.write = deaf
        with pytest.raises(UnavailableError):
            await b.beat()
        world.metadata.write = honest
        await b.beat()
        assert lease(world, "b").lease.external == offer.address(12345)


async def test_a_lease_without_its_port_takes_one_again(world: World):
    """Another store may have taken the port meanwhile: it belongs to the store whose lease names it."""
    async with member(world, "a", range(CONTAINERS), offer=OFFER) as a:
        stored_lease = lease(world, "a")
        world.metadata.write(write_lease(replace(stored_lease.lease, external=None), stored_lease.version))
        async with member(world, "b", offer=OFFER):
            assert lease(world, "b").lease.external == OFFER.address(12345)
            await a.beat()
            await a.beat()
            assert lease(world, "a").lease.external == OFFER.address(12346)
            assert lease(world, "b").lease.external == OFFER.address(12345)


async def test_replica_is_named_again_after_a_failed_write(world: World, monkeypatch):
    """No log may name a replica without a lease: other stores would take it for destroyed."""
    async with member(world, "a", range(CONTAINERS)) as a:
        heartbeat = a.membership.heartbeat
        with monkeypatch.context() as away:
            away.setattr(heartbeat._records.store, "write", _no_answer, raising=False)
            with pytest.raises(UnavailableError):
                await heartbeat.name_replica("ab" * 16)
        await heartbeat.name_replica("ab" * 16)
        assert lease(world, "a").lease.replica_id == "ab" * 16


async def test_a_beat_under_way_does_not_hide_the_replica(world: World, monkeypatch):
    async with member(world, "a", range(CONTAINERS)) as a:
        heartbeat, held, begun = a.membership.heartbeat, threading.Event(), threading.Event()
        write_now = heartbeat._records.store.write

        def write_later(*writes):
            begun.set()
            assert held.wait(20)
            return write_now(*writes)

        monkeypatch.setattr(heartbeat._records.store, "write", write_later, raising=False)
        beat = asyncio.ensure_future(heartbeat.beat())
        await asyncio.to_thread(begun.wait, 20)
        naming = asyncio.ensure_future(heartbeat.name_replica("ab" * 16))
        await asyncio.sleep(0)
        held.set()
        await asyncio.gather(beat, naming)
        assert lease(world, "a").lease.replica_id == "ab" * 16


def _no_answer(*_writes):
    raise UnavailableError("the metadata store does not answer")


async def test_returning_store_keeps_containers_that_did_not_move(world: World):
    async with member(world, "a", range(CONTAINERS)) as a:
        gate = a.running.store.gate
        world.clock.advance(13)
        assert not gate.is_open
        assert look(world).newly_lost == ("a",)
        await a.beat()
        assert gate.is_open
        assert lease(world, "a").lease.incarnation == 2
        await write(a.running, b"x")
        assert a.containers == [0, 1, 2, 3]


async def everything_in_tier_2(world: World, owner: Member, container: int) -> None:
    await owner.running.flush()
    owned = owner.running.store.owned[container]
    while owned.writer._snapshots._sequence != owned.container.log.last_sequence:
        await owner.beat()
        world.clock.advance(2)
        owned.writer.wake()
        await asyncio.sleep(0.002)
    await owner.beat()


async def test_appends_after_the_lease_are_not_acked_after_a_takeover(world: World):
    """Two owners, both with the append of event 2: one of them acknowledges it."""

    async with member(world, "a", range(CONTAINERS), task="task-a") as a, member(world, "b") as b:
        await a.beat()
        await a.serves(0, 1)
        await b.serves(2, 3)
        client = await created_segment(a.running, SEGMENT_OF_CONTAINER_0, b"one", writer=WRITER, first=1)
        await everything_in_tier_2(world, a, 0)
        world.clock.advance(9)
        await b.beat()
        client.send(wire.AppendBlockEnd(WRITER, 3, b"two", 1, 2, 9))
        await a.running.until(lambda: a.running.store.gate.held > 0)
        end_lease_of_task(world.metadata, world.clock, CONTAINERS, "task-a")
        await b.beat()
        await b.serves(0, 1, 2, 3)
        other = await b.running.connect()
        assert await other.set_up(SEGMENT_OF_CONTAINER_0, WRITER) == 1
        await other.append(WRITER, 2, b"too")
        await a.beat()
        assert a.running.store.gate.is_open
        assert a.containers == []
        assert await client.closed()
        assert await other.read_all(SEGMENT_OF_CONTAINER_0) == b"onetoo"
        assert not a.fatal


async def test_lease_expires_and_recovers_with_the_metadata_store(world: World):
    async with member(world, "a", range(CONTAINERS)) as a:
        honest = world.metadata.write

        def away(*writes):
            raise UnavailableError("not now")

        world.metadata.write = away
        world.clock.advance(8.9)
        assert a.running.store.gate.is_open
        with pytest.raises(UnavailableError):
            await a.beat()
        world.clock.advance(0.2)
        assert not a.running.store.gate.is_open
        world.metadata.write = honest
        await a.beat()
        assert a.running.store.gate.is_open
        assert lease(world, "a").lease.incarnation == 1


async def test_a_renewal_whose_answer_was_lost_is_found(world: World):
    async with member(world, "a", range(CONTAINERS)) as a:
        honest = world.metadata.write

        def deaf(*writes):
            honest(*writes)
            raise UnavailableError("who knows")

        world.metadata.write = deaf
        with pytest.raises(UnavailableError):
            await a.beat()
        world.metadata.write = honest
        await a.beat()
        assert lease(world, "a").lease.incarnation == 1
        assert a.running.store.gate.is_open


async def test_a_lease_taken_up_again_whose_answer_was_lost_is_found(world: World):
    async with member(world, "a", range(CONTAINERS)) as a:
        honest = world.metadata.write

        def deaf(*writes):
            honest(*writes)
            raise UnavailableError("who knows")

        world.clock.advance(13)
        assert look(world).newly_lost == ("a",)
        world.metadata.write = deaf
        with pytest.raises(UnavailableError):
            await a.beat()
        world.metadata.write = honest
        await a.beat()
        assert lease(world, "a").lease.incarnation == 2
        assert a.running.store.gate.is_open


async def test_two_processes_of_one_name_are_told_apart(world: World):
    async with member(world, "a", range(CONTAINERS), graceful=False) as a:
        stored_lease = lease(world, "a")
        world.metadata.write(
            write_lease(registered(stored_lease.lease, stored_lease.lease, world.clock.now_ms()), stored_lease.version)
        )
        with pytest.raises(FencedError, match="HEADRACE_STORE_ID"):
            await a.beat()


async def test_a_store_on_another_disk_waits_for_its_former_self(world: World, monkeypatch):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)
        world.clock.advance(seconds + 1)

    async def _joined(world: World):
        async with member(world, "a", range(CONTAINERS), volume="another", graceful=False) as a:
            assert a.containers == [0, 1, 2, 3]

    disk = MemoryJournalDisk()
    async with member(world, "a", range(CONTAINERS), disk=disk, graceful=False):
        pass
    async with member(world, "a", range(CONTAINERS), disk=disk, graceful=False):
        assert waited == []
    honest = asyncio.sleep
    monkeypatch.setattr(heartbeat_module.asyncio, "sleep", sleep)
    joining = asyncio.ensure_future(_joined(world))
    while not waited:
        await honest(0)
    monkeypatch.setattr(heartbeat_module.asyncio, "sleep", honest)
    await joining
    assert waited[0] == 12.0


async def test_wait_for_a_process_of_the_same_name_is_bounded(world: World, monkeypatch):
    monkeypatch.setattr(heartbeat_module, "FORMER_SELF_PATIENCE_S", 20.0)

    async def slept(seconds: float) -> None:
        """The former self renews its lease meanwhile."""
        world.clock.advance(int(seconds * 1000))
        stored_lease = lease(world, "store-0")
        world.metadata.write(
            write_lease(registered(stored_lease.lease, stored_lease.lease, world.clock.now_ms()), stored_lease.version)
        )

    # The test's clock has passed the lease, so a graceful stop would wait ten seconds for a write that is refused.
    async with member(world, "store-0", share=range(CONTAINERS), graceful=False):
        # Only what the membership sleeps: everything else of the store goes on as it does.
        everything = {name: getattr(asyncio, name) for name in dir(asyncio)}
        monkeypatch.setattr(heartbeat_module, "asyncio", SimpleNamespace(**everything | {"sleep": slept}))
        with pytest.raises(UnavailableError, match="HEADRACE_STORE_ID"):
            async with member(world, "store-0", volume="another disk", graceful=False):
                raise AssertionError("two stores have one name")


async def test_a_defect_in_a_heartbeat_does_not_end_it(world: World, monkeypatch, caplog):
    async with member(world, "a", range(CONTAINERS)) as a:
        honest, heartbeat = world.metadata.write, a.membership.heartbeat

        def defective(*writes):
            world.metadata.write = honest
            raise KeyError("a defect")

        heartbeat.stop()
        monkeypatch.setattr(heartbeat_module, "HEARTBEAT_EVERY_S", 0)
        renewed = lease(world, "a").version + 2
        world.metadata.write = defective
        heartbeat.start()
        await a.running.until(lambda: lease(world, "a").version >= renewed)
        assert not a.fatal
    assert "event=heartbeat_failed" in caplog.text
    assert "KeyError" in caplog.text


async def test_older_container_map_does_not_replace_a_newer_one(world: World):
    async with member(world, "a", range(CONTAINERS)) as a:
        heartbeat = a.membership.heartbeat
        newest = heartbeat.map
        assert newest.version is not None
        heartbeat.take_map(StoredMap(ContainerMap(), None))
        assert heartbeat.map is newest
        newer = StoredMap(newest.map, newest.version + 1)
        heartbeat.take_map(newer)
        heartbeat.take_map(newest)
        assert heartbeat.map is newer
