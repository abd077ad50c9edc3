"""Mark streams, in which clients of Pravega find watermarks: `_MARK<stream>`, with one segment.

A mark stream exists as long as its stream and has no record of its own. The first watermark, or the first request for
its segment, creates the segment.
"""

from __future__ import annotations

from headrace.api.segments import EpochSegments, SegmentView
from headrace.metadata.mark_segments import make_mark_segment
from headrace.metadata.stream import no_such_stream
from headrace.metadata.stream_records import StreamRecords
from headrace.model.errors import NotFoundError
from headrace.model.key_ranges import KEY_SPACE
from headrace.model.names import mark_segment_name
from headrace.model.segments import StreamSegment, segment_id
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores

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
        found = self._records.find(scope, stream)
        if found is None or found.stream.is_deleting:
            raise no_such_stream(scope, stream)
        name = mark_segment_name(scope, stream)
        try:
            start = self._segment_stores.segment_info(name).start_offset
        except NotFoundError:
            start = 0
            if not make_mark_segment(self._records, self._segment_stores, found.stream):
                raise no_such_stream(scope, stream) from None
        return EpochSegments(0, (SegmentView.of(_SEGMENT, name, start),), sealed=False)
