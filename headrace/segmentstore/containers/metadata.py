"""The segments of a container, and how each logged operation changes them.

The same functions apply an operation when it is accepted and when a recovery reads it, so that both produce the same
state. This module checks no conditions; `SegmentContainer` does so before it logs an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from weakref import WeakValueDictionary

from headrace.codec import data_frames
from headrace.codec.container_snapshots import ContainerSnapshot, SegmentSnapshot, decode_segment
from headrace.codec.data_frames import Operation
from headrace.model.errors import CorruptError
from headrace.model.names import is_transient_segment_name
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.attributes import (
    CREATION_TIME,
    EVENT_COUNT,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
)
from headrace.segmentstore.containers.pending_merges import AttributeUndo, PendingMerge
from headrace.segmentstore.containers.segment import Segment

NAME_BYTES_MAX: Final = 2032
"""A name is the partition key of the chunk directory, whose limit is 2,048 bytes, less the prefix."""

_POLICY_ATTRIBUTES: Final = frozenset({SCALE_POLICY_TYPE, SCALE_POLICY_RATE})

Settle = Callable[[], None]
"""Makes the effect of an operation visible to readers; called when the operation is durable."""


class ContainerMetadata:
    """`deletions` maps the names of removed segments to the log entries that removed them, until tier 2 has no data
    of them.

    `on_policy` is called for each segment that enters memory, and for changes that may start or end its rate watch.

    `segments` are those in memory; `has_records` and `doubtful_before` are as in `ContainerSnapshot`.
    """

    def __init__(self, container: int, pool: BlockPool, on_policy: Callable[[Segment], None]) -> None:
        self.container = container
        self.next_number = 1
        self.segments: dict[str, Segment] = {}
        self.deletions: dict[str, int] = {}
        self._on_policy = on_policy
        self.has_records = False
        self.doubtful_before = 0
        self._deleted_numbers: dict[str, int] = {}
        self._by_number: dict[int, Segment] = {}
        self._merging: WeakValueDictionary[int, Segment] = WeakValueDictionary()
        """Sources of merges that tier 2 does not have yet. The pending merges hold the only strong references."""
        self._pool = pool

    @property
    def deleted_numbers(self) -> Mapping[str, int]:
        return self._deleted_numbers

    def by_number(self, number: int) -> Segment:
        """The segment with this number; raises CorruptError if there is none, since the log refers to it."""
        segment = self._by_number.get(number)
        if segment is None:
            raise CorruptError(
                f"the log of container {self.container} refers to segment {number}, which does not exist"
            )
        return segment

    def release_memory(self) -> None:
        """Release the memory of all segments and wake their waiters; the container must not be served any more."""
        for segment in list(self.segments.values()):
            _settle_removal(segment)

    def may_be_evicted(self, name: str) -> bool:
        """Whether a segment that is not in memory may still exist."""
        return (
            self.has_records
            and name not in self.deletions
            and not is_transient_segment_name(name)
            and 0 < len(name.encode()) <= NAME_BYTES_MAX
        )

    def restore(self, snapshot: ContainerSnapshot) -> None:
        """Start from the snapshot at the truncation point."""
        self.next_number = snapshot.next_number
        self.has_records = snapshot.has_records
        self.doubtful_before = snapshot.doubtful_before
        self._deleted_numbers = dict(snapshot.deletions)
        self.deletions = dict.fromkeys(snapshot.deletions, -1)
        for segment_snapshot in snapshot.segments:
            self._enter(Segment.restored(segment_snapshot, self._pool))

    def snapshot(self) -> ContainerSnapshot:
        segments = (segment.snapshot() for segment in self.segments.values())
        return self._snapshot_of(segments, self._deleted_numbers)

    def stored_snapshot(self) -> ContainerSnapshot:
        """The state that a restoration from tier 2 alone would find now. Later changes do not affect the snapshot."""
        segments = [segment.stored_snapshot() for segment in self.segments.values()]
        sources = [source for segment in self.segments.values() for source in segment.sources_behind_tier_2()]
        there_again = {source.name for source in sources}
        deletions = {name: number for name, number in self._deleted_numbers.items() if name not in there_again}
        return self._snapshot_of([*segments, *sources], deletions)

    def _snapshot_of(self, segments: Iterable[SegmentSnapshot], deletions: Mapping[str, int]) -> ContainerSnapshot:
        return ContainerSnapshot(self.next_number, dict(deletions), segments, self.has_records, self.doubtful_before)

    def apply(self, operation: Operation, ledger_entry: int, ordering: int) -> Settle:
        """Apply an operation to the accepted state. The returned function makes it visible to readers.

        `ledger_entry` is the log entry with the operation, `ordering` the number of its frame.
        """
        match operation:
            case data_frames.CreateOperation():
                return self._create(operation)
            case data_frames.AttributesOperation():
                segment = self.by_number(operation.number)
                segment.set_by_client(operation.attributes)
                if any(key in _POLICY_ATTRIBUTES for key, _ in operation.attributes):
                    self._on_policy(segment)
                segment.last_modified_ms = operation.now_ms
                return _nothing
            case data_frames.SealOperation():
                return self._seal(operation)
            case data_frames.TruncateOperation():
                return self._truncate(operation)
            case data_frames.DeleteOperation():
                segment = self.by_number(operation.number)
                self._remove(segment, ledger_entry)
                return lambda: _settle_removal(segment)
            case data_frames.MergeOperation():
                return self._merge(operation, ledger_entry, ordering)
            case data_frames.MergeBatchOperation():
                return _in_turn([self._merge(merge, ledger_entry, ordering) for merge in operation.merges])
            case data_frames.DeletionStoredOperation():
                self._forget_deletion(operation.number)
                return _nothing
            case data_frames.StoredOperation():
                self._note_stored(operation)
                return _nothing
            case data_frames.EvictOperation():
                self.has_records = True
                if operation.number != data_frames.NO_SEGMENT:
                    self._evict(self.by_number(operation.number))
                return _nothing
            case data_frames.ActivateOperation():
                self._activate(operation)
                return _nothing
            case data_frames.ForgetWritersOperation():
                self.by_number(operation.number).forget_writers(operation.writer_ids)
                return _nothing
            case _:
                raise CorruptError(f"{type(operation).__name__} does not change a container's metadata")

    def _create(self, operation: data_frames.CreateOperation) -> Settle:
        attributes = dict(operation.attributes)
        self._enter(Segment(operation.number, operation.name, attributes, operation.now_ms, self._pool))
        self.next_number = max(self.next_number, operation.number + 1)
        return _nothing

    def _seal(self, operation: data_frames.SealOperation) -> Settle:
        segment = self.by_number(operation.number)
        segment.sealed = True
        self._on_policy(segment)
        segment.last_modified_ms = operation.now_ms

        def settle() -> None:
            segment.sealed_durably = True
            segment.wake_waiters()

        return settle

    def _truncate(self, operation: data_frames.TruncateOperation) -> Settle:
        segment = self.by_number(operation.number)
        segment.start_offset = max(segment.start_offset, operation.offset)
        segment.last_modified_ms = operation.now_ms

        def settle() -> None:
            segment.durable_start_offset = max(segment.durable_start_offset, operation.offset)
            # Truncated bytes that tier 2 lacks are still flushed: without them, runs could overlap after a crash.
            segment.index.release_before(min(segment.start_offset, segment.storage_length))
            segment.wake_waiters()

        return settle

    def _merge(self, operation: data_frames.MergeOperation, ledger_entry: int, ordering: int) -> Settle:
        target, source = self.by_number(operation.target), self.by_number(operation.source)
        offset = operation.offset
        events = source.attributes.get(EVENT_COUNT, 0)
        if operation.length:
            undo = tuple(AttributeUndo(key, target.attribute(key)) for key, _ in operation.attributes)
            length = operation.length
            target.add_merge(PendingMerge(offset, length, source, ordering, ledger_entry, undo, events))
            self._merging[source.number] = source
            target.times.note(offset, ordering)  # one point: all bytes of a transaction have the time of its merge
        source.index.move_to(target.index, offset)
        target.length = offset + operation.length
        target.rehomed_end = target.length
        target.attributes.update(operation.attributes)
        target.count_events(events)
        if target.watched is not None:
            created_ms = source.attributes.get(CREATION_TIME, operation.now_ms)
            target.watched.record_merge(operation.length, events, operation.now_ms - created_ms)
        target.last_modified_ms = operation.now_ms
        self._remove(source, ledger_entry)

        def settle() -> None:
            target.readable_length = max(target.readable_length, offset + operation.length)
            _settle_removal(source)
            target.wake_waiters()

        return settle

    def _note_stored(self, operation: data_frames.StoredOperation) -> None:
        """Advance the storage lengths in a recovery. Otherwise the storage writer did so before it logged this."""
        for number, storage_length in operation.storage_lengths:
            segment = self._by_number.get(number) or self._merging.get(number)
            if segment is not None and storage_length > segment.storage_length:
                segment.advance_storage(storage_length)

    def _evict(self, segment: Segment) -> None:
        segment.removed = segment.evicted = True
        del self.segments[segment.name]
        del self._by_number[segment.number]
        segment.index.release_all()

    def _activate(self, operation: data_frames.ActivateOperation) -> None:
        segment = Segment.activated(decode_segment(operation.state), self._pool)
        self._enter(segment)
        self.next_number = max(self.next_number, segment.number + 1)

    def _enter(self, segment: Segment) -> None:
        self.segments[segment.name] = segment
        self._by_number[segment.number] = segment
        self._on_policy(segment)

    def _remove(self, segment: Segment, ledger_entry: int) -> None:
        segment.removed = True
        self._on_policy(segment)
        del self.segments[segment.name]
        del self._by_number[segment.number]
        self.deletions[segment.name] = ledger_entry
        self._deleted_numbers[segment.name] = segment.number

    def _forget_deletion(self, number: int) -> None:
        source = self._merging.get(number)
        if source is not None:
            source.name_is_free = True
        for name, deleted in list(self._deleted_numbers.items()):
            if deleted == number:
                del self._deleted_numbers[name]
                self.deletions.pop(name, None)


def _nothing() -> None:
    """Make nothing visible: the operation has no effect for readers."""


def _in_turn(settles: Sequence[Settle]) -> Settle:
    def settle() -> None:
        for each in settles:
            each()

    return settle


def _settle_removal(segment: Segment) -> None:
    segment.index.release_all()
    segment.wake_waiters()
