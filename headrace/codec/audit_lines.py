"""Audit lines: one JSON object for each call that changes or grants something, or that was refused for its caller.

A line says who did what to which resource, and with which result. It has no event data and no secret: of a call it has
the names in the path and, if the call succeeded, what it asked for, in short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

DETAILS_CHARACTERS_MAX = 1_024
"""As JSON. Of longer details the line has the length only."""
TEXT_CHARACTERS_MAX = 2_048
"""Of every other text: an ARN has no more."""

_CORRELATION_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Outcome(StrEnum):
    """Whether the call had its effect. A failed one may have had it."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AuditLine:
    """`time_ms` is when the call was answered, in milliseconds since 1970. `resource` has names, such as `shop/orders`.

    `status` is that of HTTP or gRPC, and `code` the one of the error, or empty.
    """

    time_ms: int
    action: str
    resource: str
    principal: str
    source: str
    outcome: Outcome
    status: int | str
    code: str
    call: str
    component: str
    request_id: str
    correlation_id: str
    details: Mapping[str, Any] = field(default_factory=dict)


def audit_text(line: AuditLine) -> str:
    """The line as JSON in ASCII, without a line end. The field `audit` tells it from other lines of the same log."""
    texts = {
        "action": line.action,
        "resource": line.resource,
        "principal": line.principal,
        "sourceIp": line.source,
        "outcome": str(line.outcome),
        "status": line.status,
        "code": line.code,
        "call": line.call,
        "component": line.component,
        "requestId": line.request_id,
        "correlationId": line.correlation_id,
    }
    shown = {
        name: value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) else value
        for name, value in texts.items()
        if value != ""
    }
    time = datetime.fromtimestamp(line.time_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return _json({"audit": 1, "time": time, **shown, **_shown_details(line.details)})


def correlation_id(given: str | None, otherwise: str) -> str:
    """The id that the caller gave to its call if it has the form of one, else that of the request."""
    return given if given is not None and _CORRELATION_ID.fullmatch(given) else otherwise


def _shown_details(details: Mapping[str, Any]) -> dict[str, Any]:
    if not details:
        return {}
    length = len(_json(details))
    return {"details": dict(details) if length <= DETAILS_CHARACTERS_MAX else {"characters": length}}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
