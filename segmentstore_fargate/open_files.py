"""The limit of the system on open files, which connections must not use up.

A process without a free file cannot write a new journal file, and cannot renew its lease. So the store accepts fewer
connections where the limit is low.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

from headrace.model.errors import InvalidRequestError

_log = logging.getLogger(__name__)

OTHER_FILES: Final = 512
"""Files for everything but clients: the journal, connections to AWS and to other stores, health checks."""


def connections_within(wanted: int) -> int:
    """Raise the limit of this process for `wanted` connections if it may; return how many of them fit.

    Raises:
        InvalidRequestError: the limit leaves no file for connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if _is_below(soft, needed):
        soft = needed if not _is_below(hard, needed) else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if not _is_below(soft, needed):
        return wanted
    allowed = soft - OTHER_FILES
    if allowed <= 0:
        raise InvalidRequestError(
            f"this process may open {soft} files, and needs {OTHER_FILES} and one for each connection: raise the limit "
            "(ulimit -Hn)"
        )
    _log.warning("event=connections_limited open_files=%d wanted=%d connections=%d", soft, wanted, allowed)
    return allowed


def _is_below(limit: int, needed: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < needed
