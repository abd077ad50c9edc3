"""What services share that accept requests: sending the message of an intent, and settling lost races."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from headrace.codec.records.intent_record import Intent
from headrace.metadata.request_messages import send_intent
from headrace.model.errors import ThrottledError, UnavailableError
from headrace.ports.metadata_store import WriteConflictError
from headrace.ports.request_queue import RequestQueue

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_ATTEMPTS_MAX = 8


def send_or_leave(queue: RequestQueue, intent: Intent) -> None:
    """Send the message; if that fails the request is accepted all the same: the sweeper sends what is on record."""
    try:
        send_intent(queue, intent)
    except (UnavailableError, ThrottledError) as error:
        _log.warning("message of %s for %s not sent: %s", intent.request.kind, intent.scoped_name, error)


def repeat_on_conflict(attempt: Callable[[], _T]) -> _T:
    """A lost race is settled by reading again: what the winner wrote decides what this call may still do."""
    for _ in range(_ATTEMPTS_MAX - 1):
        try:
            return attempt()
        except WriteConflictError:
            continue
    return attempt()
