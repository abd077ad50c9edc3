"""The FIFO queues that carry background work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class RequestQueue(Protocol):
    """A FIFO queue with message groups."""

    def send(self, *, group: str, body: Mapping[str, Any], deduplication_id: str) -> None:
        """Queue `body`; messages of one group are worked on one at a time, in the order sent, at least once.

        Raises:
            UnavailableError: the queue does not answer; the intent is on record and the sweeper sends it again.
        """
        ...
