"""Truncates the mark segment with its stream: no reader needs a watermark whose cut is before the head.

The newest watermark that the head has reached stays, as the lower bound of the time of the first events. The newest
watermark of all always stays, because Pravega's clients begin to read there.
"""

from __future__ import annotations

import logging

from headrace.codec.events import iter_events
from headrace.codec.stored_objects import watermark_of_payload
from headrace.metadata.watermark_records import read_watermark_state, up_to_incarnation, watermark_key
from headrace.model.errors import CorruptError, NotFoundError, UnavailableError
from headrace.model.limits import EVENT_HEADER_BYTES
from headrace.model.names import mark_segment_name
from headrace.model.stream_cuts import PlacedCut
from headrace.model.streams import Stream
from headrace.model.watermarks import is_at_or_behind
from headrace.model.writer_marks import Positions, positions_of
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores
from headrace.wire.fields import WireFormatError

MARK_BYTES_PER_READ = 1024 * 1024
"""Larger than the watermark of a stream with the most segments."""

MARK_READS_PER_TRUNCATION = 16
"""Half an hour of watermarks is a few hundred KB. Later truncations of the stream remove the rest."""

_log = logging.getLogger(__name__)


def truncate_marks(store: MetadataStore, segment_stores: SegmentStores, stream: Stream, head: PlacedCut) -> None:
    """One read of metadata; if the stream has watermarks, at least two requests to the owner of its mark segment.

    May be repeated. If the mark segment is not available, or contains other data than watermarks, it stays unchanged:
    the next truncation tries again, and the stream does not wait for it. The mark segment of a later incarnation stays
    unchanged, too.
    """
    state = read_watermark_state(store.get(watermark_key(stream.scope, stream.name)), stream).state
    if state.last is None:
        return
    name = mark_segment_name(stream.scope, stream.name)
    offsets = head.cut.offsets
    position = positions_of({segment: offsets[segment.segment_id] for segment in head.segments})
    try:
        start = segment_stores.segment_info(name).start_offset
        first_kept = _newest_reached(segment_stores, name, start, state.last_offset, position)
        if first_kept > start:
            segment_stores.truncate_segment_up_to(name, first_kept, up_to_incarnation(stream))
    except NotFoundError:
        return
    except (UnavailableError, WireFormatError, CorruptError) as error:
        _log.warning("the mark segment of %s is not truncated now: %s", stream.scoped_name, error)


def _newest_reached(segment_stores: SegmentStores, name: str, start: int, last: int, position: Positions) -> int:
    """The offset of the newest watermark from `start` on that `position` has reached, or `start`; at most `last`."""
    found = offset = start
    for _ in range(MARK_READS_PER_TRUNCATION):
        data = segment_stores.read(name, offset, MARK_BYTES_PER_READ)
        payloads, consumed = iter_events(data)
        for payload in payloads:
            if offset > last or not is_at_or_behind(position, watermark_of_payload(payload).cut):
                return found
            found = offset
            offset += EVENT_HEADER_BYTES + len(payload)
        if not consumed:
            return found
    return found
