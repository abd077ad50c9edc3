"""Restores a container whose log is lost, from its snapshot in tier 2 and the chunk directory.

After a graceful shutdown the snapshot is exact. Otherwise the directory may be newer: runs were added, removed or moved
since. Data that was never in tier 2 is lost with the log. The event numbers in a snapshot never exceed its lengths.
A writer that resumes therefore sends its unacknowledged events again, and some may be stored twice. The records of
evicted segments are compared with the directory in the same way, each when its segment is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from headrace.codec import data_frames
from headrace.codec.container_snapshots import (
    ContainerSnapshot,
    MergedRange,
    SegmentSnapshot,
    encode_segment,
    encode_snapshot,
    without_lost_mark,
)
from headrace.codec.data_frames import Operation
from headrace.model.chunks import RunLink
from headrace.model.containers import SnapshotPointer
from headrace.model.errors import CorruptError
from headrace.model.names import is_transaction_segment_name, is_transient_segment_name
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.containers.settlements import unwatched
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.directory_upkeep import complete_link, move_merged
from headrace.segmentstore.tiering.snapshot_store import SnapshotStore

_log = logging.getLogger(__name__)

RECONCILED_AT_ONCE_MAX: Final = 32


async def restore_container(
    snapshots: SnapshotStore, directory: ChunkDirectory, pointer: SnapshotPointer | None
) -> ContainerSnapshot:
    """The container as tier 2 has it. The pointer names this owner's epoch from here on: every older log is the past.

    Without a `pointer` a former owner may have been lost before its first snapshot: what the chunk directory has of
    its segments is found when they are asked for.

    Raises:
        CorruptError: tier 2 contradicts itself; nothing may be served from it.
        FencedError: the container has another owner already.
        ThrottledError, UnavailableError: tier 2 does not answer.
    """
    # Each owner takes the mark off before it serves, so no owner since then has served the container.
    exact = pointer is not None and pointer.clean and not pointer.restored
    snapshot = ContainerSnapshot(1, {}, ()) if pointer is None else await snapshots.load(pointer)
    if not exact:
        snapshot = await _reconciled(snapshot, directory)
        # Segments may have been evicted and activated since. Their records are compared when they are needed.
        snapshot = replace(snapshot, has_records=True, doubtful_before=directory.epoch)
    segments = list(snapshot.segments)
    snapshot = replace(snapshot, segments=segments)
    await snapshots.replace(await asyncio.to_thread(lambda: list(encode_snapshot(snapshot))), clean=False)
    level = logging.INFO if exact else logging.WARNING
    _log.log(
        level,
        "event=container_restored container=%d epoch=%d from_epoch=%s clean=%s segments=%d",
        directory.container,
        directory.epoch,
        None if pointer is None else pointer.epoch,
        exact,
        len(segments),
    )
    return snapshot


async def _reconciled(snapshot: ContainerSnapshot, directory: ChunkDirectory) -> ContainerSnapshot:
    """The container as the directory has it. Removals that it knows of are to be finished, before a name is free: the
    record of a segment that was evicted earlier may still be there, and would count as that of a segment."""
    segments, deletions = list(snapshot.segments), dict(snapshot.deletions)
    kept: list[SegmentSnapshot] = []
    for first in range(0, len(segments), RECONCILED_AT_ONCE_MAX):
        batch = segments[first : first + RECONCILED_AT_ONCE_MAX]
        reconciled = await asyncio.gather(*(reconciled_segment(segment, directory) for segment in batch))
        kept.extend(segment for segment in reconciled if segment is not None)
        deletions.update((each.name, each.number) for each, left in zip(batch, reconciled, strict=True) if left is None)
    return replace(snapshot, segments=kept, deletions=deletions)


async def reconciled_segment(
    segment: SegmentSnapshot, directory: ChunkDirectory, *, frees_name: bool = False
) -> SegmentSnapshot | None:
    """A segment as the directory has it, given what was known of it before; None if it was deleted or merged since.

    `frees_name`: the caller lets another segment be created under the name at once, if this returns None.

    How much was appended to an open transaction is not known without the log: its segment may lack bytes.

    Raises:
        CorruptError: the directory lacks runs that it had.
        ThrottledError, UnavailableError: the metadata store does not answer.
    """
    newest = await directory.last_entry(segment.name)
    if isinstance(newest, RunLink):
        # If it is forwarding, only before the name is free. A restoration must not fail because of lost runs that are
        # those of a segment it does not know: it could not restore the others either.
        if frees_name or not newest.is_forwarding:
            await complete_link(directory, segment.name, newest)
        if newest.is_forwarding:
            _log.warning(
                "event=segment_merged container=%d segment=%r target=%r",
                directory.container,
                segment.name,
                newest.segment,
            )
            return None
    start, length = segment.start_offset, segment.length
    if newest is None:
        if start < length:
            _log.warning("event=segment_gone container=%d segment=%r", directory.container, segment.name)
            return None
    else:
        if newest.end < length and start < length:
            raise CorruptError(
                f"the chunk directory has {segment.name} up to {newest.end}, its snapshot up to {length}: runs are "
                "missing",
                details={"segment": segment.name, "offset": newest.end},
            )
        length = max(length, newest.end)
        start = max(start, (await directory.page(segment.name, limit=1))[0].offset)
    length = await _with_merged(segment, length, directory)
    # The start may be behind the end of tier 2, if the bytes between are lost. Offsets before it must not be reused.
    length = max(start, length)
    lacks = segment.may_lack_bytes or (is_transaction_segment_name(segment.name) and length != segment.whole_length)
    present = replace(segment, start_offset=start, length=length, merged=(), may_lack_bytes=lacks)
    return without_lost_mark(present, length)


async def _with_merged(segment: SegmentSnapshot, length: int, directory: ChunkDirectory) -> int:
    """Complete in the directory the merges of which tier 2 has all bytes, as far as they continue the segment.

    Returns its length then.
    """
    for merged in segment.merged:
        if merged.offset == length:
            if not await _completed(segment.name, merged, directory):
                _log.warning("event=merged_bytes_gone segment=%r offset=%d", segment.name, length)
                return length
            length = merged.end
    return length


async def _completed(name: str, merged: MergedRange, directory: ChunkDirectory) -> bool:
    """Have the bytes of a merge into segment `name` there; False if the directory lacks them."""
    for inner in merged.inner:  # if the directory lacks these, they have been moved on
        await _completed(merged.place.name, inner, directory)
    return await move_merged(directory, name, merged) is not None


# Reconciles a container whose log was continued after an accepted loss with what tier 2 has of it.
#
# What is left of the log may end before what tier 2 has got from the lost entries. Those bytes were acknowledged, so
# tier 2 wins: a segment continues behind them, and what tier 2 has removed, moved or told in a newer snapshot stays so.
# Every difference is logged as an operation. The next owner replays it, also if it runs a release that knows of no
# losses.

_T = TypeVar("_T")

_NOTHING: Final = ContainerSnapshot(0, {}, ())


async def reconcile_after_loss(
    container: SegmentContainer, directory: ChunkDirectory, newer: ContainerSnapshot | None
) -> None:
    """Log and apply what tier 2 is ahead of the log. Return when that is durable. No client is served before.

    `newer` is tier 2's snapshot, if it was taken behind the end of what is left of the log. Each attempt finds the same
    differences, until a snapshot of this owner is in tier 2.

    Raises:
        CorruptError: tier 2 contradicts itself; nothing may be served from it.
        FencedError: the container has another owner.
        ThrottledError, UnavailableError: tier 2 or the log does not answer.
    """
    work = _Reconciliation(container, directory, newer)
    await work.run()
    await container.log.durable()
    _log.warning(
        "event=loss_reconciled container=%d epoch=%d newer_snapshot=%s segments=%d changes=%d",
        container.container,
        container.epoch,
        newer is not None,
        len(container.metadata.segments),
        work.changes,
    )


class _Reconciliation:
    def __init__(self, container: SegmentContainer, directory: ChunkDirectory, newer: ContainerSnapshot | None) -> None:
        self._container = container
        self._metadata = container.metadata
        self._directory = directory
        self._is_told = newer is not None
        self._deletions = dict((newer or _NOTHING).deletions)
        self._told = {each.name: each for each in (newer or _NOTHING).segments}
        # Of the lost part, too: records of the chunk directory and snapshots name segments of both.
        self._metadata.next_number = max(self._metadata.next_number, (newer or _NOTHING).next_number)
        self.changes = 0

    async def run(self) -> None:
        self._apply(data_frames.EvictOperation(data_frames.NO_SEGMENT))  # there may be records, and segments without
        if self._is_told:
            self._apply_removals()
        await self._reconcile_known()
        await self._reconcile_others()

    # What a newer snapshot tells

    def _apply_removals(self) -> None:
        """Remove segments that the snapshot does not have, and forget removals that tier 2 has finished."""
        metadata = self._metadata
        for segment in list(metadata.segments.values()):
            told = self._told.get(segment.name)
            if told is None and (segment.name in self._deletions or is_transient_segment_name(segment.name)):
                self._delete(segment)
            elif told is None or told.number != segment.number:
                # It was evicted or removed, or this is the next segment of the name. Its record or runs will tell.
                self._evict(segment)
        for name, number in list(metadata.deleted_numbers.items()):
            told = self._told.get(name)
            if name not in self._deletions and (told is None or told.number != number):
                self._change(data_frames.DeletionStoredOperation(number))

    async def _reconcile_others(self) -> None:
        """Bring back the segments of the snapshot that the log does not have, and finish its removals."""
        metadata = self._metadata
        others = [
            told
            for name, told in self._told.items()
            if name not in metadata.segments and name not in metadata.deletions
        ]
        for batch in _batches(others):
            for reconciled in await asyncio.gather(*(reconciled_segment(each, self._directory) for each in batch)):
                if reconciled is not None:
                    self._activate(reconciled)
        for name in self._deletions:
            if name not in metadata.segments and name not in metadata.deletions:
                self._delete(self._activate(SegmentSnapshot(0, name, 0, 0, False, 0, {})))

    # What the chunk directory tells

    async def _reconcile_known(self) -> None:
        for batch in _batches(list(self._metadata.segments.values())):
            reconciled = await asyncio.gather(
                *(reconciled_segment(self._known(each), self._directory) for each in batch)
            )
            for segment, tiered in zip(batch, reconciled, strict=True):
                self._reconcile(segment, tiered)

    def _known(self, segment: Segment) -> SegmentSnapshot:
        """What tier 2 must have of a segment: the log and the snapshot say so."""
        known = replace(segment.snapshot(), length=segment.tiered.length)
        told = self._told.get(segment.name)
        if told is None:
            return known
        start = max(known.start_offset, told.start_offset)
        return replace(known, start_offset=start, length=max(known.length, told.length), merged=told.merged)

    def _reconcile(self, segment: Segment, tiered: SegmentSnapshot | None) -> None:
        accepted, told = segment.accepted, self._told.get(segment.name)
        if tiered is None:
            self._delete(segment)
            return
        sealed = accepted.sealed or (told is not None and told.sealed)
        if tiered.length > accepted.length:
            state = segment.snapshot()
            if told is not None and told.length >= accepted.length:
                state = replace(told, merged=(), may_lack_bytes=accepted.may_lack_bytes)
            self._evict(segment)
            self._activate(replace(state, start_offset=tiered.start_offset, length=tiered.length, sealed=sealed))
            return
        if tiered.length > segment.tiered.length:
            self._change(data_frames.StoredOperation([(segment.number, tiered.length)]))
            for _ in segment.index.drop_tiered():  # as a replay does, before the bytes are loaded
                pass
        if tiered.start_offset > accepted.start_offset:
            self._truncate(segment, tiered.start_offset)
        if sealed and not accepted.sealed:
            self._change(data_frames.SealOperation(segment.number, self._container.clock.now_ms()))

    # Changes

    def _delete(self, segment: Segment) -> None:
        _log.warning("event=segment_gone container=%d segment=%r", self._container.container, segment.name)
        self._container.dirty.pop(segment.number, None)
        self._change(data_frames.DeleteOperation(segment.number, self._container.clock.now_ms()))

    def _evict(self, segment: Segment) -> None:
        self._container.dirty.pop(segment.number, None)
        self._change(data_frames.EvictOperation(segment.number))

    def _activate(self, state: SegmentSnapshot) -> Segment:
        """Have a segment of which tier 2 has everything, under a number that no other one has had."""
        whole = replace(state, number=self._metadata.next_number, start_offset=0, merged=(), writers_gone=None)
        self._change(data_frames.ActivateOperation(memoryview(encode_segment(whole))))
        segment = self._metadata.segments[state.name]
        if state.start_offset:  # apart: there may be runs before it, and only a truncation removes them
            self._truncate(segment, state.start_offset)
        return segment

    def _truncate(self, segment: Segment, offset: int) -> None:
        now_ms = self._container.clock.now_ms()
        self._change(data_frames.TruncateOperation(segment.number, offset, now_ms))
        self._container.dirty[segment.number] = segment

    def _change(self, operation: Operation) -> None:
        self.changes += 1
        self._apply(operation)

    def _apply(self, operation: Operation) -> None:
        """Log and apply an operation, also if the log is full: only what is served after this makes room."""
        log = self._container.log
        entry = log.append(data_frames.encode_operation(operation), unwatched)
        self._metadata.apply(operation, entry, log.current_ordering)()


def _batches(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for first in range(0, len(items), RECONCILED_AT_ONCE_MAX):
        yield items[first : first + RECONCILED_AT_ONCE_MAX]
