"""Entries of the chunk directory that DynamoDB writes late, without an answer, change nothing any more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from idle_segments import passes
from late_writes import LateWrites
from store_world import RunningStore, World

from headrace import wire
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.model.chunks import chunk_partition
from headrace.model.errors import FencedError, UnavailableError
from headrace.ports.metadata_store import UNANSWERED_WRITE_S, Create, Delete, ItemRefusedError, WriteConflictError
from headrace.segmentstore.containers.unanswered_writes import UnansweredWrites

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = 5


def note(unanswered: UnansweredWrites, error: BaseException, *names: str) -> None:
    with pytest.raises(type(error)), unanswered.noted(*names):
        raise error


@pytest.mark.parametrize("error", [UnavailableError("away"), KeyboardInterrupt(), RuntimeError("a defect")])
def test_what_has_failed_may_take_effect_for_a_while(error: BaseException):
    clock = ManualClock(0)
    unanswered = UnansweredWrites(clock)
    note(unanswered, error, "one", "other")
    clock.advance(UNANSWERED_WRITE_S * 1000 - 1)
    note(unanswered, error, "other")
    assert set(unanswered.names()) == {"one", "other"}
    clock.advance(1)
    assert set(unanswered.names()) == {"other"}
    clock.advance(UNANSWERED_WRITE_S * 1000)
    assert not unanswered.names()


@pytest.mark.parametrize(
    "error", [FencedError("another owner"), WriteConflictError("changed", {}), ItemRefusedError("too large")]
)
def test_what_was_refused_has_no_effect(error: BaseException):
    unanswered = UnansweredWrites(ManualClock(0))
    note(unanswered, error, "one")
    with unanswered.noted("two"):
        pass
    assert not unanswered.names()


async def append(running: RunningStore, client: Any, number: int) -> bytes:
    """A run of one append."""
    block = b"%05d" % number * 20
    await client.append(WRITER, number, block)
    return block


def runs(world: World) -> int:
    return len(world.metadata.query(chunk_partition(SEGMENT), limit=100).records)


async def test_a_late_run_does_not_enter_a_compacted_one(make_world: type[World]):
    """It was packed again with what came behind it, so the run that is there now is another one."""
    world = make_world(container_count=1)
    world.limits = replace(world.limits, compacted_runs_min=4)
    async with world.running() as running:
        client = await running.connect()
        owned = running.store.owned[0]
        await owned.maintenance.stop()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        owned.writer._draining = True  # flushes without the clock
        expected = await append(running, client, 0)
        await running.until(lambda: runs(world) == 1)
        late = LateWrites(world, Create, lambda key: key.partition == chunk_partition(SEGMENT))
        for number in range(1, 5):
            expected += await append(running, client, number)
            await running.until(lambda: bool(late.kept))
            late.answer_again()
            await running.until(lambda number=number: runs(world) == number + 1)
        owned.writer._draining = False
        await owned.container.log.durable()
        await owned.maintenance.run_pass()
        assert runs(world) == 5
        with pytest.raises(WriteConflictError):
            late.take_effect()
        world.clock.advance(UNANSWERED_WRITE_S)
        await owned.container.log.durable()
        await owned.maintenance.run_pass()
        assert runs(world) == 1
        owned.container.metadata.segments[SEGMENT].index.release_all()
        assert await client.read_all(SEGMENT) == expected


async def test_late_runs_are_trimmed_when_they_are_there(make_world: type[World]):
    world = make_world(container_count=1)
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        for number in range(3):
            await append(running, client, number)
            await running.flush()
        container = running.store.owned[0].container
        note(container.unanswered, UnavailableError("away"), SEGMENT)
        assert isinstance(await client.call(wire.TruncateSegment(3, SEGMENT, 200)), wire.SegmentTruncated)
        await running.until(lambda: container.metadata.segments[SEGMENT].durable.start_offset == 200)
        await running.store.owned[0].writer._upkeep.trim_truncated()
        assert runs(world) == 3
        world.clock.advance(UNANSWERED_WRITE_S)
        await running.until(lambda: runs(world) == 1)


async def test_a_name_is_kept_while_its_removal_may_come_late(make_world: type[World]):
    """A link of a new segment may have the offset and the version of the one that is removed."""
    world = make_world(container_count=1)
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await append(running, client, 0)
        await running.flush()
        deletions = running.store.owned[0].container.metadata.deletions
        late = LateWrites(world, Delete, lambda key: key.partition == chunk_partition(SEGMENT))
        assert isinstance(await client.call(wire.DeleteSegment(3, SEGMENT)), wire.SegmentDeleted)
        await running.until(lambda: bool(late.kept))
        late.answer_again()
        await passes(running, 3)
        assert SEGMENT in deletions
        world.clock.advance(UNANSWERED_WRITE_S)
        await running.until(lambda: SEGMENT not in deletions)
        assert runs(world) == 0
