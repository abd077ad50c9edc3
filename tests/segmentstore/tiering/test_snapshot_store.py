"""Snapshots of a container in tier 2: pieces, the pointer that names the newest one, and objects that none names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c
from store_world import World

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec.container_snapshots import ContainerSnapshot, SegmentSnapshot, encode_snapshot
from headrace.metadata.cluster_records import snapshot_key, write_snapshot_pointer
from headrace.model.containers import SnapshotPointer
from headrace.model.errors import CorruptError, FencedError, HeadraceError, UnavailableError
from headrace.ports.metadata_store import Create, Key, Record, Write
from headrace.segmentstore.tiering import snapshot_store
from headrace.segmentstore.tiering.snapshot_store import SNAPSHOT_BYTES_MAX, SnapshotStore, SnapshotWriter
from headrace.segmentstore.tiering.storage_limits import StorageLimits

pytestmark = pytest.mark.anyio


def snapshot_of(count: int) -> ContainerSnapshot:
    segments = (SegmentSnapshot(each, f"s/t/{each}.#epoch.0", 0, 5, False, 7, {}) for each in range(count))
    return ContainerSnapshot(count, {}, list(segments))


def parts_of(count: int) -> list[bytes]:
    whole = b"".join(encode_snapshot(snapshot_of(count)))
    return [whole[:20], whole[20:50], whole[50:]]


def store_of(world: World) -> SnapshotStore:
    """That of a new owner."""
    return SnapshotStore(world.metadata, world.chunks, 0, world.claim(0))


async def names(world: World) -> list[str]:
    return [each.name for each in await world.chunks.list("snapshots/")]


async def test_newest_snapshot_is_the_only_one(world: World):
    world.claim(0)
    snapshots = store_of(world)
    assert await snapshots.pointer() is None
    assert not snapshots.has_pointer
    for number, count in enumerate((3, 5), 1):
        parts = parts_of(count)
        await snapshots.replace(parts, clean=False)
        assert snapshots.has_pointer
        assert not snapshots.may_be_clean
        name = f"snapshots/container-0000/0000000001-000000000{number}"
        whole = b"".join(parts)
        pointer = await snapshots.pointer()
        assert pointer == SnapshotPointer(name, len(whole), crc32c(whole), 1, clean=False)
        assert await names(world) == [name]
        assert await snapshots.load(pointer) == snapshot_of(count)
    later = store_of(world)
    await later.replace(parts_of(1), clean=True)
    assert later.may_be_clean
    found = await later.pointer()
    assert found is not None
    assert (found.epoch, found.clean, await names(world)) == (2, True, [found.object_name])


async def test_pointer_is_read_once(world: World, monkeypatch: pytest.MonkeyPatch):
    """The owner knows what it wrote."""
    snapshots, honest, reads = store_of(world), world.metadata.get, list[Key]()

    def get(key: Key) -> Record | None:
        reads.append(key)
        return honest(key)

    monkeypatch.setattr(world.metadata, "get", get)
    for count in range(1, 4):
        await snapshots.replace(parts_of(count), clean=False)
    assert reads == [snapshot_key(0)]
    await snapshots.replace(parts_of(5), clean=True)
    assert len(reads) == 2, "an outage is noticed before a write whose outcome would be unknown"


@pytest.mark.parametrize("size", [1, 7, 64])
async def test_snapshot_is_read_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch, size: int):
    monkeypatch.setattr(snapshot_store, "READ_BYTES", size)
    snapshots, honest, lengths = store_of(world), world.chunks.read, list[int]()

    async def read(name: str, position: int, length: int) -> bytes:
        lengths.append(length)
        return await honest(name, position, length)

    monkeypatch.setattr(world.chunks, "read", read)
    await snapshots.replace(parts_of(3), clean=False)
    pointer = await snapshots.pointer()
    assert pointer is not None
    assert await snapshots.load(pointer) == snapshot_of(3)
    assert max(lengths) <= size
    assert sum(lengths) == pointer.length


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda pointer: replace(pointer, length=0), "claims 0 bytes"),
        (lambda pointer: replace(pointer, length=-1), "claims -1 bytes"),
        (lambda pointer: replace(pointer, length=SNAPSHOT_BYTES_MAX + 1), "claims 1073741825 bytes"),
        (lambda pointer: replace(pointer, checksum=pointer.checksum ^ 1), "has the checksum"),
        (lambda pointer: replace(pointer, object_name="snapshots/other"), "is missing in tier 2"),
    ],
    ids=["no byte", "fewer than none", "too many bytes", "other bytes", "no object"],
)
async def test_snapshot_that_is_not_what_was_written_is_corrupt(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[SnapshotPointer], SnapshotPointer], complaint: str
):
    snapshots = store_of(world)
    await snapshots.replace(parts_of(3), clean=False)
    pointer = await snapshots.pointer()
    assert pointer is not None
    with pytest.raises(CorruptError, match=complaint):
        await snapshots.load(change(pointer))


async def test_largest_snapshot_is_read(world: World, monkeypatch: pytest.MonkeyPatch):
    snapshots = store_of(world)
    await snapshots.replace(parts_of(3), clean=False)
    pointer = await snapshots.pointer()
    assert pointer is not None
    monkeypatch.setattr(snapshot_store, "SNAPSHOT_BYTES_MAX", pointer.length)
    assert await snapshots.load(pointer) == snapshot_of(3)
    monkeypatch.setattr(snapshot_store, "SNAPSHOT_BYTES_MAX", pointer.length - 1)
    with pytest.raises(CorruptError, match="at most"):
        await snapshots.load(pointer)


async def test_tier_2_that_does_not_answer_is_no_loss(world: World, monkeypatch: pytest.MonkeyPatch):
    snapshots = store_of(world)

    async def read(_name: str, _position: int, _length: int) -> bytes:
        raise UnavailableError("no answer")

    monkeypatch.setattr(world.chunks, "read", read)
    with pytest.raises(UnavailableError):
        await snapshots.load(SnapshotPointer("snapshots/any", 5, 0, 0, clean=False))


def answers(world: World, monkeypatch: pytest.MonkeyPatch, *, arrive: bool, error: HeadraceError | None) -> None:
    """Let writes to the metadata store arrive or not, and then fail."""
    honest = type(world.metadata).write

    def write(*writes: Write) -> None:
        if arrive:
            honest(world.metadata, *writes)
        if error is not None:
            raise error

    monkeypatch.setattr(world.metadata, "write", write)


@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize("clean", [False, True])
async def test_unheard_write_of_the_pointer_leaves_no_object(
    world: World, monkeypatch: pytest.MonkeyPatch, *, arrives: bool, clean: bool
):
    snapshots = store_of(world)
    await snapshots.replace(parts_of(1), clean=False)
    answers(world, monkeypatch, arrive=arrives, error=UnavailableError("no answer"))
    with pytest.raises(UnavailableError):
        await snapshots.replace(parts_of(2), clean=clean)
    assert len(await names(world)) == 2, "either may be the newest"
    assert snapshots.may_be_clean is clean
    answers(world, monkeypatch, arrive=True, error=None)
    await snapshots.replace(parts_of(3), clean=False)
    pointer = await snapshots.pointer()
    assert pointer is not None
    assert await names(world) == [pointer.object_name]
    assert await snapshots.load(pointer) == snapshot_of(3)


async def test_fenced_owner_leaves_pointer_and_snapshot(world: World):
    snapshots = store_of(world)
    await snapshots.replace(parts_of(1), clean=False)
    pointer = await snapshots.pointer()
    assert pointer is not None
    world.claim(0)
    with pytest.raises(FencedError):
        await snapshots.replace(parts_of(2), clean=False)
    assert await snapshots.pointer() == pointer
    assert await snapshots.load(pointer) == snapshot_of(1)


async def test_pointer_that_changes_meanwhile_is_read_again(world: World):
    """An earlier write may arrive late."""
    snapshots = store_of(world)
    await snapshots.replace(parts_of(1), clean=False)
    pointer = await snapshots.pointer()
    assert pointer is not None
    world.metadata.write(write_snapshot_pointer(0, replace(pointer, clean=True), 0))
    with pytest.raises(UnavailableError, match="has changed"):
        await snapshots.replace(parts_of(3), clean=False)
    await snapshots.replace(parts_of(4), clean=False)
    pointer = await snapshots.pointer()
    assert pointer is not None
    assert await snapshots.load(pointer) == snapshot_of(4)


async def test_clean_mark_is_taken_off_before_a_container_serves(world: World):
    snapshots = store_of(world)
    await snapshots.replace(parts_of(1), clean=True)
    following = store_of(world)
    pointer = await following.pointer()
    assert pointer is not None
    await following.take_clean_mark_off(pointer)
    found = await following.pointer()
    assert found == replace(pointer, clean=False)
    record = world.metadata.get(snapshot_key(0))
    await following.take_clean_mark_off(found)
    assert world.metadata.get(snapshot_key(0)) == record, "there is none to take off"
    await following.replace(parts_of(2), clean=False)
    assert len(await names(world)) == 1


@pytest.mark.parametrize("is_heard", [False, True])
async def test_first_snapshot_follows_the_mark_that_was_taken_off(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_heard: bool
):
    await store_of(world).replace(parts_of(1), clean=True)
    following = store_of(world)
    pointer = await following.pointer()
    assert pointer is not None
    answers(world, monkeypatch, arrive=True, error=None if is_heard else UnavailableError("no answer"))
    with nullcontext() if is_heard else pytest.raises(UnavailableError):
        await following.take_clean_mark_off(pointer)
    answers(world, monkeypatch, arrive=True, error=None)
    await following.replace(parts_of(2), clean=False)
    found = await following.pointer()
    assert found is not None
    assert await following.load(found) == snapshot_of(2)


async def test_clean_mark_of_no_snapshot_is_nothing(world: World):
    snapshots = store_of(world)
    assert await snapshots.pointer() is None
    await snapshots.take_clean_mark_off(SnapshotPointer("snapshots/any", 5, 0, 0, clean=True))
    assert not snapshots.has_pointer


async def test_snapshot_that_cannot_be_deleted_stops_nothing(world: World, monkeypatch: pytest.MonkeyPatch):
    snapshots = store_of(world)
    await snapshots.replace(parts_of(1), clean=False)

    async def delete(_names: object) -> None:
        raise UnavailableError("no answer")

    monkeypatch.setattr(world.chunks, "delete", delete)
    await snapshots.replace(parts_of(2), clean=False)
    pointer = await snapshots.pointer()
    assert pointer is not None
    assert await snapshots.load(pointer) == snapshot_of(2)


async def test_pointer_that_is_none_is_corrupt(world: World):
    snapshots = store_of(world)
    world.metadata.write(Create(snapshot_key(0), {"version": 1}))
    with pytest.raises(CorruptError, match="the snapshot pointer of container 0: "):
        await snapshots.pointer()


class Log:
    """Operations by their numbers, of which some are durable."""

    def __init__(self) -> None:
        self.last_sequence = self.durable_sequence = 10
        self.current_ordering = 77
        self.watched: list[Callable[[], None]] = []

    def append(self, _operation: object, _done: object) -> None:
        self.last_sequence += 1

    def when_durable(self, wake: Callable[[], None]) -> None:
        self.watched.append(wake)


class Writing:
    """The snapshots of a container whose log is scripted. Tier 2 has what `written` says."""

    def __init__(self, *, covered: bool = True) -> None:
        self.clock = ManualClock()
        self.log = Log()
        self.metadata = SimpleNamespace(stored_snapshot=lambda: snapshot_of(self.changes))
        self.wake_flusher = object()
        self.container = 0
        self.changes = 3
        self.taken: list[ContainerSnapshot] = []
        self.told: list[ContainerSnapshot] = []
        self.written: list[bytes] = []
        self.failure: HeadraceError | None = None
        self.limits = StorageLimits(snapshot_every_s=30.0, snapshot_soon_s=1.0)
        container: Any = self
        snapshots: Any = self
        self.writer = SnapshotWriter(
            container, snapshots, self.clock, self.limits, self.told.append, self.taken.append, covered=covered
        )

    async def replace(self, parts: list[bytes], *, clean: bool) -> None:
        assert not clean
        if self.failure is not None:
            raise self.failure
        self.written.append(b"".join(parts))

    async def counts_after(self, *seconds: float) -> list[int]:
        """How many were written after each of these times, one after the other."""
        found = []
        for each in seconds:
            self.clock.advance(round(1000 * each))
            await self.writer.advance()
            self.log.durable_sequence = self.log.last_sequence
            await self.writer.advance()
            found.append(len(self.written))
        return found


async def test_container_that_does_not_change_needs_no_snapshot():
    made = Writing()
    assert await made.counts_after(0, 1, 29, 100) == [0, 0, 0, 0]
    made.writer.want()
    assert await made.counts_after(0, 0, 100) == [1, 1, 1]
    assert made.writer.written == 1


async def test_first_snapshot_of_a_recovered_container_comes_soon():
    assert await Writing(covered=False).counts_after(0, 0.9, 0.2, 100) == [0, 0, 1, 1]


async def test_change_is_in_a_snapshot_soon():
    made = Writing()
    made.changes = 4
    assert await made.counts_after(0, 0.5, 0.5, 0) == [0, 0, 1, 1]
    expected = replace(snapshot_of(4), ordering=77)
    assert made.taken == made.told == [expected]
    assert made.written == [b"".join(encode_snapshot(expected))]
    assert made.log.watched == [made.wake_flusher]
    made.changes = 5
    assert await made.counts_after(0.5, 0.9, 0.1) == [1, 1, 2], "counted from the look that finds the change"


async def test_appends_are_in_a_snapshot_after_its_interval():
    made = Writing()
    made.log.last_sequence = 12
    assert await made.counts_after(29, 1, 0) == [0, 1, 1]
    made.log.last_sequence = 13
    assert await made.counts_after(29, 1) == [1, 2]


async def test_snapshot_follows_an_operation_of_its_owner():
    """A log that ends before the pointer's epoch is the past."""
    made = Writing()
    made.writer.want()
    await made.writer.advance()
    assert (made.log.last_sequence, len(made.taken), made.written) == (11, 1, [])
    await made.writer.advance()
    assert (len(made.taken), made.written) == (1, []), "it waits for the log"
    made.log.durable_sequence = 11
    await made.writer.advance()
    assert len(made.written) == 1
    made.writer.want()
    await made.writer.advance()
    assert (made.log.last_sequence, len(made.written)) == (11, 2), "the log has one already"


async def test_snapshot_that_failed_is_taken_again_later():
    made = Writing()
    made.changes = 4
    assert await made.counts_after(0) == [0]
    made.failure = UnavailableError("no answer")
    made.clock.advance(1000)
    with pytest.raises(UnavailableError):
        await made.counts_after(0)
    made.failure, made.changes = None, 5
    assert await made.counts_after(0) == [1]
    assert [len(list(each.segments)) for each in made.taken] == [4, 5]
    assert [len(list(each.segments)) for each in made.told] == [5]
