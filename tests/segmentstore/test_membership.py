"""Stores as members of a cluster, in one process: who opens what, what a beat costs, and what a lost lease does."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec import wire_commands as wire
from headrace.metadata.cluster_records import ClusterRecords, write_lease
from headrace.model.cluster import StoreLease, StoreState, lost, registered
from headrace.model.errors import FencedError, UnavailableError
from headrace.model.names import container_of_segment
from headrace.workflows.detect_failed_stores import detect_failed_stores, end_lease_of_task
from segmentstore_fargate import membership as membership_module
from segmentstore_fargate.membership import Membership, Place

CONTAINERS = 4
GRACE_MS = 60_000
SEGMENT = "scope/stream/0.#epoch.0"
WRITER = 3


class Counted:
    """A metadata store that counts what heartbeats ask it for."""

    def __init__(self, inner) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls[name] += 1
            return getattr(self._inner, name)(*arguments, **named)

        return call


class Member:
    """A running store and its membership; nothing beats by itself."""

    def __init__(self, running, membership, metadata, fatal) -> None:
        self.running, self.membership, self.metadata, self.fatal = running, membership, metadata, fatal

    @property
    def containers(self) -> list[int]:
        return sorted(self.running.store.owned)

    async def beat(self) -> None:
        await self.membership.beat()

    async def serves(self, *containers: int) -> None:
        await self.running.until(lambda: self.containers == sorted(containers))


@asynccontextmanager
async def member(world, name: str, share=(), *, disk=None, graceful=True, volume=None, task=""):
    """Without `graceful` it is gone from one moment to the next: what it does while it ends reaches nobody."""
    own = replace(world, disk=disk or MemoryJournalDisk(), opens=())
    metadata, fatal = Counted(world.metadata), []
    honest = world.metadata.write
    try:
        async with own.running(graceful=graceful) as running:
            identity = StoreLease(name, "127.0.0.1", running.port, "z", 100, volume or f"disk-{name}", task, GRACE_MS)
            place = Place(CONTAINERS, tuple(share))
            membership = Membership(running.store, metadata, world.clock, identity, place, fatal.append)
            await membership.join()
            try:
                yield Member(running, membership, metadata, fatal)
            finally:
                if graceful:
                    await membership.announce_leaving()
                    await running.store.close(10)
                    await membership.end()
                else:
                    world.metadata.write = _dead
                    for work in (membership._beating, membership._settling):
                        work.cancel()
    finally:
        world.metadata.write = honest


def _dead(*writes):
    raise UnavailableError("this process is gone")


@pytest.fixture
def world(make_world, monkeypatch):
    monkeypatch.setattr(membership_module, "HEARTBEAT_EVERY_S", 1e6)
    monkeypatch.setattr(membership_module, "WAITING_POLL_S", 0.001)
    return make_world(container_count=CONTAINERS)


def look(world):
    return detect_failed_stores(world.metadata, world.clock, CONTAINERS)


def lease(world, name):
    found = ClusterRecords(world.metadata).lease(name)
    assert found is not None
    return found


async def write(running, *events: bytes) -> None:
    client = await running.connect()
    await client.call(wire.CreateSegment(1, SEGMENT, 0, 0))
    number = max(0, await client.set_up(SEGMENT, WRITER))
    for each, event in enumerate(events, number + 1):
        await client.append(WRITER, each, event)
    client.close()


async def content(running) -> bytes:
    return await (await running.connect()).read_all(SEGMENT)


async def owner(*members: Member) -> Member:
    """Who serves the segment."""
    for each in members:
        info = await (await each.running.connect()).call(wire.GetStreamSegmentInfo(1, SEGMENT))
        if not isinstance(info, wire.WrongHost):
            return each
    raise AssertionError("nobody serves it")


def test_a_single_store_takes_everything_without_a_tick_and_again_after_a_stop(world, run):
    async def scenario():
        disk = MemoryJournalDisk()
        for incarnation in (1, 2):
            async with member(world, "a", range(CONTAINERS), disk=disk) as a:
                assert a.containers == [0, 1, 2, 3]
                assert lease(world, "a").lease.incarnation == incarnation
                await write(a.running, b"x")
            assert lease(world, "a").lease.state is StoreState.LEFT

    run(scenario())


def test_a_beat_costs_a_write_and_a_read(world, run):
    async def scenario():
        async with member(world, "a", range(CONTAINERS)) as a:
            a.metadata.calls.clear()
            for _ in range(3):
                await a.beat()
            await asyncio.sleep(0.01)
            assert a.metadata.calls == {"write": 3, "get": 3}

    run(scenario())


def test_a_second_store_gets_its_part_and_gives_it_back_when_it_leaves(world, run):
    async def scenario():
        async with member(world, "a", range(CONTAINERS)) as a:
            await write(a.running, b"one")
            async with member(world, "b") as b:  # its map came from itself: it had nothing
                assert b.containers == []
                await a.beat()
                await a.serves(0, 1)
                await b.serves(2, 3)
                await write((await owner(a, b)).running, b"two")
            await a.beat()
            await a.serves(0, 1, 2, 3)
            assert await content(a.running) == b"onetwo"
            assert not a.fatal

    run(scenario())


def test_a_store_that_was_killed_takes_its_containers_back_from_its_disk(world, run):
    async def scenario():
        disk = MemoryJournalDisk()
        async with member(world, "a", (0, 2)) as a:
            async with member(world, "b", (1, 3), disk=disk, graceful=False) as b:
                await write((await owner_of_new(a, b)).running, b"kept")
            world.clock.advance(13)
            await a.beat()
            assert look(world).newly_lost == ("b",)
            await a.beat()
            assert a.containers == [0, 2]
            async with member(world, "b", (1, 3), disk=disk) as b:
                assert b.containers == [1, 3]
                assert await content((await owner(a, b)).running) == b"kept"

    run(scenario())


async def owner_of_new(*members: Member) -> Member:
    for each in members:
        reply = await (await each.running.connect()).call(wire.CreateSegment(1, SEGMENT, 0, 0))
        if isinstance(reply, wire.SegmentCreated):
            return each
    raise AssertionError("nobody serves it")


def test_a_store_that_stays_away_loses_what_tier_2_had_not_and_lets_go_of_its_log(world, run):
    async def scenario():
        disk = MemoryJournalDisk()
        async with member(world, "b", range(CONTAINERS), disk=disk, graceful=False) as b:
            await write(b.running, b"stored")
            await b.running.flush()
            await b.beat()
            await write(b.running, b"not stored")
            assert await content(b.running) == b"storednot stored"
        async with member(world, "a") as a:
            world.clock.advance(13)
            await a.beat()
            look(world)
            await a.beat()
            assert a.containers == []
            world.clock.advance(GRACE_MS / 1000)
            await a.beat()
            assert look(world).given_up
            await a.beat()
            await a.serves(0, 1, 2, 3)
            assert await content(a.running) == b"stored"
            async with member(world, "b", disk=disk) as b:
                await a.beat()
                await b.serves(2, 3)
                assert await content((await owner(a, b)).running) == b"stored"
                assert b.running.store.logs_at_rest == []

    run(scenario())


def test_a_store_that_was_taken_for_lost_goes_on_with_what_was_not_given_away(world, run):
    async def scenario():
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

    run(scenario())


async def everything_in_tier_2(world, owner: Member, container: int) -> None:
    await owner.running.flush()
    owned = owner.running.store.owned[container]
    while owned.writer._snapshots._sequence != owned.container.log.last_sequence:
        await owner.beat()
        world.clock.advance(2)
        owned.writer.wake()
        await asyncio.sleep(0.002)
    await owner.beat()


def test_what_a_store_took_after_its_lease_is_not_acknowledged_when_another_one_went_on(world, run):
    """Two owners, both with the append of event 2: one of them acknowledges it."""
    names = (f"scope/stream/{number}.#epoch.0" for number in range(100))
    segment = next(name for name in names if container_of_segment(name, CONTAINERS) == 0)

    async def scenario():
        async with member(world, "a", range(CONTAINERS), task="task-a") as a, member(world, "b") as b:
            await a.beat()
            await a.serves(0, 1)
            await b.serves(2, 3)
            client = await a.running.connect()
            await client.create(segment)
            await client.set_up(segment, WRITER)
            await client.append(WRITER, 1, b"one")
            await everything_in_tier_2(world, a, 0)
            world.clock.advance(9)
            await b.beat()
            client.send(wire.AppendBlockEnd(WRITER, 3, b"two", 1, 2, 9))
            await a.running.until(lambda: a.running.store.gate.held > 0)
            end_lease_of_task(world.metadata, world.clock, CONTAINERS, "task-a")
            await b.beat()
            await b.serves(0, 1, 2, 3)
            other = await b.running.connect()
            assert await other.set_up(segment, WRITER) == 1
            await other.append(WRITER, 2, b"too")
            await a.beat()
            assert a.running.store.gate.is_open
            assert a.containers == []
            assert await client.closed()
            assert await other.read_all(segment) == b"onetoo"
            assert not a.fatal

    run(scenario())


def test_while_the_metadata_store_is_away_the_lease_runs_out_and_comes_back(world, run):
    async def scenario():
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

    run(scenario())


def test_a_renewal_whose_answer_was_lost_is_found(world, run):
    async def scenario():
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

    run(scenario())


def test_two_processes_of_one_name_are_told_apart(world, run):
    async def scenario():
        async with member(world, "a", range(CONTAINERS), graceful=False) as a:
            found = lease(world, "a")
            world.metadata.write(write_lease(registered(found.lease, found.lease, world.clock.now_ms()), found.version))
            with pytest.raises(FencedError, match="HEADRACE_STORE_ID"):
                await a.beat()

    run(scenario())


def test_a_store_on_another_disk_waits_for_its_former_self(world, run, monkeypatch):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)
        world.clock.advance(seconds + 1)

    async def scenario():
        disk = MemoryJournalDisk()
        async with member(world, "a", range(CONTAINERS), disk=disk, graceful=False):
            pass
        async with member(world, "a", range(CONTAINERS), disk=disk, graceful=False):
            assert waited == []
        honest = asyncio.sleep
        monkeypatch.setattr(membership_module.asyncio, "sleep", sleep)
        joining = asyncio.ensure_future(_joined(world))
        while not waited:
            await honest(0)
        monkeypatch.setattr(membership_module.asyncio, "sleep", honest)
        await joining
        assert waited[0] == 12.0

    async def _joined(world):
        async with member(world, "a", range(CONTAINERS), volume="another", graceful=False) as a:
            assert a.containers == [0, 1, 2, 3]

    run(scenario())


def test_a_container_is_not_given_to_a_store_that_is_gone(world, run):
    async def scenario():
        async with member(world, "a", range(CONTAINERS)) as a:
            async with member(world, "b", graceful=False):
                pass
            found = lease(world, "b")
            world.metadata.write(write_lease(lost(found.lease, world.clock.now_ms()), found.version))
            await a.beat()
            await asyncio.sleep(0.02)
            assert a.containers == [0, 1, 2, 3]
            look(world)
            await a.beat()
            await asyncio.sleep(0.02)
            assert a.containers == [0, 1, 2, 3]
            assert a.membership.missing == []

    run(scenario())


def test_a_store_does_not_wait_for_ever_for_another_process_with_its_name(world, run, monkeypatch):
    monkeypatch.setattr(membership_module, "FORMER_SELF_PATIENCE_S", 20.0)

    async def slept(seconds: float) -> None:
        """The former self renews its lease meanwhile."""
        world.clock.advance(int(seconds * 1000))
        found = lease(world, "store-0")
        world.metadata.write(write_lease(registered(found.lease, found.lease, world.clock.now_ms()), found.version))

    async def scenario():
        async with member(world, "store-0", share=range(CONTAINERS)):
            # Only what the membership sleeps: everything else of the store goes on as it does.
            everything = {name: getattr(asyncio, name) for name in dir(asyncio)}
            monkeypatch.setattr(membership_module, "asyncio", SimpleNamespace(**everything | {"sleep": slept}))
            with pytest.raises(UnavailableError, match="HEADRACE_STORE_ID"):
                async with member(world, "store-0", volume="another disk", graceful=False):
                    raise AssertionError("two stores have one name")

    run(scenario())
