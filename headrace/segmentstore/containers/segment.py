"""The state of one segment in memory.

Most fields show the accepted state, against which the next operation is checked. `readable_length`,
`durable_start_offset` and `sealed_durably` show the durable state, and readers see only these. Before code replies to a
client with a field of the accepted state, it waits until the log is durable (`OperationLog.durable`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.codec.container_snapshots import NO_IDS, SegmentSnapshot
from headrace.model.chunks import TableMark
from headrace.model.time_points import TimePoints
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.read_index import ReadIndex
from headrace.segmentstore.containers.attributes import (
    CREATION_TIME,
    EVENT_COUNT,
    NO_VALUE,
    SEGMENT_TYPE,
    TABLE_KEY_LENGTH,
    is_core,
)
from headrace.segmentstore.containers.container_rates import WatchedSegment
from headrace.segmentstore.containers.pending_merges import AttributeUndo, PendingMerge


class RecordedState(NamedTuple):
    """The version of the segment's record in the metadata store, and a digest of the state in it."""

    version: int
    digest: bytes


class Segment:
    """Offsets and lengths are in bytes. The chunk directory has the segment up to `storage_length`.

    `removed`: this object does not represent the segment any more, and code that keeps it must look the name up again.
    The segment was deleted, merged, or evicted (`evicted`), and may have been activated as another object.

    `client_attributes`, `forgot_writers`, `whole_length` and `may_lack_bytes` are as in `SegmentSnapshot`.
    """

    __slots__ = (
        "__weakref__",
        "attributes",
        "client_attributes",
        "durable_start_offset",
        "evicted",
        "flushing",
        "forgot_writers",
        "index",
        "last_modified_ms",
        "length",
        "may_lack_bytes",
        "merged_into",
        "merges",
        "name",
        "name_is_free",
        "number",
        "readable_length",
        "recorded",
        "rehomed_end",
        "removed",
        "sealed",
        "sealed_durably",
        "start_offset",
        "storage_length",
        "times",
        "told_start",
        "trimmed_offset",
        "untiered_since_s",
        "used_s",
        "waiters",
        "watched",
        "whole_length",
    )

    def __init__(self, number: int, name: str, attributes: dict[int, int], now_ms: int, pool: BlockPool) -> None:
        self.number = number
        self.name = name
        self.attributes = attributes
        self.client_attributes: set[int] | frozenset[int] = NO_IDS
        self.forgot_writers = False
        self.last_modified_ms = now_ms
        self.start_offset = 0
        self.durable_start_offset = 0
        self.length = 0
        self.readable_length = 0
        self.storage_length = 0
        self.trimmed_offset = 0
        self.told_start = 0  # the start offset that the newest snapshot in tier 2 has
        self.sealed = False
        self.sealed_durably = False
        self.removed = False
        self.evicted = False
        self.name_is_free = False  # once tier 2 has nothing of the removed segment
        self.used_s = 0.0  # the last use other than an append
        self.recorded: RecordedState | None = None
        self.index = ReadIndex(pool)
        self.times = TimePoints()
        self.merges: deque[PendingMerge] | tuple[PendingMerge, ...] = ()
        self.merged_into: tuple[Segment, int] | None = None  # and the offset there, while the merge is pending
        self.rehomed_end = 0
        self.waiters: list[Callable[[], None]] = []
        self.flushing: asyncio.Future[None] | None = None
        self.untiered_since_s: float | None = None
        self.watched: WatchedSegment | None = None
        self.whole_length: int | None = None
        self.may_lack_bytes = False

    @classmethod
    def restored(cls, snapshot: SegmentSnapshot, pool: BlockPool) -> Segment:
        """The segment in a snapshot: at the truncation point of the log, tier 2 has all of its bytes."""
        attributes = dict(snapshot.attributes)
        segment = cls(snapshot.number, snapshot.name, attributes, snapshot.last_modified_ms, pool)
        segment.start_offset = segment.durable_start_offset = snapshot.start_offset
        segment.length = segment.readable_length = segment.storage_length = snapshot.length
        segment.sealed = segment.sealed_durably = snapshot.sealed
        segment.client_attributes = snapshot.client_attributes
        segment.forgot_writers = snapshot.forgot_writers
        segment.whole_length = snapshot.whole_length
        segment.may_lack_bytes = snapshot.may_lack_bytes
        return segment

    @classmethod
    def activated(cls, snapshot: SegmentSnapshot, pool: BlockPool) -> Segment:
        """The segment in its record. A record is written only when there is nothing to trim."""
        segment = cls.restored(snapshot, pool)
        segment.told_start = segment.trimmed_offset = snapshot.start_offset
        return segment

    def snapshot(self) -> SegmentSnapshot:
        return SegmentSnapshot(
            self.number,
            self.name,
            self.start_offset,
            self.length,
            self.sealed,
            self.last_modified_ms,
            self.attributes,
            client_attributes=frozenset(self.client_attributes),
            forgot_writers=self.forgot_writers,
            whole_length=self.whole_length,
            may_lack_bytes=self.may_lack_bytes,
        )

    def stored_snapshot(self) -> SegmentSnapshot:
        """The segment that a restoration from tier 2 alone would find now.

        It ends before the first append or merge that tier 2 lacks, and has the writers' event numbers at that point.
        With later numbers, a writer that resumes would not send lost events again.
        """
        end = self.tiered_end
        return SegmentSnapshot(
            self.number,
            self.name,
            self.start_offset,
            self.storage_length,
            self.sealed,
            self.last_modified_ms,
            self._attributes_at(end),
            tuple(merge.merged_range() for merge in self.merges if merge.end <= end),
            frozenset(self.client_attributes),
            self.forgot_writers,
            whole_length=self.whole_length,
            may_lack_bytes=self.may_lack_bytes,
        )

    def _attributes_at(self, end: int) -> dict[int, int]:
        """The attributes without the changes by appends and merges behind `end`."""
        attributes = dict(self.attributes)
        undone = [(merge.offset, merge.undo, merge.event_count) for merge in self.merges if merge.end > end]
        for entry in self.index.entries_behind(end):
            if entry.mark is not None:
                writer_id, previous_number, event_count = entry.mark
                undone.append((entry.offset, (AttributeUndo(writer_id, previous_number),), event_count))
        for _, undo, event_count in sorted(undone, key=lambda each: each[0], reverse=True):
            if event_count:
                attributes[EVENT_COUNT] = attributes.get(EVENT_COUNT, 0) - event_count
            for key, value in undo:
                attributes[key] = value
                if value == NO_VALUE:
                    del attributes[key]
        return attributes

    def sources_behind_tier_2(self) -> Iterator[SegmentSnapshot]:
        """The sources of merges that `stored_snapshot` leaves out, if tier 2 has all of their bytes.

        Without the merge these sources exist again, so that the merge can be repeated. An incomplete source stays
        removed; otherwise a part of a transaction could be merged.
        """
        end = self.tiered_end
        for merge in self.merges:
            if merge.offset >= end and merge.is_complete:
                yield replace(merge.source.stored_snapshot(), whole_length=merge.source.length)

    @property
    def tiered_end(self) -> int:
        """The end of the segment's bytes in tier 2, including merged bytes under the names of their sources."""
        end = self.storage_length
        for merge in self.merges:
            if merge.offset > end or not merge.is_complete:
                break
            end = max(end, merge.end)
        return end

    @property
    def is_table(self) -> bool:
        return SEGMENT_TYPE in self.attributes

    @property
    def table_mark(self) -> TableMark | None:
        """The table mark for the segment's runs; None if it is not a table."""
        if not self.is_table:
            return None
        return TableMark(self.attribute(TABLE_KEY_LENGTH), self.attribute(CREATION_TIME))

    @property
    def is_stored(self) -> bool:
        """Whether the chunk directory has everything that was accepted."""
        return self.storage_length == self.length and not self.merges

    @property
    def at_rest(self) -> bool:
        """Whether tier 2 has all of it, and no reader or operation is waiting for it."""
        return (
            self.storage_length == self.length == self.readable_length
            and self.trimmed_offset >= self.start_offset == self.durable_start_offset
            and self.sealed == self.sealed_durably
            and not self.merges
            and not self.waiters
            and not self.removed
            and self.flushing is None
        )

    @property
    def untiered_bytes(self) -> int:
        """Durable bytes that the chunk directory does not have."""
        return self.readable_length - self.storage_length

    def attribute(self, key: int) -> int:
        return self.attributes.get(key, NO_VALUE)

    def set_by_client(self, updates: Sequence[tuple[int, int]]) -> None:
        """Set attributes at a client's request. They do not expire as those of writers do."""
        self.attributes.update(updates)
        own = [key for key, _ in updates if not is_core(key)]
        if own:
            if not isinstance(self.client_attributes, set):  # most segments never have any
                self.client_attributes = set(self.client_attributes)
            self.client_attributes.update(own)

    def forget_writers(self, writer_ids: Iterable[int]) -> None:
        """Drop the event numbers of writers. The segment treats a writer that returns later as unknown."""
        self.forgot_writers = True
        for writer_id in writer_ids:
            self.attributes.pop(writer_id, None)

    def add_merge(self, merge: PendingMerge) -> None:
        """Add a merge into this segment that tier 2 does not have yet."""
        if not isinstance(self.merges, deque):  # most segments never have any
            self.merges = deque()
        self.merges.append(merge)
        merge.source.merged_into = (self, merge.offset)

    @property
    def home(self) -> tuple[Segment, int]:
        """The segment whose index has the bytes, which is the target of pending merges, and their offset in it."""
        home, shift = self, 0
        while home.merged_into is not None:
            home, offset = home.merged_into
            shift += offset
        return home, shift

    def count_events(self, event_count: int) -> None:
        self.attributes[EVENT_COUNT] = self.attributes.get(EVENT_COUNT, 0) + event_count

    def advance_storage(self, storage_length: int) -> None:
        """Note that the chunk directory has the segment up to `storage_length`, merged bytes included."""
        home, shift = self.home
        home.index.mark_tiered(shift + self.storage_length, shift + storage_length)
        self.storage_length = storage_length
        if home is self:
            in_memory = self.index.first_offset
            self.times.forget_before(storage_length if in_memory is None else min(in_memory, storage_length))
        while isinstance(self.merges, deque) and self.merges[0].end <= storage_length:
            self.merges.popleft().source.merged_into = None
            self.merges = self.merges or ()
        if self.merges and self.merges[0].offset < storage_length:
            # Stores up to 0.1.0 flushed a merge in parts. Continue where they stopped.
            source, inside = self.merges[0].source, storage_length - self.merges[0].offset
            if inside > source.storage_length:
                source.advance_storage(inside)

    def oldest_untiered_entry(self) -> int | None:
        """The first log entry with bytes that tier 2 lacks of this segment; None if tier 2 has everything."""
        oldest = min((merge.oldest_entry() for merge in self.merges), default=None)
        for entry in self.index.entries_behind(self.storage_length):
            oldest = entry.ledger_entry if oldest is None else min(oldest, entry.ledger_entry)
            if entry.offset >= self.rehomed_end:  # behind this offset entries are in the order of offsets
                break
        return oldest

    def wake_waiters(self) -> None:
        """Call every callback that waits for a change of this segment."""
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                waiter()
