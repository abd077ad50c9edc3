"""`WatermarksAdmin` for programs without an event loop; thread-safe.

Generated from `watermarks_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.segments import SegmentEndpoint
from headrace.api.watermarks import NewestWatermark
from headrace.client.loop_thread import LoopThread
from headrace.client.watermarks_admin import AsyncWatermarksAdmin


class WatermarksAdmin:
    """Notes of writers, and the newest watermark."""

    def __init__(self, thread: LoopThread, core: AsyncWatermarksAdmin) -> None:
        self._thread = thread
        self._core = core

    def note_position(self, scope: str, stream: str, writer: str, time: int, offsets: Mapping[int, int]) -> None:
        """A writer has written everything before `time` in front of these offsets (bytes, by segment id).

        Raises:
            InvalidRequestError: code "invalid_time" or "invalid_position": the writer has been further before, or the
                stream never had such a segment; code "too_many_writers".
            NotFoundError: there is no such stream.
        """
        self._thread.run(self._core.note_position(scope, stream, writer, time, offsets))

    def remove_writer(self, scope: str, stream: str, writer: str) -> None:
        """Watermarks wait no longer for this writer.

        Raises NotFoundError if there is no such stream; with code "writer_not_found", if the writer has noted nothing.
        """
        self._thread.run(self._core.remove_writer(scope, stream, writer))

    def newest(self, scope: str, stream: str) -> NewestWatermark:
        """Raises NotFoundError if there is no such stream."""
        return self._thread.run(self._core.newest(scope, stream))

    def mark_segment_endpoint(self, scope: str, stream: str) -> SegmentEndpoint:
        """Where the store of the stream's mark segment listens."""
        return self._thread.run(self._core.mark_segment_endpoint(scope, stream))
