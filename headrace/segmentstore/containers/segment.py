"""One segment in memory: its three states, its cached bytes, and its pending merges."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from headrace.codec.container_snapshots import NO_IDS, SegmentSnapshot
from headrace.model.chunks import TableMark
from headrace.model.segment_attributes import CREATION_TIME, EVENT_COUNT, NO_VALUE, SEGMENT_TYPE, TABLE_KEY_LENGTH
from headrace.model.time_points import TimePoints
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.read_index import ReadIndex
from headrace.segmentstore.containers.container_rates import WatchedSegment
from headrace.segmentstore.containers.pending_merges import AttributeUndo, PendingMerge, end_of_large_event

# The three states of a segment: what was accepted, what of it is durable, and what of it tier 2 has.
#
# Each state has one owner, and only the owner changes it. All other code reads. `Segment` composes the three, and has
# the invariants between them.

Waiter = Callable[[], None]


class AcceptedState:
    """What the container has accepted, which the next operation is checked against. It may still be lost.

    Before code replies to a client with a field of this state, it waits until the log is durable
    (`OperationLog.durable`).

    Owner: `ContainerMetadata`, which applies each operation when it is logged or replayed.

    `removed`: the segment object does not represent the segment any more, and code that keeps it must look the name up
    again. The segment was deleted, merged, or evicted (`evicted`), and may have been activated as another object.

    `client_attributes`, `forgot_writers`, `whole_length` and `may_lack_bytes` are as in `SegmentSnapshot`.
    """

    __slots__ = (
        "attributes",
        "client_attributes",
        "evicted",
        "forgot_writers",
        "last_modified_ms",
        "length",
        "may_lack_bytes",
        "removed",
        "sealed",
        "start_offset",
        "whole_length",
    )

    def __init__(self, attributes: dict[int, int], now_ms: int) -> None:
        self.attributes = attributes
        self.client_attributes: set[int] | frozenset[int] = NO_IDS
        self.forgot_writers = False
        self.last_modified_ms = now_ms
        self.start_offset = 0
        self.length = 0
        self.sealed = False
        self.removed = False
        self.evicted = False
        self.whole_length: int | None = None
        self.may_lack_bytes = False

    @classmethod
    def restored(cls, snapshot: SegmentSnapshot) -> AcceptedState:
        state = cls(dict(snapshot.attributes), snapshot.last_modified_ms)
        state.start_offset = snapshot.start_offset
        state.length = snapshot.length
        state.sealed = snapshot.sealed
        state.client_attributes = snapshot.client_attributes
        state.forgot_writers = snapshot.forgot_writers
        state.whole_length = snapshot.whole_length
        state.may_lack_bytes = snapshot.may_lack_bytes
        return state


class DurableState:
    """What is durable in the log. Readers see only this. Its next change calls the `waiters`.

    Owner: `settlements`, whose functions the log calls when operations are durable.
    """

    __slots__ = ("length", "sealed", "start_offset", "waiters")

    def __init__(self, start_offset: int = 0, length: int = 0, *, sealed: bool = False) -> None:
        self.start_offset = start_offset
        self.length = length
        self.sealed = sealed
        self.waiters: dict[Waiter, None] | tuple[()] = ()  # most segments never have any

    def add_waiter(self, waiter: Waiter) -> None:
        """Call `waiter` once, at the next change of this state."""
        if isinstance(self.waiters, dict):
            self.waiters[waiter] = None
        else:
            self.waiters = {waiter: None}

    def remove_waiter(self, waiter: Waiter) -> None:
        """Do not call `waiter` any more. Does nothing if it was called already."""
        if isinstance(self.waiters, dict):
            self.waiters.pop(waiter, None)
            self.waiters = self.waiters or ()

    def wake_waiters(self) -> None:
        """Call every callback that waits for a change of this state."""
        waiters, self.waiters = self.waiters, ()
        for waiter in waiters:
            waiter()


class TieredState:
    """What tier 2 has: the chunk directory has the segment up to `length`, without the runs before `trimmed_offset`.

    `told_start` is the start offset in the newest snapshot in tier 2.

    Owner: the container's `DirectoryUpkeep`. Before it exists, the recovery replays how far it had come.
    """

    __slots__ = ("length", "told_start", "trimmed_offset")

    def __init__(self, length: int = 0, trimmed_offset: int = 0, told_start: int = 0) -> None:
        self.length = length
        self.trimmed_offset = trimmed_offset
        self.told_start = told_start


class RecordedState(NamedTuple):
    """The version of the segment's record in the metadata store, and a digest of the state in it."""

    version: int
    digest: bytes


class Segment:
    """Offsets and lengths are in bytes.

    `accepted`, `durable` and `tiered` are changed only by their owners. `index` has the bytes in memory, and `times`
    the times of the log entries that they came in. `untiered_since_s` is when bytes began to wait for tier 2.
    `is_urgent`: they are flushed before their age demands it.
    """

    __slots__ = (
        "__weakref__",
        "accepted",
        "durable",
        "flushing",
        "index",
        "is_urgent",
        "merged_into",
        "merges",
        "name",
        "name_is_free",
        "number",
        "quarantined",
        "recorded",
        "rehomed_end",
        "tiered",
        "times",
        "untiered_since_s",
        "used_s",
        "watched",
    )

    def __init__(
        self,
        number: int,
        name: str,
        pool: BlockPool,
        accepted: AcceptedState,
        durable: DurableState | None = None,
        tiered: TieredState | None = None,
    ) -> None:
        self.number = number
        self.name = name
        self.accepted = accepted
        self.durable = durable or DurableState()
        self.tiered = tiered or TieredState()
        self.name_is_free = False  # once tier 2 has nothing of the removed segment
        self.used_s = 0.0  # the last use other than an append
        self.recorded: RecordedState | None = None
        self.quarantined = False  # tier 2 refuses it for good: see `quarantine`
        self.index = ReadIndex(pool)
        self.times = TimePoints()
        self.merges: deque[PendingMerge] | tuple[PendingMerge, ...] = ()
        self.merged_into: tuple[Segment, int] | None = None  # and the offset there, while the merge is pending
        self.rehomed_end = 0
        self.flushing: asyncio.Future[None] | None = None
        self.untiered_since_s: float | None = None
        self.is_urgent = False
        self.watched: WatchedSegment | None = None

    @classmethod
    def restored(cls, snapshot: SegmentSnapshot, pool: BlockPool, tiered: TieredState) -> Segment:
        """The segment in a snapshot: at the truncation point of the log, tier 2 has all of its bytes."""
        durable = DurableState(snapshot.start_offset, snapshot.length, sealed=snapshot.sealed)
        return cls(snapshot.number, snapshot.name, pool, AcceptedState.restored(snapshot), durable, tiered)

    @classmethod
    def activated(cls, snapshot: SegmentSnapshot, pool: BlockPool) -> Segment:
        """The segment in its record. A record is written only when there is nothing to trim."""
        tiered = TieredState(snapshot.length, snapshot.start_offset, snapshot.start_offset)
        return cls.restored(snapshot, pool, tiered)

    @property
    def broken_invariant(self) -> str | None:
        """The first invariant between the three states that does not hold; None if all hold.

        A byte is accepted, then durable, and only then tier 2 may have it. The start offset and the seal follow the
        same order, and tier 2 removes only bytes before the durable start.
        """
        accepted, durable, tiered = self.accepted, self.durable, self.tiered
        if not tiered.length <= durable.length <= accepted.length:
            return f"tiered {tiered.length} <= durable {durable.length} <= accepted {accepted.length} bytes"
        if not durable.start_offset <= accepted.start_offset <= accepted.length:
            return f"start: durable {durable.start_offset} <= accepted {accepted.start_offset} <= {accepted.length}"
        if not durable.start_offset <= durable.length:
            return f"durable: start {durable.start_offset} <= length {durable.length}"
        if not max(tiered.trimmed_offset, tiered.told_start) <= durable.start_offset:
            return f"trimmed {tiered.trimmed_offset}, told {tiered.told_start} <= durable start {durable.start_offset}"
        if durable.sealed and not accepted.sealed:
            return "a seal is accepted before it is durable"
        return None

    def snapshot(self) -> SegmentSnapshot:
        accepted = self.accepted
        return SegmentSnapshot(
            self.number,
            self.name,
            accepted.start_offset,
            accepted.length,
            accepted.sealed,
            accepted.last_modified_ms,
            accepted.attributes,
            client_attributes=frozenset(accepted.client_attributes),
            forgot_writers=accepted.forgot_writers,
            whole_length=accepted.whole_length,
            may_lack_bytes=accepted.may_lack_bytes,
        )

    def stored_snapshot(self) -> SegmentSnapshot:
        """The segment that a restoration from tier 2 alone would find now.

        It ends before the first append or merge that tier 2 lacks, and has the writers' event numbers at that point.
        With later numbers, a writer that resumes would not send lost events again.
        """
        end, accepted = self.tiered_end, self.accepted
        return SegmentSnapshot(
            self.number,
            self.name,
            accepted.start_offset,
            self.tiered.length,
            accepted.sealed,
            accepted.last_modified_ms,
            self._attributes_at(end),
            tuple(merge.merged_range() for merge in self.merges if merge.end <= end),
            frozenset(accepted.client_attributes),
            accepted.forgot_writers,
            whole_length=accepted.whole_length,
            may_lack_bytes=accepted.may_lack_bytes,
        )

    def _attributes_at(self, end: int) -> dict[int, int]:
        """The attributes without the changes by appends and merges behind `end`."""
        attributes = dict(self.accepted.attributes)
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
                yield replace(merge.source.stored_snapshot(), whole_length=merge.source.accepted.length)

    @property
    def tiered_end(self) -> int:
        """The end of the segment's bytes in tier 2, including merged bytes under the names of their sources."""
        end = self.tiered.length
        for merge in self.merges:
            if merge.offset > end or not merge.is_complete:
                break
            end = max(end, merge.end)
        return end

    @property
    def is_table(self) -> bool:
        return SEGMENT_TYPE in self.accepted.attributes

    @property
    def table_mark(self) -> TableMark | None:
        """The table mark for the segment's runs; None if it is not a table."""
        if not self.is_table:
            return None
        return TableMark(self.attribute(TABLE_KEY_LENGTH), self.attribute(CREATION_TIME))

    @property
    def is_stored(self) -> bool:
        """Whether the chunk directory has everything that was accepted."""
        return self.tiered.length == self.accepted.length and not self.merges

    @property
    def at_rest(self) -> bool:
        """Whether tier 2 has all of it, and no reader or operation is waiting for it."""
        accepted, durable, tiered = self.accepted, self.durable, self.tiered
        return (
            tiered.length == accepted.length == durable.length
            and tiered.trimmed_offset >= accepted.start_offset == durable.start_offset
            and accepted.sealed == durable.sealed
            and not self.merges
            and not durable.waiters
            and not accepted.removed
            and self.flushing is None
        )

    @property
    def untiered_bytes(self) -> int:
        """Durable bytes that the chunk directory does not have."""
        return self.durable.length - self.tiered.length

    @property
    def is_flushable(self) -> bool:
        """Whether it has bytes to flush to tier 2."""
        return self.untiered_bytes > 0 and not (self.accepted.removed or self.quarantined)

    def attribute(self, key: int) -> int:
        return self.accepted.attributes.get(key, NO_VALUE)

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

    def advance_tiered(self, length: int) -> None:
        """Note that the chunk directory has the segment up to `length`, merged bytes included.

        Only the owner of the tiered state calls this. It also releases what was kept for these bytes.
        """
        home, shift = self.home
        home.index.mark_tiered(shift + self.tiered.length, shift + length)
        self.tiered.length = length
        if home is self:
            in_memory = self.index.first_offset
            self.times.forget_before(length if in_memory is None else min(in_memory, length))
        while isinstance(self.merges, deque) and self.merges[0].end <= length:
            self.merges.popleft().source.merged_into = None
            self.merges = self.merges or ()

    def boundary_in_memory(self, offset: int) -> int | None:
        """The first start of an append at or after `offset` that memory knows; None if it knows none.

        In the index the pieces of a large event are appends. So the index is asked only for bytes that tier 2 lacks:
        their merges are pending. The times have one point for a merge.
        """
        known = self.times.boundary_from(offset)
        entry = self.index.boundary_from(max(offset, self.tiered.length))
        while entry is not None and (end := end_of_large_event(self.merges, entry)) is not None:
            entry = self.index.boundary_from(end)
        return min((each for each in (known, entry) if each is not None), default=None)

    def oldest_untiered_entry(self) -> int | None:
        """The first log entry with bytes that tier 2 lacks of this segment; None if tier 2 has everything."""
        oldest = min((merge.oldest_entry() for merge in self.merges), default=None)
        for entry in self.index.entries_behind(self.tiered.length):
            oldest = entry.ledger_entry if oldest is None else min(oldest, entry.ledger_entry)
            if entry.offset >= self.rehomed_end:  # behind this offset entries are in the order of offsets
                break
        return oldest
