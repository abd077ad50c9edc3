"""Ports in memory whose calls are counted, and may fail or let other processes run; workers in an order of a seed."""

from __future__ import annotations

import contextvars
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from fuzz.randomness import Random
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.memory.request_queue import MemoryRequestQueue
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.model.errors import UnavailableError
from headrace.ports.clock import is_time_short
from headrace.ports.metadata_store import Key, Page, Record, Write

T = TypeVar("T")
_is_piece: ContextVar[bool] = ContextVar("is_piece", default=False)
"""Whether a piece of work of the present process is done; another process has another context."""


class Crash(Exception):
    """The process dies here."""


def _in_another_process(action: Callable[[], T]) -> T:
    """Without the deadline of the work that is interrupted, which is in its context."""
    return contextvars.Context().run(action)


class Calls:
    """Counts calls of ports by kind, and runs a hook around each: the hook may raise instead of, or after, the call."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.before: Callable[[str], None] = lambda kind: None
        self.after: Callable[[str], None] = lambda kind: None

    def __call__(self, kind: str, call: Callable[[], T]) -> T:
        self.before(kind)
        self.counts[kind] += 1
        answer = call()
        self.after(kind)
        return answer

    def between_reads(self) -> None:
        """A batch read has read some of its records; the hook may let others write now."""
        self.before("between reads")

    def dies(self, work: Callable[[], object], position: int | None, *, done: bool) -> bool:
        """Whether a process that does the work comes to the call with this number, counted from now, and dies of it.

        That is after the call took effect (`done`), or before. Without a number nothing happens to the process.
        """
        passed = 0

        def hook(kind: str) -> None:
            nonlocal passed
            passed += 1
            if position is not None and passed == position + 1:
                raise Crash(kind)

        self.calm()
        if done:
            self.after = hook
        else:
            self.before = hook
        try:
            work()
        except Crash:
            return True
        finally:
            self.calm()
        return False

    def interrupt_at(self, position: int, action: Callable[[], T]) -> list[T]:
        """Before the call with this number, counted from now, do something else, undisturbed; what that returned."""
        passed = 0
        returned: list[T] = []

        def hook(kind: str) -> None:
            nonlocal passed
            passed += 1
            if passed == position + 1:
                self.calm()
                returned.append(_in_another_process(action))

        self.calm()
        self.before = hook
        return returned

    @contextmanager
    def overtaken(self, kind: str, by: Callable[[], object]) -> Iterator[None]:
        """Others are faster than the first call of this kind that is made meanwhile; there must be one."""
        happened = False

        def hook(called: str) -> None:
            nonlocal happened
            if called == kind:
                self.calm()
                happened = True
                _in_another_process(by)

        self.calm()
        self.before = hook
        try:
            yield
        finally:
            self.calm()
        assert happened, f"no call of the kind {kind} was made"

    def refuse(self, kind: str, error: Exception) -> None:
        """No call whose kind begins so is made from now on: it fails with this error."""

        def hook(called: str) -> None:
            if called.startswith(kind):
                raise error

        self.calm()
        self.before = hook

    def calm(self) -> None:
        self.before = self.after = lambda kind: None


class WatchedStore:
    """A metadata store whose calls go through `Calls`."""

    def __init__(self, inner: MemoryMetadataStore, calls: Calls) -> None:
        self._inner, self._calls = inner, calls

    def get(self, key: Key) -> Record | None:
        return self._calls("read", lambda: self._inner.get(key))

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        return self._calls("read", lambda: self._inner.get_many(keys))

    def query(
        self,
        partition: str,
        *,
        first: str = "",
        last: str | None = None,
        limit: int,
        descending: bool = False,
        bytes_max: int | None = None,
    ) -> Page:
        return self._calls(
            "query",
            lambda: self._inner.query(
                partition, first=first, last=last, limit=limit, descending=descending, bytes_max=bytes_max
            ),
        )

    def write(self, *writes: Write) -> None:
        self._calls("transaction" if len(writes) > 1 else "write", lambda: self._inner.write(*writes))


class WatchedQueue:
    """A request queue whose sends go through `Calls`; `is_down` makes them fail."""

    def __init__(self, inner: MemoryRequestQueue, calls: Calls) -> None:
        self._inner, self._calls = inner, calls
        self.is_down = False

    def send(self, *, group: str, body: Mapping[str, Any], deduplication_id: str) -> None:
        if self.is_down:
            raise UnavailableError("the queue does not answer")
        self._calls("send", lambda: self._inner.send(group=group, body=body, deduplication_id=deduplication_id))


class WatchedSegmentStores:
    """Segment stores whose calls go through `Calls`."""

    def __init__(self, inner: MemorySegmentStores, calls: Calls) -> None:
        self._inner, self._calls = inner, calls

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._inner, name)
        return lambda *arguments: self._calls(f"segment store {name}", lambda: operation(*arguments))


class TornQueryStore(WatchedStore):
    """Others may write when a query has read a part of its records. It misses a record that passes to that part."""

    def __init__(self, inner: MemoryMetadataStore, calls: Calls, seed: int) -> None:
        super().__init__(inner, calls)
        self._random = Random(seed)

    def query(self, partition: str, **fields: Any) -> Page:
        def read(**others: Any) -> Page:
            return self._inner.query(partition, **(fields | others))

        def read_torn() -> Page:
            page = read()
            if not page.records or fields.get("bytes_max") is not None:
                return page
            passed = self._random.randrange(len(page.records))
            self._calls.between_reads()
            bound = "last" if fields.get("descending") else "first"
            rest = read(limit=fields["limit"] - passed, **{bound: page.records[passed].key.sort})
            return Page([*page.records[:passed], *rest.records], rest.next_after)

        return self._calls("query", read_torn)


class ShuffledWorkers:
    """`ports.workers.Workers`: the items in an order that a seed decides.

    If one fails, the others are still done, unless the process dies. Work must not call for workers itself: with
    threads, each of 32 would start 32, more than a function may have.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def each(self, work: Callable[[T], None], items: Iterator[T]) -> None:
        assert not _is_piece.get(), "a piece of work calls for workers"
        token = _is_piece.set(True)
        try:
            self._each(work, items)
        finally:
            _is_piece.reset(token)

    def _each(self, work: Callable[[T], None], items: Iterator[T]) -> None:
        shuffled, failures = list(items), list[Exception]()
        self._random.shuffle(shuffled)
        for item in shuffled:
            if is_time_short():
                break
            try:
                work(item)
            except Crash:
                raise
            except Exception as error:  # noqa: BLE001 - raised when all have ended
                failures.append(error)
        if failures:
            raise failures[0]
