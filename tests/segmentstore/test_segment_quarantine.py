"""Segments that tier 2 refuses for good: they leave the other segments and their container alone."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from segment_writes import WRITER, write
from store_world import RunningStore, World

from headrace import wire
from headrace.codec.data_frames import CreateOperation
from headrace.metadata.evicted_segment import evicted_segment_key
from headrace.model.chunks import chunk_partition
from headrace.model.errors import SEGMENT_QUARANTINED
from headrace.model.names import transient_segment_name
from headrace.ports.metadata_store import PARTITION_BYTES_MAX, ItemRefusedError, Write
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.metadata import NAME_BYTES_MAX
from headrace.segmentstore.containers.quarantine import quarantine, quarantined_segments
from headrace.segmentstore.containers.segment import AcceptedState, Segment

pytestmark = pytest.mark.anyio

REFUSED, OTHER = "scope/refused/0.#epoch.0", "scope/refused/0.#epoch.1"
TRANSACTION = REFUSED + "#transaction." + "0" * 31 + "1"
LARGE_BYTES = 1 << 20
SUFFIX_BYTES = len(transient_segment_name("", 0, 0))


def refuse(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the metadata store refuse every item of this segment for good."""
    honest = world.metadata.write

    def write_or_refuse(*writes: Write) -> None:
        if any(each.key.partition == chunk_partition(name) for each in writes):
            raise ItemRefusedError(f"no item of {name}")
        honest(*writes)

    monkeypatch.setattr(world.metadata, "write", write_or_refuse)


def segment_of(running: RunningStore, name: str) -> Segment:
    return running.store.owner_of(name).container.metadata.segments[name]


async def until_quarantined(world: World, running: RunningStore, name: str) -> None:
    world.clock.advance(2e6)
    await running.until(lambda: segment_of(running, name).quarantined)


@pytest.mark.parametrize("over", [0, 1])
async def test_made_name_of_a_transient_segment_is_checked(world: World, over: int):
    parent = "scope/stream/" + "x" * (NAME_BYTES_MAX - SUFFIX_BYTES - len("scope/stream/") + over)
    async with world.running() as running:
        client = await running.connect()
        reply: Any = await client.call(wire.CreateTransientSegment(3, 7, parent))
        if over:
            assert isinstance(reply, wire.ErrorMessage)
            assert reply.error_code == wire.ERROR_CODE_ILLEGAL_ARGUMENT
        else:
            await write(client, reply.segment, [b"event"])
            await running.flush()
        assert not world.failures


@pytest.mark.parametrize(
    "name", ["", "x" * (NAME_BYTES_MAX + 1), "é" * (NAME_BYTES_MAX // 2 + 1)], ids=["none", "long", "é"]
)
async def test_name_that_tier_2_cannot_have_is_refused(world: World, name: str):
    async with world.running() as running:
        client = await running.connect()
        for command in (wire.CreateSegment(3, name, 0, 0), wire.CreateTableSegment(3, name)):
            reply = await client.call(command)
            assert isinstance(reply, wire.ErrorMessage)
            assert reply.error_code == wire.ERROR_CODE_ILLEGAL_ARGUMENT


async def test_refused_item_of_one_segment_stops_no_other(world: World, monkeypatch, caplog):
    async with world.running() as running:
        client = await running.connect()
        for name in (REFUSED, OTHER):
            await client.create(name)
            await write(client, name, [b"one", b"two"])
        container = running.store.owner_of(REFUSED).container
        assert container is running.store.owner_of(OTHER).container
        refuse(world, REFUSED, monkeypatch)
        await until_quarantined(world, running, REFUSED)
        await running.until(lambda: segment_of(running, OTHER).is_stored)
        await write(client, OTHER, [b"three"], first=9)
        world.clock.advance(2e6)
        await running.until(lambda: segment_of(running, OTHER).is_stored)
        assert container.failure is None
        assert await client.read_all(REFUSED) == b"onetwo"
        assert quarantined_segments(container) == 1
    alarms = [each for each in caplog.records if each.getMessage().startswith("event=segment_quarantined")]
    assert [each.levelno for each in alarms] == [logging.CRITICAL]
    assert not world.failures


def test_segment_is_quarantined_once_and_only_while_it_exists(caplog: pytest.LogCaptureFixture):
    pool = BlockPool(1 << 20, 64 << 10)
    refused, removed, other = (Segment(n, f"scope/s/{n}.#epoch.0", pool, AcceptedState({}, 0)) for n in range(3))
    removed.accepted.removed = True
    container: Any = SimpleNamespace(container=0, dirty={2: other})
    for segment in (refused, refused, removed):
        quarantine(container, segment, ItemRefusedError("too large"))
    assert [each.quarantined for each in (refused, removed, other)] == [True, False, False]
    assert container.dirty == {2: other, 0: refused}, "it counts, also if all its bytes are in tier 2"
    assert [each.levelno for each in caplog.records] == [logging.CRITICAL]
    assert quarantined_segments(container) == 1
    refused.accepted.removed = True
    assert quarantined_segments(container) == 0


async def test_quarantined_segment_accepts_no_more_bytes(world: World, monkeypatch):
    async with world.running() as running:
        client = await running.connect()
        await client.create(REFUSED)
        await client.create(TRANSACTION)
        await write(client, REFUSED, [b"one"])
        refuse(world, REFUSED, monkeypatch)
        await until_quarantined(world, running, REFUSED)
        reply: Any = await client.call(wire.MergeSegments(3, REFUSED, TRANSACTION))
        assert (type(reply), reply.segment) == (wire.ErrorMessage, REFUSED)
        assert wire.error_of_reply(reply).specific_code == SEGMENT_QUARANTINED
        assert wire.temporary_error(reply) is None
        client.send(wire.AppendBlockEnd(WRITER, 3, b"two", 1, 1, 9))
        reply = await client.receive()
        assert wire.error_of_reply(reply).specific_code == SEGMENT_QUARANTINED
        assert await client.closed()


async def test_deletion_of_a_quarantined_segment_frees_the_log(world: World, monkeypatch):
    world.limits = replace(world.limits, checkpoint_every_bytes=1)
    async with world.running() as running:
        client = await running.connect()
        await client.create(REFUSED)
        await client.create(OTHER)
        container = running.store.owner_of(REFUSED).container
        with monkeypatch.context() as patch:
            refuse(world, REFUSED, patch)
            await write(client, REFUSED, [b"x" * LARGE_BYTES] * 3)
            await until_quarantined(world, running, REFUSED)
            await write(client, OTHER, [b"other"])
            world.clock.advance(2e6)
            await running.until(lambda: segment_of(running, OTHER).is_stored)
            assert container.log.ledger.held_bytes > 2 * LARGE_BYTES
            assert await client.call(wire.DeleteSegment(3, REFUSED)) == wire.SegmentDeleted(3, REFUSED)
            await running.until(lambda: container.log.ledger.held_bytes < LARGE_BYTES)
        assert container.failure is None


async def test_container_that_is_opened_again_tries_again(world: World, monkeypatch):
    with monkeypatch.context() as patch:
        async with world.running() as running:
            client = await running.connect()
            await client.create(REFUSED)
            await write(client, REFUSED, [b"one"])
            refuse(world, REFUSED, patch)
            await until_quarantined(world, running, REFUSED)
    async with world.running() as running:
        await running.flush()
        assert segment_of(running, REFUSED).is_stored
        client = await running.connect()
        await write(client, REFUSED, [b"two"], first=9)
        assert await client.read_all(REFUSED) == b"onetwo"


async def test_refused_move_and_trim_leave_other_segments_alone(world: World, monkeypatch):
    world.limits = replace(world.limits, object_bytes_max=100)
    async with world.running() as running:
        client = await running.connect()
        for name in (REFUSED, TRANSACTION, OTHER):
            await client.create(name)
        await write(client, TRANSACTION, [b"t" * 200])
        await write(client, OTHER, [b"one", b"two"])
        await running.flush()
        container = running.store.owner_of(REFUSED).container
        refuse(world, REFUSED, monkeypatch)
        refuse(world, OTHER, monkeypatch)
        assert type(await client.call(wire.MergeSegments(3, REFUSED, TRANSACTION))) is wire.SegmentsMerged
        assert type(await client.call(wire.TruncateSegment(3, OTHER, 6))) is wire.SegmentTruncated
        for name in (REFUSED, OTHER):
            await until_quarantined(world, running, name)
        assert container.failure is None
        assert await client.read_all(REFUSED) == b"t" * 200


async def test_name_whose_removal_is_refused_is_not_given_again(world: World, monkeypatch):
    async with world.running() as running:
        client = await running.connect()
        await client.create(REFUSED)
        await write(client, REFUSED, [b"one"])
        await running.flush()
        container = running.store.owner_of(REFUSED).container
        refuse(world, REFUSED, monkeypatch)
        await client.call(wire.DeleteSegment(3, REFUSED))
        for _ in range(2):  # the first one waits for the removal
            reply: Any = await client.call(wire.CreateSegment(4, REFUSED, 0, 0))
            assert wire.error_of_reply(reply).specific_code == SEGMENT_QUARANTINED
        await client.create(OTHER)
        assert container.failure is None


async def test_long_name_in_a_log_of_before_is_quarantined(world: World):
    """Releases that did not check the names of transient segments logged such names."""
    name = "scope/stream/".ljust(PARTITION_BYTES_MAX, "x")
    async with world.running() as running:
        client = await running.connect()
        await client.create(OTHER)
        container = running.store.owner_of(name).container
        await container.apply(CreateOperation(container.metadata.next_number, name, (), 0))
        await write(client, name, [b"one"])
        await until_quarantined(world, running, name)
        assert await client.call(wire.DeleteSegment(3, name)) == wire.SegmentDeleted(3, name)
        await running.until(lambda: not container.metadata.deletions)
        assert container.failure is None


async def test_segment_whose_record_is_refused_stays_in_memory(world: World, monkeypatch, caplog):
    world.limits = replace(world.limits, idle_segments_kept=0, idle_segment_s=1.0)
    async with world.running() as running:
        client = await running.connect()
        for name in (REFUSED, OTHER):
            await client.create(name)
            await write(client, name, [b"one"])
        client.close()
        await running.flush()
        container = running.store.owner_of(REFUSED).container
        await running.until(lambda: running.store.owned[container.container].writer.is_calm)
        refuse(world, REFUSED, monkeypatch)

        def evicted() -> bool:
            world.clock.advance(world.limits.idle_segment_s)
            return set(container.metadata.segments) == {REFUSED}

        await running.until(evicted)
        assert world.metadata.get(evicted_segment_key(OTHER)) is not None
        assert container.failure is None
    assert any(each.getMessage().startswith("event=record_refused") for each in caplog.records)
