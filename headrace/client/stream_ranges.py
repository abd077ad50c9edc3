"""The segment ranges of one stream and their bytes, for threads without an event loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.api.chunks import Chunk
from headrace.client.segment_ranges import SegmentRange, ranges_to_read, segment_ranges, split_range
from headrace.client.segment_reads import SegmentReads
from headrace.client.synchronous_admin import Admin
from headrace.model.errors import InvalidRequestError
from headrace.model.stream_cuts import StreamCut


class StreamRanges:
    """One stream; a `range_bytes.SegmentSource`. Not for use by several threads at once; not picklable."""

    def __init__(self, admin: Admin, scope: str, stream: str, *, give_up_after_s: float = 60.0) -> None:
        """After `give_up_after_s` without progress, reads raise the last error."""
        self._admin = admin
        self._scope, self._stream = scope, stream
        self._reads = SegmentReads(admin, scope, stream, give_up_after_s=give_up_after_s)

    def list_ranges(
        self, start: StreamCut | None, end: StreamCut | None, bytes_max: int | None = None
    ) -> list[SegmentRange]:
        """See `Headrace.segment_ranges`."""
        if bytes_max is not None and bytes_max < 1:
            raise InvalidRequestError(f"bytes_max is positive, not {bytes_max}")
        for cut in (start, end):
            if cut is not None:
                cut.check_belongs_to(self._scope, self._stream)
        found = self._admin.segments_between(self._scope, self._stream, start, end)
        ranges = ranges_to_read(segment_ranges(found))
        if bytes_max is None:
            return ranges
        return [piece for part in ranges for piece in split_range(part, bytes_max, self.event_boundary)]

    def event_boundary(self, segment_id: int, target: int, stop: int) -> int:
        """An event boundary in `[target, stop]`, near the target if one is known there; `stop` is one itself."""
        if target >= stop:
            return stop
        return min(self._reads.locate_offset(segment_id, target), stop)

    def chunks(self, segment_id: int, start: int, stop: int, limit: int) -> Sequence[Chunk]:
        return self._admin.chunks(
            self._scope, self._stream, segment_id, from_offset=start, to_offset=stop, limit=limit
        ).chunks

    def read(self, segment_id: int, start: int, stop: int) -> Iterator[memoryview]:
        return self._reads.read(segment_id, start, stop)

    def close(self) -> None:
        """Closes the connections to the stores."""
        self._reads.close()
