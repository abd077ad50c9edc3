"""Several PUTs of one container at once: their number, their order in the directory, failures, merges, the end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from object_counts import assert_counts_agree
from segment_writes import WRITER, write
from store_world import World

from headrace import wire
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.model.chunks import ChunkRun, LogPlace, chunk_run, packed_name
from headrace.model.errors import UnavailableError
from headrace.model.segment_attributes import CREATION_TIME, SEGMENT_TYPE, TABLE_KEY_LENGTH
from headrace.ports.metadata_store import Write
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Block
from headrace.segmentstore.containers.pending_merges import PendingMerge, due_move, flush_place
from headrace.segmentstore.containers.segment import AcceptedState, Segment
from headrace.segmentstore.tiering import object_uploads
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.object_uploads import ObjectUploads, PackedObject, pack
from headrace.segmentstore.tiering.storage_writer import StorageWriter

OBJECT_BYTES = 1_000
WINDOW = 4
SEGMENT = "scope/stream/0.#epoch.0"
OTHER = "scope/other/1.#epoch.0"
SOURCE = "scope/stream/5.#epoch.0"
TRANSACTION = SEGMENT + "#transaction." + "0" * 31 + "1"

pytestmark = pytest.mark.anyio


class HeldChunkStorage(MemoryChunkStorage):
    """PUTs wait until they are let go, in any order. `names` are those asked for, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, asyncio.Future[None]] = {}
        self.names: list[str] = []
        self.is_open = False

    async def put(self, name: str, parts: Sequence[bytes]) -> None:
        if name.startswith("container-"):
            self.names.append(name)
            if not self.is_open:
                self.held[name] = asyncio.get_running_loop().create_future()
                try:
                    await self.held[name]
                finally:
                    del self.held[name]
        await super().put(name, parts)

    def let_go(self, name: str, error: Exception | None = None) -> None:
        if error is None:
            self.held[name].set_result(None)
        else:
            self.held[name].set_exception(error)

    def open(self) -> None:
        self.is_open = True
        for future in self.held.values():
            if not future.done():
                future.set_result(None)


@pytest.fixture
def chunks(world: World):
    world.chunks = HeldChunkStorage()
    world.container_count = 1
    world.limits = replace(world.limits, object_bytes_max=OBJECT_BYTES, objects_in_flight_max=WINDOW)
    return world.chunks


def stored_runs(world: World, segment):
    page = world.metadata.query(f"chunks/{segment}", limit=1000)
    return [chunk_run(record.key.sort, record.body) for record in page.records]


def is_entered(world: World, segment: str, object_name: str) -> bool:
    return object_name in [run.object_name for run in stored_runs(world, segment)]


def stored_bytes(world: World, segment):
    """What the directory and the objects have; asserts that the runs are contiguous from 0."""
    data = b""
    for run in stored_runs(world, segment):
        assert run.offset == len(data)
        data += world.chunks.read_now(run.object_name, run.position, run.length)
    return data


async def write_objects(client, segment, count, first=0) -> bytes:
    """Write so many objects' worth of bytes, one event each."""
    events = [bytes([first + number]) * OBJECT_BYTES for number in range(count)]
    await write(client, segment, events, first=first)
    return b"".join(events)


async def test_the_window_is_filled_and_never_exceeded(world: World, chunks):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        expected = await write_objects(client, SEGMENT, 2 * WINDOW)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) >= WINDOW)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(chunks.held) == WINDOW
        assert stored_runs(world, SEGMENT) == []
        chunks.open()
        await running.flush()
        assert stored_bytes(world, SEGMENT) == expected
        assert len(chunks.names) == 2 * WINDOW


async def test_runs_enter_in_order_though_objects_do_not(world: World, chunks):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        expected = await write_objects(client, SEGMENT, WINDOW)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) == WINDOW)
        first, *others = chunks.held
        for name in reversed(others):
            chunks.let_go(name)
        await running.until(lambda: len(chunks.held) == 1)
        assert stored_runs(world, SEGMENT) == []
        chunks.let_go(first)
        await running.flush()
        assert stored_bytes(world, SEGMENT) == expected
        assert [run.object_name for run in stored_runs(world, SEGMENT)] == [first, *others]


@pytest.mark.parametrize("stored_first", [1, 2, WINDOW])
async def test_stored_objects_enter_in_one_transaction(world: World, chunks, stored_first):
    """Those behind an object whose PUT runs wait for it, and so does their transaction."""
    sizes: list[int] = []
    honest = world.metadata.write

    def counting(*writes: Write) -> None:
        honest(*writes)
        sizes.extend([len(writes)] if any(each.key.sort.startswith("run/") for each in writes) else [])

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        expected = await write_objects(client, SEGMENT, WINDOW)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) == WINDOW)
        world.metadata.write = counting
        names = list(chunks.held)
        first, *others = running.store.owned[0].writer._uploads._uploads
        for upload in others[: stored_first - 1]:
            chunks.let_go(upload.object_name)
            await upload.put
        chunks.let_go(first.object_name)
        await running.until(lambda: len(stored_runs(world, SEGMENT)) == stored_first)
        assert sizes == [1 + 2 * stored_first]  # the claim, and a run and a count of each object
        chunks.open()
        await running.flush()
        assert stored_bytes(world, SEGMENT) == expected
        assert [run.object_name for run in stored_runs(world, SEGMENT)] == names
    assert_counts_agree(world.metadata)


@pytest.mark.parametrize("ends", [(2, 6), (1, 2, 4), (4, 5)], ids=["a longer run", "a shorter run", "two in one"])
async def test_runs_of_a_former_owner_are_taken_in_order(world: World, chunks, ends):
    """Its runs may end elsewhere. Those that continue the segment are taken, and the rest is packed again."""
    half = OBJECT_BYTES // 2
    events = [bytes([number]) * half for number in range(2 * WINDOW)]
    expected = b"".join(events)
    chunks.open()
    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await running.store.owned[0].writer.stop()
        await write(client, SEGMENT, events)
        directory = ChunkDirectory(world.metadata, 0, running.store.owned[0].container.epoch, world.clock)
        name = packed_name(0, 0, 1_000)
        await world.chunks.put(name, [expected])
        former = [ChunkRun(a * half, (b - a) * half, name, a * half) for a, b in itertools.pairwise((0, *ends))]
        await directory.add([(SEGMENT, run) for run in former], {name: len(expected)})
    async with world.running() as running:
        await (await running.connect()).set_up(SEGMENT, WRITER)
        await running.flush()
        assert stored_bytes(world, SEGMENT) == expected
        assert [run.end for run in stored_runs(world, SEGMENT)][: len(ends)] == [end * half for end in ends]
    assert_counts_agree(world.metadata)


@pytest.mark.parametrize("failing", [0, 1, 3])
async def test_what_was_packed_behind_a_failure_is_packed_again(world: World, chunks, failing):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        expected = await write_objects(client, SEGMENT, WINDOW)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) == WINDOW)
        names = list(chunks.held)
        for index, name in enumerate(names):
            chunks.let_go(name, UnavailableError("tier 2 is away") if index == failing else None)
        await running.until(lambda: not chunks.held)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.names) > WINDOW)
        assert len(chunks.held) == 1  # the window is narrow again
        assert [run.object_name for run in stored_runs(world, SEGMENT)] == names[:failing]
        chunks.open()
        await running.flush()
        assert stored_bytes(world, SEGMENT) == expected
        assert not {run.object_name for run in stored_runs(world, SEGMENT)} & set(names[failing:])


async def test_a_lost_answer_of_the_directory_changes_nothing(world: World, chunks):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        expected = await write_objects(client, SEGMENT, WINDOW)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) == WINDOW)
        honest = world.metadata.write

        def answers_get_lost(*writes):
            honest(*writes)
            raise UnavailableError("the answer was lost")

        world.metadata.write = answers_get_lost
        chunks.open()
        await running.until(lambda: bool(stored_runs(world, SEGMENT)))
        world.metadata.write = honest
        await running.flush()
        assert stored_bytes(world, SEGMENT) == expected


@pytest.mark.parametrize("objects", [1, 2])
async def test_a_merge_while_its_bytes_are_under_way(world: World, chunks, objects):
    """Bytes under way enter under the source's name, so the merge must not enter the target directly as well."""
    async with world.running() as running:
        client = await running.connect()
        for segment in (SEGMENT, TRANSACTION, OTHER):
            await client.create(segment)
        expected = await write_objects(client, SEGMENT, 1)
        chunks.is_open = True
        await running.flush()
        chunks.is_open = False
        await write_objects(client, OTHER, 1)
        world.clock.advance(1)
        expected += await write_objects(client, TRANSACTION, objects, first=100)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) == 1 + objects)
        first, *others = chunks.held
        assert isinstance(await client.call(wire.MergeSegments(3, SEGMENT, TRANSACTION)), wire.SegmentsMerged)
        expected += await write_objects(client, SEGMENT, 1, first=200)
        chunks.let_go(first)  # the writer may pack again now
        await running.until(lambda: bool(stored_runs(world, OTHER)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert list(chunks.held) == others
        chunks.open()
        await running.settle()
        assert stored_bytes(world, SEGMENT) == expected
        assert await client.read_all(SEGMENT) == expected
        assert stored_runs(world, TRANSACTION) == []


async def test_a_segment_deleted_while_its_bytes_are_under_way(world: World, chunks):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await write_objects(client, SEGMENT, WINDOW)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) == WINDOW)
        assert isinstance(await client.call(wire.DeleteSegment(4, SEGMENT)), wire.SegmentDeleted)
        chunks.open()
        await running.settle()
        assert stored_runs(world, SEGMENT) == []


async def test_a_truncation_while_bytes_are_under_way(world: World, chunks):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        expected = await write_objects(client, SEGMENT, WINDOW)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) == WINDOW)
        start = 2 * OBJECT_BYTES
        assert isinstance(await client.call(wire.TruncateSegment(4, SEGMENT, start)), wire.SegmentTruncated)
        chunks.open()
        await running.flush()
        assert await client.read_all(SEGMENT, start=start) == expected[start:]
        runs = stored_runs(world, SEGMENT)
        assert [run.offset for run in runs] == [number * OBJECT_BYTES for number in range(2, WINDOW)]


async def test_a_container_that_stops_lets_go_of_its_memory(world: World, chunks):
    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await write_objects(client, SEGMENT, WINDOW)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) == WINDOW)
        writer: StorageWriter = running.store.owned[0].writer
        await writer.stop()
        await asyncio.sleep(0)
        assert chunks.held == {}
        chunks.open()
    async with world.running() as running:
        client = await running.connect()
        await client.set_up(SEGMENT, WRITER)
        await running.flush()
        assert len(stored_bytes(world, SEGMENT)) == WINDOW * OBJECT_BYTES


async def test_stop_between_flushes_lets_go_of_memory(world: World, chunks, monkeypatch):
    """The PUTs of the next objects run on while the writer does other work, here a snapshot."""
    honest, snapshot_asked = chunks.put, asyncio.Event()

    async def put(name: str, parts: Sequence[bytes]) -> None:
        if name.startswith("snapshots/"):
            snapshot_asked.set()
            await asyncio.Event().wait()
        await honest(name, parts)

    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await write_objects(client, SEGMENT, WINDOW)
        monkeypatch.setattr(chunks, "put", put)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) == WINDOW)
        for number in itertools.count(WINDOW):
            oldest = next(iter(chunks.held))
            chunks.let_go(oldest)
            await running.until(lambda name=oldest: snapshot_asked.is_set() or is_entered(world, SEGMENT, name))
            if snapshot_asked.is_set():
                break
            # The snapshot waits for the log. When this write is durable, so is what the snapshot waits for.
            await write_objects(client, SEGMENT, 1, first=number)
            await running.until(lambda: snapshot_asked.is_set() or len(chunks.held) >= WINDOW - 1)
        assert chunks.held
        await running.store.owned[0].writer.stop()
        await asyncio.sleep(0)
        assert chunks.held == {}


@pytest.fixture
def lost_answers(world: World) -> Iterator[Callable[[bool], None]]:
    """Switches whether the answers of the directory's writes get lost."""
    honest = world.metadata.write

    def losing(*writes: Write) -> None:
        honest(*writes)
        raise UnavailableError("the answer was lost")

    def switch(on: bool) -> None:
        world.metadata.write = losing if on else honest

    yield switch
    world.metadata.write = honest


async def test_a_name_is_not_free_before_its_bytes_entered(world: World, chunks, lost_answers):
    """Else a new segment of the name would take the runs of the merged one for its own."""
    async with world.running() as running:
        client = await running.connect()
        for segment in (SEGMENT, SOURCE, OTHER):
            await client.create(segment)
        await write_objects(client, OTHER, 1)
        world.clock.advance(1)
        expected = await write_objects(client, SOURCE, 1, first=100)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) == 2)
        first, second = chunks.held
        assert isinstance(await client.call(wire.MergeSegments(3, SEGMENT, SOURCE)), wire.SegmentsMerged)
        chunks.let_go(first)
        await running.until(lambda: bool(stored_runs(world, OTHER)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert SOURCE in running.store.owned[0].container.metadata.deletions
        lost_answers(True)
        chunks.let_go(second)
        await running.until(lambda: bool(stored_runs(world, SOURCE)))
        lost_answers(False)
        chunks.open()
        await running.settle()
        assert stored_runs(world, SOURCE) == []
        await client.create(SOURCE)
        again = await write_objects(client, SOURCE, 1, first=200)
        await running.flush()
        assert stored_bytes(world, SOURCE) == again
        assert stored_bytes(world, SEGMENT) == expected


async def test_objects_behind_a_run_of_another_length_are_discarded(world: World, chunks, lost_answers):
    """A former owner entered the run, and crashed before its log knew."""
    chunks.open()
    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await write(client, SEGMENT, [b"short"])
        lost_answers(True)
        world.clock.advance(2e6)
        await running.until(lambda: bool(stored_runs(world, SEGMENT)))
        await running.store.owned[0].writer.stop()
        lost_answers(False)
        await write(client, SEGMENT, [b"longer"], first=1)  # enters the first object of the next owner, too
        expected = b"shortlonger" + await write_objects(client, SEGMENT, 2 * WINDOW, first=2)
    chunks.is_open = False
    chunks.names.clear()
    async with world.running() as running:
        await (await running.connect()).set_up(SEGMENT, WRITER)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) == WINDOW)
        first = next(iter(chunks.held))
        chunks.let_go(first)
        await running.until(lambda: first not in chunks.held and len(chunks.names) > WINDOW)
        assert len(chunks.held) == 1  # nothing was packed behind objects that cannot enter
        chunks.open()
        await running.flush()
        assert stored_bytes(world, SEGMENT) == expected
        assert len(chunks.names) <= WINDOW + 2 * WINDOW + 1


async def test_only_whole_objects_are_sent_behind_the_first(world: World, chunks):
    """Bytes that wait for a merge cannot be packed, and do not count."""
    async with world.running() as running:
        client = await running.connect()
        for segment in (SEGMENT, TRANSACTION, OTHER):
            await client.create(segment)
        await write_objects(client, SEGMENT, 1)
        world.clock.advance(1)
        await write_objects(client, TRANSACTION, 1, first=50)
        world.clock.advance(2e6)
        await running.until(lambda: len(chunks.held) == 2)
        first, second = chunks.held
        assert isinstance(await client.call(wire.MergeSegments(3, SEGMENT, TRANSACTION)), wire.SegmentsMerged)
        await write_objects(client, SEGMENT, 3, first=100)
        await write(client, OTHER, [b"small"])
        chunks.let_go(first)
        await running.until(lambda: bool(stored_runs(world, SEGMENT)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert list(chunks.held) == [second]
        chunks.open()
        await running.flush()


BLOCK_BYTES = 64


def segments_with(appends: list[tuple[int, int]]) -> tuple[list[Segment], dict[str, bytes]]:
    """Segments whose appends came in this order, and their bytes; an append is a segment's number and a length."""
    pool = BlockPool(64 * BLOCK_BYTES, BLOCK_BYTES)
    segments = [Segment(number, f"scope/stream/{number}.#epoch.0", pool, AcceptedState({}, 0)) for number in range(3)]
    expected = {segment.name: b"" for segment in segments}
    for entry, (number, length) in enumerate(appends):
        segment, data = segments[number], bytes([entry % 256]) * length
        reservation = pool.reserve(length)
        assert reservation is not None
        reservation.fill([memoryview(data)])
        segment.index.add(len(expected[segment.name]), reservation, entry)
        expected[segment.name] += data
        segment.durable.length += length
    return segments, expected


def test_an_object_has_a_number_of_runs(monkeypatch: pytest.MonkeyPatch):
    """The records of all of them enter the directory together."""
    monkeypatch.setattr(object_uploads, "RUNS_PER_OBJECT_MAX", 2)
    segments, _ = segments_with([(0, 10), (1, 10), (2, 10)])
    packed = pack(segments, "object", 400, lambda _: 0, 1)
    assert [place for place, _ in packed.runs] == segments[:2]
    looked_at = list[Segment]()

    def leave_out(segment: Segment) -> None:
        looked_at.append(segment)

    pack(segments, "object", 400, leave_out, 1)
    assert looked_at == segments, "one without bytes does not end an object"


@given(
    appends=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 100)), max_size=20),
    object_bytes_max=st.integers(1, 400),
)
def test_objects_have_all_bytes_in_whole_appends(appends: list[tuple[int, int]], object_bytes_max: int):
    segments, expected = segments_with(appends)
    lengths = {segment.name: [length for number, length in appends if number == segment.number] for segment in segments}
    packed_bytes = dict.fromkeys(segments, 0)
    while any(packed_bytes[segment] < segment.durable.length for segment in segments):
        packed = pack(segments, "object", object_bytes_max, lambda segment: packed_bytes[segment], 1)
        assert packed.runs
        data = b"".join(packed.parts)
        assert len(packed.parts) == len(packed.blocks)
        assert len(data) == packed.length
        is_one_append = len(packed.runs) == 1 and packed.length in lengths[packed.runs[0][0].name]
        assert packed.length <= object_bytes_max or is_one_append
        for segment, run in packed.runs:
            assert run.offset == packed_bytes[segment]
            found = data[run.position : run.position + run.length]
            assert found == expected[segment.name][run.offset : run.end]
            ends = {sum(lengths[segment.name][: count + 1]) for count in range(len(lengths[segment.name]))}
            assert run.end in ends
            packed_bytes[segment] = run.end


Entry = tuple[int, int, int]
"""The offset, the length and the log entry of an append."""


class Merged:
    """Segments that get appends and are merged into each other, and what tier 2 has of them."""

    def __init__(self) -> None:
        self.pool = BlockPool(64 * BLOCK_BYTES, BLOCK_BYTES)
        names = [f"scope/stream/{number}.#epoch.0" for number in range(6)]
        self.segments = [Segment(number, name, self.pool, AcceptedState({}, 0)) for number, name in enumerate(names)]
        self.segments[5].accepted.attributes.update({SEGMENT_TYPE: 1, TABLE_KEY_LENGTH: 16, CREATION_TIME: 5})
        self.entries: dict[Segment, list[Entry]] = {segment: [] for segment in self.segments}
        self.bytes = dict.fromkeys(self.segments, b"")
        self.operations = itertools.count(1)

    def append(self, segment: Segment, length: int) -> None:
        reservation, entry = self.pool.reserve(length), next(self.operations)
        assert reservation is not None
        data = bytes([entry]) * length
        reservation.fill([memoryview(data)])
        segment.index.add(segment.durable.length, reservation, entry)
        self._lengthen(segment, data, entry, [(0, length, entry)])

    def merge(self, source: Segment, target: Segment) -> None:
        entry, shift = next(self.operations), target.durable.length
        self.segments.remove(source)
        source.accepted.removed = True
        source.index.move_to(target.index, shift)
        target.add_merge(PendingMerge(shift, source.durable.length, source, 1_000 * entry, entry))
        self._lengthen(target, self.bytes[source], entry, self.entries[source])

    def _lengthen(self, segment: Segment, data: bytes, entry: int, entries: list[Entry]) -> None:
        shift = segment.durable.length
        segment.times.note(shift, 1_000 * entry)
        self.entries[segment] += [(shift + offset, length, logged) for offset, length, logged in entries]
        self.bytes[segment] += data
        segment.accepted.length = segment.durable.length = shift + len(data)

    def expected(
        self, object_bytes_max: int, waits: Callable[[PendingMerge], bool]
    ) -> Iterator[tuple[Segment, int, int, int, LogPlace]]:
        """The place, offset, length, position and log place of each run of the next object."""
        position = 0
        for segment in self.segments:
            place, shift, end = flush_place(segment, object_bytes_max, waits)
            length, newest = 0, 0
            for piece in self._pieces(segment, place, shift, end):
                piece_bytes = sum(each[1] for each in piece)
                if position + length + piece_bytes > object_bytes_max and (position or length):
                    break
                length += piece_bytes
                newest = max(newest, *(each[2] for each in piece))
            start = place.tiered.length
            newest = max([newest, *(m.ledger_entry for m in place.merges if start <= m.offset < start + length)])
            if length:
                yield place, start, length, position, LogPlace(7, newest)
            position += length

    def _pieces(self, segment: Segment, place: Segment, shift: int, end: int) -> Iterator[list[Entry]]:
        """What must not be divided: the appends of a merge that enters directly, and each other append."""

        def merge_of(entry: Entry) -> int:
            inside = (merge.offset for merge in place.merges if merge.offset <= entry[0] - shift < merge.end)
            return next(inside, -1 - entry[0])

        start = shift + place.tiered.length
        left = [each for each in self.entries[segment] if start <= each[0] < end]
        return (list(piece) for _, piece in itertools.groupby(left, merge_of))

    def enter(self, runs: list[tuple[Segment, ChunkRun]], object_bytes_max: int) -> None:
        for place, run in runs:
            place.advance_tiered(run.end)
        for segment in self.segments:
            while (due := due_move(segment, object_bytes_max)) is not None:
                due.target.advance_tiered(due.merge.end)


PACKING_STEPS = st.tuples(
    st.sampled_from(["append", "append", "append", "merge", "merge", "flush"]), st.integers(0, 5), st.integers(1, 8)
)


@settings(deadline=None, max_examples=300)
@given(steps=st.lists(PACKING_STEPS, min_size=15, max_size=50), object_bytes_max=st.integers(5, 40))
def test_objects_have_whole_merges_or_parts_by_source(steps: list[tuple[str, int, int]], object_bytes_max: int):
    merged = Merged()
    steps = [*steps, *[("flush", 0, 0)] * 30]
    for step, first, second in steps:
        segment, other = (merged.segments[each % len(merged.segments)] for each in (first, second))
        if step == "append":
            merged.append(segment, second)
        elif step == "merge" and segment is not other and segment.durable.length:
            merged.merge(segment, other)
        elif step == "flush":
            # Merges may have to wait, and only the first segments may have been asked for.
            def waits(merge: PendingMerge, number: int = first * second) -> bool:
                return bool(number) and merge.ledger_entry % number == 0

            expected = list(merged.expected(object_bytes_max, waits))
            ends = {each: each.tiered.length for each in merged.segments}
            packed = pack(merged.segments, "object", object_bytes_max, ends.get, 7, waits)
            runs = [(place, run.offset, run.length, run.position, run.logged) for place, run in packed.runs]
            assert runs == expected
            data = b"".join(packed.parts)
            assert len(data) == packed.length
            for place, run in packed.runs:
                home, shift = place.home
                begin, end = shift + run.offset, shift + run.end
                assert data[run.position :][: run.length] == merged.bytes[home][begin:end]
                assert run.table == place.table_mark
                # Under the name of a source, bytes have no times: those of the merge count.
                times = None if run.times is None else run.times[:2]
                points = home.times.between(begin, end)
                assert times == ((points[0].first, points[-1].last) if place is home else None)
            merged.enter(packed.runs, object_bytes_max)
    assert not any(segment.is_flushable for segment in merged.segments)


class Uploads:
    """Uploads of a container, whose PUTs a test ends, with segments to put."""

    def __init__(self, in_flight_max: int = WINDOW) -> None:
        self.pool = BlockPool(64 * BLOCK_BYTES, BLOCK_BYTES)
        self.segments = [Segment(n, f"scope/stream/{n}.#epoch.0", self.pool, AcceptedState({}, 0)) for n in range(3)]
        self.chunks = HeldChunkStorage()
        self.uploads = ObjectUploads(self.chunks, self.pool, in_flight_max)
        self.released = list[str]()

    async def put(self, name: str, *runs: tuple[Segment, int, int], blocks: Sequence[Block] = ()) -> None:
        """Start the PUT of an object with runs of these segments, from and up to these offsets."""
        release = contextlib.ExitStack()
        release.callback(self.released.append, name)
        entered = [(place, ChunkRun(begin, end - begin, name, 0)) for place, begin, end in runs]
        packed = PackedObject([memoryview(b"bytes")], list(blocks), entered, 5)
        self.uploads.start(packed, f"container-0/{name}", release, 0.0)
        await asyncio.sleep(0)

    async def answer(self, name: str, error: Exception | None = None) -> None:
        self.chunks.let_go(f"container-0/{name}", error)
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("runs", "answers", "count"),
    [
        ((49, 48), "yy", 2),
        ((49, 49), "yy", 1),  # each object has one more write, that of its count
        ((200, 1), "yy", 1),
        ((1, 1, 1), "yyy", 3),
        ((1, 1, 1), "yny", 1),
        ((1, 1, 1), "yey", 1),
        ((40, 60, 1), "yyy", 1),
        ((30, 30, 30, 30), "yyyy", 3),
    ],
)
async def test_stored_objects_fit_into_one_transaction(runs: tuple[int, ...], answers: str, count: int):
    """Neither one that is not stored nor one that does not fit is passed over."""
    world = Uploads()
    names = [f"o-{number}" for number in range(len(runs))]
    for name, number in zip(names, runs, strict=True):
        await world.put(name, *[(world.segments[0], 0, 1)] * number)
    for name, answer in reversed([*zip(names, answers, strict=True)]):
        if answer != "n":
            await world.answer(name, UnavailableError("away") if answer == "e" else None)
    stored = await world.uploads.stored()
    assert [upload.object_name for upload in stored] == [f"container-0/{name}" for name in names[:count]]
    world.uploads.discard()


async def test_bytes_under_way_are_not_packed_again():
    world = Uploads()
    plain, target, source = world.segments
    await world.put("first", (plain, 0, 100), (source, 0, 10))
    await world.put("second", (plain, 100, 200))
    target.tiered.length = 7
    inner = Segment(9, "scope/stream/9.#epoch.0", world.pool, AcceptedState({}, 0))
    assert [world.uploads.packed_end(each) for each in (plain, target, source)] == [200, 7, 10]
    target.add_merge(PendingMerge(7, 5, inner, 1, 1))
    assert world.uploads.packed_end(target) == 7
    assert world.uploads.merged_sources == set()
    target.add_merge(PendingMerge(12, 10, source, 2, 2))
    assert world.uploads.packed_end(target) is None, "what enters under the source's name is not known yet"
    assert world.uploads.merged_sources == {source.name}
    await world.answer("first")
    plain.tiered.length, source.tiered.length = 100, 10
    world.uploads.entered(await world.uploads.stored())
    assert [world.uploads.packed_end(each) for each in (plain, target, source)] == [200, 7, 10]
    assert world.uploads.merged_sources == set()
    await world.put("third", (target, 7, 12))
    assert world.uploads.packed_end(target) is None
    await world.answer("second")
    plain.tiered.length = 200
    world.uploads.entered(await world.uploads.stored())
    assert len(world.uploads) == 1
    world.uploads.discard()
    assert [world.uploads.packed_end(each) for each in (plain, target)] == [200, 7]


@pytest.mark.parametrize("entered", [True, False])
async def test_objects_hold_memory_until_they_have_entered(entered: bool):
    world = Uploads()
    segment = world.segments[0]
    reservation = world.pool.reserve(10)
    assert reservation is not None
    (block,) = reservation.blocks
    before = block.references
    await world.put("first", (segment, 0, 10), blocks=[block])
    await world.put("second", (segment, 10, 20), blocks=[block])
    assert (block.references, world.released) == (before + 2, [])
    if entered:
        await world.answer("first")
        segment.tiered.length = 10
        world.uploads.entered(await world.uploads.stored())
        assert (block.references, world.released) == (before + 1, ["first"])
    world.uploads.discard()
    assert (block.references, world.released) == (before, ["first", "second"])


@pytest.mark.parametrize(("removed", "left"), [(True, 1), (False, 0)])
async def test_a_run_of_another_length_discards_what_is_behind(removed: bool, left: int):
    """Unless its segment is gone, so that nothing of it was packed again."""
    world = Uploads()
    first, second, third = world.segments
    await world.put("first", (first, 0, 10), (second, 0, 10))
    await world.put("second", (third, 0, 10))
    await world.answer("first")
    first.tiered.length, second.tiered.length = 10, 5
    second.accepted.removed = removed
    world.uploads.entered(await world.uploads.stored())
    assert len(world.uploads) == left
    world.uploads.discard()


async def test_the_window_grows_with_objects_that_enter():
    """After a failure it is one object."""
    world = Uploads(in_flight_max=3)
    segment = world.segments[0]
    world.uploads.discard()
    windows = list[int]()
    for turn in range(4):
        names = list[str]()
        while world.uploads.has_room:
            names.append(f"o-{turn}-{len(names)}")
            await world.put(names[-1], (segment, segment.tiered.length, segment.tiered.length))
        windows.append(len(names))
        await world.answer(names[0])
        world.uploads.entered(await world.uploads.stored())
        for name in names[1:]:
            await world.answer(name)
            world.uploads.entered(await world.uploads.stored())
    assert windows == [1, 2, 3, 3]
