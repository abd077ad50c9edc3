"""Chooses the runs of a segment to merge into one, and remembers which segments may have such runs.

A segment that gets a few kilobytes with every flush would end as thousands of tiny runs. Each is a record of the
directory, and a request for a reader of history. Many runs of about the same size are merged at a time. A byte is
therefore rewritten only a few times until it is in a chunk that is large enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.model.chunks import ChunkRun
from headrace.segmentstore.tiering.chunk_directory import REPLACED_WRITES_MAX, fitting

COMPACTED_CHUNK_BYTES_MIN: Final = 16 << 20
"""Runs of this size stay as they are; smaller ones are merged up to it."""

HINTED_SEGMENTS_MAX: Final = 10_000

_BITS_PER_SIZE_CLASS: Final = 4


class SmallRuns:
    """Remembers of each active segment what was flushed in small runs since its directory was last looked at.

    It forgets at a restart, and the segments that were quiet for longest when there are too many. That costs nothing
    but time: a look at the directory finds older runs too.
    """

    def __init__(self, runs_min: int) -> None:
        self._runs_min = runs_min
        self._since: dict[str, tuple[int, int]] = {}
        self._due: dict[str, None] = {}

    def note(self, segment_name: str, length: int) -> None:
        """The directory has got a run of `length` bytes of this segment."""
        if length >= COMPACTED_CHUNK_BYTES_MIN:
            return
        count, run_bytes = self._since.pop(segment_name, (0, 0))
        count, run_bytes = count + 1, run_bytes + length
        if count >= self._runs_min or run_bytes >= COMPACTED_CHUNK_BYTES_MIN:
            self._due[segment_name] = None
            return
        self._since[segment_name] = (count, run_bytes)
        if len(self._since) > HINTED_SEGMENTS_MAX:
            del self._since[next(iter(self._since))]

    def choose(self, runs: Sequence[ChunkRun]) -> Sequence[ChunkRun]:
        """See `runs_to_merge`."""
        return runs_to_merge(runs, self._runs_min)

    def look_again(self, segment_name: str) -> None:
        self._due[segment_name] = None

    def take(self) -> str | None:
        """A segment whose directory is worth a look; the longest waiting first."""
        name = next(iter(self._due), None)
        if name is not None:
            del self._due[name]
        return name

    def __len__(self) -> int:
        return len(self._due)


def runs_to_merge(runs: Sequence[ChunkRun], runs_min: int) -> Sequence[ChunkRun]:
    """Of the last runs of a segment, in order, those that should become one; none if nothing is worth it.

    They are contiguous, small, and can be replaced in one transaction. `runs_min` of about the same size, or smaller,
    are merged even if they do not make a whole chunk.
    """
    small = _small_tail(runs)
    for size_class in sorted({_size_class(run) for run in small}):
        first = len(small)
        while first and _size_class(small[first - 1]) <= size_class:
            first -= 1
        group = small[first:]
        if len(group) >= runs_min or _sum(group) >= COMPACTED_CHUNK_BYTES_MIN:
            chosen = group[: fitting(group, REPLACED_WRITES_MAX)]
            while _sum(chosen[:-1]) >= COMPACTED_CHUNK_BYTES_MIN:
                chosen = chosen[:-1]
            return chosen if len(chosen) > 1 else ()
    return ()


def _small_tail(runs: Sequence[ChunkRun]) -> Sequence[ChunkRun]:
    """The contiguous small runs at the end."""
    first = len(runs)
    while first and runs[first - 1].length < COMPACTED_CHUNK_BYTES_MIN:
        if first < len(runs) and runs[first - 1].end != runs[first].offset:
            break
        first -= 1
    return runs[first:]


def _size_class(run: ChunkRun) -> int:
    """Runs of a class differ in size by a factor of 16 at most."""
    return run.length.bit_length() // _BITS_PER_SIZE_CLASS


def _sum(runs: Sequence[ChunkRun]) -> int:
    return sum(run.length for run in runs)
