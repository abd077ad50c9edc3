"""Who asked for the work that runs now. It belongs to the context of the call, which a thread must be given.

Acceptance writes it into the record of a request, and the processor of the request takes it from the message.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager

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
