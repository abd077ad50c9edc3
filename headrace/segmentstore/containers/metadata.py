"""The segments of a container, and how each logged operation changes their accepted state.

The same functions apply an operation when it is accepted and when a recovery reads it, so that both produce the same
state. This module checks no conditions; `SegmentContainer` does so before it logs an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from headrace.codec import data_frames
from headrace.codec.container_snapshots import ContainerSnapshot, SegmentSnapshot, decode_segment
from headrace.codec.data_frames import Operation
from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.model.names import check_nesting, is_transaction_segment_name, is_transient_segment_name
from headrace.model.segment_attributes import (
    CREATION_TIME,
    EVENT_COUNT,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    is_core,
)
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers import settlements
from headrace.segmentstore.containers.pending_merges import AttributeUndo, PendingMerge
from headrace.segmentstore.containers.segment import AcceptedState, Segment, TieredState
from headrace.segmentstore.containers.settlements import Settle

NAME_BYTES_MAX: Final = 2032
"""A name is the partition key of the chunk directory, whose limit is 2,048 bytes, less the prefix."""

_POLICY_ATTRIBUTES: Final = frozenset({SCALE_POLICY_TYPE, SCALE_POLICY_RATE})


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
        self._leaving: set[Segment] = set()
        """Removed segments whose removal is not durable yet: their bytes are in memory, and they may have waiters."""
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
        for segment in [*self.segments.values(), *self._leaving]:
            settlements.settle_removal(segment)
        self._leaving.clear()

    def may_be_evicted(self, name: str) -> bool:
        """Whether a segment that is not in memory may still exist."""
        return (
            self.has_records
            and name not in self.deletions
            and not is_transient_segment_name(name)
            and is_name_for_tier_2(name)
        )

    def restore(self, snapshot: ContainerSnapshot, *, in_tier_2: bool = False) -> None:
        """Start from the snapshot at the truncation point, or from a snapshot `in_tier_2`."""
        self.next_number = snapshot.next_number
        self.has_records = snapshot.has_records
        self.doubtful_before = snapshot.doubtful_before
        self._deleted_numbers = dict(snapshot.deletions)
        self.deletions = dict.fromkeys(snapshot.deletions, -1)
        for segment_snapshot in snapshot.segments:
            told_start = segment_snapshot.start_offset if in_tier_2 else 0
            tiered = TieredState(segment_snapshot.length, told_start=told_start)
            self._enter(Segment.restored(segment_snapshot, self._pool, tiered))

    def pass_loss(self, epoch: int) -> None:
        """Note that the log has ended here, and an owner of `epoch` has continued it after an accepted loss.

        Segments may have been evicted or created in the lost part. Transactions may have had more appends in it: a
        merge would leave them out, or would be the second one.
        """
        self.has_records = True
        self.doubtful_before = max(self.doubtful_before, epoch)
        for segment in self.segments.values():
            if is_transaction_segment_name(segment.name):
                segment.accepted.may_lack_bytes = True

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

    def append(
        self, segment: Segment, end: int, writer_id: int, event_number: int, event_count: int, now_ms: int
    ) -> None:
        """Apply an append that ends at the offset `end`. The caller indexes its bytes, and makes them readable."""
        accepted = segment.accepted
        attributes = accepted.attributes
        attributes[writer_id] = event_number
        attributes[EVENT_COUNT] = attributes.get(EVENT_COUNT, 0) + event_count
        accepted.length = end
        accepted.last_modified_ms = now_ms

    def apply(self, operation: Operation, ledger_entry: int, ordering: int) -> Settle:
        """Apply an operation to the accepted state. The returned function makes it visible to readers.

        `ledger_entry` is the log entry with the operation, `ordering` the number of its frame.
        """
        match operation:
            case data_frames.CreateOperation():
                return self._create(operation)
            case data_frames.AttributesOperation():
                segment = self.by_number(operation.number)
                _set_by_client(segment.accepted, operation.attributes)
                if any(key in _POLICY_ATTRIBUTES for key, _ in operation.attributes):
                    self._on_policy(segment)
                segment.accepted.last_modified_ms = operation.now_ms
                return settlements.nothing
            case data_frames.SealOperation():
                return self._seal(operation)
            case data_frames.TruncateOperation():
                return self._truncate(operation)
            case data_frames.DeleteOperation():
                segment = self.by_number(operation.number)
                return settlements.in_turn([self._remove(segment, ledger_entry), settlements.of_removal(segment)])
            case data_frames.MergeOperation():
                return self._merge(operation, ledger_entry, ordering)
            case data_frames.MergeBatchOperation():
                return settlements.in_turn([self._merge(merge, ledger_entry, ordering) for merge in operation.merges])
            case data_frames.DeletionStoredOperation():
                self._forget_deletion(operation.number)
                return settlements.nothing
            case data_frames.StoredOperation():
                self._note_stored(operation)
                return settlements.nothing
            case data_frames.EvictOperation():
                self.has_records = True
                if operation.number != data_frames.NO_SEGMENT:
                    self._evict(self.by_number(operation.number))
                return settlements.nothing
            case data_frames.ActivateOperation():
                self._activate(operation)
                return settlements.nothing
            case data_frames.ForgetWritersOperation():
                _forget_writers(self.by_number(operation.number).accepted, operation.writer_ids)
                return settlements.nothing
            case _:
                raise CorruptError(f"{type(operation).__name__} does not change a container's metadata")

    def _create(self, operation: data_frames.CreateOperation) -> Settle:
        accepted = AcceptedState(dict(operation.attributes), operation.now_ms)
        self._enter(Segment(operation.number, operation.name, self._pool, accepted))
        self.next_number = max(self.next_number, operation.number + 1)
        return settlements.nothing

    def _seal(self, operation: data_frames.SealOperation) -> Settle:
        segment = self.by_number(operation.number)
        segment.accepted.sealed = True
        self._on_policy(segment)
        segment.accepted.last_modified_ms = operation.now_ms
        return settlements.of_seal(segment)

    def _truncate(self, operation: data_frames.TruncateOperation) -> Settle:
        segment = self.by_number(operation.number)
        accepted = segment.accepted
        accepted.start_offset = max(accepted.start_offset, operation.offset)
        accepted.last_modified_ms = operation.now_ms
        return settlements.of_truncation(segment, operation.offset)

    def _merge(self, operation: data_frames.MergeOperation, ledger_entry: int, ordering: int) -> Settle:
        target, source = self.by_number(operation.target), self.by_number(operation.source)
        offset = operation.offset
        events = source.accepted.attributes.get(EVENT_COUNT, 0)
        if operation.length:
            undo = tuple(AttributeUndo(key, target.attribute(key)) for key, _ in operation.attributes)
            length = operation.length
            target.add_merge(PendingMerge(offset, length, source, ordering, ledger_entry, undo, events))
            self._merging[source.number] = source
            target.times.note(offset, ordering)  # one point: all bytes of a transaction have the time of its merge
        source.index.move_to(target.index, offset)
        accepted = target.accepted
        accepted.length = target.rehomed_end = offset + operation.length
        accepted.attributes.update(operation.attributes)
        accepted.attributes[EVENT_COUNT] = accepted.attributes.get(EVENT_COUNT, 0) + events
        if target.watched is not None:
            created_ms = source.accepted.attributes.get(CREATION_TIME, operation.now_ms)
            target.watched.record_merge(operation.length, events, operation.now_ms - created_ms)
        accepted.last_modified_ms = operation.now_ms
        left = self._remove(source, ledger_entry)
        return settlements.in_turn([left, settlements.of_merge(target, source, offset + operation.length)])

    def _note_stored(self, operation: data_frames.StoredOperation) -> None:
        """Advance the storage lengths in a recovery. Otherwise the storage writer did so before it logged this."""
        for number, storage_length in operation.storage_lengths:
            segment = self._by_number.get(number) or self._merging.get(number)
            if segment is not None and storage_length > segment.tiered.length:
                segment.advance_tiered(storage_length)

    def _evict(self, segment: Segment) -> None:
        segment.accepted.removed = segment.accepted.evicted = True
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

    def _remove(self, segment: Segment, ledger_entry: int) -> Settle:
        """Remove a segment. The returned function notes that this is durable."""
        segment.accepted.removed = True
        self._on_policy(segment)
        del self.segments[segment.name]
        del self._by_number[segment.number]
        self.deletions[segment.name] = ledger_entry
        self._deleted_numbers[segment.name] = segment.number
        self._leaving.add(segment)
        return partial(self._leaving.discard, segment)

    def _forget_deletion(self, number: int) -> None:
        source = self._merging.get(number)
        if source is not None:
            source.name_is_free = True
        for name, deleted in list(self._deleted_numbers.items()):
            if deleted == number:
                del self._deleted_numbers[name]
                self.deletions.pop(name, None)


def is_name_for_tier_2(name: str) -> bool:
    """Whether tier 2 can have a segment of this name."""
    try:
        return 0 < len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def check_segment_name(name: str) -> None:
    """Raise InvalidRequestError if a segment cannot have this name."""
    if not is_name_for_tier_2(name):
        raise InvalidRequestError(
            f"a segment name has 1 to {NAME_BYTES_MAX} bytes of UTF-8, which {name[:100]!r} has not",
            details={"length_bytes_max": NAME_BYTES_MAX},
        )
    check_nesting(name)


def _set_by_client(accepted: AcceptedState, updates: Sequence[tuple[int, int]]) -> None:
    """Set attributes at a client's request. They do not expire as those of writers do."""
    accepted.attributes.update(updates)
    own = [key for key, _ in updates if not is_core(key)]
    if own:
        if not isinstance(accepted.client_attributes, set):  # most segments never have any
            accepted.client_attributes = set(accepted.client_attributes)
        accepted.client_attributes.update(own)


def _forget_writers(accepted: AcceptedState, writer_ids: Iterable[int]) -> None:
    """Drop the event numbers of writers. The segment treats a writer that returns later as unknown."""
    accepted.forgot_writers = True
    for writer_id in writer_ids:
        accepted.attributes.pop(writer_id, None)
