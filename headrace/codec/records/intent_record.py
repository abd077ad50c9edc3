"""An intent: a request that was accepted and is not done. It is what the queue's message says, durably."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.requests import PendingRequest, RequestKind, ResourceKind, scoped_resource_name


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
    def resource(self) -> ResourceKind:
        return self.request.kind.resource

    @property
    def scoped_name(self) -> str:
        return scoped_resource_name(self.resource, self.scope, self.name)


def intents_partition(bucket: int) -> str:
    return f"requests/{bucket:04d}"


def intent_sort(resource: ResourceKind, scoped_name: str) -> str:
    """Resources of different kinds may share a name. The sort key of a stream has no kind, as in the first version."""
    return scoped_name if resource is ResourceKind.STREAM else f"{resource}:{scoped_name}"


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
    """A request as part of a body: the field of the name is called after the kind of the resource.

    A request on a scope has no such field.
    """
    resource = request.kind.resource
    named = {} if resource is ResourceKind.SCOPE else {str(resource): name}
    return {"kind": str(request.kind), "scope": scope, **named, "request": request.request_id}


def request_of_fields(fields: Body) -> tuple[str, str, PendingRequest]:
    """Scope, name and request; raises KeyError or ValueError if the fields are not a request."""
    request = PendingRequest(RequestKind(fields["kind"]), str(fields["request"]))
    resource = request.kind.resource
    return str(fields["scope"]), "" if resource is ResourceKind.SCOPE else str(fields[str(resource)]), request
