"""An intent: an accepted request that is not complete. It makes the request durable, as its queue message says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace import topology
from headrace.metadata.due_index import IndexPage, read_index
from headrace.metadata.record_layout import decoded, versioned
from headrace.model.backoff import bucket_of_stream
from headrace.model.requests import PendingRequest, Requester, RequestKind, ResourceKind, scoped_resource_name
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Replace


@dataclass(frozen=True, slots=True)
class Intent:
    """`name` is that of the stream, reader group or table, empty for a request on the scope itself.

    `accepted_ms` is when the request was taken on, milliseconds since the Unix epoch. `failures` attempts in a row to
    send its message again have failed, and the next one waits until `not_before_ms`. `requester` is who asked
    for the request; None in an intent of a release that did not note it.
    """

    scope: str
    name: str
    request: PendingRequest
    accepted_ms: int
    failures: int = 0
    not_before_ms: int = 0
    requester: Requester | None = None

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


def intent_key(scope: str, name: str, resource: ResourceKind = ResourceKind.STREAM) -> Key:
    """Each resource has one key, and so at most one intent: at most one operation runs on it."""
    scoped_name = scoped_resource_name(resource, scope, name)
    bucket = bucket_of_stream(scoped_name, topology.BUCKET_COUNT)
    return Key(intents_partition(bucket), intent_sort(resource, scoped_name))


def intent_body(intent: Intent) -> dict[str, Any]:
    return versioned(
        **request_fields(intent.scope, intent.name, intent.request),
        accepted=intent.accepted_ms,
        **({"failures": intent.failures, "not_before": intent.not_before_ms} if intent.failures else {}),
        **requester_fields(intent.requester),
    )


def decode_intent(body: Body) -> Intent:
    return decoded("intent", body, _intent)


def _intent(body: Body) -> Intent:
    return Intent(
        *decode_request(body),
        int(body["accepted"]),
        int(body.get("failures", 0)),
        int(body.get("not_before", 0)),
        decode_requester(body),
    )


def requester_fields(requester: Requester | None) -> dict[str, Any]:
    """The requester as part of a body."""
    return {} if requester is None else {"requested_by": [requester.principal, requester.correlation_id]}


def decode_requester(body: Body) -> Requester | None:
    """None in a body without one; raises ValueError if it is not a requester."""
    if "requested_by" not in body:
        return None
    principal, correlation_id = body["requested_by"]
    return Requester(str(principal), str(correlation_id))


def create_intent_write(intent: Intent) -> Create:
    """The write of the intent. It fails if a request already runs on the resource."""
    return Create(intent_key(intent.scope, intent.name, intent.resource), intent_body(intent))


def delete_intent_write(resource: ResourceKind, scope: str, name: str) -> Delete:
    """Unconditional: its transaction also writes the resource's record, whose version is checked."""
    return Delete(intent_key(scope, name, resource), None)


def request_fields(scope: str, name: str, request: PendingRequest) -> dict[str, str]:
    """A request as part of a body: the field of the name is called after the kind of the resource.

    A request on a scope has no such field.
    """
    resource = request.kind.resource
    named = {} if resource is ResourceKind.SCOPE else {str(resource): name}
    return {"kind": str(request.kind), "scope": scope, **named, "request": request.request_id}


def decode_request(fields: Body) -> tuple[str, str, PendingRequest]:
    """Scope, name and request; raises KeyError or ValueError if the fields are not a request."""
    request = PendingRequest(RequestKind(fields["kind"]), str(fields["request"]))
    resource = request.kind.resource
    return str(fields["scope"]), "" if resource is ResourceKind.SCOPE else str(fields[str(resource)]), request


def read_intent(record: Record) -> Intent:
    return decode_intent(record.body)


def read_intents(store: MetadataStore, bucket: int, after: str, limit: int) -> IndexPage[Intent]:
    """The intents of a bucket; one query."""
    return read_index(store, intents_partition(bucket), decode_intent, after=after, limit=limit)


def replace_intent(record: Record, intent: Intent) -> Replace:
    """The write that changes an intent as it was read in `record`."""
    return Replace(record.key, intent_body(intent), record.version)
