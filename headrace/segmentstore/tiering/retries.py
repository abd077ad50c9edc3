"""Decides which errors of tier 2 end a container, and reports refusals before an attempt is repeated."""

from __future__ import annotations

import logging
from typing import Final

from headrace.model.errors import CorruptError, FencedError, HeadraceError, ThrottledError, UnavailableError
from headrace.ports.chunk_storage import CHUNK_STORAGE_REFUSED
from headrace.ports.metadata_store import METADATA_STORE_REFUSED
from headrace.segmentstore.containers.container import SegmentContainer

_log = logging.getLogger(__name__)


_REFUSED: Final = (CHUNK_STORAGE_REFUSED, METADATA_STORE_REFUSED)


def ends_container(error: HeadraceError) -> bool:
    """Whether the error proves that the container must stop. All other errors of tier 2 are repeated."""
    return isinstance(error, CorruptError | FencedError)


def reported_as_refusal(container: SegmentContainer, error: HeadraceError, retry_s: float) -> bool:
    """Report a refusal by tier 2, which an operator must examine, and count it; False for an outage."""
    if isinstance(error, UnavailableError | ThrottledError) and error.specific_code not in _REFUSED:
        return False
    container.metrics.storage_refusals += 1
    _log.error(
        "event=storage_refused container=%d cause=%s retry_s=%.1f error=%r",
        container.container,
        error.details.get("cause", error.specific_code),
        retry_s,
        error.message,
    )
    return True
