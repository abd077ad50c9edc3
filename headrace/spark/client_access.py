"""A stream as the connector sees it, through the Python client.

Synchronous: Spark calls readers from plain threads. Requests that fail with something that can pass are repeated for
`patience_s` seconds inside, because an error that reaches Spark ends a query or fails a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from headrace.client.admin import AsyncAdmin
from headrace.client.http_api import HttpApi
from headrace.codec.stream_cut_text import parse_stream_cut_text, stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.model.stream_cuts import StreamCut
from headrace.spark.options import ReadOptions
from headrace.spark.planner import Positions, SegmentRange
from headrace.spark.stream_access import At, LinkedChunk, RangesBetween

OVERSHOOT_BYTES_MAX = 8 * 1024 * 1024
"""A store without an index answers the end of the segment; beyond this, chunk boundaries are asked for, too."""

Answer = TypeVar("Answer")


class ClientStreamAccess:
    """See `StreamAccess`. Not for use by several threads at once; not picklable."""

    def __init__(self, options: ReadOptions) -> None:
        self._scope, self._stream = options.scope, options.stream
        self._api = HttpApi(options.controller, retry_s=options.patience_s)
        self._admin = AsyncAdmin(self._api)
        self._loop = asyncio.Runner()

    def cut(self, at: At) -> Positions:
        return self._run(self._admin.stream_cut(self._scope, self._stream, at=at)).offsets

    def ranges_between(self, start: Positions | None, end: Positions | None) -> RangesBetween:
        found = self._run(self._admin.segments_between(self._scope, self._stream, start, end))
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
        page = self._run(
            self._admin.chunks(self._scope, self._stream, segment_id, from_offset=start, to_offset=stop, limit=limit)
        )
        return [LinkedChunk(chunk.offset, chunk.length, chunk.url, chunk.headers) for chunk in page.chunks]

    def read(self, segment_id: int, start: int, stop: int) -> Iterator[bytes]:
        raise NotImplementedError

    def event_boundary(self, segment_id: int, target: int, stop: int) -> int:
        return self._chunk_boundary(segment_id, target, stop)

    def _chunk_boundary(self, segment_id: int, target: int, stop: int) -> int:
        """The end of the run of bytes in tier 2 that holds `target`; `stop` if it is not in tier 2."""
        if target >= stop:
            return stop
        chunks = self.chunks(segment_id, target, stop, 1)
        return chunks[0].offset + chunks[0].length if chunks else stop

    def cut_of_text(self, text: str) -> Positions:
        cut = parse_stream_cut_text(text)
        if (cut.scope, cut.stream) != (self._scope, self._stream):
            raise InvalidRequestError(
                f"the stream cut is one of {cut.scope}/{cut.stream}, not of {self._scope}/{self._stream}",
                code="invalid_stream_cut",
            )
        return cut.offsets

    def text_of_cut(self, positions: Positions) -> str:
        return stream_cut_text(StreamCut.of(self._scope, self._stream, positions))

    def close(self) -> None:
        self._run(self._api.close())
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        return self._loop.run(coroutine)


def open_stream(options: ReadOptions) -> ClientStreamAccess:
    """Access to the stream that the options name; close it when done."""
    return ClientStreamAccess(options)
