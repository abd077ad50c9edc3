"""A stream as the connector sees it, through the Python client.

Synchronous: Spark calls readers from plain threads. Requests that fail with something that can pass are repeated for
`patience_s` seconds inside, because an error that reaches Spark ends a query or fails a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.client.headrace import Headrace
from headrace.client.segment_reads import SegmentReads
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.stream_cuts import StreamCut
from headrace.spark.options import ReadOptions, check_cut_text
from headrace.spark.planner import Positions, SegmentRange
from headrace.spark.stream_access import At, LinkedChunk, RangesBetween, Window

OVERSHOOT_BYTES_MAX = 1024 * 1024
"""A store without an index answers the end of the segment. Beyond this, the ends of chunks are asked for, too."""


class ClientStreamAccess:
    """See `StreamAccess`. Not for use by several threads at once; not picklable."""

    def __init__(self, options: ReadOptions) -> None:
        self._scope, self._stream = options.scope, options.stream
        self._client = Headrace(options.controller, auth=options.auth, retry_s=options.patience_s)
        self._admin = self._client.admin
        self._reads = SegmentReads(self._admin, self._scope, self._stream, give_up_after_s=options.patience_s)

    def cut(self, at: At) -> Positions:
        return self._admin.stream_cut(self._scope, self._stream, at=at).offsets

    def ranges_between(self, start: Positions | None, end: Positions | None) -> RangesBetween:
        found = self._admin.segments_between(self._scope, self._stream, start, end)
        ranges = [
            SegmentRange(
                part.segment.segment_id,
                part.segment.key_range.low,
                part.segment.key_range.high,
                part.start_offset,
                part.end_offset,
                part.predecessors,
                part.successors,
            )
            for part in found.ranges
        ]
        return RangesBetween(ranges, found.start.offsets, found.end.offsets)

    def chunks(self, segment_id: int, start: int, stop: int, limit: int) -> Sequence[LinkedChunk]:
        page = self._admin.chunks(self._scope, self._stream, segment_id, from_offset=start, to_offset=stop, limit=limit)
        return [LinkedChunk(chunk.offset, chunk.length, chunk.url, chunk.headers) for chunk in page.chunks]

    def read(self, segment_id: int, start: int, stop: int) -> Iterator[Window]:
        return self._reads.read(segment_id, start, stop)

    def event_boundary(self, segment_id: int, target: int, stop: int) -> int:
        if target >= stop:
            return stop
        boundary = min(self._reads.locate_offset(segment_id, target), stop)
        if boundary - target > OVERSHOOT_BYTES_MAX:
            chunks = self.chunks(segment_id, target, boundary, 1)
            if chunks:
                boundary = chunks[0].offset + chunks[0].length  # Runs in tier 2 end where an append ended.
        return boundary

    def cut_of_text(self, text: str) -> Positions:
        return check_cut_text(text, self._scope, self._stream)

    def text_of_cut(self, positions: Positions) -> str:
        return stream_cut_text(StreamCut.of(self._scope, self._stream, positions))

    def close(self) -> None:
        self._reads.close()
        self._client.close()


def open_stream(options: ReadOptions) -> ClientStreamAccess:
    """Access to the stream that the options name; close it when done."""
    return ClientStreamAccess(options)
