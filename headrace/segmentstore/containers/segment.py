"""One segment as its container knows it.

Most fields run ahead of the log: they show what was accepted, so that the next operation is checked against it.
`readable_length`, `durable_start_offset` and `sealed_durably` follow the log, and readers see nothing else. Whoever
answers a client from a field that runs ahead waits until the log has caught up (`SegmentContainer.when_durable`).
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
    """What the segment's record in the metadata store holds: its version, and a digest of the state in it."""

    version: int
    digest: bytes


class Segment:
    """Offsets and lengths are in bytes. `storage_length` is up to where the chunk directory has the segment.

    `removed`: this object speaks for no segment any more, whoever still holds it looks the name up again. The segment
    was deleted, merged, or (`evicted`) has left memory and may be back as another object.

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
        self.name_is_free = False  # once a removed segment is forgotten by tier 2
        self.used_s = 0.0  # when somebody asked for it last, other than by an append
        self.recorded: RecordedState | None = None
        self.index = ReadIndex(pool)
        self.times = TimePoints()
        self.merges: deque[PendingMerge] | tuple[PendingMerge, ...] = ()
        self.merged_into: tuple[Segment, int] | None = None  # and at which offset, as long as that is pending
        self.rehomed_end = 0
        self.waiters: list[Callable[[], None]] = []
        self.flushing: asyncio.Future[None] | None = None
        self.untiered_since_s: float | None = None
        self.watched: WatchedSegment | None = None
        self.whole_length: int | None = None
        self.may_lack_bytes = False

    @classmethod
    def restored(cls, snapshot: SegmentSnapshot, pool: BlockPool) -> Segment:
        """The segment at the truncation point of the log: everything that it had then is in tier 2."""
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
        """The segment back from its record, which was written when there was nothing left to trim."""
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
        """The segment as it is if nothing but tier 2 survives this moment.

        It ends in front of the first append or merge that tier 2 lacks. Writers' numbers are those before it: a writer
        that resumes must not hear that an event is stored which is not.
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
        """The attributes without what came with bytes behind `end`."""
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
        """The sources of merges that `stored_snapshot` leaves out, as long as tier 2 has all of their bytes.

        Without the merge they are segments again, so that it can be repeated. A source that is not complete stays
        removed: a part of a transaction would be merged.
        """
        end = self.tiered_end
        for merge in self.merges:
            if merge.offset >= end and merge.is_complete:
                yield replace(merge.source.stored_snapshot(), whole_length=merge.source.length)

    @property
    def tiered_end(self) -> int:
        """Up to where tier 2 has the segment if it completes the moves of merges whose bytes it has."""
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
        """What the segment's runs say of it if it is a table."""
        if not self.is_table:
            return None
        return TableMark(self.attribute(TABLE_KEY_LENGTH), self.attribute(CREATION_TIME))

    @property
    def is_stored(self) -> bool:
        """Whether the chunk directory has all that was accepted."""
        return self.storage_length == self.length and not self.merges

    @property
    def at_rest(self) -> bool:
        """Whether tier 2 has all of it, and nobody waits for it or works on it."""
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
        """Set attributes as a client asked for. They stay until it asks for something else."""
        self.attributes.update(updates)
        own = [key for key, _ in updates if not is_core(key)]
        if own:
            if not isinstance(self.client_attributes, set):  # most segments never have any
                self.client_attributes = set(self.client_attributes)
            self.client_attributes.update(own)

    def forget_writers(self, writer_ids: Iterable[int]) -> None:
        """Drop event numbers; a writer that comes back later is one that the segment does not know."""
        self.forgot_writers = True
        for writer_id in writer_ids:
            self.attributes.pop(writer_id, None)

    def add_merge(self, merge: PendingMerge) -> None:
        """Note a merge into this segment, which tier 2 does not have yet."""
        if not isinstance(self.merges, deque):  # most segments never have any
            self.merges = deque()
        self.merges.append(merge)
        merge.source.merged_into = (self, merge.offset)

    @property
    def home(self) -> tuple[Segment, int]:
        """The segment whose memory has the bytes, and how much further they are there: the target of pending merges."""
        home, shift = self, 0
        while home.merged_into is not None:
            home, offset = home.merged_into
            shift += offset
        return home, shift

    def count_events(self, event_count: int) -> None:
        self.attributes[EVENT_COUNT] = self.attributes.get(EVENT_COUNT, 0) + event_count

    def advance_storage(self, storage_length: int) -> None:
        """The chunk directory has the segment up to here, also what had come by merges."""
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
            # Stores up to 0.1.0 let a merge enter in parts: the rest goes on where they stopped.
            source, inside = self.merges[0].source, storage_length - self.merges[0].offset
            if inside > source.storage_length:
                source.advance_storage(inside)

    def oldest_untiered_entry(self) -> int | None:
        """The first log entry whose loss would lose bytes of this segment; None if tier 2 has everything."""
        oldest = min((merge.oldest_entry() for merge in self.merges), default=None)
        for entry in self.index.entries_behind(self.storage_length):
            oldest = entry.ledger_entry if oldest is None else min(oldest, entry.ledger_entry)
            if entry.offset >= self.rehomed_end:  # from here on log order is offset order
                break
        return oldest

    def wake_waiters(self) -> None:
        """Let everyone who waits for news of this segment look again."""
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                waiter()
