"""The mark segment of a stream: making it when it is first needed, and deleting it with its stream.

Its name is the same for every incarnation of a stream, so that an attribute says which incarnation it belongs to. It
only grows. A deletion, a truncation or a revision mark that is late leaves the segment of a later incarnation alone:
the store compares and acts in one step.
"""

from __future__ import annotations

from headrace.metadata.stream_records import StreamRecords
from headrace.model.errors import NotFoundError, UnavailableError
from headrace.model.names import mark_segment_name
from headrace.model.streams import Stream
from headrace.ports.segment_stores import AttributeBound, SegmentScaleRate, SegmentStores

INCARNATION = 0x3C1D6A0F58E24B7A9D02C46B7E91F385
"""The attribute with the first segment number of the incarnation that the mark segment belongs to."""

_ATTEMPTS_MAX = 5
"""Each is spoiled by another call that was late: by a deletion, or by a claim for a former incarnation."""


def make_mark_segment(records: StreamRecords, segment_stores: SegmentStores, stream: Stream) -> bool:
    """Whether this incarnation of the stream is still there, and the mark segment its own; two requests and a read.

    The stream is looked at after the segment was made: a deletion that has begun before may have passed it.

    Raises:
        UnavailableError: others keep spoiling it; repeat.
    """
    name = mark_segment_name(stream.scope, stream.name)
    for _ in range(_ATTEMPTS_MAX):
        segment_stores.create_segment(name, SegmentScaleRate())
        found = records.find(stream.scope, stream.name)
        is_over = found is None or found.stream.first_segment_number != stream.first_segment_number
        if is_over or (found is not None and found.stream.is_deleting):
            delete_mark_segment(segment_stores, stream)
            return False
        try:
            own = stream.first_segment_number
            if segment_stores.compare_and_set_attribute(name, INCARNATION, own, None):
                return True
            owner = segment_stores.get_attribute(name, INCARNATION)
            if owner is not None and owner > own:
                return False
            if segment_stores.compare_and_set_attribute(name, INCARNATION, own, owner):
                return True
        except NotFoundError:
            continue  # a late deletion has found the segment before it was claimed
    raise UnavailableError(f"the mark segment of {stream.scoped_name} cannot be made now: repeat")


def delete_mark_segment(segment_stores: SegmentStores, stream: Stream) -> None:
    """Unless it belongs to a later incarnation of the stream."""
    name = mark_segment_name(stream.scope, stream.name)
    segment_stores.delete_segment_up_to(name, up_to_incarnation(stream))


def up_to_incarnation(stream: Stream) -> AttributeBound:
    """Met unless the mark segment belongs to a later incarnation of the stream."""
    return AttributeBound(INCARNATION, stream.first_segment_number)
