"""Queue messages of requests. A message carries the request of an intent to a processor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from headrace.metadata.intent import Intent, decode_request, intent_sort, request_fields
from headrace.model.errors import InvalidRequestError
from headrace.model.names import check_known_name
from headrace.model.requests import PendingRequest, RequestKind, ResourceKind
from headrace.ports.request_queue import RequestQueue

_REQUEST_ID_CHARACTERS_MAX = 200

RequestQueues = Mapping[ResourceKind, RequestQueue]
"""The queue of the requests on each kind of resource."""


def send_intent(queue: RequestQueue, intent: Intent) -> None:
    """Queue the message of an intent. The queue drops it if the same message was sent within the last minutes.

    Raises:
        UnavailableError, ThrottledError: the queue may not have accepted the message.
    """
    queue.send(group=intent.scoped_name, body=request_message_body(intent), deduplication_id=_deduplication_id(intent))


def request_message_body(intent: Intent) -> dict[str, str]:
    return request_fields(intent.scope, intent.name, intent.request)


def parse_request_message(body: Mapping[str, Any]) -> tuple[str, str, PendingRequest]:
    """Scope, name and request of a message; the name is empty if the request concerns the scope itself.

    Raises:
        InvalidRequestError: the body is not a request message.
    """
    if not all(isinstance(text, str) for text in body.values()) or "kind" not in body:
        raise InvalidRequestError("a request message holds texts, among them its kind")
    try:
        kind = RequestKind(body["kind"])
    except ValueError as error:
        raise InvalidRequestError(f"requests of kind {body['kind'][:100]!r} are unknown") from error
    expected = request_fields("", "", PendingRequest(kind, ""))
    if body.keys() != expected.keys():
        raise InvalidRequestError(f"a message of a {kind} request holds exactly the texts {', '.join(expected)}")
    scope, name, request = decode_request(body)
    if len(request.request_id) > _REQUEST_ID_CHARACTERS_MAX:
        raise InvalidRequestError(f"a request id has at most {_REQUEST_ID_CHARACTERS_MAX} characters")
    check_known_name("scope", scope)
    return scope, name if kind.resource is ResourceKind.SCOPE else check_known_name(str(kind.resource), name), request


def _deduplication_id(intent: Intent) -> str:
    """A hash, since names may be longer than the ids that a queue accepts."""
    text = f"{intent_sort(intent.resource, intent.scoped_name)}:{intent.request.request_id}"
    return hashlib.sha256(text.encode()).hexdigest()


# Queue messages about transactions: commits, one group per stream, and aborts, one group per transaction.
#
# A stream has one commit message at a time, that of its oldest mark, however many transactions wait. A message only
# announces work; the processor reads from the records what the work is. So a message may arrive twice, late, or when
# there is no work left.
