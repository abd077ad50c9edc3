"""Making the mark segment of a stream when it is first needed: for a watermark, or for a client that looks for one."""

from __future__ import annotations

from headrace.metadata.stream_records import StreamRecords
from headrace.model.names import mark_segment_name
from headrace.ports.segment_stores import SegmentScaleRate, SegmentStores


def make_mark_segment(records: StreamRecords, segment_stores: SegmentStores, scope: str, stream: str) -> bool:
    """Whether the stream is still there; if not, neither is its mark segment.

    The stream is looked at after the segment was made: a deletion that has begun before may have passed it.
    """
    name = mark_segment_name(scope, stream)
    segment_stores.create_segment(name, SegmentScaleRate())
    found = records.find(scope, stream)
    if found is not None and not found.stream.is_deleting:
        return True
    segment_stores.delete_segment(name)
    return False
