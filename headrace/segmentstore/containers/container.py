"""A segment container: accepts or refuses operations, gives them their place, and answers once the log has them.

Everything runs on the event loop. An operation is checked against what was accepted before it, not against what is
durable, so that operations never wait for each other; in return nothing is told to anyone before the log has caught
up with what it was based on. When the log fails or another owner takes over, the container stops for good: nothing is
acknowledged any more, and what was in flight has an unknown outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from headrace.codec import data_frames
from headrace.codec.data_frames import Operation
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    FencedError,
    HeadraceError,
    IllegalStateError,
    NotFoundError,
    SealedError,
    ThrottledError,
    TruncatedError,
)
from headrace.model.names import is_transient_segment_name
from headrace.ports.clock import Clock
from headrace.segmentstore.containers.attribute_updates import AttributeUpdate, updated_attributes
from headrace.segmentstore.containers.attributes import ATTRIBUTES_PER_SEGMENT_MAX, NO_VALUE
from headrace.segmentstore.containers.container_rates import ContainerRates
from headrace.segmentstore.containers.idle_segments import IdleSegments
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.operation_log import OperationLog, resolve
from headrace.segmentstore.containers.pending import AppendDone, PendingAppend, PendingOperation, unwatched
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.metrics import ContainerMetrics
from headrace.segmentstore.reading.block_pool import BlockPool
from headrace.segmentstore.reading.reservations import Reservation, WriterMark

_log = logging.getLogger(__name__)

HELD_LOG_BYTES_MAX: Final = 4 << 30


class SegmentContainer:
    """`on_failure` is called once, when the container stops for good."""

    def __init__(
        self,
        container: int,
        epoch: int,
        metadata: ContainerMetadata,
        log: OperationLog,
        pool: BlockPool,
        clock: Clock,
        on_failure: Callable[[SegmentContainer, HeadraceError], None],
    ) -> None:
        self.container = container
        self.epoch = epoch
        self.metadata = metadata
        self.pool = pool
        self.log = log
        log.on_failure = self._stopped
        self.dirty: dict[int, Segment] = {}
        self.on_news: Callable[[], None] | None = None
        self.on_stored: Callable[[], None] | None = None
        """Called when tier 2 has more than before."""
        self.metrics = ContainerMetrics()
        self.rates = ContainerRates(metadata, clock)
        self.idle = IdleSegments(metadata, self.log, self.dirty, self._check_log_space)
        self.changes = 0
        """Grows when a segment comes, goes, or changes its bounds otherwise than by an append."""
        self._noted_sequence = -1
        self._left: FencedError | None = None
        self._clock = clock
        self._on_failure = on_failure
        self._removal_waiters: dict[str, list[asyncio.Future[None]]] = {}

    @property
    def failure(self) -> HeadraceError | None:
        """Why the container has stopped for good; None while it works."""
        return self.log.failure

    # Questions

    async def find(self, name: str) -> Segment | None:
        """The segment, brought back if it had left memory; at once if it is there.

        The answer may rest on a removal that is not durable yet, and what it says on operations that are not.

        Raises:
            CorruptError: its record is none, or contradicts the chunk directory.
            ThrottledError, UnavailableError, FencedError: nobody knows; the container may have stopped.
        """
        while True:
            segment = self.metadata.segments.get(name)
            if segment is not None:
                segment.used_s = self._clock.monotonic_s()
                return segment
            if not self.metadata.may_be_evicted(name):
                return None
            if not await self.idle.activated(name) and name not in self.metadata.segments:
                return None

    async def existing(self, name: str) -> Segment:
        """Raises NotFoundError, once that is durable; raises and answers as `find` else."""
        segment = await self.find(name)
        if segment is None:
            await self.log.durable()  # a removal must not be told before it is durable
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
        """Accept an append of a writer whose last event number was `previous_number`; the offset behind it.

        `done` is called when it is durable (None) or its outcome has become unknown (the error). `data` belongs to the
        container from here on, unless this raises.

        Raises:
            NotFoundError, SealedError: the segment is gone or takes no more.
            ConflictError: another connection of this writer was faster (code "event_number"), or the segment's length
                is not `expected_offset` (code "offset").
            ThrottledError: too many writers have written to this segment.
            UnavailableError, FencedError: the container has stopped.
        """
        self._check_appendable(segment, writer_id, previous_number)
        if expected_offset is not None and segment.length != expected_offset:
            raise ConflictError(
                f"segment {segment.name} has length {segment.length}, expected {expected_offset}", code="offset"
            )
        offset, now_ms = segment.length, self._clock.now_ms()
        length = data.length
        fields = data_frames.framed_append_fields(
            segment.number, offset, writer_id, event_number, event_count, now_ms, length
        )
        end = offset + length
        entry = self.log.append_framed([fields, *data.parts], len(fields) + length, PendingAppend(segment, end, done))
        mark = (writer_id, previous_number, event_count)
        segment.length = end
        segment.attributes[writer_id] = event_number
        segment.count_events(event_count)
        segment.last_modified_ms = now_ms
        self.index_data(segment, offset, data, entry, mark)
        return end

    def index_data(self, segment: Segment, offset: int, data: Reservation, entry: int, mark: WriterMark) -> None:
        """Let the indexes and the storage writer know the bytes logged last, which the log entry `entry` holds."""
        if not data.length:
            self.pool.release(data)
            return
        segment.index.add(offset, data, entry, mark)
        if segment.times.newest != self.log.current_ordering:
            segment.times.note(offset, self.log.current_ordering)
        self.dirty[segment.number] = segment
        if segment.unstored_since_s is None:
            segment.unstored_since_s = self._clock.monotonic_s()

    def leave(self) -> None:
        """Take nothing more from clients: another store is about to go on with the container."""
        self._left = FencedError(f"container {self.container} moves to another store: ask again who has it")

    def _check_log_space(self) -> None:
        """Data is bounded by the cache; this bounds operations without data while tier 2 is away."""
        if self._left is not None:
            raise self._left
        if self.log.ledger.held_bytes > HELD_LOG_BYTES_MAX:
            raise ThrottledError(
                f"container {self.container} keeps {self.log.ledger.held_bytes} bytes of log that tier 2 has not "
                "taken: try again when it has"
            )

    def _check_appendable(self, segment: Segment, writer_id: int, previous_number: int) -> None:
        self._check_log_space()
        if segment.removed:
            raise NotFoundError(f"segment {segment.name} was removed", code="segment_not_found")
        if segment.sealed:
            raise SealedError(f"segment {segment.name} is sealed")
        stored = segment.attributes.get(writer_id, NO_VALUE)
        if stored != previous_number:
            raise ConflictError(
                f"the last event number of the writer is {stored}, expected {previous_number}", code="event_number"
            )
        if stored == NO_VALUE and len(segment.attributes) >= ATTRIBUTES_PER_SEGMENT_MAX:
            raise ThrottledError(
                f"segment {segment.name} has had {ATTRIBUTES_PER_SEGMENT_MAX} writers, which is the limit: "
                "use a writer for longer, or scale the stream"
            )

    # Life of a segment

    async def create(self, name: str, attributes: Sequence[tuple[int, int]]) -> None:
        """Raises AlreadyExistsError; waits while tier 2 still forgets a removed segment of this name."""
        while True:
            while name in self.metadata.deletions:
                await self._removed_from_storage(name)
            if await self.find(name) is not None:
                await self.log.durable()
                raise AlreadyExistsError(f"segment {name} exists", details={"segment": name})
            if name not in self.metadata.deletions:  # again: time may have passed
                break
        number = self.metadata.next_number
        self._count_change(name)
        await self._apply(data_frames.CreateOperation(number, name, tuple(attributes), self._clock.now_ms()))

    async def seal(self, name: str) -> None:
        """Raises NotFoundError, or SealedError if it is sealed already."""
        segment = await self.existing(name)
        if segment.sealed:
            await self.log.durable()
            raise SealedError(f"segment {name} is sealed already")
        self._count_change(name)
        await self._apply(data_frames.SealOperation(segment.number, self._clock.now_ms()))

    async def truncate(self, name: str, offset: int) -> None:
        """Bytes before `offset` are gone; nothing happens if it lies before the start.

        Raises:
            NotFoundError: there is no such segment.
            TruncatedError: the offset lies behind the end.
        """
        segment = await self.existing(name)
        if offset > segment.length:
            await self.log.durable()
            raise TruncatedError(f"segment {name} ends at {segment.length}, it cannot start at {offset}")
        if offset <= segment.start_offset:
            await self.log.durable()
            return
        self.dirty[segment.number] = segment
        self._count_change(name)
        await self._apply(data_frames.TruncateOperation(segment.number, offset, self._clock.now_ms()))
        self.tell_news()

    async def delete(self, name: str) -> None:
        """Raises NotFoundError."""
        segment = await self._settled_for_removal(name)
        self._count_change(name)
        await self._apply(data_frames.DeleteOperation(segment.number, self._clock.now_ms()))
        self.dirty.pop(segment.number, None)
        self.tell_news()

    async def merge(self, target_name: str, source_name: str, updates: Iterable[AttributeUpdate] = ()) -> int:
        """Move all bytes of the source behind those of the target, atomically; the target's length after it.

        Raises:
            NotFoundError: one of them does not exist; `details["segment"]` names it.
            SealedError: the target is sealed.
            ConflictError: an attribute condition on the target does not hold (code "attribute").
            IllegalStateError: the source was truncated, or is the target.
        """
        (source,) = await self._settled_sources(target_name, [source_name])
        if source is None:
            raise NotFoundError(
                f"there is no segment {source_name}", details={"segment": source_name}, code="segment_not_found"
            )
        target = await self._merge_target(target_name, [source])
        (operation,) = self._merge_operations(target, [source], updated_attributes(target, updates))
        await self._apply(operation)
        self.tell_news()
        return operation.offset + operation.length

    async def merge_batch(self, target_name: str, source_names: Sequence[str]) -> list[int]:
        """Merge all of the sources in their order, or none; the target's length after each.

        A source that does not exist counts as merged: an earlier attempt may have done that. Raises as `merge`.
        """
        found = await self._settled_sources(target_name, source_names)
        sources = list(dict.fromkeys(source for source in found if source is not None))
        target = await self._merge_target(target_name, sources)
        lengths, merged, length = [], set[Segment](), target.length
        for source in found:
            if source is not None and source not in merged:
                merged.add(source)
                length += source.length
            lengths.append(length)
        if sources:
            await self._apply(data_frames.MergeBatchOperation(self._merge_operations(target, sources, ())))
            self.tell_news()
        else:
            await self.log.durable()
        return lengths

    async def _settled_sources(self, target_name: str, source_names: Sequence[str]) -> list[Segment | None]:
        """The sources, None for those that do not exist, when no write of their directories is under way."""
        while True:
            target = await self.existing(target_name)
            sources: list[Segment | None] = []
            for name in source_names:
                try:
                    sources.append(await self._settled_for_removal(name))
                except NotFoundError:
                    sources.append(None)
            there = [source for source in sources if source is not None]
            # Each of them may have changed while the next one was waited for.
            if not target.removed and not any(source.removed or self._directory_write(source) for source in there):
                return sources

    async def _merge_target(self, name: str, sources: Sequence[Segment]) -> Segment:
        """The target of a merge that may happen; does not wait if it may."""
        target = self.metadata.segments[name]
        if target.sealed:
            await self.log.durable()
            raise SealedError(f"segment {name} is sealed", details={"segment": name})
        for source in sources:
            if source is target or source.start_offset:
                raise IllegalStateError(
                    f"segment {source.name} cannot be merged into {name}: it was truncated, or is the same"
                )
        return target

    def _merge_operations(
        self, target: Segment, sources: Sequence[Segment], attributes: data_frames.Attributes
    ) -> tuple[data_frames.MergeOperation, ...]:
        operations, offset, now_ms = [], target.length, self._clock.now_ms()
        for source in sources:
            operations.append(
                data_frames.MergeOperation(target.number, source.number, offset, source.length, attributes, now_ms)
            )
            offset += source.length
            self.dirty.pop(source.number, None)
            self._count_change(source.name)
        self.dirty[target.number] = target
        if target.unstored_since_s is None:
            target.unstored_since_s = self._clock.monotonic_s()
        return tuple(operations)

    async def update_attributes(self, name: str, updates: Iterable[AttributeUpdate]) -> None:
        """Raises NotFoundError, or ConflictError (code "attribute") if a condition does not hold."""
        segment = await self.existing(name)
        try:
            attributes = updated_attributes(segment, updates)
        except ConflictError:
            await self.log.durable()
            raise
        await self._apply(data_frames.AttributesOperation(segment.number, attributes, self._clock.now_ms()))

    # What the storage writer tells

    def note_stored(self, storage_lengths: Sequence[tuple[int, int]]) -> None:
        """Log how far tier 2 is; nobody waits for it."""
        self.log.append(data_frames.encode_operation(data_frames.StoredOperation(storage_lengths)), unwatched)
        if self.on_stored is not None:
            self.on_stored()
        self._noted_sequence = self.log.last_sequence

    @property
    def stored_is_durable(self) -> bool:
        """Whether a recovery would know all that `note_stored` was told."""
        return self.log.durable_sequence >= self._noted_sequence

    def note_deletion_stored(self, name: str) -> None:
        """Tier 2 has nothing of the removed segment any more; its name is free again."""
        operation = data_frames.DeletionStoredOperation(self.metadata.deleted_numbers[name])
        entry = self.log.append(data_frames.encode_operation(operation), unwatched)
        self.metadata.apply(operation, entry, self.log.current_ordering)
        for waiter in self._removal_waiters.pop(name, []):
            resolve(waiter)

    # Inside

    def _stopped(self, error: HeadraceError) -> None:
        _log.critical(
            "event=container_stopped container=%d epoch=%d code=%s error=%r",
            self.container,
            self.epoch,
            error.specific_code,
            error.message,
        )
        self._removal_waiters.clear()
        self._on_failure(self, error)

    async def _apply(self, operation: Operation) -> None:
        """Log an operation that was found good, and return when it is durable."""
        self._check_log_space()
        pending = PendingOperation(self.log.expect())
        entry = self.log.append(data_frames.encode_operation(operation), pending)
        pending.settle = self.metadata.apply(operation, entry, self.log.current_ordering)
        await pending.future

    def _count_change(self, name: str) -> None:
        """A segment that ends with its connection is no such change: a large event is one, and comes as an append."""
        if not is_transient_segment_name(name):
            self.changes += 1

    async def _settled_for_removal(self, name: str) -> Segment:
        """The segment at a moment when no write of its chunk directory is under way."""
        segment = await self.existing(name)
        while writing := self._directory_write(segment):
            await asyncio.wait([writing])
            segment = await self.existing(name)
        return segment

    def _directory_write(self, segment: Segment) -> asyncio.Future[None] | None:
        return segment.flushing or self.idle.recording.get(segment.number)

    async def _removed_from_storage(self, name: str) -> None:
        future = self.log.expect()
        self._removal_waiters.setdefault(name, []).append(future)
        self.tell_news()
        await future

    def tell_news(self) -> None:
        """Wake the storage writer: there is something that does not wait for its next round."""
        if self.on_news is not None:
            self.on_news()
