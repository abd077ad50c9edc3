"""Writes of the chunk directory change all or nothing, none of a deposed owner, and nothing that has changed since."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from object_counts import assert_counts_agree
from store_world import World

from headrace.model.chunks import (
    ChunkRun,
    ObjectCount,
    RunLink,
    RunTimes,
    chunk_sort,
    object_body,
    object_partition,
    packed_name,
)
from headrace.model.errors import CorruptError, FencedError, UnavailableError
from headrace.ports.metadata_store import (
    WRITES_PER_TRANSACTION_MAX,
    Create,
    Delete,
    Key,
    MetadataStore,
    Record,
    Replace,
    Write,
)
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory, fitting

pytestmark = pytest.mark.anyio

SEGMENT, SOURCE = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"
OBJECT, OTHER_OBJECT = packed_name(0, 0, 1), packed_name(0, 0, 2)
RUNS = [ChunkRun(3 * number, 3, OBJECT, 3 * number, RunTimes(10 + number, 20 + number)) for number in range(4)]
LENGTHS = {OBJECT: 12, OTHER_OBJECT: 12}


@dataclass
class Read:
    """What a caller has read of the directory before it writes."""

    directory: ChunkDirectory
    runs: list[ChunkRun]
    link: RunLink
    counts: list[Record]


Change = Callable[[Read], Awaitable[object]]
CHANGES: dict[str, Change] = {
    "move": lambda read: read.directory.move(SOURCE, SEGMENT, read.runs, [run.moved(100, 30) for run in read.runs]),
    "link": lambda read: read.directory.link(SEGMENT, RunLink(100, 12, SOURCE, 0, 30), read.runs[0]),
    "move a linked run": lambda read: read.directory.move_linked("linked", read.link, read.runs[:1]),
    "move all linked runs": lambda read: read.directory.move_linked("linked", read.link, read.runs),
    "remove": lambda read: read.directory.remove(SOURCE, read.runs),
    "remove a link": lambda read: read.directory.remove("linked", [], [read.link]),
    "replace": lambda read: read.directory.replace(SOURCE, read.runs, ChunkRun(0, 12, OTHER_OBJECT, 0), 12),
    "forget an object": lambda read: read.directory.forget_objects(read.counts),
}


async def read_directory(world: World) -> Read:
    """The directory with four runs of a source, and with an entry that links to them."""
    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    await directory.add([(SOURCE, run) for run in RUNS], LENGTHS)
    await directory.link("linked", RunLink(50, 12, SOURCE, 0, 30), (await directory.page(SOURCE))[0])
    runs, link = await directory.page(SOURCE), await directory.last_entry("linked")
    assert isinstance(link, RunLink)
    return Read(directory, runs, link, list((await directory.objects(after="", limit=10)).records))


def contents(store: MetadataStore) -> list[Record]:
    partitions = [f"chunks/{name}" for name in (SEGMENT, SOURCE, "linked")] + [object_partition(0)]
    return [record for each in partitions for record in store.query(each, limit=100).records]


READ_RECORDS: dict[str, Callable[[Read], tuple[str, str]]] = {
    "first run": lambda read: (f"chunks/{SOURCE}", chunk_sort(read.runs[0].offset)),
    "last run": lambda read: (f"chunks/{SOURCE}", chunk_sort(read.runs[-1].offset)),
    "link": lambda read: ("chunks/linked", chunk_sort(read.link.offset)),
    "count": lambda read: (object_partition(0), read.counts[0].key.sort),
}
NEEDED = [
    ("move", "first run"),
    ("move", "last run"),
    ("link", "first run"),
    ("move a linked run", "first run"),
    ("move a linked run", "link"),
    ("move all linked runs", "last run"),
    ("move all linked runs", "link"),
    ("remove", "first run"),
    ("remove", "last run"),
    ("remove a link", "link"),
    ("replace", "first run"),
    ("replace", "last run"),
    ("forget an object", "count"),
]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_deposed_owner_changes_nothing(world: World, change: Change):
    read = await read_directory(world)
    world.claim(0)
    before = contents(world.metadata)
    with pytest.raises(FencedError):
        await change(read)
    assert contents(world.metadata) == before


async def test_deposed_owner_adds_no_runs(world: World):
    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    world.claim(0)
    with pytest.raises(FencedError):
        await directory.add([(SEGMENT, RUNS[0])], LENGTHS)
    with pytest.raises(FencedError):
        await directory.remove_record(SEGMENT)
    assert contents(world.metadata) == []


@pytest.mark.parametrize(("change", "changed"), NEEDED)
async def test_what_has_changed_since_a_read_stays(world: World, change: str, changed: str):
    read = await read_directory(world)
    record = world.metadata.get(Key(*READ_RECORDS[changed](read)))
    assert record is not None
    world.metadata.write(Replace(record.key, record.body, record.version))  # as by another process
    before = contents(world.metadata)
    with pytest.raises(UnavailableError):
        await CHANGES[change](read)
    assert contents(world.metadata) == before


@pytest.mark.parametrize("change", ["move", "link"])
async def test_entry_in_the_way_of_a_merge_stays(world: World, change: str):
    read = await read_directory(world)
    await read.directory.add([(SEGMENT, ChunkRun(100, 5, OTHER_OBJECT, 0))], LENGTHS)
    before = contents(world.metadata)
    assert not await CHANGES[change](read)
    assert contents(world.metadata) == before


@pytest.mark.parametrize("found_at", [0, 1, 3])
async def test_run_of_an_earlier_attempt_is_returned(world: World, found_at: int):
    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    former = ChunkRun(RUNS[found_at].offset, 2, OTHER_OBJECT, 5)
    await directory.add([(SEGMENT, former)], LENGTHS)
    assert await directory.add([(SEGMENT, run) for run in RUNS], LENGTHS) == {found_at: former}
    assert await directory.page(SEGMENT) == [former]
    assert_counts_agree(world.metadata)


async def test_counts_follow_a_move_behind_a_link(world: World):
    read = await read_directory(world)
    moved = await read.directory.move_linked("linked", read.link, read.runs[:3])
    rest = await read.directory.last_entry("linked")
    assert rest == RunLink(59, 3, SOURCE, 9, 30)
    assert isinstance(rest, RunLink)
    moved += await read.directory.move_linked("linked", rest, await read.directory.page(SOURCE, first=9))
    assert [run.offset for run in moved] == [50, 53, 56, 59]
    assert await read.directory.page("linked") == moved
    assert await read.directory.all_entries(SOURCE, 10) == ([], [])
    assert_counts_agree(world.metadata)


async def test_looks_at_both_sides_of_an_offset(world: World):
    directory = (await read_directory(world)).directory
    assert await directory.page(SOURCE, first=3, limit=2) == RUNS[1:3]
    assert await directory.runs_before(SOURCE, 9, 2) == RUNS[1:3]
    assert await directory.runs_before(SOURCE, 10, 2) == RUNS[2:]
    assert await directory.run_before(SOURCE, 3) == RUNS[1]
    assert await directory.run_before(SOURCE, 2) == RUNS[0]
    assert await directory.entry_before(SOURCE, 3) == RUNS[0]
    assert await directory.entry_before(SOURCE, 4) == RUNS[1]
    assert await directory.entry_before(SOURCE, 0) is None


async def test_ordering_of_each_last_entry_is_observed(world: World):
    """Else a later frame of this store could get a lower number, and readers in time order would miss events."""
    await read_directory(world)
    observed: list[int] = []
    directory = ChunkDirectory(world.metadata, 0, 0, world.clock, observed.append)
    await directory.last_entry("linked")
    await directory.remove(SOURCE, [], (await directory.all_entries(SOURCE, 10))[1])
    assert await directory.last_entry(SOURCE) == RUNS[-1]
    assert await directory.last_entry("none") is None
    assert observed == [30, 23]


async def test_each_count_is_listed_once(world: World):
    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    names = [packed_name(0, 0, number) for number in range(1, 6)]
    for number, name in enumerate(names):
        await directory.add([(SEGMENT, ChunkRun(number, 1, name, 0))], {name: 1})
    listed, after = [], ""
    for _ in range(3):
        listed += [record.key.sort for record in (await directory.objects(after=after, limit=2)).records]
        after = listed[-1]
    assert listed == names
    assert not (await directory.objects(after=after, limit=2)).records
    assert Key(object_partition(0), names[0]) in [record.key for record in contents(world.metadata)]


async def test_count_that_was_written_unheard_is_found(world: World):
    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    honest = world.metadata.write

    def unheard(*writes: Write) -> None:
        honest(*writes)
        raise UnavailableError("no answer")

    world.metadata.write = unheard  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        await directory.add([(SEGMENT, RUNS[0])], LENGTHS)
    world.metadata.write = honest  # type: ignore[method-assign]
    assert await directory.add([(SEGMENT, run) for run in RUNS[1:]], LENGTHS) == {}
    assert await directory.page(SEGMENT) == RUNS
    assert_counts_agree(world.metadata)


@pytest.mark.parametrize("objects", [47, 48, 49, 50])
async def test_removal_with_a_link_fits_into_a_transaction(world: World, writes: list[tuple[Write, ...]], objects: int):
    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    names = [packed_name(0, 0, 1 + number % objects) for number in range(52)]
    for number, name in enumerate(names):
        await directory.add([(SEGMENT, ChunkRun(number, 1, name, number))], {name: 60})
    await directory.add([(SOURCE, RUNS[0])], LENGTHS)
    await directory.link(SEGMENT, RunLink(52, 3, SOURCE, 0, 30), (await directory.page(SOURCE))[0])
    runs, links = await directory.all_entries(SEGMENT, 60)
    removed = await directory.remove(SEGMENT, runs, links)
    assert 0 < removed < len(runs)
    assert await directory.all_entries(SEGMENT, 60) == (runs[removed:], [])
    assert len(writes[-1]) + 2 > WRITES_PER_TRANSACTION_MAX, "a run and the count of its object"
    assert_counts_agree(world.metadata)


@pytest.fixture
def writes(world: World, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Write, ...]]:
    """The transactions that the metadata store was asked for."""
    honest, found = world.metadata.write, list[tuple[Write, ...]]()

    def write(*writes: Write) -> None:
        found.append(writes)
        honest(*writes)

    monkeypatch.setattr(world.metadata, "write", write)
    return found


async def test_runs_of_one_object_take_a_transaction_each(world: World, writes: list[tuple[Write, ...]]):
    """The directory remembers the counts that it wrote. Else each attempt would first fail."""
    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    writes.clear()
    for number, run in enumerate(RUNS, 1):
        assert await directory.add([(SEGMENT, run)], LENGTHS) == {}
        assert len(writes) == number
    assert await directory.remove(SEGMENT, []) == 0
    assert len(writes) == len(RUNS), "nothing to remove is no transaction"


async def test_count_that_changes_again_and_again_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch):
    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    await directory.add([(SEGMENT, RUNS[0])], LENGTHS)
    before, honest = contents(world.metadata)[:1], world.metadata.write
    changes = iter(range(100))

    def overtaken(*writes: Write) -> None:
        count = world.metadata.get(Key(object_partition(0), OBJECT))
        assert count is not None
        honest(Replace(count.key, {**count.body, "other": next(changes)}, count.version))
        honest(*writes)

    monkeypatch.setattr(world.metadata, "write", overtaken)
    with pytest.raises(UnavailableError, match="has changed since it was read"):
        await directory.add([(SEGMENT, RUNS[1])], LENGTHS)
    assert (next(changes), contents(world.metadata)[:-1]) == (2, before)


async def test_more_counts_than_fit_into_a_transaction_are_forgotten(world: World):
    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    for number in range(WRITES_PER_TRANSACTION_MAX + 5):
        name = packed_name(0, 0, number + 1)
        await directory.add([(SEGMENT, ChunkRun(number, 1, name, 0))], {name: 1})
    counts = list((await directory.objects(after="", limit=200)).records)
    await directory.forget_objects(counts)
    assert not (await directory.objects(after="", limit=200)).records


async def test_runs_of_an_object_without_a_count_are_corrupt(world: World):
    """Unless they have been removed since they were read, and the count with them."""
    read = await read_directory(world)
    world.metadata.write(Delete(read.counts[0].key, version=None))
    with pytest.raises(CorruptError, match="has more runs"):
        await read.directory.remove(SOURCE, read.runs[:2])
    short = object_body(ObjectCount(3, 1, 100))
    world.metadata.write(Create(read.counts[0].key, short))
    with pytest.raises(CorruptError, match="has more runs"):
        await read.directory.remove(SOURCE, read.runs[:2])
    world.metadata.write(Delete(read.counts[0].key, version=None))
    first = world.metadata.get(Key(*READ_RECORDS["first run"](read)))
    assert first is not None
    world.metadata.write(Delete(first.key, first.version))
    with pytest.raises(UnavailableError, match="has changed since it was read"):
        await read.directory.remove(SOURCE, read.runs[:2])


@pytest.mark.parametrize(("writes_max", "fit"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (6, 4), (9, 4)])
def test_each_run_and_each_new_object_is_a_write(writes_max: int, fit: int):
    names = [OBJECT, OBJECT, OTHER_OBJECT, OBJECT]
    runs = [ChunkRun(number, 1, name, number) for number, name in enumerate(names)]
    assert fitting(runs, writes_max) == fit
