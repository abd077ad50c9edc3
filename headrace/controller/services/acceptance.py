"""What services share that accept requests: sending the message of an intent."""

from __future__ import annotations

import logging

from headrace.codec.records.intent_record import Intent
from headrace.metadata.request_messages import send_intent
from headrace.model.errors import ThrottledError, UnavailableError
from headrace.ports.request_queue import RequestQueue

_log = logging.getLogger(__name__)


def send_or_leave(queue: RequestQueue, intent: Intent) -> None:
    """Send the message; if that fails the request is accepted all the same: the sweeper sends what is on record."""
    try:
        send_intent(queue, intent)
    except (UnavailableError, ThrottledError) as error:
        _log.warning("message of %s for %s not sent: %s", intent.request.kind, intent.scoped_name, error)
