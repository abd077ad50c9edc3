"""An intent: a request that was accepted and is not done. It is what the queue's message says, durably."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.names import scoped_stream_name
from headrace.model.streams import PendingRequest, RequestKind


@dataclass(frozen=True, slots=True)
class Intent:
    """`accepted_ms` is when the request was taken on, milliseconds since the Unix epoch."""

    scope: str
    stream: str
    request: PendingRequest
    accepted_ms: int

    @property
    def scoped_name(self) -> str:
        return scoped_stream_name(self.scope, self.stream)


def intents_partition(bucket: int) -> str:
    return f"requests/{bucket:04d}"


def intent_body(intent: Intent) -> dict[str, Any]:
    return versioned(
        kind=str(intent.request.kind),
        scope=intent.scope,
        stream=intent.stream,
        request=intent.request.request_id,
        accepted=intent.accepted_ms,
    )


def intent_of_body(body: Body) -> Intent:
    return decoded("intent", body, _intent)


def _intent(body: Body) -> Intent:
    request = PendingRequest(RequestKind(body["kind"]), str(body["request"]))
    return Intent(str(body["scope"]), str(body["stream"]), request, int(body["accepted"]))
