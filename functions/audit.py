"""One audit line for each request to the API that changes or grants something, however it ends.

A refusal is told as well: of a change, and of any request for its caller or its path. What IAM refuses does not reach a
function; the access log of API Gateway has it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from functions import wiring
from functions.callers import principal_of, request_id_of, requester_of, source_of
from functions.canonical_paths import PATH_NOT_CANONICAL
from functions.observability import logger
from headrace.codec.audit_lines import AuditLine, Outcome
from headrace.topology import ROUTE_BY_KEY, Route

READ = "read"
"""The action of a request that would only read, and was refused for its caller or its path."""

_PARAMETER = re.compile(r"{([^}]*)}")


def audit(event: Mapping[str, Any], query: Mapping[str, str], body: Any, answer: Mapping[str, Any]) -> None:
    """Write the line of a request, if it has one. `query` and `body` are what its handler reads; `body` is parsed.

    A line that cannot be written is an error in the log of the function. The request has been answered by then.
    """
    route = ROUTE_BY_KEY.get(str(event.get("routeKey", "")))
    status = int(answer["statusCode"])
    code = _code(answer) if status >= HTTPStatus.BAD_REQUEST else ""
    if route is None or not (route.action or status == HTTPStatus.FORBIDDEN or code == PATH_NOT_CANONICAL):
        return
    line = AuditLine(
        time_ms=wiring.clock().now_ms(),
        action=route.action or READ,
        resource=_resource(route, event, body),
        principal=principal_of(event),
        source=source_of(event),
        outcome=_outcome(status),
        status=status,
        code=code,
        call=route.key,
        component=os.environ.get("POWERTOOLS_SERVICE_NAME", ""),
        request_id=request_id_of(event),
        correlation_id=requester_of(event).correlation_id,
        details=_details(event, query, body, status, code),
    )
    try:
        wiring.audit_log().write(line)
    except OSError as error:
        logger.error("audit line lost: %s of %s by %s", line.action, line.resource, line.principal, exc_info=error)


def _outcome(status: int) -> Outcome:
    if status < HTTPStatus.BAD_REQUEST:
        return Outcome.DONE
    return Outcome.REFUSED if status < HTTPStatus.INTERNAL_SERVER_ERROR else Outcome.FAILED


def _code(answer: Mapping[str, Any]) -> str:
    return str(json.loads(answer["body"])["error"]["code"])


def _resource(route: Route, event: Mapping[str, Any], body: Any) -> str:
    """The names in the path, from the outside in, and that of what is created."""
    parameters = event.get("pathParameters") or {}
    # The only escape of a canonical path. The gateway may or may not have decoded it.
    names = [str(parameters.get(name, "")).replace("%2F", "/") for name in _PARAMETER.findall(route.path)]
    if route.created and isinstance(body, dict) and isinstance(body.get(route.created), str):
        names.append(body[route.created])
    return "/".join(names)


def _details(event: Mapping[str, Any], query: Mapping[str, str], body: Any, status: int, code: str) -> dict[str, Any]:
    """What a request that was accepted has asked for. No document of the API has event data or a secret.

    A body that was refused may be anything. Of a path that was refused, its text says what was tried.
    """
    if code == PATH_NOT_CANONICAL:
        return {"path": str(event.get("rawPath", ""))[:300]}
    if status >= HTTPStatus.BAD_REQUEST:
        return {}
    return ({"query": dict(query)} if query else {}) | ({"body": body} if body is not None else {})
