"""Ticks over an index of due work: the one way in which all kinds of periodic work take what is due.

An index is a partition per shard, its entries in the order in which they are due. A kind of work either moves its
entries when they are done (retention, transactions: each has its own next time), or leaves them where they are
(watermarks, requests: all are due again with the next tick). The latter are gone round in turn: a tick goes on behind
the entry with which the one before ended, so that the entry that was looked at longest ago comes first, without a write
for each. An entry that fails is put off. A record that does not decode is logged, counted and stepped over. In an index
by time it is moved back, so that it does not come first in each tick. Entries are worked on at the same time, each
within a limit of its own, and a tick ends in time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.codec.records.due_order import moved_to
from headrace.controller.ticks.bucket_lease import Done, Turn, under_lease
from headrace.model.due_work import UNDECODABLE_AGAIN_MS
from headrace.model.errors import CorruptError, HeadraceError
from headrace.ports.clock import Clock
from headrace.ports.deadlines import time_limit
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Write, WriteConflictError
from headrace.ports.workers import InTurn, Workers

WORK_S_MAX = 30.0
"""Of one tick; what it leaves over is done by the tick that it asks for at once."""

ENTRY_S_MAX = 3.0
"""Of one entry: it waits for a few requests, of which each takes milliseconds when its service is well."""

E = TypeVar("E")
D = TypeVar("D")

NoteUndecodable = Callable[[str], None]
"""Counts a record of an index that does not decode; it gets the kind of work."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A record of an index that does not decode, and why."""

    record: Record
    error: CorruptError


@dataclass(frozen=True, slots=True)
class DuePage(Generic[E]):
    """Due entries in order, each with its place in the index; `next_after` is None when no more can be due."""

    entries: Sequence[tuple[str, E]]
    next_after: str | None
    undecodable: Sequence[Undecodable] = ()


@dataclass(frozen=True, slots=True)
class DueWork(Generic[E]):
    """What a kind of periodic work does.

    `read` gives the page of a shard behind a place in its index. `work_on` may raise any HeadraceError, and then
    `put_off` is called. `is_round` says that entries stay where they are.
    """

    kind: str
    read: Callable[[int, str], DuePage[E]]
    work_on: Callable[[E], None]
    put_off: Callable[[E, HeadraceError], None]
    is_round: bool = False
    entry_s_max: float = ENTRY_S_MAX


def decode_each(
    records: Sequence[Record], decode: Callable[[Body], D]
) -> tuple[list[tuple[Record, D]], list[Undecodable]]:
    """The records that decode, with what they hold, and the others."""
    decoded: list[tuple[Record, D]] = []
    undecodable: list[Undecodable] = []
    for record in records:
        try:
            decoded.append((record, decode(record.body)))
        except CorruptError as error:
            undecodable.append(Undecodable(record, error))
    return decoded, undecodable


def move_back(record: Record, due_ms: int, body: Body | None = None) -> list[Write]:
    """The writes that make a record of an index by time due at `due_ms`, with another body or as it is."""
    key = Key(record.key.partition, moved_to(record.key.sort, due_ms))
    return [Delete(record.key, record.version), Create(key, record.body if body is None else body)]


class DueWorkTicks(Generic[E]):
    """Safe for any number of threads and processes: at most one tick at a time works on a shard."""

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
        """Work on what is due in a shard, in order; whether something is left that should be done at once.

        A shard without due work costs one query.

        Raises:
            UnavailableError, ThrottledError: the metadata store does not answer; a later tick goes on.
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
            round_ = _Round(self._read_decodable, shard, self._step_over(page), turn)
            self._workers.each(self._work_on, round_)
        if round_.is_over:
            return Done(False)
        return Done(True, round_.position if self._due_work.is_round else "")

    def _read_decodable(self, shard: int, after: str) -> DuePage[E]:
        return self._step_over(self._due_work.read(shard, after))

    def _step_over(self, page: DuePage[E]) -> DuePage[E]:
        """The page, once what does not decode of it is dealt with: it costs the others of the page nothing."""
        kind = self._due_work.kind
        for one in page.undecodable:
            place = one.record.key
            _log.error("a record of %s at %s %s is stepped over: %s", kind, place.partition, place.sort, one.error)
            if self._note_undecodable is not None:
                self._note_undecodable(kind)
            if self._due_work.is_round:
                continue
            try:
                self._store.write(*move_back(one.record, self._clock.now_ms() + UNDECODABLE_AGAIN_MS))
            except HeadraceError as error:
                _log.warning("a record of %s that does not decode stays where it is: %s", kind, error)
        return page

    def _work_on(self, entry: E) -> None:
        try:
            with time_limit(self._clock, self._due_work.entry_s_max):
                self._due_work.work_on(entry)
        except WriteConflictError:
            return  # It was changed at this moment: the next tick looks again.
        except HeadraceError as error:
            try:
                self._due_work.put_off(entry, error)
            except HeadraceError as refused:
                _log.warning("%s is not put off: %s", self._due_work.kind, refused)


class _Round(Iterator[E]):
    """The entries of a shard from where a tick begins, read page by page as they are asked for.

    After crashes as many entries come last, behind those of all pages: one of them may kill the process again, and then
    the others have had their turn. Their own order changes with each crash, so that none is always behind that one.
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
