"""Empty segments of a scale that was rolled back. The rollback notes them, and the next scale removes them.

The rollback cannot remove them, because a late process may be creating them. Older versions did not use up the epoch
number of such a scale, so that the next scale may need segments of the same names. Once the epoch of the next scale is
recorded, no later scale uses the names of the others.
"""

from __future__ import annotations

from headrace.controller.engine import Tools
from headrace.controller.steps.segment_creation import scale_rate
from headrace.metadata.leftovers import delete_leftovers_record, find_leftovers, write_leftovers
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.model.epochs import Epoch
from headrace.model.names import segment_name
from headrace.model.streams import Stream
from headrace.ports.deadlines import is_time_short, require_time_for_piece
from headrace.ports.metadata_store import Create, Replace

LEFTOVERS_MAX = 10_000
"""The number of segments that are noted for one stream: those of ten of the largest scales. Others are not removed."""

SEGMENTS_PER_CALL = 1_000


def note_leftovers(records: StreamRecords, stream: Stream, planned: Epoch) -> Create | Replace:
    """The write that belongs to the rollback of a scale to `planned`; one read."""
    known = find_leftovers(records.store, stream)
    noted = {*(known.identifiers if known else ()), *(segment.segment_id for segment in planned.created)}
    return write_leftovers(stream, sorted(noted)[:LEFTOVERS_MAX], known.version if known else None)


def remove_leftovers(tools: Tools, stored: StoredStream, coming: Epoch) -> None:
    """Delete the leftovers once `coming` is recorded. Those that it reuses get the rate of the present policy."""
    stream = stored.stream
    found = find_leftovers(tools.records.store, stream)
    if found is None:
        return
    gone = [one for one in found.identifiers if one not in coming.by_id]
    kept = [one for one in found.identifiers if one in coming.by_id]
    rate = scale_rate(stream.configuration.scaling)
    while gone or kept:
        if gone:
            tools.segment_stores.delete_segments([_name(stream, one) for one in gone[:SEGMENTS_PER_CALL]])
            gone = gone[SEGMENTS_PER_CALL:]
        else:
            tools.segment_stores.update_segment_policy(_name(stream, kept.pop(0)), rate)
        if is_time_short() and (gone or kept):
            tools.records.while_unchanged(stored, write_leftovers(stream, (*gone, *kept), found.version))
            require_time_for_piece(f"removal of leftover segments of {stream.scoped_name}")
    tools.records.while_unchanged(stored, delete_leftovers_record(stream, found.version))


def delete_leftovers(tools: Tools, stored: StoredStream) -> None:
    """Delete the leftovers of a stream that is deleted. Their record is deleted with its partition."""
    stream = stored.stream
    found = find_leftovers(tools.records.store, stream)
    left = found.identifiers if found else ()
    while found is not None and left:
        tools.segment_stores.delete_segments([_name(stream, one) for one in left[:SEGMENTS_PER_CALL]])
        left = left[SEGMENTS_PER_CALL:]
        if left and is_time_short():
            tools.records.while_unchanged(stored, write_leftovers(stream, left, found.version))
            require_time_for_piece(f"deletion of leftover segments of {stream.scoped_name}")


def _name(stream: Stream, identifier: int) -> str:
    return segment_name(stream.scope, stream.name, identifier)
