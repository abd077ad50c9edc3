"""A segment container: checks operations, assigns their offsets, logs them, and replies when they are durable.

Everything runs on the event loop. The container checks an operation against the accepted state, not the durable one,
so that operations never wait for each other. In return it replies only when the log has made durable what the reply
is based on.

When the log fails or another owner takes over, the container stops for good. It acknowledges nothing more, and the
outcome of operations in flight is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Sequence

from headrace.codec import data_frames
from headrace.codec.data_frames import Operation
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    FencedError,
    HeadraceError,
    NotFoundError,
    SealedError,
    ThrottledError,
    TruncatedError,
    segment_quarantined,
)
from headrace.model.names import is_transient_segment_name
from headrace.model.segment_attributes import NO_VALUE, is_core
from headrace.ports.clock import Clock
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Reservation, WriterMark
from headrace.segmentstore.containers.attribute_updates import (
    AttributeUpdate,
    check_attribute_count,
    updated_attributes,
)
from headrace.segmentstore.containers.container_rates import ContainerRates
from headrace.segmentstore.containers.idle_segments import FindEvicted, IdleSegments
from headrace.segmentstore.containers.log_room import LogRoom
from headrace.segmentstore.containers.metadata import ContainerMetadata, check_segment_name
from headrace.segmentstore.containers.operation_log import OperationLog, resolve
from headrace.segmentstore.containers.quarantine import check_not_quarantined
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.containers.settlements import AppendDone, PendingAppend, PendingOperation, unwatched
from headrace.segmentstore.containers.unanswered_writes import UnansweredWrites
from headrace.segmentstore.containers.writer_expiry import WriterExpiry
from headrace.segmentstore.metrics import ContainerMetrics
from headrace.wire import WRITER_FORGOTTEN

# Removed segments of a container whose names are not free yet, because tier 2 still has something of them.


class Removals:
    """The creations that wait for such names. `expect` makes a future that fails when the log does."""

    def __init__(self, expect: Callable[[], asyncio.Future[None]]) -> None:
        self._expect = expect
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._refused: set[str] = set()

    @property
    def refused(self) -> frozenset[str]:
        """The names that tier 2 refuses to free for good."""
        return frozenset(self._refused)

    async def done(self, name: str) -> None:
        """Wait until tier 2 has nothing of a removed segment any more.

        Raises:
            IllegalStateError: tier 2 refuses the removal for good (code "segment_quarantined").
            UnavailableError, FencedError: the container has stopped.
        """
        if name in self._refused:
            raise segment_quarantined(name)
        future = self._expect()
        self._waiters.setdefault(name, []).append(future)
        await future

    def note_stored(self, name: str) -> None:
        """Note that tier 2 has nothing of it any more."""
        for waiter in self._waiters.pop(name, []):
            resolve(waiter)

    def refuse(self, name: str) -> None:
        """Note that tier 2 refuses the removal for good. No segment can get the name until the container is opened
        again."""
        self._refused.add(name)
        for waiter in self._waiters.pop(name, []):
            if not waiter.done():
                waiter.set_exception(segment_quarantined(name))

    def forget_waiters(self) -> None:
        """Forget the creations, since the log has failed, and they with it."""
        self._waiters.clear()


_log = logging.getLogger(__name__)

Keep = Callable[[Segment], bool]
"""Whether a segment must not be changed. The container calls it right before it logs the change."""


OpenLog = Callable[[Callable[[HeadraceError], None]], OperationLog]
"""Opens the container's log, which calls its argument when it fails."""


def never(_segment: Segment) -> bool:
    return False


class SegmentContainer:
    """`on_failure` is called once, when the container stops for good.

    `find_record` looks up the record of an evicted segment. `news` is set when there is work for the storage writer
    that must not wait for its next tick.
    """

    def __init__(
        self,
        container: int,
        epoch: int,
        metadata: ContainerMetadata,
        open_log: OpenLog,
        pool: BlockPool,
        clock: Clock,
        on_failure: Callable[[SegmentContainer, HeadraceError], None],
        log_room: LogRoom,
        rates: ContainerRates,
        find_record: FindEvicted,
    ) -> None:
        self.container = container
        self.epoch = epoch
        self.metadata = metadata
        self.pool = pool
        self.log = open_log(self._stopped)
        self.log_room = log_room
        self.dirty: dict[int, Segment] = {}
        self.news = asyncio.Event()
        self._bytes_to_wake = sys.maxsize  # until the storage writer asks
        self.metrics = ContainerMetrics()
        self.rates = rates
        self.writers = WriterExpiry(epoch, metadata, self.log, clock, self._check_log_space)
        self.idle = IdleSegments(metadata, self.log, self.dirty, self.writers, self._check_log_space, find_record)
        self.changes = 0
        """Counts creations, removals, seals and truncations of segments; appends do not count."""
        self._noted_sequence = -1
        self._refusal: FencedError | None = None
        self.clock = clock
        self.unanswered = UnansweredWrites(clock)
        self._on_failure = on_failure
        self.removals = Removals(self.log.expect)

    @property
    def failure(self) -> HeadraceError | None:
        """The error that stopped the container; None while it works."""
        return self.log.failure

    # Look-ups

    async def find(self, name: str) -> Segment | None:
        """Find a segment by name, and activate it if it was evicted.

        Callers that find it go on in the order of their calls: if it is in memory, this waits only for those before.
        The result shows the accepted state: None may mean a removal that is not durable yet.

        Raises:
            CorruptError: the segment's record cannot be read, or contradicts the chunk directory.
            ThrottledError, UnavailableError, FencedError: the metadata store does not answer, or the container has
                stopped.
        """
        has_waited = False
        while True:
            segment = self.metadata.segments.get(name)
            if segment is not None and (has_waited or not self.idle.is_waited_for(name)):
                segment.used_s = self.clock.monotonic_s()
                return segment
            if segment is None and not self.metadata.may_be_evicted(name):
                return None
            has_waited = True
            if not await self.idle.activated(name) and name not in self.metadata.segments:
                return None

    async def existing(self, name: str) -> Segment:
        """Find a segment that must exist; as `find`, but raises NotFoundError once the absence is durable."""
        segment = await self.find(name)
        if segment is None:
            await self.log.durable()  # a client must not learn of a removal before it is durable
            raise NotFoundError(f"there is no segment {name}", details={"segment": name}, code="segment_not_found")
        return segment

    # Appends

    def append(
        self,
        segment: Segment,
        writer_id: int,
        previous_number: int,
        event_number: int,
        event_count: int,
        data: Reservation,
        done: AppendDone,
        *,
        expected_offset: int | None = None,
    ) -> int:
        """Accept an append of a writer whose last event number was `previous_number`. Returns the offset of its end.

        The log calls `done` with None when the append is durable, or with an error when its outcome is unknown. The
        container owns `data` from now on, unless this raises.

        Raises:
            NotFoundError, SealedError: the segment was removed or is sealed.
            IllegalStateError: it is in quarantine (code "segment_quarantined").
            ConflictError: the writer's last event number is another one, since another connection of the writer was
                faster (code "event_number"); the segment's length is not `expected_offset` (code "offset"); or the
                writer's number has expired (code "writer_forgotten").
            ThrottledError: too many writers have written to this segment.
            UnavailableError, FencedError: the container has stopped.
        """
        accepted = segment.accepted
        if accepted.forgot_writers and previous_number == NO_VALUE and expected_offset is None:
            # Before the check for a seal: after that error the writer would append these events to the successors,
            # although this segment may have them.
            self._check_is_new(segment, writer_id, event_number, event_count)
        self._check_appendable(segment, writer_id, previous_number)
        if expected_offset is not None and accepted.length != expected_offset:
            raise ConflictError(
                f"segment {segment.name} has length {accepted.length}, expected {expected_offset}", code="offset"
            )
        offset, now_ms = accepted.length, self.clock.now_ms()
        length = data.length
        fields = data_frames.framed_append_fields(
            segment.number, offset, writer_id, event_number, event_count, now_ms, length
        )
        end = offset + length
        parts: list[bytes | memoryview] = [fields, *data.parts]
        entry = self.log.append_framed(parts, len(fields) + length, PendingAppend(segment, end, done), data)
        mark = (writer_id, previous_number, event_count)
        self.metadata.append(segment, end, writer_id, event_number, event_count, now_ms)
        self.index_data(segment, offset, data, entry, mark)
        return end

    def index_data(self, segment: Segment, offset: int, data: Reservation, entry: int, mark: WriterMark) -> None:
        """Index the bytes that were logged last, in the log entry `entry`, and mark the segment for the next flush."""
        if not data.length:
            self.pool.release(data)
            return
        segment.index.add(offset, data, entry, mark)
        if segment.times.newest != self.log.current_ordering:
            segment.times.note(offset, self.log.current_ordering)
        self.dirty[segment.number] = segment
        if segment.untiered_since_s is None:
            segment.untiered_since_s = self.clock.monotonic_s()
        self._bytes_to_wake -= data.length
        if self._bytes_to_wake <= 0:
            self.wake_flusher()

    def refuse_for_handover(self) -> None:
        """Refuse all further operations of clients, since another store is about to take the container over."""
        self._refusal = FencedError(f"container {self.container} moves to another store: look up its owner again")

    def resume(self) -> None:
        """Accept operations again after `refuse_for_handover`, since no other store can take the container over now."""
        self._refusal = None
        self.log.resume()

    def _check_log_space(self) -> None:
        """Refuse operations when the log is full. The cache bounds data; this also bounds operations without data."""
        if self._refusal is not None:
            raise self._refusal
        ledger = self.log.ledger
        if self.log_room.refuses(ledger) and (reason := self.log_room.refusal(ledger)) is not None:
            raise ThrottledError(f"container {self.container} accepts no operations: {reason}; try again later")

    def _check_appendable(self, segment: Segment, writer_id: int, previous_number: int) -> None:
        self._check_log_space()
        accepted = segment.accepted
        if accepted.removed:
            raise NotFoundError(f"segment {segment.name} was removed", code="segment_not_found")
        if accepted.sealed:
            raise SealedError(f"segment {segment.name} is sealed")
        check_not_quarantined(segment)
        stored = accepted.attributes.get(writer_id, NO_VALUE)
        if stored != previous_number:
            raise ConflictError(
                f"the last event number of the writer is {stored}, expected {previous_number}", code="event_number"
            )
        if stored == NO_VALUE:
            check_attribute_count(segment, (writer_id,))

    def _check_is_new(self, segment: Segment, writer_id: int, event_number: int, event_count: int) -> None:
        """Refuse an append of a writer whose number has expired: the segment may have the same events already.

        Writers count their events from 1, so a new writer is recognised by its first event number. Appends with an
        expected offset are not checked, since the offset prevents duplicates.
        """
        known = segment.accepted.removed or writer_id in segment.accepted.attributes or is_core(writer_id)
        if not known and event_number != event_count:
            raise ConflictError(
                f"the event number of writer {writer_id:032x} in segment {segment.name} has expired, and the writer "
                f"continues with event {event_number}",
                code=WRITER_FORGOTTEN,
            )

    # Changes of segments

    async def create(self, name: str, attributes: Sequence[tuple[int, int]]) -> None:
        """Create a segment. Waits while tier 2 still has data of a removed segment with this name.

        Raises:
            AlreadyExistsError: there is a segment with this name.
            InvalidRequestError: a segment cannot have this name.
            IllegalStateError: tier 2 keeps data of a removed segment with this name (code "segment_quarantined").
        """
        check_segment_name(name)  # here, where all paths meet: a name may be made of the one in the request
        while True:
            while name in self.metadata.deletions:
                self.wake_flusher()
                await self.removals.done(name)
            if await self.find(name) is not None:
                await self.log.durable()
                raise AlreadyExistsError(f"segment {name} exists", details={"segment": name})
            if name not in self.metadata.deletions:  # again: `find` may have waited
                break
        number = self.metadata.next_number
        self.count_change(name)
        await self.apply(data_frames.CreateOperation(number, name, tuple(attributes), self.clock.now_ms()))

    async def seal(self, name: str) -> None:
        """Seal a segment; raises NotFoundError, or SealedError if it is sealed already."""
        segment = await self.existing(name)
        if segment.accepted.sealed:
            await self.log.durable()
            raise SealedError(f"segment {name} is sealed already")
        self.count_change(name)
        await self.apply(data_frames.SealOperation(segment.number, self.clock.now_ms()))

    async def truncate(self, name: str, offset: int, keep: Keep = never) -> None:
        """Remove the bytes before `offset`. Does nothing if the segment starts there or later.

        Raises:
            NotFoundError: there is no such segment.
            TruncatedError: the offset is behind the end of the segment.
            ConflictError: `keep` forbids the change (code "attribute").
        """
        segment = await self.existing(name)
        await self._check_not_kept(segment, keep)
        if offset > segment.accepted.length:
            await self.log.durable()
            raise TruncatedError(f"segment {name} ends at {segment.accepted.length}, it cannot start at {offset}")
        if offset <= segment.accepted.start_offset:
            await self.log.durable()
            return
        self.dirty[segment.number] = segment
        self.count_change(name)
        await self.apply(data_frames.TruncateOperation(segment.number, offset, self.clock.now_ms()))
        self.wake_flusher()

    async def delete(self, name: str, keep: Keep = never) -> None:
        """Remove the segment.

        Raises:
            NotFoundError: there is no such segment.
            ConflictError: `keep` forbids the removal (code "attribute").
        """
        segment = await self.settled_for_removal(name)
        await self._check_not_kept(segment, keep)
        self.count_change(name)
        await self.apply(data_frames.DeleteOperation(segment.number, self.clock.now_ms()))
        self.dirty.pop(segment.number, None)
        self.wake_flusher()

    async def update_attributes(self, name: str, updates: Iterable[AttributeUpdate], keep: Keep = never) -> None:
        """Change attributes; raises NotFoundError, or ConflictError (code "attribute") if a condition does not hold."""
        segment = await self.existing(name)
        await self._check_not_kept(segment, keep)
        try:
            attributes = updated_attributes(segment, updates, sets_own=True)
        except ConflictError:
            await self.log.durable()
            raise
        await self.apply(data_frames.AttributesOperation(segment.number, attributes, self.clock.now_ms()))

    # Shared parts of the changes

    async def _check_not_kept(self, segment: Segment, keep: Keep) -> None:
        """Raise ConflictError if `keep` says so. Otherwise do not wait, so that the condition holds at the change."""
        if keep(segment):
            await self.log.durable()  # the client learns of the attribute that `keep` saw, which must be durable first
            raise ConflictError(
                f"segment {segment.name} is not changed: the condition of the request does not hold", code="attribute"
            )

    async def apply(self, operation: Operation) -> None:
        """Log a checked operation, and return when it is durable.

        Raises:
            ThrottledError: the log holds too much that tier 2 lacks; nothing was logged.
            UnavailableError, FencedError: the container has stopped.
        """
        await self.accept(operation)

    def accept(self, operation: Operation) -> asyncio.Future[None]:
        """Log a checked operation. The future tells when it is durable; raises as `apply`, also the future."""
        self._check_log_space()
        pending = PendingOperation(self.log.expect())
        entry = self.log.append(data_frames.encode_operation(operation), pending)
        pending.settle = self.metadata.apply(operation, entry, self.log.current_ordering)
        return pending.future

    def count_change(self, name: str) -> None:
        """Count a change. Transient segments do not count: there is one for each large event, like an append."""
        if not is_transient_segment_name(name):
            self.changes += 1

    async def settled_for_removal(self, name: str) -> Segment:
        """Find a segment that must exist, and wait until no write of its chunk directory is in progress."""
        segment = await self.existing(name)
        while writing := self.directory_write(segment):
            await asyncio.wait([writing])
            segment = await self.existing(name)
        return segment

    def directory_write(self, segment: Segment) -> asyncio.Future[None] | None:
        """The write of the segment's chunk directory that is in progress; None if there is none."""
        return segment.flushing or self.idle.recording.get(segment.number)

    def wake_flusher(self) -> None:
        """Wake the storage writer, for work that must not wait for its next tick."""
        self.news.set()

    def wake_flusher_after(self, count: int) -> None:
        """Wake the storage writer when so many bytes have been indexed."""
        self._bytes_to_wake = count

    # Progress of the storage writer

    def note_stored(self, storage_lengths: Sequence[tuple[int, int]]) -> None:
        """Log how much of the segments is in tier 2. No caller waits for this operation."""
        self.log.append(data_frames.encode_operation(data_frames.StoredOperation(storage_lengths)), unwatched)
        self._noted_sequence = self.log.last_sequence

    @property
    def flush_lag_s(self) -> float:
        """The age of the oldest byte to flush. Flushed segments are skipped: they stay dirty for some passes."""
        since = [
            segment.untiered_since_s
            for segment in self.dirty.values()
            if segment.untiered_since_s is not None and not segment.is_stored
        ]
        return max(0.0, self.clock.monotonic_s() - min(since)) if since else 0.0

    @property
    def stored_is_durable(self) -> bool:
        """Whether everything that `note_stored` has logged is durable, so that a recovery finds it."""
        return self.log.durable_sequence >= self._noted_sequence

    def note_deletion_stored(self, name: str) -> None:
        """Log that tier 2 has nothing of a removed segment any more, so that its name is free again."""
        operation = data_frames.DeletionStoredOperation(self.metadata.deleted_numbers[name])
        entry = self.log.append(data_frames.encode_operation(operation), unwatched)
        self.metadata.apply(operation, entry, self.log.current_ordering)
        self.removals.note_stored(name)

    # Internal

    def _stopped(self, error: HeadraceError) -> None:
        _log.critical(
            "event=container_stopped container=%d epoch=%d code=%s error=%r",
            self.container,
            self.epoch,
            error.specific_code,
            error.message,
        )
        self.removals.forget_waiters()
        self._on_failure(self, error)
