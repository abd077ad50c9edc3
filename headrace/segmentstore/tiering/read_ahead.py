"""In which pieces runs are read from tier 2, and what a reader that reads on is going to need next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.model.chunks import ChunkRun
from headrace.segmentstore.tiering.range_cache import Range, RangeCache, Request

PIECE_BYTES: Final = 4 << 20
"""For readers of much of a run: few large requests, each of which serves several replies."""

SMALL_PIECE_BYTES: Final = 128 << 10
"""For readers that want little, and for all while many large requests are in flight."""

LARGE_READ_BYTES_MIN: Final = 256 << 10
PIECES_AHEAD: Final = 2


class ReadAhead:
    """The expected reads of one reader of one segment. Call `close` when the reader ends."""

    def __init__(self, cache: RangeCache) -> None:
        self._cache = cache
        self._expected: list[tuple[Range, Request]] = []
        self._next_offset = -1

    def reads_on(self, offset: int) -> bool:
        """Whether a read at `offset` goes on where the last one ended."""
        return offset == self._next_offset

    def answered(self, end: int, coming: Iterable[Range]) -> None:
        """The reader got bytes up to `end`; `coming` is what it needs next if it reads on."""
        self._next_offset = end
        expected = [(piece, request) for piece in coming if (request := self._cache.expect(piece)) is not None]
        self.close()
        self._expected = expected

    def close(self) -> None:
        """The reader is gone, or somewhere else."""
        expected, self._expected = self._expected, []
        for piece, request in expected:
            self._cache.release(piece, request)


def piece_at(run: ChunkRun, position: int, piece_bytes: int) -> Range:
    """The piece of a run that holds its segment's byte at `position`."""
    start = (position - run.offset) // piece_bytes * piece_bytes
    return Range(run.object_name, run.position + start, min(piece_bytes, run.length - start))


def pieces_behind(runs: Iterable[ChunkRun], position: int) -> list[Range]:
    """The next pieces behind the one that holds `position`, as far as these contiguous runs, in order, have them."""
    pieces: list[Range] = []
    for run in runs:
        while run.offset <= position < run.end and len(pieces) <= PIECES_AHEAD:
            piece = piece_at(run, position, PIECE_BYTES)
            pieces.append(piece)
            position = run.offset + piece.position - run.position + piece.length
    return pieces[1:]
