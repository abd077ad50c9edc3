"""Segments for which tier 2 refuses an item for good, so that a repetition cannot succeed.

Such a segment is left out of all work on tier 2, so that the other segments of its container are flushed. It stays in
memory and in the log, can be read, sealed and deleted, and accepts no more bytes. What it holds is therefore bounded.
The log cannot be truncated behind its first byte that tier 2 lacks: the container accepts as much log as its share
(`log_room`), then its clients wait. An operator deletes the segment before, or removes the cause. A container that is
opened again tries once more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.model.errors import HeadraceError, segment_quarantined

if TYPE_CHECKING:
    from headrace.segmentstore.containers.container import SegmentContainer
    from headrace.segmentstore.containers.segment import Segment

_log = logging.getLogger(__name__)


def quarantine(container: SegmentContainer, segment: Segment, error: HeadraceError) -> None:
    """Leave a segment out of all further work on tier 2. It remains among the dirty ones until it is deleted."""
    if segment.quarantined or segment.accepted.removed:
        return
    segment.quarantined = True
    container.dirty[segment.number] = segment
    _log.critical(
        "event=segment_quarantined container=%d segment=%r length=%d tiered=%d error=%r",
        container.container,
        segment.name,
        segment.accepted.length,
        segment.tiered.length,
        error.message,
    )


def quarantined_segments(container: SegmentContainer) -> int:
    """How many segments of the container are in quarantine."""
    return sum(segment.quarantined and not segment.accepted.removed for segment in container.dirty.values())


def check_not_quarantined(segment: Segment) -> None:
    """Raise IllegalStateError (code "segment_quarantined") if the segment accepts no more bytes."""
    if segment.quarantined:
        raise segment_quarantined(segment.name)
