"""Payload format 2.0 of API Gateway's HTTP APIs: requests to events of functions, and results to responses."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from headrace.topology import Route

_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/javascript")
_FORM_TYPE = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """`target` is the unchanged target of the request line; `headers` keep their order and repetitions."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    source_ip: str
    protocol: str


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class RouteMatch:
    route: Route
    path_parameters: Mapping[str, str]


def match_route(routes: Iterable[Route], method: str, path: str) -> RouteMatch | None:
    """The declared route of a raw path, with percent-decoded parameters.

    If several routes match, the one with the fewest parameters is chosen.
    """
    parts = path.split("/")
    matches: list[tuple[int, RouteMatch]] = []
    for route in routes:
        pattern = route.path.split("/")
        if route.method != method or len(pattern) != len(parts):
            continue
        parameters: dict[str, str] = {}
        for expected, part in zip(pattern, parts, strict=True):
            if expected.startswith("{"):
                parameters[expected[1:-1]] = unquote(part)
            elif expected != part:
                break
        else:
            if all(parameters.values()):
                matches.append((len(parameters), RouteMatch(route, parameters)))
    return min(matches, key=lambda ranked: ranked[0])[1] if matches else None


def request_event(request: HttpRequest, match: RouteMatch, request_id: str, time_ms: int) -> dict[str, Any]:
    """The event for a function; absent parts are left out, as API Gateway does."""
    path, _, query = request.target.partition("?")
    headers = _joined((name.lower(), value) for name, value in request.headers if name.lower() != "cookie")
    cookies = [
        value.strip() for name, value in request.headers if name.lower() == "cookie" for value in value.split(";")
    ]
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": f"{match.route.method} {match.route.path}",
        "rawPath": path,
        "rawQueryString": query,
        "headers": headers,
        "requestContext": {
            "accountId": "000000000000",
            "apiId": "local",
            "domainName": headers.get("host", "localhost"),
            "http": {
                "method": request.method,
                "path": path,
                "protocol": request.protocol,
                "sourceIp": request.source_ip,
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": request_id,
            "routeKey": f"{match.route.method} {match.route.path}",
            "stage": "$default",
            "timeEpoch": time_ms,
        },
        "isBase64Encoded": False,
    }
    if cookies:
        event["cookies"] = cookies
    if query:
        event["queryStringParameters"] = _joined(parse_qsl(query, keep_blank_values=True))
    if match.path_parameters:
        event["pathParameters"] = dict(match.path_parameters)
    if request.body:
        event |= _body(request.body, headers.get("content-type", ""))
    return event


def _joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in pairs:
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    return joined


def _body(body: bytes, content_type: str) -> dict[str, Any]:
    """The fields of the body: text is unchanged, anything else is in base64."""
    kind = content_type.lower()
    if kind.startswith((*_TEXT_TYPES, _FORM_TYPE)):
        try:
            return {"body": body.decode(), "isBase64Encoded": False}
        except UnicodeDecodeError:
            pass  # The content type is wrong: base64 keeps the bytes unchanged.
    return {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}


def response_of(result: Any) -> HttpResponse:
    """The HTTP response for a function's result. A result without a status code is the body of a 200.

    Raises:
        ValueError: the result is malformed; API Gateway would answer 500.
    """
    if not isinstance(result, dict) or "statusCode" not in result:
        return HttpResponse(200, (("content-type", "application/json"),), json.dumps(result).encode())
    status, body = int(result["statusCode"]), result.get("body") or ""
    if not 100 <= status <= 599 or not isinstance(body, str):
        raise ValueError(f"status {status} with a body of type {type(body).__name__} is not a valid response")
    headers = tuple((str(name), str(value)) for name, value in (result.get("headers") or {}).items())
    cookies = tuple(("set-cookie", str(cookie)) for cookie in result.get("cookies") or ())
    content = base64.b64decode(body, validate=True) if result.get("isBase64Encoded") else body.encode()
    return HttpResponse(status, headers + cookies, content)


def gateway_message(status: int, message: str) -> HttpResponse:
    """A response that API Gateway gives itself, without calling a function."""
    return HttpResponse(status, (("content-type", "application/json"),), json.dumps({"message": message}).encode())
