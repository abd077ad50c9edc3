"""Queue messages of stream requests: what an intent says, on its way to a processor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from headrace.codec.records.intent_record import Intent
from headrace.model.errors import InvalidRequestError
from headrace.model.names import check_known_name, scoped_stream_name
from headrace.model.streams import PendingRequest, RequestKind
from headrace.ports.request_queue import RequestQueue

_REQUEST_ID_CHARACTERS_MAX = 200


def send_intent(queue: RequestQueue, intent: Intent) -> None:
    """Queue the message of an intent; the queue drops it if the same was sent minutes ago.

    Raises:
        UnavailableError, ThrottledError: the message may not have been taken.
    """
    queue.send(group=intent.scoped_name, body=message_body(intent), deduplication_id=_deduplication_id(intent))


def message_body(intent: Intent) -> dict[str, str]:
    return {
        "kind": str(intent.request.kind),
        "scope": intent.scope,
        "stream": intent.stream,
        "request": intent.request.request_id,
    }


def parse_message(body: Mapping[str, Any]) -> tuple[str, str, PendingRequest]:
    """Scope, stream and request of a message.

    Raises:
        InvalidRequestError: the body is no request message.
    """
    if set(body) != {"kind", "scope", "stream", "request"} or not all(isinstance(text, str) for text in body.values()):
        raise InvalidRequestError("a request message holds exactly the texts kind, scope, stream and request")
    try:
        kind = RequestKind(body["kind"])
    except ValueError as error:
        raise InvalidRequestError(f"requests of kind {body['kind'][:100]!r} are unknown") from error
    if len(body["request"]) > _REQUEST_ID_CHARACTERS_MAX:
        raise InvalidRequestError(f"a request id has at most {_REQUEST_ID_CHARACTERS_MAX} characters")
    scope, stream = check_known_name("scope", body["scope"]), check_known_name("stream", body["stream"])
    return scope, stream, PendingRequest(kind, body["request"])


def _deduplication_id(intent: Intent) -> str:
    """A hash, since names may be longer than what a queue takes as an id."""
    text = f"{scoped_stream_name(intent.scope, intent.stream)}:{intent.request.request_id}"
    return hashlib.sha256(text.encode()).hexdigest()
