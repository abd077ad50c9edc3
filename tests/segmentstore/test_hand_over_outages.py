"""A hand-over while tier 2 does not answer: the container is served here as long as another store cannot have it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from store_world import WAIT_S, RunningStore, WireClient, World

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.errors import FencedError, UnavailableError
from headrace.segmentstore import store as store_module
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tiering import storage_writer

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = 5


@pytest.fixture
def world(make_world: type[World]):
    return make_world(container_count=1)


async def writing(running: RunningStore) -> WireClient:
    """A client with one acknowledged event, number 1."""
    client = await running.connect()
    await client.create(SEGMENT)
    await client.set_up(SEGMENT, WRITER)
    await client.append(WRITER, 1, b"one")
    return client


def break_tier_two(world: World, part: str) -> Any:
    """Let S3, DynamoDB or "writes to DynamoDB" refuse everything. Returns a function that ends that."""

    async def no_put(*_: object) -> None:
        raise UnavailableError("not now")

    def no_write(*_: object, **__: object) -> None:
        raise UnavailableError("not now")

    if part == "S3":
        honest_put, world.chunks.put = world.chunks.put, no_put  # type: ignore[method-assign]
        return lambda: setattr(world.chunks, "put", honest_put)
    honest = {"write": world.metadata.write}
    if part == "DynamoDB":
        honest |= {name: getattr(world.metadata, name) for name in ("get", "get_many", "query")}
    for name in honest:
        setattr(world.metadata, name, no_write)
    return lambda: [setattr(world.metadata, name, call) for name, call in honest.items()]


def needs_log(world: World) -> bool:
    (state,) = ClusterRecords(world.metadata).containers([0])
    return state.hold is not None


async def taken_by_another_store(world: World) -> bytes:
    async with replace(world, disk=MemoryJournalDisk()).running() as other:  # opens what it claims
        return await (await other.connect()).read_all(SEGMENT)


@pytest.mark.parametrize("part", ["S3", "DynamoDB"])
async def test_container_is_served_while_tier_two_is_away(world: World, part: str):
    """Opening it again would need a claim, so it would have no owner until the outage ends."""
    async with world.running() as running:
        client = await writing(running)
        served = running.store.owned[0]
        mend = break_tier_two(world, part)
        assert not await running.store.hand_over(0, 0.1)
        assert running.store.owned[0] is served
        await client.append(WRITER, 2, b"two")
        mend()
        assert await running.store.hand_over(0, WAIT_S)
        assert await taken_by_another_store(world) == b"onetwo"


async def test_container_is_served_while_most_is_flushed(world: World):
    honest, asked, goes_on = world.chunks.put, asyncio.Event(), asyncio.Event()

    async def slow(name, parts):
        asked.set()
        await goes_on.wait()
        return await honest(name, parts)

    async with world.running() as running:
        client = await writing(running)
        world.chunks.put = slow  # type: ignore[method-assign]
        handing_over = asyncio.ensure_future(running.store.hand_over(0, 1e6))
        await asked.wait()
        await client.append(WRITER, 2, b"two")
        assert running.store.claims
        goes_on.set()
        assert await handing_over
        assert not running.store.claims
    assert await taken_by_another_store(world) == b"onetwo"


async def hand_over_in_an_outage(world: World, running: RunningStore, part: str) -> None:
    """Try to hand over a container; S3 or DynamoDB is away from its stop on until the attempt has ended."""
    writer = running.store.owned[0].writer
    honest_drain = writer.drain

    async def drain() -> bool:
        mends.append(break_tier_two(world, part))
        return await honest_drain()

    mends: list[Any] = []
    writer.drain = drain  # type: ignore[method-assign]
    try:
        assert not await asyncio.wait_for(running.store.hand_over(0, 1e6), WAIT_S)
    finally:
        writer.drain = honest_drain  # type: ignore[method-assign]
    mends[0]()


async def test_a_connection_that_ends_leaves_no_transient_segment(world: World, monkeypatch):
    monkeypatch.setattr(store_module, "DRAIN_S", 0.1)
    async with world.running(graceful=False) as running:
        await writing(running)
        large = await running.connect()
        created = await large.call(wire.CreateTransientSegment(1, WRITER, SEGMENT))
        assert isinstance(created, wire.SegmentCreated)
        segments, writer = running.store.owned[0].container.metadata.segments, running.store.owned[0].writer
        honest = writer.drain

        async def drain() -> bool:
            large.close()
            await running.until(lambda: bool(running.store._background))
            return await honest()

        writer.drain = drain  # type: ignore[method-assign]
        await hand_over_in_an_outage(world, running, "S3")
        assert 0 in running.store.owned
        await running.until(lambda: created.segment not in segments)


@pytest.mark.parametrize("part", ["S3", "DynamoDB"])
async def test_outage_after_the_stop_undoes_it(world: World, monkeypatch, part: str):
    """The container has no owner for at most `DRAIN_S`, whatever the deadline of the whole hand-over is."""
    monkeypatch.setattr(store_module, "DRAIN_S", 0.1)
    async with world.running(graceful=False) as running:
        client, served = await writing(running), running.store.owned[0]
        epoch = served.container.epoch
        await hand_over_in_an_outage(world, running, part)
        assert running.store.owned[0] is served
        assert served.container.epoch == epoch
        await client.append(WRITER, 2, b"two")  # on the same connection
        assert await client.read_all(SEGMENT) == b"onetwo"
        await running.until(lambda: served.writer.is_calm)  # else each append would become an object of its own
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(SEGMENT) == b"onetwo"
        assert await client.set_up(SEGMENT, WRITER) == 2


async def test_container_that_no_task_flushes_is_not_handed_over(world: World):
    """Only its log has the last bytes, and a hand-over would discard it."""
    async with world.running() as running:
        client, served = await writing(running), running.store.owned[0]
        await served.writer.stop()
        assert not await running.store.hand_over(0, WAIT_S)
        assert running.store.owned[0] is served
        await client.append(WRITER, 2, b"two")
        assert await running.store.hand_over(0, WAIT_S)
    assert await taken_by_another_store(world) == b"onetwo"


async def test_container_that_stayed_is_handed_over_later(world: World, monkeypatch):
    monkeypatch.setattr(store_module, "DRAIN_S", 0.1)
    async with world.running() as running:
        client = await writing(running)
        await hand_over_in_an_outage(world, running, "DynamoDB")
        await client.append(WRITER, 2, b"two")
        monkeypatch.undo()
        assert await running.store.hand_over(0, WAIT_S)
        assert await taken_by_another_store(world) == b"onetwo"


async def test_tables_work_after_a_stop_was_undone(world: World, monkeypatch):
    monkeypatch.setattr(store_module, "DRAIN_S", 0.1)
    async with world.running() as running:
        await writing(running)
        tables = running.store.owned[0].tables
        await tables.create("scope/_table", 0, ())
        await hand_over_in_an_outage(world, running, "S3")
        async with tables.use("scope/_table") as table:
            assert table.failure is None


async def test_unknown_outcome_of_the_last_write_keeps_the_log(world: World, monkeypatch):
    """Tier 2 may say that it has everything, so that another store may own the container: a new claim decides."""
    monkeypatch.setattr(store_module, "DRAIN_S", 0.1)
    async with world.running(graceful=False) as running:
        await writing(running)
        await hand_over_in_an_outage(world, running, "writes to DynamoDB")
        assert running.store.logs_at_rest == [0]
        await running.store.open_container(0, world.claim(0))
        client = await running.connect()
        assert await client.read_all(SEGMENT) == b"one"
        assert await client.set_up(SEGMENT, WRITER) == 1
        await client.append(WRITER, 2, b"two")
    async with world.running() as running:
        assert await (await running.connect()).read_all(SEGMENT) == b"onetwo"


async def test_claim_lost_after_the_stop_is_not_undone(world: World, monkeypatch):
    monkeypatch.setattr(store_module, "DRAIN_S", 0.1)
    async with world.running(graceful=False) as running:
        await writing(running)
        writer, epoch = running.store.owned[0].writer, running.store.owned[0].container.epoch
        honest_drain = writer.drain

        async def drain() -> bool:
            running.store.lose_claim(0, epoch, FencedError("taken over"))
            return await honest_drain()

        writer.drain = drain  # type: ignore[method-assign]
        assert not await running.store.hand_over(0, 1e6)
        assert not running.store.owned


async def test_stop_is_not_undone_once_another_store_owns_it(world: World, monkeypatch):
    """The last snapshot finds it out, also if it is not clean."""
    async with world.running(graceful=False) as running:
        await writing(running)
        writer = running.store.owned[0].writer
        honest_checkpoint = writer.checkpoint

        async def checkpoint() -> None:
            await honest_checkpoint()
            monkeypatch.setattr(Segment, "is_stored", False)
            world.claim(0)

        monkeypatch.setattr(writer, "checkpoint", checkpoint)
        assert not await running.store.hand_over(0, 1e6)
        assert not running.store.owned


async def test_store_stops_between_the_flush_and_the_stop(world: World, monkeypatch):
    """Either flushes the container: two flushes would wait for each other until the deadline."""
    async with world.running() as running:
        await writing(running)
        store, drains = running.store, []
        writer = store.owned[0].writer
        honest_prepare, honest_drain = writer.prepare_drain, writer.drain
        closing: list[asyncio.Future[None]] = []

        async def prepare_drain() -> None:
            await honest_prepare()
            closing.append(asyncio.ensure_future(store.close(WAIT_S)))

        async def drain() -> bool:
            drains.append(1)
            return await honest_drain()

        monkeypatch.setattr(writer, "prepare_drain", prepare_drain)
        monkeypatch.setattr(writer, "drain", drain)
        await asyncio.wait_for(store.hand_over(0, 1e6), WAIT_S)
        await closing[0]
        assert len(drains) == 1
    assert await taken_by_another_store(world) == b"one"


async def test_hand_over_stops_appends_that_tier_two_cannot_follow(world: World, monkeypatch):
    monkeypatch.setattr(storage_writer, "PREPARED_BYTES_MAX", -1)
    async with world.running() as running:
        await writing(running)
        assert await running.store.hand_over(0, 1.0)
    assert await taken_by_another_store(world) == b"one"


async def test_store_that_shuts_down_ends_its_hand_overs(world: World):
    async with world.running() as running:
        await writing(running)
        mend = break_tier_two(world, "S3")
        handing_over = asyncio.ensure_future(running.store.hand_over(0, 1e6))
        await running.until(lambda: running.store.owned[0].writer.is_retrying)
        closing = asyncio.ensure_future(running.store.close(WAIT_S))
        assert not await asyncio.wait_for(handing_over, WAIT_S)
        mend()
        await closing
    assert await taken_by_another_store(world) == b"one"


async def test_stop_drains_while_a_hand_over_ends(make_world: type[World]):
    """Both have the time of the stop: one after the other would take twice as long."""
    world = make_world(container_count=2)
    async with world.running() as running:
        asked, drained = asyncio.Event(), asyncio.Event()
        handed_over, other = (running.store.owned[each].writer for each in (0, 1))
        honest_drain, honest_other = handed_over.drain, other.drain

        async def drain_after_the_other() -> bool:
            asked.set()
            await drained.wait()
            return await honest_drain()

        async def drain() -> bool:
            drained.set()
            return await honest_other()

        handed_over.drain, other.drain = drain_after_the_other, drain  # type: ignore[method-assign]
        handing_over = asyncio.ensure_future(running.store.hand_over(0, 1e6))
        await asked.wait()
        await asyncio.wait_for(running.store.close(1e6), WAIT_S)
        assert await handing_over


async def stopped_in_an_outage(world: World, monkeypatch: pytest.MonkeyPatch, part: str, deadline_s: float) -> None:
    """Stop a store while a hand-over drains and tier 2 is away for longer than a hand-over may last after its stop."""
    monkeypatch.setattr(store_module, "DRAIN_S", 0.1)
    async with world.running(graceful=False) as running:
        client = await writing(running)
        writer, began = running.store.owned[0].writer, asyncio.Event()
        honest_drain, mends = writer.drain, list[Any]()

        async def drain() -> bool:
            if not mends:
                mends.append(break_tier_two(world, part))
                began.set()
            return await honest_drain()

        monkeypatch.setattr(writer, "drain", drain)
        await client.append(WRITER, 2, b"two")
        handing_over = asyncio.ensure_future(running.store.hand_over(0, 1e6))
        await began.wait()
        asyncio.get_running_loop().call_later(0.3, lambda: mends[0]())
        await asyncio.wait_for(running.store.close(deadline_s), WAIT_S)
        await handing_over
        mends[0]()


@pytest.mark.parametrize("part", ["S3", "DynamoDB", "writes to DynamoDB"])
async def test_stop_during_a_hand_over_flushes_in_its_time(world: World, monkeypatch, part: str):
    """The volume ends with the task: the log is not left on it while the stop has time."""
    await stopped_in_an_outage(world, monkeypatch, part, WAIT_S)
    assert not needs_log(world)
    assert await taken_by_another_store(world) == b"onetwo"


async def test_stop_waits_for_a_hand_over_until_its_deadline(world: World, monkeypatch):
    await stopped_in_an_outage(world, monkeypatch, "S3", 0.2)
    assert needs_log(world)
    async with world.running() as running:  # from its log
        assert await (await running.connect()).read_all(SEGMENT) == b"onetwo"
