"""A store that starts without the volume of the one before: what tier 2 brings back, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from list_ledger import framed
from lost_volumes import NEVER_S, NO_NUMBER, SEGMENTS, killed, lose_volume, pointer, shape, snapshot
from segment_writes import OTHER, WRITER, write
from store_world import World

from headrace import wire
from headrace.codec import data_frames
from headrace.codec.container_snapshots import ContainerSnapshot, SegmentSnapshot, encode_snapshot
from headrace.model.errors import CorruptError
from headrace.ports.metadata_store import Delete
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers

pytestmark = pytest.mark.anyio


async def snapshot_objects(world: World):
    return [each.name for each in await world.chunks.list("snapshots/")]


async def test_replacement_after_a_clean_shutdown_loses_nothing(world: World):
    async with world.running() as running:
        client = await running.connect()
        for segment in SEGMENTS[:4]:
            await client.create(segment)
            await write(client, segment, [b"one", b"two", b"three"])
            await write(client, segment, [b"other"], writer=OTHER, first=70)
        await client.call(wire.SealSegment(4, SEGMENTS[1]))
        await client.call(wire.TruncateSegment(5, SEGMENTS[2], 6))
        await client.call(wire.UpdateSegmentAttribute(6, SEGMENTS[2], 9, 77, NO_NUMBER))
        await client.call(wire.DeleteSegment(7, SEGMENTS[3]))
    for _ in range(2):  # what was restored can be restored again
        lose_volume(world)
        async with world.running() as running:
            client = await running.connect()
            assert await shape(client, SEGMENTS[0]) == (True, False, 0, 16)
            assert await shape(client, SEGMENTS[1]) == (True, True, 0, 16)
            assert await shape(client, SEGMENTS[2]) == (True, False, 6, 16)
            assert isinstance(await client.call(wire.SetupAppend(8, WRITER, SEGMENTS[3])), wire.NoSuchSegment)
            assert await client.call(wire.GetSegmentAttribute(9, SEGMENTS[2], 9)) == wire.SegmentAttribute(9, 77)
            assert await client.read_all(SEGMENTS[1]) == b"onetwothreeother"
            assert await client.read_all(SEGMENTS[2], start=6) == b"threeother"
            assert await client.set_up(SEGMENTS[0], OTHER) == 70
            assert await client.set_up(SEGMENTS[0], WRITER) == 2
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await client.set_up(SEGMENTS[0], WRITER) == 2
        await client.append(WRITER, 3, b"four")
        assert await client.read_all(SEGMENTS[0]) == b"onetwothreeotherfour"
        client.send(wire.AppendBlockEnd(WRITER, 5, b"again", 1, 2, 9))
        assert await client.closed()  # event 2 is there already: the protocol forbids to send it again
    assert pointer(world).clean
    assert await snapshot_objects(world) == [pointer(world).object_name]


async def test_writer_numbers_exclude_events_of_a_lost_volume(world: World):
    async with killed(world) as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], [b"0", b"1", b"2"])
        await running.flush()
        await write(client, SEGMENTS[0], [b"3", b"4"], first=3)
        await write(client, SEGMENTS[0], [b"x"], writer=OTHER)
        await snapshot(running)
    assert not pointer(world).clean
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(SEGMENTS[0]) == b"012"
        assert await client.set_up(SEGMENTS[0], OTHER) == NO_NUMBER
        assert await client.set_up(SEGMENTS[0], WRITER) == 2
        await client.append(WRITER, 3, b"3")
        await client.append(WRITER, 4, b"4")
        await running.flush()
        assert await client.read_all(SEGMENTS[0]) == b"01234"


@pytest.mark.parametrize("volume", ["lost", "there"])
async def test_numbers_recovered_from_the_log_are_rolled_back_too(world: World, volume):
    async with killed(world) as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], [b"0"])
        await running.flush()
        await write(client, SEGMENTS[0], [b"1", b"2"], first=1)
    async with killed(world) as running:  # on the same volume
        await snapshot(running)
    if volume == "lost":
        lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await client.set_up(SEGMENTS[0], WRITER) == (0 if volume == "lost" else 2)
        assert await client.read_all(SEGMENTS[0]) == (b"0" if volume == "lost" else b"012")


async def test_what_reached_tier_2_after_the_last_snapshot_is_readable(world: World):
    world.limits = replace(world.limits, snapshot_every_s=NEVER_S)

    async with killed(world) as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await snapshot(running)
        told = pointer(world)
        await write(client, SEGMENTS[0], [b"first", b"second"])
        await running.flush()
        assert pointer(world) == told
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(SEGMENTS[0]) == b"firstsecond"
        await write(client, SEGMENTS[0], [b"third"], writer=OTHER)
        await running.flush()
        assert await client.read_all(SEGMENTS[0]) == b"firstsecondthird"


async def test_segments_deleted_after_the_snapshot_stay_deleted(world: World):
    usual = world.limits

    async with world.running() as running:
        client = await running.connect()
        for segment in SEGMENTS[:4]:
            await client.create(segment)
            await write(client, segment, [segment.encode()])
    world.limits = replace(usual, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S)
    async with killed(world) as running:  # goes on from its volume, and from a clean snapshot that is old by now
        client = await running.connect()
        await client.call(wire.DeleteSegment(4, SEGMENTS[0]))
        await client.call(wire.MergeSegments(5, SEGMENTS[1], SEGMENTS[2]))
        await write(client, SEGMENTS[3], [b"more"], first=1)
        await running.flush()
        await running.until(lambda: not running.store.owned[0].container.metadata.deletions)
    world.limits = usual
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        for gone in (SEGMENTS[0], SEGMENTS[2]):
            assert isinstance(await client.call(wire.SetupAppend(6, WRITER, gone)), wire.NoSuchSegment)
        assert await client.read_all(SEGMENTS[1]) == SEGMENTS[1].encode() + SEGMENTS[2].encode()
        assert await client.read_all(SEGMENTS[3]) == SEGMENTS[3].encode() + b"more"


async def test_merge_missing_from_the_directory_is_finished(world: World):
    async with killed(world) as running:
        client = await running.connect()
        for segment in SEGMENTS[:2]:
            await client.create(segment)
            await write(client, segment, [segment.encode()])
        await running.flush()
        await client.call(wire.MergeSegments(5, SEGMENTS[0], SEGMENTS[1]))
        await snapshot(running)
        assert running.store.owned[0].container.metadata.segments[SEGMENTS[0]].merges
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(SEGMENTS[0]) == SEGMENTS[0].encode() + SEGMENTS[1].encode()
        assert isinstance(await client.call(wire.SetupAppend(6, WRITER, SEGMENTS[1])), wire.NoSuchSegment)


async def test_segment_truncated_to_its_end_keeps_its_length(world: World):
    async with killed(world) as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], [b"0123456789"])
        await running.flush()
        await client.call(wire.TruncateSegment(4, SEGMENTS[0], 10))
        await running.flush()
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await shape(client, SEGMENTS[0]) == (True, False, 10, 10)
        assert await client.set_up(SEGMENTS[0], WRITER) == 0


async def test_a_directory_that_lacks_what_the_snapshot_has_is_refused(world: World):
    async with killed(world) as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        for number in range(2):
            await write(client, SEGMENTS[0], [b"data"], first=number)
            await running.flush()
        await client.create(SEGMENTS[1])
        await snapshot(running)
    newest = world.metadata.query(f"chunks/{SEGMENTS[0]}", limit=9).records[-1]
    world.metadata.write(Delete(newest.key, None))
    lose_volume(world)
    with pytest.raises(CorruptError, match="runs are missing"):
        async with world.running():
            pass


async def test_a_journal_of_the_past_is_let_go_of(world: World, caplog):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], [b"old"])
    old = world.disk
    lose_volume(world)
    async with killed(world) as running:  # another volume; nothing but its opening has to be told
        client = await running.connect()
        await write(client, SEGMENTS[0], [b"new"], first=1)
        await running.flush()
    world.disk = old
    for data in (b"oldnew", b"oldnewmore"):
        async with world.running(graceful=False) as running:
            client = await running.connect()
            assert await client.read_all(SEGMENTS[0]) == data
            if data == b"oldnew":
                await write(client, SEGMENTS[0], [b"more"], first=2)
        assert ("event=log_of_the_past" in caplog.text) is (data == b"oldnew")
        caplog.clear()


async def test_a_restoring_that_was_interrupted_starts_again(world: World):
    """The new log has a part of the checkpoint only."""

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], [b"data"])
    lose_volume(world)
    epoch = world.claim(0)
    journal = Journal(
        world.disk, lambda: 1, asyncio.get_running_loop().call_soon_threadsafe, file_bytes=world.file_bytes
    )
    journal.start()
    ledger = OneCopyLedgers(journal).open(0, epoch)
    long = SegmentSnapshot(1, "x" * (1 << 20), 0, 0, False, 0, {})
    parts = list(encode_snapshot(ContainerSnapshot(2, {}, [long, replace(long, name="second")])))
    operation = data_frames.CheckpointOperation(0, False, memoryview(parts[0]))
    assert len(parts) == 2
    written = asyncio.get_running_loop().create_future()
    ledger.append(framed(operation), written.set_result)
    assert await written is None
    await asyncio.to_thread(journal.close)
    for _ in range(2):
        async with killed(world) as running:
            client = await running.connect()
            assert set(running.store.owned[0].container.metadata.segments) == {SEGMENTS[0]}
            assert await client.read_all(SEGMENTS[0]) == b"data"


async def test_a_broken_snapshot_is_refused(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
    told = pointer(world)
    data = bytearray(world.chunks.read_now(told.object_name, 0, told.length))
    await world.chunks.delete([told.object_name])
    for broken, problem in ((None, "is missing"), (bytes([data[0] ^ 1]) + data[1:], "checksum")):
        if broken is not None:
            await world.chunks.put(told.object_name, [broken])
        lose_volume(world)
        with pytest.raises(CorruptError, match=problem):
            async with world.running():
                pass
