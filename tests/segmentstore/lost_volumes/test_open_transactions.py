"""A transaction was open when a volume was lost: it may lack events that were acknowledged, and cannot be committed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from idle_segments import IDLE_S
from lost_volumes import NEVER_S, killed, lose_volume, passing_time_until, snapshot, tell_no_more
from segment_writes import write
from store_world import World

from headrace import wire
from headrace.codec.container_snapshots import SegmentSnapshot, decode_segment, encode_segment
from headrace.metadata.cluster_records import snapshot_sort
from headrace.model.errors import SOURCE_INCOMPLETE, IllegalStateError, UnavailableError
from headrace.model.names import transaction_segment_name
from headrace.model.segment_attributes import MAY_LACK_BYTES
from headrace.segmentstore.containers.quarantine import quarantine
from headrace.segmentstore.tiering import directory_upkeep
from headrace.segmentstore.tiering.storage_writer import StorageWriter

pytestmark = pytest.mark.anyio

STREAM, OTHER = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"
LOST, LATER = transaction_segment_name(STREAM, 1), transaction_segment_name(STREAM, 2)
STORED, ONLY_IN_LOG = b"stored", b"only in the log"


async def lose_an_open_transaction(world: World, *, known: bool = True):
    """A part of the transaction is in tier 2. The last snapshot knows the transaction, or is older."""
    usual = world.limits
    world.limits = replace(usual, snapshot_every_s=NEVER_S)
    async with killed(world) as running:
        client = await running.connect()
        await client.create(STREAM)
        if known:
            await client.create(LOST)
        await snapshot(running)
        running.store.owned[0].writer._snapshots._limits = replace(
            usual, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S
        )
        if not known:
            await client.create(LOST)
        await write(client, LOST, [STORED])
        await running.flush()
        await write(client, LOST, [ONLY_IN_LOG], first=1)
    world.limits = usual
    lose_volume(world)


async def merge_batch(client, *sources):
    return await client.call(wire.MergeSegmentsBatch(9, STREAM, sources))


async def may_lack_bytes(client, name):
    return (await client.call(wire.GetSegmentAttribute(8, name, MAY_LACK_BYTES))).value


def assert_refused(reply, source=LOST):
    assert isinstance(reply, wire.ErrorMessage), reply
    assert (reply.segment, reply.error_code) == (source, wire.ERROR_CODE_SOURCE_INCOMPLETE)
    error = wire.error_of_reply(reply)
    assert isinstance(error, IllegalStateError)
    assert (error.specific_code, error.details) == (SOURCE_INCOMPLETE, {"segment": source})


@pytest.mark.parametrize("known", [True, False])
async def test_a_transaction_that_lost_bytes_is_not_merged(world: World, caplog, known):
    """Not by a later start on the new volume either; without it the others of its batch are merged."""

    await lose_an_open_transaction(world, known=known)
    async with world.running() as running:
        client = await running.connect()
        await client.create(LATER)
        await write(client, LATER, [b"later"])
        assert await may_lack_bytes(client, LOST) == 1
        assert await may_lack_bytes(client, LATER) == wire.NO_ATTRIBUTE_VALUE
        assert_refused(await merge_batch(client, LOST, LATER))
        assert_refused(await client.call(wire.MergeSegments(9, STREAM, LOST)))
        assert await client.read_all(STREAM) == b""
    async with world.running() as running:
        client = await running.connect()
        assert_refused(await merge_batch(client, LATER, LOST))
        assert await client.call(wire.DeleteSegment(10, LOST)) == wire.SegmentDeleted(10, LOST)
        assert isinstance(await merge_batch(client, LATER, LOST), wire.SegmentsBatchMerged)
        assert await client.read_all(STREAM) == b"later"
    assert "event=merge_refused" in caplog.text


async def test_incomplete_source_stays_refused_after_an_eviction(world: World):
    usual = world.limits

    await lose_an_open_transaction(world)
    world.limits = replace(usual, idle_segment_s=IDLE_S, idle_segments_kept=0)
    world.maintenance = False  # its sweep could come first
    async with killed(world) as running:
        client = await running.connect()
        await client.call(wire.GetStreamSegmentInfo(3, LOST))
        await running.flush()
        await snapshot(running)
        world.clock.advance(2 * IDLE_S)
        assert await running.store.owned[0].evictor.sweep() == 2
        assert_refused(await merge_batch(client, LOST))
    lose_volume(world)
    async with world.running() as running:
        assert_refused(await merge_batch(await running.connect(), LOST))


async def test_source_that_was_merged_whole_is_merged_again(world: World):
    """The target's bytes before the merge are lost, so the snapshot has the source as a whole segment."""

    async with killed(world) as running:
        client = await running.connect()
        await client.create(STREAM)
        await client.create(LOST)
        await write(client, LOST, [STORED])
        await running.flush()
        await write(client, STREAM, [ONLY_IN_LOG])
        assert isinstance(await merge_batch(client, LOST), wire.SegmentsBatchMerged)
        await snapshot(running)
    for _ in range(2):  # restored, then restored from the snapshot of that restoration
        lose_volume(world)
        async with killed(world) as running:
            info = await (await running.connect()).call(wire.GetStreamSegmentInfo(3, LOST))
            assert info.write_offset == len(STORED)
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert isinstance(await merge_batch(client, LOST), wire.SegmentsBatchMerged)
        assert await client.read_all(STREAM) == STORED


@pytest.mark.parametrize("flushed", [False, True], ids=["in memory", "flushed"])
async def test_source_of_a_stored_merge_counts_as_merged(world: World, flushed: bool):
    """The snapshot from before the merge has the source. Restored from it, the commit would be refused and aborted."""
    async with killed(world) as running:
        client = await running.connect()
        await client.create(STREAM)
        await client.create(LOST)
        await snapshot(running)
        tell_no_more(running)
        await write(client, LOST, [STORED])
        if flushed:
            await running.flush()
        assert isinstance(await merge_batch(client, LOST), wire.SegmentsBatchMerged)
        await running.flush()
    await assert_merged_already(world)


@pytest.mark.parametrize("flushed", [False, True], ids=["in memory", "flushed"])
async def test_snapshot_without_an_answer_holds_a_merge_back(world: World, flushed: bool):
    """It may be in force, with the source in it. Bytes of the merge wait until a later one is there for sure."""
    async with world.running() as running:
        client = await running.connect()
        await client.create(STREAM)
        await snapshot(running)
        tell_no_more(running)
        await client.create(LOST)
        writer, metadata = running.store.owned[0].writer, world.metadata
        target = running.store.owned[0].container.metadata.segments[STREAM]
        honest = metadata.write
        await writer.stop()

        def unanswered(*writes):
            honest(*writes)
            if any(write.key.sort == snapshot_sort(0) for write in writes):
                raise UnavailableError("no answer")

        metadata.write = unanswered  # type: ignore[method-assign]
        writer._snapshots.want()
        await fail_a_snapshot(writer)
        await write(client, LOST, [STORED])
        world.clock.advance(2e6)
        if flushed:
            await fail_a_snapshot(writer)
        assert isinstance(await merge_batch(client, LOST), wire.SegmentsBatchMerged)
        world.clock.advance(2e6)
        await fail_a_snapshot(writer)
        assert target.tiered.length == 0
        metadata.write = honest  # type: ignore[method-assign]
        writer.resume()
        await running.flush()
        assert target.is_stored


async def fail_a_snapshot(writer: StorageWriter) -> None:
    """Make passes until a snapshot gets no answer. Before, it may wait for the log."""

    async def make_passes() -> None:
        for _ in range(1_000):
            await writer.run_pass()
            await asyncio.sleep(0.001)

    with pytest.raises(UnavailableError, match="no answer"):
        await make_passes()


async def test_last_snapshot_of_an_undone_hand_over_counts(world: World):
    """A container with a segment in quarantine stays: its last snapshot has the source without a byte."""
    world.limits = replace(world.limits, flush_age_s=1.0)
    async with killed(world) as running:
        client = await running.connect()
        await client.create(STREAM)
        await client.create(OTHER)
        await snapshot(running)
        tell_no_more(running)
        await client.create(LOST)
        await write(client, OTHER, [ONLY_IN_LOG])
        owned = running.store.owned[0]
        segments = owned.container.metadata.segments
        quarantine(owned.container, segments[OTHER], IllegalStateError("tier 2 refuses it"))
        await owned.stop_upkeep()
        assert not await owned.writer.drain()
        assert owned.writer.may_resume
        owned.resume()
        await write(client, LOST, [STORED])
        assert isinstance(await merge_batch(client, LOST), wire.SegmentsBatchMerged)
        await passing_time_until(running, lambda: segments[STREAM].is_stored)
    await assert_merged_already(world)


@pytest.mark.parametrize("flushed", [False, True], ids=["in memory", "flushed"])
async def test_record_of_a_merged_source_is_removed_first(world: World, monkeypatch, flushed: bool):
    """It was evicted without a byte. The store ends before it has finished the removal of the source."""
    world.limits = replace(world.limits, idle_segment_s=IDLE_S, idle_segments_kept=0)
    world.maintenance = False  # its sweep could come first
    async with killed(world) as running:
        client = await running.connect()
        await client.create(STREAM)
        await client.create(LOST)
        await snapshot(running)
        world.clock.advance(2 * IDLE_S)
        assert await running.store.owned[0].evictor.sweep() == 2
        await snapshot(running)
        tell_no_more(running)
        await write(client, LOST, [STORED])
        if flushed:
            await running.flush()
        monkeypatch.setattr(directory_upkeep, "REMOVALS_PER_PASS_MAX", 0)
        assert isinstance(await merge_batch(client, LOST), wire.SegmentsBatchMerged)
        await running.flush()
    monkeypatch.undo()
    await assert_merged_already(world)


async def test_later_segment_of_the_name_holds_no_merge_back(world: World):
    """A late request creates the source again: no snapshot would be without it, and the flush would never end."""
    async with world.running() as running:
        client = await running.connect()
        await client.create(STREAM)
        await client.create(LOST)
        await write(client, LOST, [STORED])
        assert isinstance(await merge_batch(client, LOST), wire.SegmentsBatchMerged)
        await client.create(LOST)
        await snapshot(running)
        await running.flush()
        assert await client.read_all(STREAM) == STORED


async def assert_merged_already(world: World) -> None:
    """The volume is lost. The next owner has the events, and takes the repeated merge as done."""
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(STREAM) == STORED
        merged = await merge_batch(client, LOST)
        assert isinstance(merged, wire.SegmentsBatchMerged), merged
        assert await client.read_all(STREAM) == STORED


@pytest.mark.parametrize("lost_claims", [0, 2])
async def test_a_transaction_after_a_clean_shutdown_is_merged(world: World, lost_claims: int):
    """Tier 2 had all of it, and said so: the next store starts without the volume. Stores that claimed the container
    and lost it before they served it change nothing."""

    async with world.running() as running:
        client = await running.connect()
        await client.create(STREAM)
        await client.create(LOST)
        await write(client, LOST, [STORED])
        await running.flush()
        await running.store.owned[0].writer.drain()
    for _ in range(lost_claims):
        world.claim(0)
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert isinstance(await merge_batch(client, LOST), wire.SegmentsBatchMerged)
        assert await client.read_all(STREAM) == STORED


def test_state_of_a_segment_without_the_new_fields_is_read():
    state = SegmentSnapshot(1, LOST, 0, 5, False, 7, {}, whole_length=5, may_lack_bytes=True)
    assert decode_segment(encode_segment(state)) == state
    plain = replace(state, whole_length=None, may_lack_bytes=False)
    assert b"whole_length" not in encode_segment(plain)
    assert b"may_lack_bytes" not in encode_segment(plain)
    assert decode_segment(encode_segment(plain)) == plain
