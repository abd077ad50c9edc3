"""Watermarks: writers note their times and positions, and readers get the newest watermark.

A tick computes the watermarks from the marks of the writers.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.segments import EpochSegments, StartedSegment
from headrace.api.watermarks import NewestWatermark, WatermarkView
from headrace.metadata.stream import current_key, no_such_stream
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.watermark_records import (
    WriterMarkRecords,
    make_mark_segment,
    read_watermark_state,
    watermark_key,
)
from headrace.model.errors import NotFoundError
from headrace.model.names import mark_segment_name
from headrace.model.segments import KEY_SPACE, StreamSegment, segment_id
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores

# Mark streams, in which clients of Pravega find watermarks: `_MARK<stream>`, with one segment.
#
# A mark stream exists as long as its stream and has no record of its own. The first watermark, or the first request
# for its segment, creates the segment.

_SEGMENT = StreamSegment(segment_id(0, 0), KEY_SPACE)


class MarkStreamService:
    """Called by the bridge for mark streams; safe for any number of threads."""

    def __init__(self, store: MetadataStore, segment_stores: SegmentStores) -> None:
        self._records = StreamRecords(store)
        self._segment_stores = segment_stores

    def segments(self, scope: str, stream: str) -> EpochSegments:
        """The only segment of the mark stream of `stream`, with its start offset.

        Costs one read and one request to the segment's store. Raises NotFoundError if there is no such stream.
        """
        stored = self._records.find(scope, stream)
        if stored is None or stored.stream.is_deleting:
            raise no_such_stream(scope, stream)
        name = mark_segment_name(scope, stream)
        try:
            start = self._segment_stores.segment_info(name).start_offset
        except NotFoundError:
            start = 0
            if not make_mark_segment(self._records, self._segment_stores, stored.stream):
                raise no_such_stream(scope, stream) from None
        return EpochSegments(0, (StartedSegment.at(_SEGMENT, name, start),), sealed=False)


class WatermarkService:
    """What the API's watermark routes call; safe for any number of threads."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._streams = StreamRecords(store)
        self._marks = WriterMarkRecords(store, self._streams)

    def note_position(self, scope: str, stream: str, writer: str, time: int, offsets: Mapping[int, int]) -> None:
        """A writer has written everything before `time` in front of these offsets (bytes, by segment id).

        Raises as `WriterMarkRecords.note`.
        """
        self._marks.note(scope, stream, writer, time, offsets)

    def remove_writer(self, scope: str, stream: str, writer: str) -> None:
        """The writer is shut down: watermarks do not wait for it. Fine if it was before.

        Raises:
            NotFoundError: there is no such stream; or, with code "writer_not_found", the writer never noted its time,
                or was forgotten since.
        """
        self._marks.shut_down(scope, stream, writer)

    def newest_watermark(self, scope: str, stream: str) -> NewestWatermark:
        """The newest watermark; one read. Raises NotFoundError if there is no such stream."""
        current, record = self._store.get_many([current_key(scope, stream), watermark_key(scope, stream)])
        stored = self._streams.stored(current)
        if stored is None:
            raise no_such_stream(scope, stream)
        state = read_watermark_state(record, stored.stream).state
        newest = None if state.last is None else WatermarkView.of(state.last)
        return NewestWatermark(newest, mark_segment_name(scope, stream), state.last_offset)
