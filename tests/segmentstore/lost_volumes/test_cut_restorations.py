"""A store dies while it restores a container from tier 2, at each of its calls: the next one restores it again."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from list_ledger import framed
from lost_volumes import SEGMENTS, killed, lose_volume
from segment_writes import OTHER, WRITER, write
from store_world import World

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec import container_snapshots, data_frames
from headrace.codec.container_snapshots import ContainerSnapshot, SegmentSnapshot, encode_snapshot
from headrace.model.errors import CorruptError, HeadraceError
from headrace.segmentstore.containers import operation_log
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers

pytestmark = pytest.mark.anyio

POWER_CUTS = 3
CALLS_MAX = 100


@pytest.fixture(autouse=True)
def checkpoints_of_many_entries(monkeypatch):
    monkeypatch.setattr(container_snapshots, "PART_BYTES", 100)
    monkeypatch.setattr(operation_log, "FRAME_BYTES_MAX", 300)


async def prepare(world: World, past: str) -> None:
    """Tier 2 has what the last owner stored; the volume is empty, or has a log that is the past since then."""
    async with world.running() as running:
        client = await running.connect()
        for segment in SEGMENTS:
            await client.create(segment)
        await write(client, SEGMENTS[0], [b"old"])
    former = world.disk
    lose_volume(world)
    async with killed(world) as running:
        client = await running.connect()
        await write(client, SEGMENTS[0], [b"new"], writer=OTHER)
        await running.flush()
    world.disk = former if past == "log of the past" else MemoryJournalDisk()


def dying_at(world: World, call: int) -> list[str]:
    """The disk and the metadata store of the next start end at their `call`-th change; the list of those made."""
    made: list[str] = []
    honest, disk = world.metadata.write, world.disk

    def before(step: str) -> None:
        made.append(step)
        if len(made) >= call:
            raise OSError("the process was killed")

    def metadata_write(*writes):
        made.append("metadata")
        if len(made) >= call:
            raise HeadraceError("the process was killed")
        honest(*writes)

    disk.before, world.metadata.write = before, metadata_write
    return made


@pytest.mark.parametrize("past", [pytest.param("log of the past", marks=pytest.mark.nightly), "empty volume"])
async def test_kill_at_any_call_of_a_restoration_is_survived(make_world: type[World], past):
    async def scenario(call: int, seed: int) -> bool:
        world = make_world(container_count=1)
        await prepare(world, past)
        honest = world.metadata.write
        epoch_taken = world.claim(0)
        made = dying_at(world, call)
        with suppress(HeadraceError, OSError):
            async with world.running(graceful=False):
                made = list(made)  # what it does while it ends does not count
        world.metadata.write = honest
        world.disk = world.disk.cut_power(seed)
        for data in (b"oldnew", b"oldnewmore"):
            async with world.running(graceful=False) as running:
                assert running.store.owned[0].container.epoch > epoch_taken
                client = await running.connect()
                assert await client.read_all(SEGMENTS[0]) == data
                assert set(running.store.owned[0].container.metadata.segments) == set(SEGMENTS)
                if data == b"oldnew":
                    await write(client, SEGMENTS[0], [b"more"], writer=WRITER, first=1)
        return len(made) >= call

    for call in range(1, CALLS_MAX):
        died = [await scenario(call, seed) for seed in range(POWER_CUTS)]
        if not any(died):
            break
    assert 8 < call < CALLS_MAX - 1


async def log_begin_of_checkpoint(world: World, *, then: data_frames.Operation | None = None) -> None:
    """The log of the next start has a part of a checkpoint only, and perhaps something behind it."""
    epoch = world.claim(0)
    journal = Journal(
        world.disk, lambda: 1, asyncio.get_running_loop().call_soon_threadsafe, file_bytes=world.file_bytes
    )
    journal.start()
    ledger = OneCopyLedgers(journal).open(0, epoch)
    segment = SegmentSnapshot(1, "x" * 200, 0, 0, False, 0, {})
    parts = list(encode_snapshot(ContainerSnapshot(2, {}, [segment, segment])))
    operations = [data_frames.CheckpointOperation(0, False, memoryview(parts[0])), *([then] if then else [])]
    for number, operation in enumerate(operations):
        written = asyncio.get_running_loop().create_future()
        ledger.append(framed(operation, number), written.set_result)
        assert await written is None
    await asyncio.to_thread(journal.close)


async def test_cut_checkpoint_with_something_behind_it_is_refused(make_world: type[World]):
    world = make_world(container_count=1)

    await prepare(world, "empty volume")
    await log_begin_of_checkpoint(world, then=data_frames.CreateOperation(1, SEGMENTS[0], (), 0))
    with pytest.raises(CorruptError, match="incomplete"):
        async with world.running():
            pass


async def test_cut_checkpoint_without_a_snapshot_in_tier_2_is_refused(make_world: type[World]):
    world = make_world(container_count=1)

    await log_begin_of_checkpoint(world)
    with pytest.raises(CorruptError, match="tier 2 has no snapshot"):
        async with world.running():
            pass
