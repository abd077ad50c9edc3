"""Objects of one container on their way to tier 2: several PUTs at once, entered in the order of their packing.

One PUT at a time would bind a container to what one connection to S3 carries. Runs of a segment enter the directory in
the order of their offsets, so an object waits for those that were packed before it. Later objects that are stored by
then enter in the same transaction, if they fit. When a PUT fails, the objects that were packed after it are discarded
with it, and their bytes are packed again. After a failure the window is one object, and grows by one with each object
that enters.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.futures import mark_retrieved
from headrace.model.chunks import ChunkRun, LogPlace
from headrace.ports.chunk_storage import ChunkStorage
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Block, Reservation, gather
from headrace.segmentstore.containers.pending_merges import PendingMerge, flush_place, none_waits
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tiering.chunk_directory import ENTERED_WRITES_MAX
from headrace.segmentstore.tiering.owner_writes import put_new
from headrace.segmentstore.tiering.stored_times import points_in_memory, with_times

# Packs runs of many segments into one object: chooses the appends, and the position of each run.

RUNS_PER_OBJECT_MAX: Final = 10_000
"""Entered by some hundred transactions, one after the other: the last of them must not be too far from the first."""


@dataclass(slots=True)
class PackedObject:
    """`parts` are its bytes, `blocks` what must stay as it is until they are stored.

    `runs` come with the segments under whose names they enter the directory.
    """

    parts: list[memoryview] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    runs: list[tuple[Segment, ChunkRun]] = field(default_factory=list)
    length: int = 0


def pack(
    segments: Iterable[Segment],
    object_name: str,
    bytes_max: int,
    packed_end: Callable[[Segment], int | None],
    epoch: int,
    waits: Callable[[PendingMerge], bool] = none_waits,
) -> PackedObject:
    """The durable bytes that the directory lacks, one run per segment, up to `bytes_max` and `RUNS_PER_OBJECT_MAX`.

    `packed_end` says where other objects that are under way end in the segment; None to leave the segment out. `epoch`
    is that of the container's owner. `waits` says which merges are left for a later object.

    Runs start and end at append boundaries, and never inside of a merge: see `flush_place`. An append that is larger
    than `bytes_max` gets an object of its own. The time blocks follow the data of all runs, and do not count against
    the limit.
    """
    packed = PackedObject()
    homes: list[Segment] = []
    for segment in segments:
        if len(packed.runs) == RUNS_PER_OBJECT_MAX:
            break
        if (begin := packed_end(segment)) is None:
            continue
        place, shift, end = flush_place(segment, bytes_max, waits)
        position, start = packed.length, begin if place is segment else place.tiered.length
        if place.merges:
            entries = _pieces_that_fit(segment, place, shift + start, shift, end, bytes_max - position)
        else:
            entries = list(segment.index.entries_from(shift + start, min(end, shift + start + bytes_max - position)))
        if not entries and not position:
            entries = next(_pieces(segment, place, shift + start, shift, end), [])
        if entries:
            packed.length += entries[-1].end - entries[0].offset
        parts, blocks = gather(entries)
        packed.parts += parts
        packed.blocks += blocks
        run_bytes = packed.length - position
        if run_bytes:
            logged = LogPlace(epoch, _newest_entry(place, start, entries))
            run = ChunkRun(start, run_bytes, object_name, position, table=place.table_mark, logged=logged)
            packed.runs.append((place, run))
            homes.append(segment)
        if packed.length >= bytes_max:
            break
    for index, (place, run) in enumerate(packed.runs):
        if place is not homes[index]:
            continue  # its times are those of the merge
        timed, block = with_times(run, points_in_memory(place, run), packed.length)
        packed.runs[index] = (place, timed)
        if block:
            packed.parts.append(memoryview(block))
            packed.length += len(block)
    return packed


def _newest_entry(place: Segment, start: int, entries: Sequence[Reservation]) -> int:
    """The newest log entry without which the run of these appends would not be there, from `start` of `place` on."""
    end = start + entries[-1].end - entries[0].offset
    merged = [merge.ledger_entry for merge in place.merges if start <= merge.offset < end]
    return max([entry.ledger_entry for entry in entries] + merged)


def _pieces_that_fit(
    segment: Segment, place: Segment, begin: int, shift: int, end: int, bytes_max: int
) -> list[Reservation]:
    fitting: list[Reservation] = []
    for piece in _pieces(segment, place, begin, shift, end):
        if piece[-1].end - begin > bytes_max:
            break
        fitting.extend(piece)
    return fitting


def _pieces(segment: Segment, place: Segment, begin: int, shift: int, end: int) -> Iterator[list[Reservation]]:
    """What must not be divided: an append, or all of them that came by one merge that enters directly."""
    merges = iter(place.merges)
    merge = next(merges, None)
    piece: list[Reservation] = []
    for entry in segment.index.entries_from(begin, end):
        while merge is not None and shift + merge.end <= entry.offset:
            merge = next(merges, None)
        piece.append(entry)
        if merge is None or entry.offset < shift + merge.offset or entry.end == shift + merge.end:
            yield piece
            piece = []


@dataclass(frozen=True, slots=True, eq=False)
class Upload:
    """An object whose PUT runs or is done. `packed_at_s` is from the monotonic clock."""

    object_name: str
    packed: PackedObject
    packed_at_s: float
    put: asyncio.Task[None]
    release: contextlib.ExitStack
    """Unpins the memory and releases the object's name."""

    @property
    def directory_writes(self) -> int:
        """The writes that enter it into the directory: one for each run, and one for the object's count."""
        return len(self.packed.runs) + 1


class ObjectUploads:
    """The storage writer of the container owns this. At most `in_flight_max` objects are on their way."""

    def __init__(self, chunk_storage: ChunkStorage, pool: BlockPool, in_flight_max: int) -> None:
        self._chunk_storage = chunk_storage
        self._pool = pool
        self._in_flight_max = in_flight_max
        self._window = in_flight_max
        self._uploads: deque[Upload] = deque()
        self._ends: dict[Segment, int] = {}

    def __len__(self) -> int:
        return len(self._uploads)

    @property
    def has_room(self) -> bool:
        return len(self._uploads) < self._window

    def packed_end(self, segment: Segment) -> int | None:
        """Where the bytes under way end; None if the next bytes of the segment must wait for those under way.

        How a merge enters the directory depends on what the directory has of its source. So a segment with merges
        is not packed while it or a source has bytes under way.
        """
        if not self._ends:
            return segment.tiered.length
        end = self._ends.get(segment)
        if not segment.merges:
            return segment.tiered.length if end is None else max(end, segment.tiered.length)
        is_busy = end is not None or any(source in self._ends for merge in segment.merges for source in merge.sources())
        return None if is_busy else segment.tiered.length

    def start(self, packed: PackedObject, object_name: str, release: contextlib.ExitStack, now_s: float) -> None:
        """Begin the PUT of an object."""
        self._pool.pin(packed.blocks)
        release.callback(self._pool.unpin, packed.blocks)
        put = asyncio.ensure_future(put_new(self._chunk_storage, object_name, packed.parts))
        self._uploads.append(Upload(object_name, packed, now_s, put, release))
        self._ends.update((place, run.end) for place, run in packed.runs)

    @property
    def merged_sources(self) -> set[str]:
        """The names of merged segments under which bytes may still enter the directory."""
        return {place.name for place in self._ends if place.merged_into is not None}

    async def stored(self) -> list[Upload]:
        """The oldest object when it is stored, and those behind it that are stored then and fit into its transaction.

        Raises:
            ThrottledError, UnavailableError: the oldest one is not stored; call `discard`.
        """
        await self._uploads[0].put
        stored: list[Upload] = []
        writes = 0
        for upload in self._uploads:
            writes += upload.directory_writes
            if stored and (not _is_stored(upload) or writes > ENTERED_WRITES_MAX):
                break
            stored.append(upload)
        return stored

    def entered(self, uploads: Sequence[Upload]) -> None:
        """Forget the oldest objects, whose runs are in the directory or not wanted any more.

        If the directory had a run of another length, what was packed behind it does not fit, and all is packed again.
        """
        ends: dict[Segment, int] = {}
        for upload in uploads:
            self._uploads.remove(upload)
            upload.release.close()
            ends.update((place, run.end) for place, run in upload.packed.runs)
        for place, end in ends.items():
            if self._ends.get(place) == end:
                del self._ends[place]
        if any(place.tiered.length != end for place, end in ends.items() if not place.home[0].accepted.removed):
            self.discard()
        else:
            self._window = min(self._window + len(uploads), self._in_flight_max)

    def discard(self) -> None:
        """Discard all objects: nothing of them enters the directory, and the collector deletes what was stored."""
        for upload in self._uploads:
            upload.put.cancel()
            upload.put.add_done_callback(mark_retrieved)
            upload.release.close()
        self._uploads.clear()
        self._ends.clear()
        self._window = 1


def _is_stored(upload: Upload) -> bool:
    put = upload.put
    return put.done() and not put.cancelled() and put.exception() is None
