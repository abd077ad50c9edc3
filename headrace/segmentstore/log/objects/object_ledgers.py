"""The ledger port on chunk storage: an entry is acknowledged when S3 has it. No replicas, no local disk.

A ledger is a sequence of objects, each created once. The log record says which ledgers make up the log; it has no
members. Owners fence each other by the names of objects (`log_object_chain`), so that no lease is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from headrace.codec.log_objects import (
    LOG_OBJECT_HEADER_BYTES,
    LOG_OBJECT_OVERHEAD_BYTES,
    encode_entry,
    log_object_name,
)
from headrace.codec.log_record_header import ENTRY_BYTES_MAX
from headrace.metadata.container_log import LogWriteOutcome, StoredLog
from headrace.model.container_logs import NO_COPIES, ContainerLog, LogState, emptied, open_ledger
from headrace.model.errors import (
    CorruptError,
    FencedError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    ThrottledError,
    UnavailableError,
)
from headrace.model.store_volume import LogSpace
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.ledger import Done, LedgerEntry, Released
from headrace.segmentstore.log.objects.log_object_chain import (
    FoundLog,
    LogObject,
    LogObjectReader,
    close_ledger,
    delete_garbage,
    find_log,
)
from headrace.segmentstore.log.objects.log_object_writer import LogObjectWriter, ObjectLogLimits, PutObject, WriterStart
from headrace.segmentstore.log.record_requests import report_long_chain

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger(__name__)

RECORD_WRITES_MAX: Final = 5
"""Attempts to write a log record whose outcome was unknown, or that another owner had changed, in one opening."""

ROOM_BYTES: Final = 1 << 50
"""The room of these logs: chunk storage has no limit. Each container has the limit of its recovery (`LogRoom`)."""


class LogRecords(Protocol):
    """Reads and conditional writes of log records; `metadata.container_log.ContainerLogRecords` in other threads."""

    async def read(self, container: int) -> StoredLog: ...

    async def write(self, container: int, log: ContainerLog, version: int, claim_epoch: int) -> LogWriteOutcome: ...


class ObjectLedger:
    """One container's log, held by its owner of `epoch`. Called on the event loop, except for what `recover` returns.

    `next_sequence` is that of the ledger's next object.
    """

    def __init__(
        self,
        storage: ChunkStorage,
        ledger: tuple[int, int],
        log: FoundLog,
        next_sequence: int,
        limits: ObjectLogLimits,
        random: Callable[[], float],
        reader: LogObjectReader,
    ) -> None:
        self._storage = storage
        self._container, self._epoch = ledger
        self._found = log.objects
        self._next_entry = log.next_entry
        self._truncated_before = log.truncated_before
        self._limits = limits
        self._reader = reader
        self._held: deque[LogObject] = deque(log.objects)
        self._waiting_bytes = 0
        self._held_bytes = sum(each.stored_bytes for each in log.objects)
        self._unneeded: list[LogObject] = []
        self._deleting: set[asyncio.Task[None]] = set()
        self._ended: HeadraceError | None = None
        own = [(each.sequence, each.end) for each in log.objects if each.epoch == self._epoch]
        start = WriterStart(next_sequence, log.next_entry, log.truncated_before, tuple(own))
        self.writer = LogObjectWriter(storage, ledger, start, limits, self._object_is_durable, random)

    @property
    def next_entry(self) -> int:
        return self._next_entry

    @property
    def entry_bytes_max(self) -> int:
        return ENTRY_BYTES_MAX

    @property
    def held_bytes(self) -> int:
        return self._held_bytes + self._waiting_bytes

    @property
    def unacknowledged_fill(self) -> float:
        return self._waiting_bytes / self._limits.waiting_bytes_max

    @property
    def lag_fill(self) -> float:
        return 0.0

    @property
    def wants_truncation(self) -> bool:
        return len(self._held) >= self._limits.objects_held_max

    @property
    def found_objects(self) -> Sequence[LogObject]:
        """The objects that `recover` reads."""
        return self._found

    @property
    def continued_at(self) -> None:
        """No operator accepts the loss of a part of such a log."""
        return None

    def knows(self, epoch: int, entry: int) -> bool:
        """True: only such a loss ends with entries that the log does not know."""
        return True

    def recover(self, first_entry: int = 0) -> Iterator[LedgerEntry]:
        return self._reader.entries(self._found, max(first_entry, self._truncated_before))

    def append(self, parts: Sequence[Buffer], done: Done, released: Released | None = None) -> int:
        self._check_open()
        length = sum(memoryview(part).nbytes for part in parts)
        if length > ENTRY_BYTES_MAX:
            raise InvalidRequestError(f"a log entry of {length} bytes exceeds {ENTRY_BYTES_MAX}")
        entry = self._next_entry
        encoded = encode_entry(self._container, self._epoch, entry, self._truncated_before, parts)
        self._next_entry = entry + 1
        self._waiting_bytes += length + LOG_OBJECT_OVERHEAD_BYTES
        self.writer.append(encoded, done, released)
        return entry

    def truncate(self, before_entry: int) -> None:
        if before_entry <= self._truncated_before:
            return
        self._check_open()
        self._truncated_before = before_entry
        self.writer.truncate(before_entry)
        while self._held and self._held[0].end <= before_entry:
            freed = self._held.popleft()
            self._held_bytes -= freed.stored_bytes
            self._unneeded.append(freed)

    def fence(self, epoch: int) -> None:
        """Reject further appends, because a newer epoch owns the container."""
        self._ended = FencedError(f"container {self._container} epoch {self._epoch} was fenced by {epoch}")

    def close(self) -> None:
        if self._ended is None:
            self._ended = UnavailableError(f"the log of container {self._container} is closed")

    async def settle(self) -> None:
        """Accept no more entries. Returns when the memory of no entry is read any more."""
        self.close()
        await self.writer.settle()
        if self._deleting:
            await asyncio.wait(self._deleting)

    def as_found(self) -> FoundLog | None:
        """What an opening with the same epoch would find; None if not all of it is durable."""
        if not self.writer.is_settled:
            return None
        return FoundLog(tuple(self._held), self._truncated_before, self._next_entry)

    def _check_open(self) -> None:
        error = self.writer.failure or self._ended
        if error is not None:
            raise error

    def _object_is_durable(self, put: PutObject) -> None:
        stored = LogObject(self._epoch, put.sequence, put.first_entry, put.end, put.stored_bytes, put.truncated_before)
        self._held.append(stored)
        self._held_bytes += stored.stored_bytes
        self._waiting_bytes -= put.stored_bytes - LOG_OBJECT_HEADER_BYTES
        # Only now: the object that says what is not needed is durable, and stays.
        freed = [each for each in self._unneeded if each.end <= put.truncated_before]
        if freed:
            self._unneeded = [each for each in self._unneeded if each.end > put.truncated_before]
            task = asyncio.get_running_loop().create_task(self._delete(freed))
            self._deleting.add(task)
            task.add_done_callback(self._deleting.discard)

    async def _delete(self, objects: Sequence[LogObject]) -> None:
        names = [log_object_name(self._container, each.epoch, each.sequence) for each in objects]
        try:
            await self._storage.delete(names)
        except HeadraceError as error:  # the next owner deletes what is left
            _log.warning(
                "event=log_objects_left container=%d objects=%d error=%r", self._container, len(names), error.message
            )


class ObjectLedgers:
    """The ledgers of the containers of this class in one store.

    `random` returns numbers in [0, 1). `make_reader` makes the reader of a container's log.
    """

    def __init__(
        self,
        storage: ChunkStorage,
        records: LogRecords,
        random: Callable[[], float],
        limits: ObjectLogLimits | None = None,
        make_reader: Callable[[ChunkStorage, int], LogObjectReader] = LogObjectReader,
    ) -> None:
        self._storage = storage
        self._records = records
        self._limits = limits or ObjectLogLimits()
        self._random = random
        self._make_reader = make_reader
        self._open: dict[int, tuple[int, ObjectLedger]] = {}
        self._released: dict[int, tuple[int, FoundLog, int]] = {}
        self._opening: dict[int, int] = {}  # epochs whose ledgers this process may have entered in the record

    def needs_lease(self, container: int) -> bool:
        return False

    async def open(self, container: int, epoch: int) -> ObjectLedger:
        """As in the port. If the ledger is still open, fence that one, too.

        Raises:
            CorruptError: objects of the log are missing or damaged.
            IllegalStateError: the log is on stores: a store without containers of this class has opened it.
        """
        if container in self._open:
            self._fence(container, epoch)
        for _ in range(RECORD_WRITES_MAX):
            stored = await self._records.read(container)
            try:
                opened = await self._open_found(container, epoch, stored)
            except CorruptError:
                if (await self._records.read(container)).version == stored.version:
                    raise
                continue  # a newer owner has deleted what it does not need
            if opened is not None:
                if container in self._open:
                    self._fence(container, epoch)
                self._released.pop(container, None)
                self._opening.pop(container, None)
                self._open[container] = epoch, opened
                return opened
        raise UnavailableError(f"the log record of container {container} cannot be written: try again")

    async def release(self, container: int) -> None:
        held = self._open.get(container)
        if held is None:
            return
        epoch, ledger = held
        await ledger.settle()
        if self._open.get(container) is held:
            del self._open[container]
            if (released := ledger.as_found()) is not None:
                self._released[container] = epoch, released, ledger.writer.next_sequence

    def epochs(self) -> dict[int, int]:
        return {}  # nothing is on the volume of the store

    def space(self) -> LogSpace:
        held = sum(ledger.held_bytes for _, ledger in self._open.values())
        return LogSpace(held, held, ROOM_BYTES, self._limits.object_bytes)

    async def forget(self, container: int) -> None:
        """As in the port. If the log record cannot be written, the next owner finds the log as it is."""
        await self.release(container)
        released = self._released.pop(container, None)
        if released is None:
            return
        epoch, found_log, _ = released
        try:
            stored = await self._records.read(container)
            log = stored.log
            if log is None or log.state is not LogState.OPEN or log.ledgers[-1].epoch != epoch:
                return  # it belongs to a newer owner
            outcome = await self._records.write(container, emptied(log, found_log.next_entry), stored.version, epoch)
            if outcome is LogWriteOutcome.WRITTEN:
                names = [log_object_name(container, each.epoch, each.sequence) for each in found_log.objects]
                await self._storage.delete(names)
        except (ThrottledError, UnavailableError) as error:
            _log.warning("event=log_objects_left container=%d error=%r", container, error.message)

    async def _open_found(self, container: int, epoch: int, stored: StoredLog) -> ObjectLedger | None:
        """One attempt from the log record as it was read; None if the record has changed, or may have."""
        log = stored.log
        last = log.ledgers[-1] if log is not None and log.state is LogState.OPEN else None
        if log is not None and last is not None and log.copies != NO_COPIES:
            raise IllegalStateError(
                f"container {container} has a log with {log.copies} copies on stores, and should have one in S3: a "
                "store that was started without HEADRACE_S3_CONTAINERS has opened it and must hand it over first",
                code="log_on_stores",
            )
        if last is not None and last.epoch > epoch:
            raise FencedError(
                f"container {container} has a ledger of epoch {last.epoch}, it cannot be opened with {epoch}"
            )
        if log is None or last is None:
            first = 0 if log is None else log.next_entry or 0
            found_log = FoundLog((), first, first)
        elif last.epoch == epoch:
            return await self._open_again(container, epoch, log)
        else:
            closed = await close_ledger(self._storage, container, last.epoch)
            found_log = await find_log(self._storage, container, log.ledgers, log.truncated_before, closed)
        new = open_ledger(log, epoch, found_log.next_entry, (), found_log.truncated_before, NO_COPIES)
        self._opening[container] = epoch
        outcome = await self._records.write(container, new, stored.version, epoch)
        if outcome is LogWriteOutcome.CLAIM_LOST:
            raise FencedError(f"container {container} has a newer owner than that of epoch {epoch}")
        if outcome is not LogWriteOutcome.WRITTEN:
            return None
        report_long_chain(container, new)
        await self._clean_up(container, epoch, found_log)
        return self._ledger(container, epoch, found_log, 0)

    async def _open_again(self, container: int, epoch: int, log: ContainerLog) -> ObjectLedger:
        """The ledger of this epoch, which this process has opened before, or has entered in the record just now.

        Raises:
            FencedError: the outcome of its last PUTs is not known. An owner with a new epoch finds out.
        """
        released = self._released.get(container)
        if released is not None and released[0] == epoch:
            return self._ledger(container, epoch, released[1], released[2])
        if self._opening.get(container) != epoch:
            raise FencedError(f"another process has opened the log of container {container} with epoch {epoch}")
        before = log.ledgers[:-1]
        first = log.ledgers[-1].first
        if not before:
            return self._ledger(container, epoch, FoundLog((), log.truncated_before, first), 0)
        closed = await close_ledger(self._storage, container, before[-1].epoch)
        found_log = await find_log(self._storage, container, before, log.truncated_before, closed)
        if found_log.next_entry != first:
            raise CorruptError(
                f"the log of container {container} ends at {found_log.next_entry}, its record says {first}"
            )
        return self._ledger(container, epoch, found_log, 0)

    def _ledger(self, container: int, epoch: int, log: FoundLog, next_sequence: int) -> ObjectLedger:
        reader = self._make_reader(self._storage, container)
        return ObjectLedger(self._storage, (container, epoch), log, next_sequence, self._limits, self._random, reader)

    async def _clean_up(self, container: int, epoch: int, log: FoundLog) -> None:
        """Delete what no ledger of the log needs. What is left is deleted after the next takeover."""
        try:
            await delete_garbage(self._storage, container, epoch, log.objects)
        except HeadraceError as error:
            _log.warning("event=log_objects_left container=%d error=%r", container, error.message)

    def _fence(self, container: int, epoch: int) -> None:
        held_epoch, ledger = self._open[container]
        if held_epoch >= epoch:
            raise FencedError(
                f"container {container} is open with epoch {held_epoch}, it cannot be opened with {epoch}"
            )
        ledger.fence(epoch)
        raise UnavailableError(f"the log of container {container} is still open in this process: try again")
