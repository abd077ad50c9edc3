"""What the record of an evicted segment says, and what is left of it after a lost log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from store_world import World

from headrace.codec.container_snapshots import SegmentSnapshot, encode_segment
from headrace.metadata.evicted_segment import evicted_segment_key, write_segment_record
from headrace.model.chunks import ChunkRun, LogPlace, RunLink, TableMark, packed_name
from headrace.model.errors import CorruptError, FencedError, UnavailableError
from headrace.model.segment_attributes import CREATION_TIME, SEGMENT_TYPE, TABLE_KEY_LENGTH, TABLE_SEGMENT
from headrace.ports.metadata_store import Create, Key, Record, Write, WriteConflictError
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.segment_records import (
    READS_AT_ONCE_MAX,
    RECORDS_PER_READ_MAX,
    WRITE_ATTEMPTS_MAX,
    SegmentRecords,
    digest_of,
)

pytestmark = pytest.mark.anyio

NAME, OTHER = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"
OBJECT = packed_name(0, 0, 1)
EMPTY = SegmentSnapshot(0, NAME, 0, 0, False, 0, {})
STATE = SegmentSnapshot(0, NAME, 2, 6, True, 99, {7: 8})


class Made:
    """The records of a container, `doubtful` if its log was lost before this owner, and its chunk directory."""

    def __init__(self, world: World, *, doubtful: bool = False) -> None:
        self.store = world.metadata
        world.claim(0)  # of the former owner
        self.directory = ChunkDirectory(self.store, 0, world.claim(0), world.clock)
        self.metadata = ContainerMetadata(0, BlockPool(1 << 20, 64 << 10), lambda _segment: None)
        self.metadata.doubtful_before = self.directory.epoch if doubtful else 0
        self.records = SegmentRecords(self.store, self.directory, self.metadata)

    def recorded(self, *states: SegmentSnapshot) -> None:
        """Have records that a former owner wrote."""
        for state in states:
            self.store.write(write_segment_record(state, self.directory.epoch - 1, None))

    async def stored(self, name: str, *offsets: int, table: TableMark | None = None) -> None:
        """Have runs of three bytes."""
        runs = [(name, ChunkRun(each, 3, OBJECT, each, table=table, logged=LogPlace(0, 1))) for each in offsets]
        await self.directory.add(runs, {OBJECT: 100})

    def has_record(self, name: str) -> bool:
        return self.store.get(evicted_segment_key(name)) is not None


async def test_record_is_the_state_of_its_segment(world: World):
    made = Made(world)
    await made.stored(NAME, 0, 3, 6)
    assert await made.records.find(NAME) is None, "its bytes are nothing that was evicted"
    made.recorded(STATE)
    stored = await made.records.find(NAME)
    assert stored is not None
    assert (stored.state, stored.recorded.version, stored.recorded.digest) == (
        STATE,
        0,
        digest_of(encode_segment(STATE)),
    )


async def test_record_under_another_name_is_corrupt(world: World):
    made = Made(world)
    made.recorded(STATE)
    record = made.store.get(evicted_segment_key(NAME))
    assert record is not None
    made.store.write(Create(evicted_segment_key(OTHER), record.body))
    with pytest.raises(CorruptError, match=f"the record of segment {OTHER} is that of {NAME}"):
        await made.records.find(OTHER)


async def test_record_is_compared_with_the_directory_after_a_loss(world: World):
    made = Made(world, doubtful=True)
    await made.stored(NAME, 3, 6)
    made.recorded(STATE)
    stored = await made.records.find(NAME)
    assert stored is not None
    assert stored.state == replace(STATE, start_offset=3, length=9)
    assert stored.recorded.digest == digest_of(encode_segment(STATE)), "that of the record that is there"
    made.store.write(write_segment_record(STATE, made.directory.epoch, 0))
    stored = await made.records.find(NAME)
    assert stored is not None
    assert stored.state == STATE, "this owner wrote it"


async def test_record_of_a_removed_segment_is_removed(world: World):
    """A lost log had told of the removal. The record would count as that of the next segment of the name."""
    made = Made(world, doubtful=True)
    made.recorded(STATE, replace(STATE, name=OTHER))
    assert await made.records.find(NAME) is None
    assert (made.has_record(NAME), made.has_record(OTHER)) == (False, True)


async def test_removal_of_a_record_that_is_gone_is_no_error(world: World, monkeypatch: pytest.MonkeyPatch):
    made = Made(world, doubtful=True)
    made.recorded(STATE)
    honest = made.store.write

    def repeated(*writes: Write) -> None:
        honest(*writes)
        honest(*writes)

    monkeypatch.setattr(made.store, "write", repeated)
    assert await made.records.find(NAME) is None
    assert not made.has_record(NAME)


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_runs_of_a_merged_segment_leave_before_its_name_is_free(world: World, *, is_recorded: bool):
    made = Made(world, doubtful=True)
    await made.stored(OTHER, 0, 3)
    if is_recorded:
        made.recorded(replace(STATE, name=OTHER))
    await made.directory.link(NAME, RunLink(10, 6, OTHER, 0, 7), (await made.directory.page(OTHER))[0])
    assert await made.records.find(OTHER) is None
    assert not made.has_record(OTHER)
    assert await made.directory.all_entries(OTHER, 10) == ([], [])
    assert [run.offset for run in await made.directory.page(NAME)] == [10, 13]


async def test_runs_without_a_record_are_a_segment_after_a_loss(world: World):
    made = Made(world, doubtful=True)
    await made.stored(NAME, 0, 3)
    await made.stored(OTHER, 6, 9, table=TableMark(created_ms=55, key_length=16))
    stored = await made.records.find(NAME)
    assert stored is not None
    assert (stored.state, stored.recorded.version) == (replace(EMPTY, length=6), -1)
    table = await made.records.find(OTHER)
    assert table is not None
    attributes = {CREATION_TIME: 55, SEGMENT_TYPE: TABLE_SEGMENT, TABLE_KEY_LENGTH: 16}
    assert table.state == replace(EMPTY, name=OTHER, start_offset=6, length=12, attributes=attributes)
    assert await made.records.find("scope/stream/2.#epoch.0") is None


async def test_records_are_written_over_what_is_there(world: World, monkeypatch: pytest.MonkeyPatch):
    """Also if other versions are there than the container knows of: it learns of all of them at once."""
    made = Made(world)
    states = [STATE, replace(STATE, name=OTHER)]
    assert await made.records.write([(state, None) for state in states]) == [0, 0]
    newer = [replace(state, length=9) for state in states]
    stored = await made.records.find(NAME)
    assert stored is not None
    assert await made.records.write([(newer[0], stored.recorded), (newer[1], None)]) == [1, 1]
    for state in newer:
        stored = await made.records.find(state.name)
        assert stored is not None
        assert (stored.state, stored.recorded.version) == (state, 1)
    made.store.write(*(write_segment_record(state, 0, 1) for state in states))
    honest, attempts = made.store.write, list[int]()

    def counted(*writes: Write) -> None:
        attempts.append(len(writes))
        honest(*writes)

    monkeypatch.setattr(made.store, "write", counted)
    assert await made.records.write([(newer[0], stored.recorded), (newer[1], None)]) == [3, 3]
    assert attempts == [3, 3]
    stored = await made.records.find(OTHER)
    assert stored is not None
    attempts.clear()
    assert await made.records.write([(newer[1], stored.recorded)]) == [4]
    assert attempts == [2], "the version was known"


async def test_records_that_always_change_are_given_up(world: World, monkeypatch: pytest.MonkeyPatch):
    made = Made(world)
    attempts = 0

    def changed(*_writes: Write) -> None:
        nonlocal attempts
        attempts += 1
        raise WriteConflictError("changed", {1: None})

    monkeypatch.setattr(made.store, "write", changed)
    with pytest.raises(UnavailableError, match="change while they are written"):
        await made.records.write([(STATE, None)])
    assert attempts == WRITE_ATTEMPTS_MAX


async def test_fenced_owner_writes_no_record(world: World):
    made = Made(world)
    world.claim(0)
    with pytest.raises(FencedError):
        await made.records.write([(STATE, None)])
    assert not made.has_record(NAME)


async def test_look_ups_are_read_in_few_large_reads_at_once(world: World, monkeypatch: pytest.MonkeyPatch):
    made, reads, held = Made(world), list[int](), asyncio.Event()

    async def to_thread(read: Callable[[list[Key]], list[Record | None]], keys: list[Key]) -> list[Record | None]:
        reads.append(len(keys))
        await held.wait()
        return read(keys)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    made.recorded(STATE)
    count = RECORDS_PER_READ_MAX * (READS_AT_ONCE_MAX + 2)
    finding = [asyncio.ensure_future(made.records.find(name)) for name in (NAME, *map(str, range(1, count)))]
    for _ in range(10):
        await asyncio.sleep(0)
    assert reads == [RECORDS_PER_READ_MAX] * READS_AT_ONCE_MAX
    held.set()
    results = await asyncio.gather(*finding)
    assert reads == [RECORDS_PER_READ_MAX] * (READS_AT_ONCE_MAX + 2)
    assert [each is not None for each in results] == [True, *[False] * (count - 1)]
    later = asyncio.ensure_future(made.records.find(NAME))
    for _ in range(10):
        await asyncio.sleep(0)
    assert later.done(), "the readers have gone"
    assert later.result() is not None


@pytest.mark.parametrize("error", [UnavailableError("no answer"), RuntimeError("a defect")])
async def test_every_look_up_of_a_read_gets_its_error(world: World, monkeypatch: pytest.MonkeyPatch, error: Exception):
    made, held = Made(world), asyncio.Event()

    async def to_thread(*_: object) -> list[Record | None]:
        await held.wait()
        raise error

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    first, cancelled, last = (asyncio.ensure_future(made.records.find(name)) for name in ("a", "b", "c"))
    await asyncio.sleep(0)
    cancelled.cancel()
    held.set()
    results = await asyncio.gather(first, last, return_exceptions=True)
    assert results == [error, error]
    monkeypatch.undo()
    made.recorded(STATE)
    assert await made.records.find(NAME) is not None


async def test_cancelled_look_up_takes_no_other_with_it(world: World, monkeypatch: pytest.MonkeyPatch):
    made, held = Made(world), asyncio.Event()
    made.recorded(STATE)

    async def to_thread(read: Callable[[list[Key]], list[Record | None]], keys: list[Key]) -> list[Record | None]:
        await held.wait()
        return read(keys)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    cancelled, found = (asyncio.ensure_future(made.records.find(name)) for name in (OTHER, NAME))
    await asyncio.sleep(0)
    cancelled.cancel()
    held.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert found.done()
    assert found.result() is not None
