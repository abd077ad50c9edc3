"""Bytes that retention or a truncation removed before they were read: how they are refused, and how they are logged."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace.api.plans import LostBytes
from headrace.client.segment_ranges import SegmentRange
from headrace.model.errors import HeadraceError, TruncatedError

_log = logging.getLogger(__name__)

SEGMENTS_NAMED_MAX = 20


def truncated_while_planning(error: TruncatedError) -> TruncatedError:
    """The same error with everything in its message, which is all that Spark shows: what is lost, and the new head."""
    lost = [LostBytes.from_json(one) for one in error.details.get("lost", ())]
    parts = [error.message.rstrip(".")]
    if lost:
        parts.append(f"Lost bytes by segment, from offset: {_listed(lost)}")
    if head := error.details.get("headText"):
        parts.append(f"The head is now at {head}")
    parts.append("To continue at the head with this checkpoint, set the option on_truncation=skip")
    return TruncatedError(". ".join(parts), details=error.details, code=error.specific_code)


def truncated_while_reading(unread: SegmentRange, error: HeadraceError) -> TruncatedError:
    """The error of a task whose range was truncated after the batch was planned."""
    return TruncatedError(
        f"{error.message.rstrip('.')}. Up to {unread.length_bytes} bytes of segment {unread.segment_id} from offset"
        f" {unread.start} on are lost: they were truncated after the batch was planned. To continue at the head with"
        " this checkpoint, set the option on_truncation=skip",
        details={"segmentId": unread.segment_id, "offset": unread.start},
    )


def log_skipped(scope: str, stream: str, lost: Sequence[LostBytes], lost_bytes: int | None) -> None:
    """What on_truncation=skip has left out."""
    _log.warning(
        "event=spark_bytes_skipped scope=%r stream=%r lost_bytes=%s lost=%r", scope, stream, lost_bytes, _listed(lost)
    )


def _listed(lost: Sequence[LostBytes]) -> str:
    named = [f"{one.segment_id}: {one.length} from {one.offset}" for one in lost[:SEGMENTS_NAMED_MAX]]
    return ", ".join(named) + (", ..." if len(lost) > SEGMENTS_NAMED_MAX else "")
