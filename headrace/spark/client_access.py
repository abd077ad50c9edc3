"""A stream as the connector sees it, through the Python client.

Synchronous: Spark calls readers from plain threads. Requests that fail with something that can pass are repeated for
`patience_s` seconds inside, because an error that reaches Spark ends a query or fails a task.
"""

from __future__ import annotations

from headrace.client.headrace import Headrace
from headrace.client.segment_ranges import segment_ranges
from headrace.client.stream_ranges import StreamRanges
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.stream_cuts import StreamCut
from headrace.spark.options import ReadOptions, check_cut_text
from headrace.spark.planner import Positions
from headrace.spark.stream_access import At, RangesBetween


class ClientStreamAccess(StreamRanges):
    """See `StreamAccess`. Not for use by several threads at once; not picklable."""

    def __init__(self, options: ReadOptions) -> None:
        self._client = Headrace(options.controller, auth=options.auth, retry_s=options.patience_s)
        super().__init__(self._client.admin, options.scope, options.stream, give_up_after_s=options.patience_s)

    def cut(self, at: At) -> Positions:
        return self._admin.stream_cut(self._scope, self._stream, at=at).offsets

    def ranges_between(self, start: Positions | None, end: Positions | None) -> RangesBetween:
        found = self._admin.segments_between(self._scope, self._stream, start, end)
        return RangesBetween(segment_ranges(found), found.start.offsets, found.end.offsets)

    def cut_of_text(self, text: str) -> Positions:
        return check_cut_text(text, self._scope, self._stream)

    def text_of_cut(self, positions: Positions) -> str:
        return stream_cut_text(StreamCut.of(self._scope, self._stream, positions))

    def close(self) -> None:
        super().close()
        self._client.close()


def open_stream(options: ReadOptions) -> ClientStreamAccess:
    """Access to the stream that the options name; close it when done."""
    return ClientStreamAccess(options)
