"""Empty segments of a scale that was rolled back. The rollback notes them, and the next scale removes them.

The rollback cannot remove them, because a late process may be creating them. It uses up the number of their epoch, so
that no later scale uses their names.
"""

from __future__ import annotations

from headrace.controller.engine import Tools
from headrace.metadata.orphan_segments import (
    StoredLeftovers,
    delete_leftovers_record,
    find_leftovers,
    write_leftovers,
)
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


def remove_leftovers(tools: Tools, stored: StoredStream) -> None:
    """Delete the leftovers once the epoch of a scale is recorded."""
    found = find_leftovers(tools.records.store, stored.stream)
    if found is not None:
        _delete(tools, stored, found)
        tools.records.while_unchanged(stored, delete_leftovers_record(stored.stream, found.version))


def delete_leftovers(tools: Tools, stored: StoredStream) -> None:
    """Delete the leftovers of a stream that is deleted. Their record is deleted with its partition."""
    found = find_leftovers(tools.records.store, stored.stream)
    if found is not None:
        _delete(tools, stored, found)


def _delete(tools: Tools, stored: StoredStream, found: StoredLeftovers) -> None:
    stream, left = stored.stream, found.identifiers
    while left:
        names = [segment_name(stream.scope, stream.name, one) for one in left[:SEGMENTS_PER_CALL]]
        tools.segment_stores.delete_segments(names)
        left = left[SEGMENTS_PER_CALL:]
        if left and is_time_short():
            tools.records.while_unchanged(stored, write_leftovers(stream, left, found.version))
            require_time_for_piece(f"deletion of leftover segments of {stream.scoped_name}")
