"""Tier 2 half-way: what is not durable yet costs nothing there, and what moved without a word is still found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from held_disk import HeldDisk
from segment_writes import created_segment
from store_world import World

from headrace import wire
from headrace.model.chunks import ChunkRun
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    HeadraceError,
    IllegalStateError,
    NotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.ports.metadata_store import Write
from headrace.segmentstore.containers.attribute_updates import AttributeUpdate, UpdateKind
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.merges import merge, merge_batch
from headrace.segmentstore.containers.segment import Segment

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
OTHER = "scope/stream/1.#epoch.0"
TRANSACTION = SEGMENT + "#transaction." + "0" * 31 + "1"
WRITER = 5


def runs_of(world: World, segment):
    return world.metadata.query(f"chunks/{segment}", limit=100).records


async def stored(running, client, segment, blocks):
    """Write blocks and bring each to tier 2 in a run of its own; from then on the storage writer rests."""
    await client.create(segment)
    await client.set_up(segment, WRITER)
    for number, data in enumerate(blocks):
        await client.append(WRITER, number, data)
        await running.flush()
    return running.store.owner_of(segment)


async def accepted(condition):
    while not condition():
        await asyncio.sleep(0)


async def test_a_truncation_that_is_not_durable_removes_nothing(world: World):
    async with world.running() as running:
        client = await running.connect()
        owned = await stored(running, client, SEGMENT, [b"one", b"two"])
        await owned.writer.stop()
        held = HeldDisk(world.disk)
        client.send(wire.TruncateSegment(3, SEGMENT, 3))
        await accepted(lambda: owned.container.metadata.segments[SEGMENT].accepted.start_offset == 3)
        await owned.writer.run_pass()
        assert len(runs_of(world, SEGMENT)) == 2
        held.release()
        assert await client.receive() == wire.SegmentTruncated(3, SEGMENT)
        await owned.writer.run_pass()
        assert len(runs_of(world, SEGMENT)) == 1


async def test_undurable_removal_keeps_merged_bytes(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        owned = await stored(running, client, TRANSACTION, [b"one", b"two"])
        await owned.writer.stop()
        await client.call(wire.MergeSegments(3, SEGMENT, TRANSACTION))
        held = HeldDisk(world.disk)
        client.send(wire.DeleteSegment(4, SEGMENT))
        await accepted(lambda: SEGMENT not in owned.container.metadata.segments)
        for _ in range(3):
            await owned.writer.run_pass()
        assert len(runs_of(world, TRANSACTION)) == 2
        held.release()
        assert await client.receive() == wire.SegmentDeleted(4, SEGMENT)
        for _ in range(3):
            await owned.writer.run_pass()
        assert not runs_of(world, TRANSACTION)


async def test_a_flush_may_end_while_the_merge_of_its_source_is_synced(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.create(TRANSACTION)
        await client.set_up(TRANSACTION, WRITER)
        await client.append(WRITER, 0, b"one")
        owned = running.store.owner_of(SEGMENT)
        await owned.writer.stop()
        source = owned.container.metadata.segments[TRANSACTION]
        begun, go_on = asyncio.Event(), asyncio.Event()
        honest = world.chunks.put

        async def held_put(name, parts):
            begun.set()
            await go_on.wait()
            await honest(name, parts)

        world.chunks.put = held_put
        world.clock.advance(2e6)
        flush = asyncio.ensure_future(owned.writer.run_pass())
        await begun.wait()
        held = HeldDisk(world.disk)
        client.send(wire.MergeSegments(3, SEGMENT, TRANSACTION))
        await accepted(lambda: source.merged_into is not None)
        go_on.set()
        await flush
        assert source.tiered.length == 3
        held.release()
        assert isinstance(await client.receive(), wire.SegmentsMerged)
        await owned.writer.run_pass()
        assert await client.read_all(SEGMENT) == b"one"


async def test_merged_bytes_are_found_after_a_lost_answer_of_the_move(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        owned = await stored(running, client, TRANSACTION, [b"one", b"two"])
        await owned.writer.stop()
        await client.call(wire.MergeSegments(3, SEGMENT, TRANSACTION))
        owned.container.metadata.segments[SEGMENT].index.release_all()  # the cache was needed for others
        assert await client.read_all(SEGMENT) == b"onetwo"
        owned.reader._windows.clear()
        honest = world.metadata.write

        def answers_get_lost(*writes):
            honest(*writes)
            raise UnavailableError("the answer was lost")

        world.metadata.write = answers_get_lost
        world.clock.advance(2e6)
        with pytest.raises(UnavailableError):
            await owned.writer.run_pass()
        world.metadata.write = honest
        assert len(runs_of(world, SEGMENT)) == 2
        assert await client.read_all(SEGMENT) == b"onetwo"


async def merged_and_truncated(running, client):
    """A segment of which tier 2 has all, under the name of what was merged into it, and which starts at its end."""
    await client.create(SEGMENT)
    owned = await stored(running, client, TRANSACTION, [b"one", b"two"])
    await owned.writer.stop()
    await client.call(wire.MergeSegments(3, SEGMENT, TRANSACTION))
    await client.call(wire.TruncateSegment(4, SEGMENT, 6))
    running.world.clock.advance(2e9)
    return owned


async def test_unrecorded_move_of_truncated_bytes_survives_a_crash(world: World):
    async with world.running(graceful=False) as running:
        owned = await merged_and_truncated(running, await running.connect())
        honest = world.metadata.write

        def answers_get_lost(*writes):
            honest(*writes)
            raise UnavailableError("the answer was lost")

        world.metadata.write = answers_get_lost
        with pytest.raises(UnavailableError):
            await owned.writer.run_pass()
        world.metadata.write = honest
        assert len(runs_of(world, SEGMENT)) == 2
    async with world.running() as running:
        owned = running.store.owner_of(SEGMENT)
        await running.flush()
        assert owned.container.metadata.segments[SEGMENT].is_stored


async def test_no_removal_follows_a_move_that_the_log_may_drop(world: World):
    async with world.running() as running:
        client = await running.connect()
        owned = await merged_and_truncated(running, client)
        held = HeldDisk(world.disk)
        await owned.writer.run_pass()
        assert owned.container.metadata.segments[SEGMENT].is_stored
        await owned.writer.run_pass()
        assert len(runs_of(world, SEGMENT)) == 2
        held.release()
        await accepted(lambda: owned.container.stored_is_durable)
        await owned.writer.run_pass()
        assert len(runs_of(world, SEGMENT)) == 1


async def test_run_that_is_compacted_during_a_search_is_found(world: World):
    async with world.running() as running:
        client = await running.connect()
        owned = await stored(running, client, SEGMENT, [b"onetwo"])
        owned.container.metadata.segments[SEGMENT].index.release_all()
        directory = owned.reader._directory
        honest = directory.run_before

        async def as_it_was_before(name, offset):
            directory.run_before = honest
            return ChunkRun(3, 3, "small", 0)

        directory.run_before = as_it_was_before
        reply = await client.call(wire.ReadSegment(SEGMENT, 4, 100, "", 3))
        assert isinstance(reply, wire.SegmentRead)
        assert reply.data == b"wo"


async def test_missing_object_is_reported_without_endless_retries(world: World):
    async with world.running() as running:
        client = await running.connect()
        owned = await stored(running, client, SEGMENT, [b"one"])
        owned.container.metadata.segments[SEGMENT].index.release_all()
        await world.chunks.delete([chunk.name for chunk in await world.chunks.list("")])
        reply = await client.call(wire.ReadSegment(SEGMENT, 0, 100, "", 3))
        assert isinstance(reply, wire.ErrorMessage)
        assert await client.closed()


@pytest.mark.parametrize("refused", ["condition", "truncated source"])
async def test_refused_merge_is_told_when_its_reason_is_durable(world: World, refused):
    async with world.running() as running:
        client = await running.connect()
        for name in (SEGMENT, TRANSACTION):
            await client.create(name)
        await client.set_up(TRANSACTION, WRITER)
        await client.append(WRITER, 0, b"data")
        container = running.store.owner_of(SEGMENT).container
        segments = container.metadata.segments
        held = HeldDisk(world.disk)
        updates, error = [], IllegalStateError
        if refused == "condition":
            client.send(wire.UpdateSegmentAttribute(3, SEGMENT, 9, 77, wire.NO_ATTRIBUTE_VALUE))
            await accepted(lambda: segments[SEGMENT].attribute(9) == 77)
            updates, error = [AttributeUpdate(9, UpdateKind.REPLACE_IF_EQUALS, 78)], ConflictError
        else:
            client.send(wire.TruncateSegment(3, TRANSACTION, 2))
            await accepted(lambda: segments[TRANSACTION].accepted.start_offset == 2)
        merging = asyncio.ensure_future(merge(container, SEGMENT, TRANSACTION, updates))
        for _ in range(20):
            await asyncio.sleep(0)
        waited = not merging.done()
        held.release()
        with pytest.raises(error):
            await merging
        assert container.log.is_durable
        assert waited


Request = Callable[[SegmentContainer], Awaitable[object]]


def set_once(container: SegmentContainer) -> Awaitable[object]:
    return container.update_attributes(SEGMENT, [AttributeUpdate(9, UpdateKind.REPLACE_IF_EQUALS, 77)])


REPEATED: dict[str, tuple[Request, Request, type[HeadraceError] | None]] = {
    "creation": (
        lambda container: container.create(OTHER, ()),
        lambda container: container.create(OTHER, ()),
        AlreadyExistsError,
    ),
    "seal": (lambda container: container.seal(SEGMENT), lambda container: container.seal(SEGMENT), SealedError),
    "truncation": (
        lambda container: container.truncate(SEGMENT, 2),
        lambda container: container.truncate(SEGMENT, 1),
        None,
    ),
    "removal": (
        lambda container: container.delete(SEGMENT),
        lambda container: container.delete(SEGMENT),
        NotFoundError,
    ),
    "attribute": (set_once, set_once, ConflictError),
    "guarded removal": (set_once, lambda container: container.delete(SEGMENT, has_attribute), ConflictError),
    "merge": (
        lambda container: merge_batch(container, SEGMENT, [TRANSACTION]),
        lambda container: merge_batch(container, SEGMENT, [TRANSACTION]),
        None,
    ),
    "merge into a sealed segment": (
        lambda container: container.seal(SEGMENT),
        lambda container: merge(container, SEGMENT, TRANSACTION),
        SealedError,
    ),
}


def has_attribute(segment: Segment) -> bool:
    return segment.attribute(9) == 77


@pytest.mark.parametrize(("first", "second", "error"), REPEATED.values(), ids=REPEATED)
async def test_answer_that_follows_from_another_change_waits_for_it(
    world: World, first: Request, second: Request, error: type[HeadraceError] | None
):
    """A crash may undo the other change, and then the client would know of what never happened."""
    async with world.running() as running:
        client = await created_segment(running, SEGMENT, b"data")
        await client.create(TRANSACTION)
        container = running.store.owner_of(SEGMENT).container
        held = HeldDisk(world.disk)
        tasks = [asyncio.ensure_future(first(container)), asyncio.ensure_future(second(container))]
        for _ in range(20):
            await asyncio.sleep(0)
        waited = not any(task.done() for task in tasks)
        held.release()
        _, answer = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answer, error) if error else not isinstance(answer, BaseException)
        assert waited


async def test_failed_flush_does_not_delay_a_removal(world: World):
    async with world.running() as running:
        client = await created_segment(running, SEGMENT, b"data")
        owned = running.store.owner_of(SEGMENT)
        honest = world.metadata.write

        def no_write(*_writes: Write) -> None:
            raise UnavailableError("not now")

        world.metadata.write = no_write
        world.clock.advance(2e6)
        await running.until(lambda: owned.writer.is_retrying)
        assert await client.call(wire.DeleteSegment(4, SEGMENT)) == wire.SegmentDeleted(4, SEGMENT)
        world.metadata.write = honest


@pytest.mark.parametrize("request_", [wire.MergeSegments, wire.MergeSegmentsBatch])
async def test_refused_merge_leaves_its_source_to_be_flushed(world: World, request_):
    """The log must keep what tier 2 lacks, and a later flush must not miss it."""
    async with world.running(graceful=False) as running:
        client = await running.connect()
        for name in (SEGMENT, TRANSACTION):
            await client.create(name)
        await client.set_up(TRANSACTION, WRITER)
        await client.append(WRITER, 0, b"data")
        owned = running.store.owner_of(SEGMENT)
        owned.container.refuse_for_handover()
        source = TRANSACTION if request_ is wire.MergeSegments else (TRANSACTION,)
        assert await client.call(request_(3, SEGMENT, source)) == wire.WrongHost(3, SEGMENT)
        owned.container.resume()
        await running.flush()
        await owned.writer.checkpoint()
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(TRANSACTION) == b"data"
        assert await client.call(request_(3, SEGMENT, source)) != wire.WrongHost(3, SEGMENT)
        assert await client.read_all(SEGMENT) == b"data"


async def test_undurable_removal_frees_memory_if_the_log_fails(world: World):
    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 0, bytes(300_000))
        container = running.store.owner_of(SEGMENT).container
        held = HeldDisk(world.disk)
        client.send(wire.DeleteSegment(4, SEGMENT))
        await accepted(lambda: SEGMENT not in container.metadata.segments)
        container.log.fail(UnavailableError("the log has failed"))
        held.release()
        await running.store.retired(container.container)
        assert running.store.pool.untiered_bytes == 0
