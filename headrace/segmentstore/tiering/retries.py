"""Reports refusals by chunk storage before an attempt is repeated."""

from __future__ import annotations

import logging

from headrace.model.errors import HeadraceError
from headrace.ports.chunk_storage import CHUNK_STORAGE_REFUSED
from headrace.segmentstore.containers.container import SegmentContainer

_log = logging.getLogger(__name__)


def reported_as_refusal(container: SegmentContainer, error: HeadraceError, retry_s: float) -> bool:
    """Report a refusal by chunk storage, which an operator must look into, and count it; False for another error."""
    if error.specific_code != CHUNK_STORAGE_REFUSED:
        return False
    container.metrics.storage_refusals += 1
    _log.error(
        "event=storage_refused container=%d cause=%s retry_s=%.1f error=%r",
        container.container,
        error.details.get("cause"),
        retry_s,
        error.message,
    )
    return True
