"""`WatermarksAdmin` for programs without an event loop; thread-safe.

Generated from `administration.watermarks_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.segments import SegmentEndpoint
from headrace.api.watermarks import NewestWatermark
from headrace.client.administration.watermarks_admin import AsyncWatermarksAdmin
from headrace.client.loop_thread import LoopCaller


class WatermarksAdmin:
    """Records the times of writers, and returns the newest watermark."""

    def __init__(self, thread: LoopCaller, core: AsyncWatermarksAdmin) -> None:
        self._thread = thread
        self._core = core

    def note_position(self, scope: str, stream: str, writer: str, time: int, offsets: Mapping[int, int]) -> None:
        """Records that a writer had written all its events before `time` when it reached these offsets.

        `offsets` are in bytes, by segment id.

        Raises:
            InvalidRequestError: code "invalid_time" or "invalid_position": the writer has already recorded a later one,
                or the stream never had such a segment; code "too_many_writers".
            NotFoundError: there is no such stream.
        """
        self._thread.run(self._core.note_position(scope, stream, writer, time, offsets))

    def remove_writer(self, scope: str, stream: str, writer: str) -> None:
        """Removes a writer, so that watermarks do not wait for it.

        Raises NotFoundError if there is no such stream; with code "writer_not_found" if the writer has no record.
        """
        self._thread.run(self._core.remove_writer(scope, stream, writer))

    def newest(self, scope: str, stream: str) -> NewestWatermark:
        """Returns the newest watermark. Raises NotFoundError if there is no such stream."""
        return self._thread.run(self._core.newest(scope, stream))

    def mark_segment_endpoint(self, scope: str, stream: str) -> SegmentEndpoint:
        """Returns the address of the store of the stream's mark segment."""
        return self._thread.run(self._core.mark_segment_endpoint(scope, stream))
