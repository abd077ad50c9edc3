"""The FIFO queues that carry background work, and who asked for the work that runs now.

The requester belongs to the context of the call, which a thread must be given. Acceptance writes it into the record of
a request, and a message has it in addition to its body. The processor of the request takes it from the message. A
processor of a former release refuses a body with a field that it does not know, and ignores this.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from headrace.model.requests import Requester

_requester: contextvars.ContextVar[Requester | None] = contextvars.ContextVar("requester", default=None)


@contextmanager
def requested_by(requester: Requester | None) -> Iterator[None]:
    """Run the block as work that `requester` asked for; None: it is not known who did."""
    token = _requester.set(requester)
    try:
        yield
    finally:
        _requester.reset(token)


def current_requester() -> Requester | None:
    return _requester.get()


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
