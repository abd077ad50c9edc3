"""An intent: a request that was accepted and is not done. It is what the queue's message says, durably."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.requests import Noun, PendingRequest, RequestKind, scoped_subject_name


@dataclass(frozen=True, slots=True)
class Intent:
    """`name` is that of the stream, reader group or table, empty for a request on the scope itself.

    `accepted_ms` is when the request was taken on, milliseconds since the Unix epoch. `failures` attempts in a row to
    send its message again have failed, and the next one waits until `not_before_ms`.
    """

    scope: str
    name: str
    request: PendingRequest
    accepted_ms: int
    failures: int = 0
    not_before_ms: int = 0

    @property
    def noun(self) -> Noun:
        return self.request.kind.noun

    @property
    def scoped_name(self) -> str:
        return scoped_subject_name(self.noun, self.scope, self.name)


def intents_partition(bucket: int) -> str:
    return f"requests/{bucket:04d}"


def intent_sort(noun: Noun, scoped_name: str) -> str:
    """Two nouns may share a name; those of streams came first and carry no noun."""
    return scoped_name if noun is Noun.STREAM else f"{noun}:{scoped_name}"


def intent_body(intent: Intent) -> dict[str, Any]:
    return versioned(
        **request_fields(intent.scope, intent.name, intent.request),
        accepted=intent.accepted_ms,
        **({"failures": intent.failures, "not_before": intent.not_before_ms} if intent.failures else {}),
    )


def intent_of_body(body: Body) -> Intent:
    return decoded("intent", body, _intent)


def _intent(body: Body) -> Intent:
    return Intent(
        *request_of_fields(body), int(body["accepted"]), int(body.get("failures", 0)), int(body.get("not_before", 0))
    )


def request_fields(scope: str, name: str, request: PendingRequest) -> dict[str, str]:
    """A request as part of a body: the name lies under its noun, and a scope has no name beside its own."""
    noun = request.kind.noun
    subject = {} if noun is Noun.SCOPE else {str(noun): name}
    return {"kind": str(request.kind), "scope": scope, **subject, "request": request.request_id}


def request_of_fields(fields: Body) -> tuple[str, str, PendingRequest]:
    """Scope, name and request; KeyError or ValueError for what is no request."""
    request = PendingRequest(RequestKind(fields["kind"]), str(fields["request"]))
    noun = request.kind.noun
    return str(fields["scope"]), "" if noun is Noun.SCOPE else str(fields[str(noun)]), request
