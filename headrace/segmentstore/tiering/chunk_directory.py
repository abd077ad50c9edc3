"""The chunk directory of one container's segments: records of the metadata store, written under the container's claim.

Each write is one transaction. It checks the version of the claim, so that a fenced owner changes nothing, and updates
the count of each packed object whose runs are added or removed. Records that it removes or replaces must still be those
that were read. Otherwise it writes nothing, and the caller reads them again. The metadata store blocks; its calls run
in threads, never on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final

from headrace.metadata.evicted_segment import evicted_segment_key
from headrace.model.chunks import (
    OFFSET_BEHIND_ALL,
    ChunkRun,
    ObjectCount,
    RunLink,
    chunk_body,
    chunk_partition,
    chunk_run,
    chunk_sort,
    is_link,
    link_body,
    object_body,
    object_count,
    object_partition,
    run_link,
)
from headrace.model.errors import CorruptError, UnavailableError
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import (
    WRITES_PER_TRANSACTION_MAX,
    Check,
    Create,
    Delete,
    Key,
    MetadataStore,
    Page,
    Record,
    Replace,
    Write,
    WriteConflictError,
)
from headrace.segmentstore.tiering.owner_writes import ClaimedWrites

_log = logging.getLogger(__name__)

ENTERED_WRITES_MAX: Final = WRITES_PER_TRANSACTION_MAX - 1
"""Of runs and their objects' counts (see `fitting`): the rest is the check of the claim."""

RUNS_PER_WRITE_MAX: Final = ENTERED_WRITES_MAX - 1
"""In addition to the check of the claim and the count of the one object that they are in."""

LINKED_MOVES_PER_WRITE_MAX: Final = (WRITES_PER_TRANSACTION_MAX - 2) // 2
"""In addition to the check of the claim and the link to the rest."""

MOVES_PER_WRITE_MAX: Final = (WRITES_PER_TRANSACTION_MAX - 1) // 2
RUNS_PER_PAGE: Final = 64

_Change = tuple[int, int]
"""A change of an object's count: runs and bytes."""


class ChunkDirectory:
    """`epoch` is the version of the container's claim; `clock` dates objects that no run uses any more.

    `threads` run the queries of runs; without them the threads of the loop do, as for all other calls.
    `observe_ordering` is called with the ordering of a last entry, so that the store's later frames get greater ones.
    """

    def __init__(
        self,
        store: MetadataStore,
        container: int,
        epoch: int,
        clock: Clock,
        observe_ordering: Callable[[int], None] | None = None,
        *,
        threads: Executor | None = None,
    ) -> None:
        self._threads = threads
        self._observe_ordering = observe_ordering
        self._store = store
        self.container = container
        self.epoch = epoch
        self._clock = clock
        self._claimed = ClaimedWrites(store, container, epoch)
        self.completing_links = asyncio.Lock()
        self._counting = asyncio.Lock()
        self._newest: dict[Key, Record | None] = {}  # the counts of the objects that were entered last

    # Runs come and go

    async def add(self, runs: Sequence[tuple[str, ChunkRun]], object_lengths: Mapping[str, int]) -> dict[int, ChunkRun]:
        """Enter runs of segments, given by name; all or none. They must fit into `ENTERED_WRITES_MAX` (see `fitting`).

        `object_lengths` has the bytes of each object that the runs are in, by name.

        Returns conflicting runs by index into `runs`: an earlier attempt entered them at the same offsets.
        Nothing was written then.

        Raises:
            FencedError: the container has another owner.
            UnavailableError: the store does not answer; the runs may or may not be there.
        """
        writes = [Create(_run_key(segment, run.offset), chunk_body(run)) for segment, run in runs]
        changes = {self._object_key(name): change for name, change in _gained(run for _, run in runs).items()}
        async with self._counting:
            for _ in range(2):
                before = {key: self._newest.get(key) for key in changes}
                counts = [
                    self._counted(key, before[key], change, object_lengths[key.sort]) for key, change in changes.items()
                ]
                try:
                    await self._claimed.write(*writes, *counts)
                except WriteConflictError as error:
                    if stored_runs := _found_runs(error, len(runs)):
                        return stored_runs
                    # an earlier write entered them, and its reply was lost
                    counted = enumerate(changes, start=len(runs) + 1)
                    self._newest = {key: error.failed.get(index, before[key]) for index, key in counted}
                else:
                    self._newest = {each.key: _written(each, before[each.key]) for each in counts}
                    return {}
        raise changed()

    async def move(self, source: str, target: str, runs: Sequence[ChunkRun], moved: Sequence[ChunkRun]) -> bool:
        """Make `runs` of `source` the runs `moved` of `target`; raises as `add`.

        Returns False, and writes nothing, if the target has an entry there already.
        """
        writes: list[Write] = [Create(_run_key(target, run.offset), chunk_body(run)) for run in moved]
        writes.extend(Delete(_run_key(source, run.offset), run.version) for run in runs)
        return await self._entered(writes, len(moved))

    async def link(self, target: str, link: RunLink, first: ChunkRun) -> bool:
        """Make all runs of `link.segment` from `first` on, which is at `link.position`, those of `target`, by a record.

        A second one forwards from the source, so that it is not taken for a segment. Returns and raises as `move`.
        """
        forwarding = RunLink(OFFSET_BEHIND_ALL, link.length, target, link.offset, link.ordering)
        writes: list[Write] = [
            Create(_run_key(target, link.offset), link_body(link)),
            Create(_run_key(link.segment, OFFSET_BEHIND_ALL), link_body(forwarding)),
            # Else one that takes effect late, when the runs have been moved on from the target, would lead to nothing.
            Check(_run_key(link.segment, first.offset), first.version),
        ]
        return await self._entered(writes, 1)

    async def move_linked(self, target: str, link: RunLink, runs: Sequence[ChunkRun]) -> list[ChunkRun]:
        """Make `runs`, the first ones behind `link` of `target`, its own; the link goes with the last of them.

        Returns them as they are there; raises as `add`.
        """
        moved = [run.moved(link.offset - link.position, link.ordering) for run in runs]
        end = moved[-1].end
        writes: list[Write] = [Replace(_run_key(target, link.offset), chunk_body(moved[0]), link.version)]
        writes.extend(Create(_run_key(target, run.offset), chunk_body(run)) for run in moved[1:])
        writes.extend(Delete(_run_key(link.segment, run.offset), run.version) for run in runs)
        if end < link.end:
            rest = RunLink(end, link.end - end, link.segment, runs[-1].end, link.ordering)
            writes.append(Create(_run_key(target, end), link_body(rest)))
        else:
            writes.append(Delete(_run_key(link.segment, OFFSET_BEHIND_ALL), version=None))
        await self._write_or_look_again(writes)
        return moved

    async def remove(self, name: str, runs: Sequence[ChunkRun], links: Sequence[RunLink] = ()) -> int:
        """Remove links of a segment, and as many of the first runs as fit into a transaction. Returns their number.

        Raises as `add`, and:
            CorruptError: a run is in an object without a count.
        """
        gone = runs[: fitting(runs, WRITES_PER_TRANSACTION_MAX - 1 - len(links))]
        writes = [Delete(_run_key(name, run.offset), run.version) for run in gone]
        writes.extend(Delete(_run_key(name, link.offset), link.version) for link in links)
        if writes:
            await self._write_counted(writes, _freed(gone))
        return len(gone)

    async def remove_record(self, name: str) -> None:
        """Remove the record of a segment that may have been evicted; raises as `add`."""
        await self._claimed.write(*[Delete(evicted_segment_key(name), version=None)])

    async def replace(self, name: str, former: Sequence[ChunkRun], run: ChunkRun, object_length: int) -> None:
        """Replace contiguous `former` runs by one run, in an object of `object_length` bytes.

        They must fit into `REPLACED_WRITES_MAX` (see `fitting`). Raises as `remove`.
        """
        first, *rest = former
        writes: list[Delete | Replace] = [Replace(_run_key(name, first.offset), chunk_body(run), first.version)]
        writes.extend(Delete(_run_key(name, each.offset), each.version) for each in rest)
        await self._write_counted(writes, {**_freed(former), run.object_name: (1, run.length)}, object_length)

    # Questions

    async def page(self, name: str, *, first: int = 0, limit: int = RUNS_PER_PAGE) -> list[ChunkRun]:
        """Runs of a segment that start at `first` or later, in order."""
        return _runs(await self._query(name, first=first, last=OFFSET_BEHIND_ALL - 1, limit=limit))

    async def runs_before(self, name: str, end: int, limit: int) -> list[ChunkRun]:
        """The last `limit` runs of a segment that start before `end`, in order."""
        return _runs(await self._query(name, first=0, last=end - 1, limit=limit, descending=True))[::-1]

    async def run_before(self, name: str, offset: int) -> ChunkRun | None:
        """The last run of a segment that starts at `offset` or before."""
        return next(iter(await self.runs_before(name, offset + 1, 1)), None)

    async def last_entry(self, name: str) -> ChunkRun | RunLink | None:
        """The run or link that ends a segment; None if the directory has nothing of it."""
        page = await self._query(name, first=0, last=OFFSET_BEHIND_ALL, limit=1, descending=True)
        entry = next(iter(_entries(page)), None)
        times = entry.times if isinstance(entry, ChunkRun) else None
        ordering = entry.ordering if isinstance(entry, RunLink) else times.last if times is not None else None
        if ordering is not None and self._observe_ordering is not None:
            self._observe_ordering(ordering)
        return entry

    async def entry_before(self, name: str, end: int) -> ChunkRun | RunLink | None:
        """The last run or link of a segment that starts before `end`."""
        page = await self._query(name, first=0, last=end - 1, limit=1, descending=True)
        return next(iter(_entries(page)), None)

    async def all_entries(self, name: str, limit: int) -> tuple[list[ChunkRun], list[RunLink]]:
        """The first runs of a segment, and its links among `limit` records."""
        entries = _entries(await self._query(name, first=0, last=OFFSET_BEHIND_ALL, limit=limit))
        return (
            [entry for entry in entries if isinstance(entry, ChunkRun)],
            [entry for entry in entries if isinstance(entry, RunLink)],
        )

    async def objects(self, *, after: str, limit: int) -> Page:
        """The counts of the container's packed objects (`model.chunks.object_count`), in the order of their names."""
        first = f"{after}\0" if after else ""
        return await asyncio.to_thread(self._store.query, object_partition(self.container), first=first, limit=limit)

    async def count_of(self, name: str) -> Record | None:
        """The count of one object as it is now."""
        return await asyncio.to_thread(self._store.get, self._object_key(name))

    async def forget_objects(self, records: Sequence[Record]) -> None:
        """Remove counts of deleted objects, if they have not changed since they were read; raises as `add`."""
        size = WRITES_PER_TRANSACTION_MAX - 1
        for first in range(0, len(records), size):
            await self._write_or_look_again([Delete(each.key, each.version) for each in records[first : first + size]])

    # Internal

    async def _entered(self, writes: Sequence[Write], entry_count: int) -> bool:
        """Write, unless there is something where one of the first `entry_count` writes wants to create an entry."""
        try:
            await self._claimed.write(*writes)
        except WriteConflictError as error:
            if any(record is not None and index <= entry_count for index, record in error.failed.items()):
                return False
            raise changed() from error
        return True

    async def _query(self, name: str, *, first: int, last: int, limit: int, descending: bool = False) -> Page:
        query = partial(
            self._store.query,
            chunk_partition(name),
            first=chunk_sort(first),
            last=chunk_sort(last),
            limit=limit,
            descending=descending,
        )
        return await asyncio.get_running_loop().run_in_executor(self._threads, query)

    def _object_key(self, name: str) -> Key:
        return Key(object_partition(self.container), name)

    async def _write_counted(
        self, writes: Sequence[Delete | Replace], changes: Mapping[str, _Change], new_length: int = 0
    ) -> None:
        async with self._counting:
            keys = [self._object_key(name) for name in changes]
            records = await asyncio.to_thread(self._store.get_many, keys)
            try:
                counts = [
                    self._counted(key, record, change, new_length)
                    for key, record, change in zip(keys, records, changes.values(), strict=True)
                ]
            except CorruptError as error:
                present = await asyncio.to_thread(self._store.get_many, [each.key for each in writes])
                if [each and each.version for each in present] != [each.version for each in writes]:
                    raise changed() from error
                _log.critical("event=foreign_change container=%d error=%r", self.container, error.message)
                raise
            self._newest = {}
            await self._write_or_look_again([*writes, *counts])

    def _counted(self, key: Key, record: Record | None, change: _Change, new_length: int) -> Create | Replace:
        """The write of an object's changed count; raises CorruptError if more runs would be removed than it counts."""
        former = ObjectCount(0, 0, new_length) if record is None else object_count(record.body)
        count = former.changed(*change, self._clock.now_ms())
        if count.runs < 0 or count.run_bytes < 0:
            raise CorruptError(
                f"object {key.sort} has more runs in the chunk directory than its record counts ({former.runs})",
                details={"object": key.sort},
            )
        body = object_body(count)
        return Create(key, body) if record is None else Replace(key, body, record.version)

    async def _write_or_look_again(self, writes: Sequence[Write]) -> None:
        try:
            await self._claimed.write(*writes)
        except WriteConflictError as error:
            raise changed() from error


REPLACED_WRITES_MAX: Final = WRITES_PER_TRANSACTION_MAX - 2
"""Of runs and their objects' counts: the rest is the check of the claim and the count of the new run's object."""


def fitting(runs: Iterable[ChunkRun], writes_max: int) -> int:
    """How many of the first runs fit into so many writes: one write for each run, and one for each of their objects."""
    objects: set[str] = set()
    fit = 0
    for run in runs:
        objects.add(run.object_name)
        if fit + 1 + len(objects) > writes_max:
            break
        fit += 1
    return fit


def _gained(runs: Iterable[ChunkRun]) -> dict[str, _Change]:
    """How the counts of the objects change when these runs come."""
    return {name: (-count, -run_bytes) for name, (count, run_bytes) in _freed(runs).items()}


def _written(count: Create | Replace, before: Record | None) -> Record:
    """A count as it is after it was written."""
    return Record(count.key, 0 if before is None else before.version + 1, count.body)


def _freed(runs: Iterable[ChunkRun]) -> dict[str, _Change]:
    """How the counts of the objects change when these runs go."""
    changes: dict[str, _Change] = {}
    for run in runs:
        count, run_bytes = changes.get(run.object_name, (0, 0))
        changes[run.object_name] = (count - 1, run_bytes - run.length)
    return changes


def _run_key(name: str, offset: int) -> Key:
    return Key(chunk_partition(name), chunk_sort(offset))


def _runs(page: Page) -> list[ChunkRun]:
    return [entry for entry in _entries(page) if isinstance(entry, ChunkRun)]


def _entries(page: Page) -> list[ChunkRun | RunLink]:
    return [_entry(record) for record in page.records]


def _entry(record: Record) -> ChunkRun | RunLink:
    parsed = run_link if is_link(record.body) else chunk_run
    return parsed(record.key.sort, record.body, record.version)


def _found_runs(error: WriteConflictError, run_count: int) -> dict[int, ChunkRun]:
    """What was in the way of the first `run_count` writes behind the check of the claim, by index."""
    return {
        index - 1: chunk_run(record.key.sort, record.body, record.version)
        for index, record in error.failed.items()
        if record is not None and index <= run_count
    }


def changed() -> UnavailableError:
    return UnavailableError("the chunk directory has changed since it was read: the write is retried")
