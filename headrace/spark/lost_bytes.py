"""Bytes and streams that were removed before they were read: how they are refused, and how they are logged."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace.api.plans import LostBytes
from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.errors import HeadraceError, NotFoundError, TruncatedError
from headrace.model.stream_cuts import StreamCut

_log = logging.getLogger(__name__)

SEGMENTS_NAMED_MAX = 20


def truncated_while_planning(error: TruncatedError) -> TruncatedError:
    """The same error with everything in its message, which is all that Spark shows: what is lost, and the new head."""
    lost = [LostBytes.from_json(each) for each in error.details.get("lost", ())]
    parts = [error.message.rstrip(".")]
    if lost:
        parts.append(f"Lost bytes by segment, from offset: {_listed(lost)}")
    if head := error.details.get("headText"):
        parts.append(f"The head is now at {head}")
    parts.append("To continue at the head with this checkpoint, set the option on_truncation=skip")
    return TruncatedError(". ".join(parts), details=error.details, code=error.specific_code)


def truncated_while_reading(lost: LostBytes, head: StreamCut, error: HeadraceError) -> TruncatedError:
    """The error of a task whose range was truncated after the batch was planned."""
    return TruncatedError(
        f"{error.message.rstrip('.')}. {lost.length} bytes of segment {lost.segment_id} from offset {lost.offset} on"
        f" are lost: they were truncated after the batch was planned. The head is now at {stream_cut_text(head)}. To"
        " continue at the head with this checkpoint, set the option on_truncation=skip",
        details={"segmentId": lost.segment_id, "offset": lost.offset},
    )


def deleted_while_reading(unread: SegmentRange) -> NotFoundError:
    """The error of a task whose stream was deleted after the batch was planned."""
    return NotFoundError(
        f"stream {unread.scope}/{unread.stream} was deleted after the batch was planned. {unread.length_bytes} bytes of"
        f" segment {unread.segment_id} from offset {unread.start} on were not read",
        details={"segmentId": unread.segment_id, "offset": unread.start},
    )


def is_stream_gone(error: HeadraceError) -> bool:
    """Whether the stream was deleted, and perhaps created again."""
    return isinstance(error, NotFoundError) or error.specific_code == "stream_recreated"


def log_skipped(scope: str, stream: str, lost: Sequence[LostBytes], lost_bytes: int | None) -> None:
    """What on_truncation=skip has left out."""
    _log.warning(
        "event=spark_bytes_skipped scope=%r stream=%r lost_bytes=%s lost=%r", scope, stream, lost_bytes, _listed(lost)
    )


def log_stream_skipped(scope: str, stream: str) -> None:
    """A deleted stream of a pattern, of which on_truncation=skip leaves out what was not read."""
    _log.warning("event=spark_stream_skipped scope=%r stream=%r", scope, stream)


def _listed(lost: Sequence[LostBytes]) -> str:
    named = [
        f"{position.segment_id}: {position.length} from {position.offset}" for position in lost[:SEGMENTS_NAMED_MAX]
    ]
    return ", ".join(named) + (", ..." if len(lost) > SEGMENTS_NAMED_MAX else "")
