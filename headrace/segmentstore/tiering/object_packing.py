"""Packs runs of many segments into one object: chooses the appends, and the position of each run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.model.chunks import ChunkRun, LogPlace
from headrace.segmentstore.cache.reservations import Block, Reservation, gather
from headrace.segmentstore.containers.pending_merges import flush_place
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tiering.stored_times import points_in_memory, with_times

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
) -> PackedObject:
    """The durable bytes that the directory lacks, one run per segment, up to `bytes_max` and `RUNS_PER_OBJECT_MAX`.

    `packed_end` says where other objects that are under way end in the segment; None to leave the segment out. `epoch`
    is that of the container's owner.

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
        place, shift, end = flush_place(segment, bytes_max)
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
