"""The FIFO queues that carry background work.

A message tells who asked for its work (`ports.requesters`) in addition to its body. A processor of a former release
refuses a body with a field that it does not know, and ignores this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

REQUESTED_BY = "requestedBy"
CORRELATION_ID = "correlationId"
"""The attributes of a message with its requester. A message without them tells none."""


class RequestQueue(Protocol):
    """A FIFO queue with message groups."""

    def send(self, *, group: str, body: Mapping[str, Any], deduplication_id: str) -> None:
        """Queue `body`; messages of one group are worked on one at a time, in the order sent, at least once.

        The message is on behalf of the current requester.

        Raises:
            UnavailableError: the queue does not answer; the intent is on record and the sweeper sends it again.
        """
        ...
