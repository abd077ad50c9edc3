"""Ticks over an index of due work: the one way in which all kinds of periodic work take what is due.

An index is a partition per shard, its entries in the order in which they are due. A kind of work either moves its
entries when they are done (retention, transactions: each has its own next time), or leaves them where they are
(watermarks, requests: all are due again with the next tick). The latter are gone round in turn: a tick goes on behind
the entry with which the one before ended, so that the entry that was looked at longest ago comes first, without a write
for each. An entry that fails is put off. Entries are worked on at the same time, each within a limit of its own, and a
tick ends in time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.model.errors import HeadraceError
from headrace.ports.clock import Clock
from headrace.ports.deadlines import time_limit
from headrace.ports.metadata_store import MetadataStore, WriteConflictError
from headrace.ports.workers import InTurn, Workers
from headrace.workflows.bucket_lease import Done, Turn, under_lease

WORK_S_MAX = 30.0
"""Of one tick; what it leaves over is done by the tick that it asks for at once."""

ENTRY_S_MAX = 3.0
"""Of one entry: it waits for a few requests, of which each takes milliseconds when its service is well."""

E = TypeVar("E")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DuePage(Generic[E]):
    """Due entries in order, each with its place in the index; `next_after` is None when no more can be due."""

    entries: Sequence[tuple[str, E]]
    next_after: str | None


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


class DueWorkTicks(Generic[E]):
    """Safe for any number of threads and processes: at most one tick at a time works on a shard."""

    def __init__(
        self, store: MetadataStore, clock: Clock, due_work: DueWork[E], workers: Workers | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._due_work = due_work
        self._workers = workers or InTurn()

    def run(self, shard: int) -> bool:
        """Work on what is due in a shard, in order; whether something is left that should be done at once.

        A shard without due work costs one query.

        Raises:
            UnavailableError, ThrottledError: the metadata store does not answer; a later tick goes on.
        """
        first = self._due_work.read(shard, "")
        if not first.entries and first.next_after is None:
            return False
        return under_lease(
            self._store, self._clock, self._due_work.kind, shard, lambda turn: self._work(shard, first, turn)
        )

    def _work(self, shard: int, first: DuePage[E], turn: Turn) -> Done:
        with time_limit(self._clock, WORK_S_MAX):
            page = self._due_work.read(shard, turn.position) if turn.position else first
            round_ = _Round(self._due_work.read, shard, page, turn)
            self._workers.each(self._work_on, round_)
        if round_.is_over:
            return Done(False)
        return Done(True, round_.position if self._due_work.is_round else "")

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
