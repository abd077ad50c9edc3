"""The engine of all ticks: it reads the due entries of an index and processes them.

An index has one partition per shard. There are two kinds of index:

- In an index by time (retention, transactions, creations) an entry has its own next time and moves when it is done.
- In a cyclic index (watermarks, intents) entries stay in their place and all are due at each tick. A tick begins after
  the last entry of the previous one, so the entry that has waited longest comes first. That costs no write per entry.

An entry that fails is postponed. A record that does not decode is logged, counted and skipped. In an index by time it
is also moved to a later time, so that it is not the first entry of each tick.

Entries are processed concurrently. Each has its own time limit, and the tick has one too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.metadata.due_index import BucketLease, Undecodable, find_bucket_lease, move_back, write_bucket_lease
from headrace.model.backoff import UNDECODABLE_AGAIN_MS
from headrace.model.errors import HeadraceError
from headrace.ports.clock import Clock, time_limit
from headrace.ports.metadata_store import MetadataStore, WriteConflictError
from headrace.ports.workers import InTurn, Workers

# The lease on a bucket: a tick that overlaps a slow one does nothing. Its record also stores where to continue.
#
# The lease only avoids duplicate work. A process that stalls may still write after its lease has expired, so each
# write under the lease must be conditional too. A tick takes the lease only if it has found due work; an idle bucket
# costs no write.

LEASE_MS = 75_000
"""Longer than the time limit of the function that runs ticks. After a crash a bucket waits for the lease to expire."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a tick begins: after `position` in the index. `crashes` counts the last ticks that did not finish.

    That many entries are processed last. Otherwise an entry that kills the process would do so in each tick, before the
    others have their turn.
    """

    position: str
    crashes: int


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a tick: whether there is more to do at once, and where the next tick begins."""

    more: bool
    position: str = ""


def under_lease(store: MetadataStore, clock: Clock, kind: str, bucket: int, work: Callable[[Turn], Done]) -> bool:
    """Run `work` under the lease; return whether it left more to do. Returns False if another tick has the lease.

    Costs one read and two writes in addition to those of `work`. An error of `work` releases the lease and propagates.
    """
    taken = _take(store, clock, kind, bucket)
    if taken is None:
        return False
    turn, version = taken
    try:
        done = work(turn)
    except HeadraceError:
        _give_back(store, kind, bucket, version, turn.position)
        raise
    _give_back(store, kind, bucket, version, done.position)
    return done.more


def _take(store: MetadataStore, clock: Clock, kind: str, bucket: int) -> tuple[Turn, int] | None:
    """The turn and the version of the lease that was taken; None if another tick has it."""
    before, version = find_bucket_lease(store, kind, bucket)
    now_ms = clock.now_ms()
    if before.until_ms > now_ms:
        return None
    crashes = before.crashes + 1 if before.until_ms else 0
    lease = BucketLease(now_ms + LEASE_MS, before.position, crashes)
    try:
        store.write(write_bucket_lease(kind, bucket, lease, version))
    except WriteConflictError:
        return None
    return Turn(before.position, crashes), 0 if version is None else version + 1


def _give_back(store: MetadataStore, kind: str, bucket: int, version: int, position: str) -> None:
    try:
        store.write(write_bucket_lease(kind, bucket, BucketLease(0, position), version))
    except WriteConflictError:
        return  # The lease expired, and another tick has taken it. That tick releases it.


WORK_S_MAX = 30.0
"""The time limit of one tick. A tick that leaves work requests another one at once."""

ENTRY_S_MAX = 3.0
"""The default time limit of one entry, which sends a few requests. A healthy service answers each in milliseconds."""

E = TypeVar("E")

NoteUndecodable = Callable[[str], None]
"""Counts a record of an index that does not decode; called with the kind of work."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DuePage(Generic[E]):
    """Due entries in order, each with its position in the index; `next_after` is None if no more can be due."""

    entries: Sequence[tuple[str, E]]
    next_after: str | None
    undecodable: Sequence[Undecodable] = ()


@dataclass(frozen=True, slots=True)
class DueWork(Generic[E]):
    """One kind of periodic work.

    `read` returns the page of a shard after a position of its index. If `work_on` raises a HeadraceError, `put_off` is
    called. `is_cyclic` tells that entries keep their positions.
    """

    kind: str
    read: Callable[[int, str], DuePage[E]]
    work_on: Callable[[E], None]
    put_off: Callable[[E, HeadraceError], None]
    is_cyclic: bool = False
    entry_s_max: float = ENTRY_S_MAX


class DueWorkTicks(Generic[E]):
    """Runs the ticks of one kind of work; safe for any number of threads and processes.

    A lease lets at most one tick at a time work on a shard.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        due_work: DueWork[E],
        workers: Workers | None = None,
        note_undecodable: NoteUndecodable | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._due_work = due_work
        self._workers = workers or InTurn()
        self._note_undecodable = note_undecodable

    def run(self, shard: int) -> bool:
        """Process the due entries of a shard, in order; return whether work is left that should be done at once.

        A shard without due work costs one query.

        Raises:
            UnavailableError, ThrottledError: the metadata store does not answer; a later tick continues.
        """
        first = self._due_work.read(shard, "")
        if not first.entries and not first.undecodable and first.next_after is None:
            return False
        return under_lease(
            self._store, self._clock, self._due_work.kind, shard, lambda turn: self._work(shard, first, turn)
        )

    def _work(self, shard: int, first: DuePage[E], turn: Turn) -> Done:
        with time_limit(self._clock, WORK_S_MAX):
            page = self._due_work.read(shard, turn.position) if turn.position else first
            entries = _DueEntries(self._read_decodable, shard, self._skip_undecodable(page), turn)
            self._workers.each(self._work_on, entries)
        if entries.is_over:
            return Done(False)
        return Done(True, entries.position if self._due_work.is_cyclic else "")

    def _read_decodable(self, shard: int, after: str) -> DuePage[E]:
        return self._skip_undecodable(self._due_work.read(shard, after))

    def _skip_undecodable(self, page: DuePage[E]) -> DuePage[E]:
        """Log, count and postpone the undecodable records of a page; return the page."""
        kind = self._due_work.kind
        for each in page.undecodable:
            place = each.record.key
            _log.error("skipped a record of %s at %s %s: %s", kind, place.partition, place.sort, each.error)
            if self._note_undecodable is not None:
                self._note_undecodable(kind)
            if self._due_work.is_cyclic:
                continue
            try:
                self._store.write(*move_back(each.record, self._clock.now_ms() + UNDECODABLE_AGAIN_MS))
            except HeadraceError as error:
                _log.warning("cannot postpone a record of %s that does not decode: %s", kind, error)
        return page

    def _work_on(self, entry: E) -> None:
        try:
            with time_limit(self._clock, self._due_work.entry_s_max):
                self._due_work.work_on(entry)
        except WriteConflictError:
            return  # The entry was changed meanwhile; the next tick reads it again.
        except HeadraceError as error:
            try:
                self._due_work.put_off(entry, error)
            except HeadraceError as refused:
                _log.warning("cannot postpone an entry of %s: %s", self._due_work.kind, refused)


class _DueEntries(Iterator[E]):
    """The entries of a shard from the position where a tick begins; pages are read as they are needed.

    After n crashed ticks the first n entries come last. One of them may kill the process again, and the others should
    have had their turn by then. The order of these n changes with each crash, so that no entry always follows the one
    that kills the process.
    """

    def __init__(self, read: Callable[[int, str], DuePage[E]], shard: int, first: DuePage[E], turn: Turn) -> None:
        self._read = read
        self._shard = shard
        self._crashes = turn.crashes
        self._waiting: deque[tuple[str, E]] = deque()
        self._last: list[E] = []
        self._next_after: str | None = None
        self._take(first)
        self.position = turn.position
        self.is_over = False

    def __next__(self) -> E:
        while not self._waiting and self._next_after is not None:
            self.position = self._next_after
            self._take(self._read(self._shard, self._next_after))
        if self._waiting:
            self.position, entry = self._waiting.popleft()
            return entry
        if self._last:
            return self._last.pop()
        self.is_over = True
        raise StopIteration

    def _take(self, page: DuePage[E]) -> None:
        suspects = self._crashes - len(self._last)
        self._last += [entry for _, entry in page.entries[:suspects]]
        self._waiting.extend(page.entries[suspects:])
        self._next_after = page.next_after
        if self._next_after is None and self._crashes % 2:
            self._last.reverse()
