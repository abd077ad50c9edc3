"""Gathers the entries of a ledger into objects and puts them into chunk storage; reports them durable in their order.

An object is put at most every `gather_s`, or when it is full. The first entry after a pause therefore waits for nothing
but its PUT. A few PUTs are in flight at a time, and none is begun so far ahead of the oldest one that a gap could be
wider than that: a takeover relies on it (`log_object_chain`).

A PUT that fails is repeated for as long as the ledger is open, with the same name and the same bytes. The name may then
be taken by an attempt whose answer was lost: the object is read, and its own bytes mean success. Anything else there is
of a newer owner, which has closed the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.codec.log_objects import (
    LOG_OBJECT_OVERHEAD_BYTES,
    EncodedEntry,
    LogObjectHeader,
    encode_log_object,
    log_object_name,
)
from headrace.model.backoff import doubled_pause, half_jitter
from headrace.model.errors import (
    AlreadyExistsError,
    CorruptError,
    FencedError,
    HeadraceError,
    NotFoundError,
    UnavailableError,
)
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.ledger import Done, Released

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger(__name__)

REPORTED_FROM_FAILURES: Final = 3
"""Failed attempts of a PUT before it is reported. Single refusals are usual for S3."""


@dataclass(frozen=True, slots=True)
class ObjectLogLimits:
    """How the ledgers of a store gather and put objects; `object_bytes` are those of the entries in one object."""

    gather_s: float = 0.25
    object_bytes: int = 8 << 20
    puts_in_flight: int = 4
    waiting_bytes_max: int = 128 << 20
    """Of all logs of a process that S3 has not acknowledged: writers are slowed down before. Four full objects of four
    containers are in flight then."""

    retry_first_s: float = 0.1
    retry_most_s: float = 5.0
    objects_held_max: int = 1000
    """From so many objects on a ledger wants a truncation, since a recovery reads each of them."""


class PutObject(NamedTuple):
    """A durable object of the ledger. `end` is the entry behind its last one, `truncated_before` as in its header."""

    sequence: int
    first_entry: int
    end: int
    stored_bytes: int
    truncated_before: int


class WriterStart(NamedTuple):
    """Where a writer begins: its next object and entry, the truncation point that the log record or an object has.

    `objects` are the ones that the ledger has already: sequence, and the entry behind the last one.
    """

    next_sequence: int
    next_entry: int
    truncated_before: int
    objects: tuple[tuple[int, int], ...] = ()


class _Entry(NamedTuple):
    encoded: EncodedEntry
    done: Done
    released: Released | None


@dataclass(slots=True)
class _Batch:
    put: PutObject
    entries: Sequence[_Entry]
    parts: list[Buffer] = field(default_factory=list)
    is_durable: bool = False


class LogObjectWriter:
    """The objects of one ledger (container, epoch).

    `on_durable` is called for each durable object, in order, before its entries are reported. `random` returns numbers
    in [0, 1).
    """

    def __init__(
        self,
        storage: ChunkStorage,
        ledger: tuple[int, int],
        start: WriterStart,
        limits: ObjectLogLimits,
        on_durable: Callable[[PutObject], None],
        random: Callable[[], float],
    ) -> None:
        self._storage = storage
        self._container, self._epoch = ledger
        self._next_sequence = start.next_sequence
        self._sealed_before = self._durable_before = start.next_entry
        self._limits = limits
        self._on_durable = on_durable
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Entry] = deque()
        self._waiting_bytes = 0
        self._batches: deque[_Batch] = deque()  # sealed and not reported, in order
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._sealed_at_s = self._loop.time() - limits.gather_s
        self._truncated_before = self._stored_truncated = start.truncated_before
        self._ends = deque(start.objects)
        self._stopping: asyncio.Future[None] = self._loop.create_future()
        self.failure: HeadraceError | None = None

    @property
    def next_sequence(self) -> int:
        """The sequence of the next object. All objects before it are durable if `is_settled`."""
        return self._next_sequence

    @property
    def is_settled(self) -> bool:
        """Whether the outcome of every PUT is known, and each has succeeded."""
        return not (self._batches or self._waiting or self._tasks or self.failure)

    def append(self, encoded: EncodedEntry, done: Done, released: Released | None) -> None:
        """Queue the next entry."""
        self._waiting.append(_Entry(encoded, done, released))
        self._waiting_bytes += encoded.length + LOG_OBJECT_OVERHEAD_BYTES
        self._schedule()

    def truncate(self, before_entry: int) -> None:
        """Tell the next object that entries before this one are not needed."""
        self._truncated_before = max(self._truncated_before, before_entry)

    async def settle(self) -> None:
        """Put what is queued, and return when no PUT is under way and the memory of no entry is read any more.

        A PUT that fails now is not repeated, and everything from it on is reported as unavailable.
        """
        if not self._stopping.done():
            self._stopping.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._schedule()
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self.failure is None and min(self._truncated_before, self._durable_before) > self._stored_truncated:
            self._seal()  # an object without entries, which carries the truncation point
            while self._tasks:
                await asyncio.wait(self._tasks)

    def _schedule(self) -> None:
        while self._waiting and self.failure is None and len(self._batches) < self._limits.puts_in_flight:
            pause_s = self._sealed_at_s + self._limits.gather_s - self._loop.time()
            is_full = self._waiting_bytes >= self._limits.object_bytes
            if not is_full and not self._stopping.done():
                if self._timer is None:  # also without a pause: the same turn may bring more entries
                    self._timer = self._loop.call_later(max(pause_s, 0.0), self._timer_fired)
                return
            self._seal()

    def _timer_fired(self) -> None:
        self._timer = None
        if self._waiting and self.failure is None and len(self._batches) < self._limits.puts_in_flight:
            self._seal()
            self._schedule()

    def _seal(self) -> None:
        """Make an object of the entries that wait, and begin its PUT."""
        entries: list[_Entry] = []
        entry_bytes = 0
        while self._waiting:
            size = self._waiting[0].encoded.length + LOG_OBJECT_OVERHEAD_BYTES
            if entries and entry_bytes + size > self._limits.object_bytes:
                break
            entries.append(self._waiting.popleft())
            entry_bytes += size
        self._waiting_bytes -= entry_bytes
        truncated_before = min(self._truncated_before, self._durable_before)
        sequence, first = self._next_sequence, self._sealed_before
        header = LogObjectHeader(
            self._container,
            self._epoch,
            sequence,
            first,
            truncated_before,
            self._oldest_needed(truncated_before, sequence),
            0,
            0,
            0,
            self._limits.puts_in_flight,
        )
        parts = encode_log_object(header, [each.encoded for each in entries])
        stored_bytes = sum(memoryview(part).nbytes for part in parts)
        put = PutObject(sequence, first, first + len(entries), stored_bytes, truncated_before)
        self._stored_truncated = truncated_before
        self._sealed_at_s = self._loop.time()
        self._next_sequence += 1
        self._sealed_before = put.end
        self._ends.append((sequence, put.end))
        batch = _Batch(put, entries, parts)
        self._batches.append(batch)
        task = self._loop.create_task(self._put(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _oldest_needed(self, truncated_before: int, sequence: int) -> int:
        """The oldest object that is needed behind this truncation point: durable ones before it are not.

        That is `sequence`, the next one, if there is none.
        """
        in_flight = self._batches[0].put.sequence if self._batches else sequence
        while self._ends and self._ends[0][1] <= truncated_before and self._ends[0][0] < in_flight:
            self._ends.popleft()
        return self._ends[0][0] if self._ends else sequence

    async def _put(self, batch: _Batch) -> None:
        name = log_object_name(self._container, self._epoch, batch.put.sequence)
        try:
            await self._put_until_known(name, batch.parts)
        except HeadraceError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - after any error no later entry may be acknowledged
            _log.exception("event=log_put_broken object=%s", name)
            self._fail(UnavailableError(f"the log of container {self._container} cannot be written: {error}"))
        else:
            batch.is_durable = True
        batch.parts = []
        for entry in batch.entries:
            if entry.released is not None:
                entry.released()
        if self.failure is None:
            self._report()
            self._schedule()

    async def _put_until_known(self, name: str, parts: Sequence[Buffer]) -> None:
        """Create the object. Raises FencedError, or UnavailableError if the writer is stopping or cannot go on."""
        failures = 0
        while True:
            try:
                return await self._create(name, parts)
            except (FencedError, CorruptError):
                raise
            except HeadraceError as error:  # nothing but a contradiction ends a log
                failures += 1
                if self._stopping.done() or self.failure is not None:
                    raise UnavailableError(f"object {name} may or may not have been created: {error}") from error
                limits = self._limits
                pause_s = half_jitter(
                    doubled_pause(failures, limits.retry_first_s, limits.retry_most_s), self._random()
                )
                if failures >= REPORTED_FROM_FAILURES:
                    _log.warning(
                        "event=log_put_failed container=%d object=%s attempts=%d retry_s=%.1f error=%r",
                        self._container,
                        name,
                        failures,
                        pause_s,
                        error.message,
                    )
            await asyncio.wait([self._stopping], timeout=pause_s)

    async def _create(self, name: str, parts: Sequence[Buffer]) -> None:
        try:
            await self._storage.put(name, parts)
        except AlreadyExistsError:
            if not await holds_exactly(self._storage, name, parts):
                raise FencedError(
                    f"a newer owner of container {self._container} has closed the ledger of epoch {self._epoch}"
                ) from None

    def _report(self) -> None:
        while self._batches and self._batches[0].is_durable:
            batch = self._batches.popleft()
            self._durable_before = batch.put.end
            self._on_durable(batch.put)
            for entry in batch.entries:
                entry.done(None)

    def _fail(self, error: HeadraceError) -> None:
        """Report everything that was not reported; the PUTs under way release their entries themselves."""
        if self.failure is not None:
            return
        self.failure = error
        if not self._stopping.done():
            self._stopping.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batches, self._batches = self._batches, deque()
        waiting, self._waiting = self._waiting, deque()
        for entry in waiting:
            if entry.released is not None:
                entry.released()
        for batch in batches:
            for entry in batch.entries:
                entry.done(error)
        for entry in waiting:
            entry.done(error)


async def holds_exactly(storage: ChunkStorage, name: str, parts: Sequence[Buffer]) -> bool:
    """Whether the object exists and consists of these parts.

    Raises:
        ThrottledError, UnavailableError: chunk storage does not answer.
    """
    views = [memoryview(part).cast("B") for part in parts]
    length = sum(view.nbytes for view in views)
    try:
        content = memoryview(await storage.read(name, 0, length))
    except NotFoundError:
        return False
    position = 0
    for view in views:
        if content[position : position + view.nbytes] != view:
            return False
        position += view.nbytes
    return True
