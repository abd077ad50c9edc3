"""The mark segment of a stream: created when it is first needed, and deleted with its stream.

Its name is the same for every incarnation of a stream, so an attribute of the segment records the incarnation that it
belongs to. The value only grows. A late deletion, truncation or revision mark cannot change the segment of a later
incarnation, because the store compares the attribute and acts in one step.
"""

from __future__ import annotations

from headrace.metadata.stream_records import StreamRecords
from headrace.model.errors import NotFoundError, UnavailableError
from headrace.model.names import mark_segment_name
from headrace.model.segment_attributes import MARK_INCARNATION
from headrace.model.streams import Stream
from headrace.ports.segment_stores import AttributeBound, SegmentScaleRate, SegmentStores

_ATTEMPTS_MAX = 5
"""An attempt fails only because of another late call: a deletion, or a claim for a former incarnation."""


def make_mark_segment(records: StreamRecords, segment_stores: SegmentStores, stream: Stream) -> bool:
    """Create the mark segment and claim it for this incarnation of the stream; two requests and a read.

    The stream is read after the segment was created, because a deletion that started earlier may already be past the
    step that deletes the mark segment.

    Returns:
        False if this incarnation of the stream is deleted or being deleted.

    Raises:
        UnavailableError: late calls of others made every attempt fail; repeat.
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
            if segment_stores.compare_and_set_attribute(name, MARK_INCARNATION, own, None):
                return True
            owner = segment_stores.get_attribute(name, MARK_INCARNATION)
            if owner is not None and owner > own:
                return False
            if segment_stores.compare_and_set_attribute(name, MARK_INCARNATION, own, owner):
                return True
        except NotFoundError:
            continue  # a late deletion has removed the segment before it was claimed
    raise UnavailableError(f"the mark segment of {stream.scoped_name} cannot be created now: repeat")


def delete_mark_segment(segment_stores: SegmentStores, stream: Stream) -> None:
    """Delete the mark segment unless it belongs to a later incarnation of the stream."""
    name = mark_segment_name(stream.scope, stream.name)
    segment_stores.delete_segment_up_to(name, up_to_incarnation(stream))


def up_to_incarnation(stream: Stream) -> AttributeBound:
    """A condition that holds unless the mark segment belongs to a later incarnation of the stream."""
    return AttributeBound(MARK_INCARNATION, stream.first_segment_number)
