"""Who sent a request to the API, as API Gateway's event says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.codec.audit_lines import correlation_id
from headrace.model.requests import Requester

LOCAL_CALLER = "local"
"""The caller of each request to the local stack, which knows no principals."""

CORRELATION_HEADER = "x-headrace-correlation-id"


def principal_of(event: Mapping[str, Any]) -> str:
    """The ARN of the IAM principal that signed the request, or LOCAL_CALLER where requests are not signed."""
    identity = (_context(event).get("authorizer") or {}).get("iam") or {}
    return str(identity.get("userArn") or LOCAL_CALLER)


def request_id_of(event: Mapping[str, Any]) -> str:
    """API Gateway's id of the request, which its access log has, too."""
    return str(_context(event).get("requestId") or "")


def source_of(event: Mapping[str, Any]) -> str:
    """The address from which the request came."""
    return str((_context(event).get("http") or {}).get("sourceIp") or "")


def requester_of(event: Mapping[str, Any]) -> Requester:
    """Who asks, for the records of what this request begins."""
    given = (event.get("headers") or {}).get(CORRELATION_HEADER)
    return Requester(principal_of(event), correlation_id(given, request_id_of(event)))


def _context(event: Mapping[str, Any]) -> Mapping[str, Any]:
    context: Mapping[str, Any] = event.get("requestContext") or {}
    return context
