"""Reads bytes of segments from tier 2, through the chunk directory and the read cache.

Runs that were looked up are remembered, within a limit. A remembered run that was compacted can still be read for a
while. When its object is deleted, the reader looks the run up again.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_right
from collections import OrderedDict
from typing import Final, NamedTuple

from headrace.model.chunks import ChunkRun
from headrace.model.errors import CorruptError, NotFoundError
from headrace.model.time_points import UNKNOWN_ORDERING
from headrace.ports.chunk_storage import ChunkStorage
from headrace.segmentstore.containers.pending_merges import places_of
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.range_cache import (
    LARGE_READ_BYTES_MIN,
    PIECE_BYTES,
    SMALL_PIECE_BYTES,
    RangeCache,
    ReadAhead,
    piece_at,
    pieces_behind,
)
from headrace.segmentstore.tiering.stored_times import StoredTimes

# The token of a read from tier 2: where the read stopped, and where the run with the next bytes starts.
#
# A client returns the token with its next read, to this store or a later owner. It saves that store one of two look-ups
# in the chunk directory. The token is only a hint: the store checks the run in the directory, and ignores a wrong
# token.

_FIELDS: Final = struct.Struct(">BQQ")
_VERSION: Final = 1


def encode_read_token(offset: int, run_offset: int) -> bytes:
    """The token of a read that stopped at `offset`, inside or at the start of the run that starts at `run_offset`."""
    return _FIELDS.pack(_VERSION, offset, run_offset)


def run_hint(token: bytes, offset: int) -> int | None:
    """The possible start of the run with the byte at `offset`; None if the token is invalid or of another offset."""
    if len(token) != _FIELDS.size:
        return None
    version, stopped_at, run_offset = _FIELDS.unpack(token)
    return run_offset if version == _VERSION and stopped_at == offset and run_offset <= offset else None


_log = logging.getLogger(__name__)

REMEMBERED_WINDOWS_MAX: Final = 256


class StoredBytes(NamedTuple):
    """Bytes of a segment from tier 2, the place in time of their run, and the token for the read that goes on."""

    data: memoryview
    ordering: int
    token: bytes


class StorageReader:
    """The reads of one container."""

    def __init__(self, directory: ChunkDirectory, chunk_storage: ChunkStorage, cache: RangeCache) -> None:
        self._directory = directory
        self._cache = cache
        self._times = StoredTimes(directory, chunk_storage)
        self._windows: OrderedDict[int, list[ChunkRun]] = OrderedDict()
        """By the number of the segment: after its removal another one may get its name."""

    def read_ahead(self) -> ReadAhead:
        """For a reader of one segment that may read on; to be closed."""
        return ReadAhead(self._cache)

    async def read(
        self, segment: Segment, offset: int, length: int, token: bytes = b"", ahead: ReadAhead | None = None
    ) -> StoredBytes:
        """At least one and at most `length` bytes of the segment from `offset` on, as far as one run has them.

        `token` is that of the read that stopped at `offset`, if there was one. A reader that goes on where it was gets
        what comes next before it asks, by way of its `ahead`.

        Raises:
            NotFoundError: the segment was removed or truncated meanwhile.
            CorruptError: the directory lacks a run that was written to it, or the object lacks its bytes.
            ThrottledError, UnavailableError: tier 2 does not answer.
        """
        if segment.accepted.removed:
            raise NotFoundError(f"segment {segment.name} was removed meanwhile")
        large = length >= LARGE_READ_BYTES_MIN or (ahead is not None and ahead.reads_on(offset))
        for place, position, most in places_of(segment, offset, length):
            hint = run_hint(token, position) if place is segment else None
            run = await self._find(place, position, hint)
            if run is not None:
                try:
                    data = await self._read_run(run, position, most, large=large)
                except NotFoundError as error:
                    run = await self._find_replacement(segment, offset, run, place, position, error)
                    data = await self._read_run(run, position, most, large=large)
                if not _is_place_of(segment, place):
                    # Another segment may have had the name when the directory was asked.
                    self._windows.pop(place.number, None)
                    return await self.read(segment, offset, length, token, ahead)
                end = position + len(data)
                if ahead is not None:
                    behind = self._windows.get(place.number, []) if ahead.reads_on(offset) else []
                    ahead.answered(offset + len(data), pieces_behind(behind, position))
                next_token = encode_read_token(end, run.offset if end < run.end else end)
                # Memory may know it better; of bytes that the directory still has under a source's name only memory
                # knows when they were merged.
                ordering = segment.times.ordering_at(offset) or (run.times.first if run.times else UNKNOWN_ORDERING)
                return StoredBytes(data, ordering, next_token)
        if segment.accepted.removed or offset < segment.accepted.start_offset:
            raise NotFoundError(f"{offset} of segment {segment.name} was removed meanwhile")
        raise CorruptError(
            f"the chunk directory has no run of {segment.name} at {offset}, though it is stored up to "
            f"{segment.tiered.length}",
            details={"segment": segment.name, "offset": offset},
        )

    async def _read_run(self, run: ChunkRun, position: int, most: int, *, large: bool) -> memoryview:
        """At most `most` bytes from `position` on, as far as one piece of the run has them."""
        piece = piece_at(run, position, PIECE_BYTES)
        data = self._cache.get(piece)
        if data is None:
            if not large or not self._cache.takes_large(piece):
                piece = piece_at(run, position, SMALL_PIECE_BYTES)
            data = await self._cache.read(piece)
        inside = run.position + position - run.offset - piece.position
        return memoryview(data)[inside : inside + most]

    async def _find_replacement(
        self, segment: Segment, offset: int, run: ChunkRun, place: Segment, position: int, error: NotFoundError
    ) -> ChunkRun:
        """What is in the place of a run whose object is gone or too short."""
        self._windows.pop(place.number, None)
        replacement = await self._find(place, position)
        if segment.accepted.removed or offset < segment.accepted.start_offset:
            raise error
        if replacement is None or replacement.object_name == run.object_name:
            _log.critical(
                "event=foreign_change container=%d object=%s segment=%r offset=%d error=%r",
                self._directory.container,
                run.object_name,
                segment.name,
                offset,
                error.message,
            )
            # Not "not found": the client would look the segment up again, find it, and retry for ever.
            raise CorruptError(
                f"object {run.object_name} lacks bytes of {segment.name} that the chunk directory places in it",
                details={"segment": segment.name, "offset": offset},
            ) from error
        return replacement

    async def append_boundary(self, segment: Segment, offset: int) -> int:
        """The nearest known start of an append at or behind `offset`, else the segment's length.

        A large event is one append, although it came in pieces.
        """
        known = segment.boundary_in_memory(offset)
        is_known = offset >= segment.tiered.length or (len(segment.times) and segment.times.begin <= offset)
        if known != offset and not is_known:
            stored = await self._times.boundary_from(segment, offset)
            known = segment.boundary_in_memory(offset)
            if stored is not None:
                return stored if known is None else min(known, stored)
        return segment.accepted.length if known is None else known

    async def offset_from(self, segment: Segment, ordering: int) -> int:
        """The first append that came at the time `ordering` or later, as `StoredTimes.offset_from`, raising as it."""
        return await self._times.offset_from(segment, ordering)

    async def ordering_at(self, segment: Segment, offset: int) -> int:
        """The number of the append at `offset`, as `StoredTimes.ordering_at`, raising as it."""
        return await self._times.ordering_at(segment, offset)

    async def _find(self, place: Segment, position: int, hint: int | None = None) -> ChunkRun | None:
        key, name = place.number, place.name
        run = _covering(self._windows.get(key, []), position)
        if run is None and hint is not None:
            window = await self._directory.page(name, first=hint)
            run = _covering(window, position)
            if run is not None:
                self._windows[key] = window
        while run is None:
            first = await self._directory.run_before(name, position)
            if first is None or first.end <= position:
                return None
            window = await self._directory.page(name, first=first.offset)
            run = _covering(window, position)  # None: a larger run, which begins before it, has taken its place
            self._windows[key] = window
        self._windows.move_to_end(key)
        while len(self._windows) > REMEMBERED_WINDOWS_MAX:
            self._windows.popitem(last=False)
        return run


def _covering(runs: list[ChunkRun], position: int) -> ChunkRun | None:
    index = bisect_right(runs, position, key=lambda run: run.offset) - 1
    return runs[index] if index >= 0 and position < runs[index].end else None


def _is_place_of(segment: Segment, place: Segment) -> bool:
    """Whether tier 2 may still have bytes of the segment under the name of `place`."""
    if place is segment:
        return not segment.accepted.removed
    return any(place is source for merge in segment.merges for source in merge.sources())
