"""Packs runs of many segments into one object: which appends go in, and where each run lies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from headrace.model.chunks import ChunkRun
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.reading.reservations import Block, Reservation, gather
from headrace.segmentstore.storage.run_times import points_in_memory, with_times

RUNS_PER_OBJECT_MAX: Final = 10_000
"""Entered by some hundred transactions, one after the other: the last of them must not be too far from the first."""


@dataclass(slots=True)
class PackedObject:
    """`parts` are its bytes, `blocks` what must stay as it is until they are stored."""

    parts: list[memoryview] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    runs: list[tuple[Segment, ChunkRun]] = field(default_factory=list)
    length: int = 0


def pack(segments: Iterable[Segment], object_name: str, bytes_max: int) -> PackedObject:
    """The durable bytes that the directory lacks, one run per segment, up to `bytes_max` and `RUNS_PER_OBJECT_MAX`.

    Runs start and end at append boundaries. An append that is larger than `bytes_max` gets an object of its own. The
    time blocks of the runs lie behind the data of all of them, and count for no limit.
    """
    packed = PackedObject()
    for segment in segments:
        if len(packed.runs) == RUNS_PER_OBJECT_MAX:
            break
        position, start = packed.length, segment.storage_length
        entries: list[Reservation] = []
        for entry in segment.index.entries_from(start, _flush_end(segment)):
            if packed.length and packed.length + entry.length > bytes_max:
                break
            entries.append(entry)
            packed.length += entry.length
        parts, blocks = gather(entries)
        packed.parts += parts
        packed.blocks += blocks
        run_bytes = packed.length - position
        if run_bytes:
            packed.runs.append((segment, ChunkRun(start, run_bytes, object_name, position)))
        if packed.length >= bytes_max:
            break
    for index, (segment, run) in enumerate(packed.runs):
        timed, block = with_times(run, points_in_memory(segment, run), packed.length)
        packed.runs[index] = (segment, timed)
        if block:
            packed.parts.append(memoryview(block))
            packed.length += len(block)
    return packed


def _flush_end(segment: Segment) -> int:
    """Bytes that came by a merge and are in tier 2 already are moved in the directory, not written again."""
    if segment.moves:
        return min(segment.moves[0].offset, segment.readable_length)
    return segment.readable_length
