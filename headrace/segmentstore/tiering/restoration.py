"""Restores a container whose log is lost, from its snapshot in tier 2 and the chunk directory.

After a graceful shutdown the snapshot is exact. Otherwise the directory may be newer: runs were added, removed or moved
since. Data that was never in tier 2 is lost with the log. The event numbers in a snapshot never exceed its lengths.
A writer that resumes therefore sends its unacknowledged events again, and some may be stored twice. The records of
evicted segments are compared with the directory in the same way, each when its segment is needed.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from headrace.codec.container_snapshots import ContainerSnapshot, MergedRange, SegmentSnapshot, encode_snapshot
from headrace.model.chunks import RunLink
from headrace.model.containers import SnapshotPointer
from headrace.model.errors import CorruptError
from headrace.model.names import is_transaction_segment_name
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.merge_moves import complete_link, move_merged
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
    # Epochs are consecutive, so no other store has owned the container since that last snapshot.
    exact = pointer is not None and pointer.clean and pointer.epoch == directory.epoch - 1
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
        found = await asyncio.gather(*(reconciled_segment(segment, directory) for segment in batch))
        kept.extend(segment for segment in found if segment is not None)
        deletions.update((each.name, each.number) for each, left in zip(batch, found, strict=True) if left is None)
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
    return replace(segment, start_offset=start, length=length, merged=(), may_lack_bytes=lacks)


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
