"""Who of a cluster's stores opens which containers, when others come, leave, die and come back."""

from __future__ import annotations

import asyncio

import pytest
from cluster_members import (
    CONTAINERS,
    GRACE_MS,
    SEGMENT,
    Member,
    content,
    lease,
    look,
    member,
    owner,
    write,
)
from store_world import World

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.metadata.cluster_records import snapshot_body, snapshot_sort, write_lease
from headrace.model.cluster import StoreState, lost
from headrace.model.containers import CLUSTER_PARTITION, SnapshotPointer
from headrace.ports.metadata_store import Create, Key, Replace
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers

pytestmark = pytest.mark.anyio


async def test_single_store_takes_all_containers_without_a_tick(world: World):
    disk = MemoryJournalDisk()
    for incarnation in (1, 2):
        async with member(world, "a", range(CONTAINERS), disk=disk) as a:
            assert a.containers == [0, 1, 2, 3]
            assert lease(world, "a").lease.incarnation == incarnation
            await write(a.running, b"x")
        assert lease(world, "a").lease.state is StoreState.LEFT


async def test_second_store_gets_a_share_and_returns_it_at_shutdown(world: World):
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


async def test_killed_store_resumes_its_containers_from_its_disk(world: World):
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


async def owner_of_new(*members: Member) -> Member:
    for each in members:
        reply = await (await each.running.connect()).call(wire.CreateSegment(1, SEGMENT, 0, 0))
        if isinstance(reply, wire.SegmentCreated):
            return each
    raise AssertionError("nobody serves it")


async def test_absent_store_loses_untiered_bytes_and_discards_its_log(world: World):
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
        assert look(world).discarded_logs
        await a.beat()
        await a.serves(0, 1, 2, 3)
        assert await content(a.running) == b"stored"
        async with member(world, "b", disk=disk) as b:
            await a.beat()
            await b.serves(2, 3)
            assert await content((await owner(a, b)).running) == b"stored"
            assert b.running.store.logs_at_rest == []


async def log_on(disk, container, epoch):
    """A log of one entry, as a store of that epoch left it."""
    loop = asyncio.get_running_loop()
    journal = Journal(disk, lambda: 1, loop.call_soon_threadsafe, file_bytes=4 << 20)
    journal.start()
    durable = loop.create_future()
    OneCopyLedgers(journal).open(container, epoch).append([b"entry"], lambda _error: durable.set_result(None))
    await durable
    await asyncio.to_thread(journal.close)


async def test_resting_log_is_checked_while_the_map_is_unchanged(world: World):
    """It keeps files until tier 2 has what came after it, which may be long after the map has changed."""

    disk = MemoryJournalDisk()
    await log_on(disk, 0, epoch=50)
    async with member(world, "a", range(CONTAINERS)) as a, member(world, "b", disk=disk) as b:
        for each in (a, b, a, b):
            await each.beat()
        await a.serves(0, 1)
        await b.serves(2, 3)
        assert b.running.store.logs_at_rest == [0]
        key, body = Key(CLUSTER_PARTITION, snapshot_sort(0)), snapshot_body(SnapshotPointer("x", 1, 0, 51, False))
        record = world.metadata.get(key)
        world.metadata.write(Create(key, body) if record is None else Replace(key, body, record.version))
        await b.beat()
        await b.running.until(lambda: b.running.store.logs_at_rest == [])
        await b.running.until(lambda: 0 not in b.running.journal.oldest_needed_bytes)


async def test_a_container_is_not_given_to_a_store_that_is_gone(world: World):
    async with member(world, "a", range(CONTAINERS)) as a:
        async with member(world, "b", graceful=False):
            pass
        stored_lease = lease(world, "b")
        world.metadata.write(write_lease(lost(stored_lease.lease, world.clock.now_ms()), stored_lease.version))
        await a.beat()
        await asyncio.sleep(0.02)
        assert a.containers == [0, 1, 2, 3]
        look(world)
        await a.beat()
        await asyncio.sleep(0.02)
        assert a.containers == [0, 1, 2, 3]
        assert a.membership.missing == []
