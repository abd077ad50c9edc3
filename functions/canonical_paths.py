"""Refuses a request whose path has another form than the one that IAM's policies are written for.

IAM decides by the path as text, handlers by the names in it. If a path may be written in several ways, a policy that
denies `/v1/scopes/secret` does not match `/v1/scopes/%73ecret`. So each path has one form, and any other is refused
before a handler, an audit line or a token uses a name from it: the words of the route, and names without escapes, empty
parts or dots. The one escape is `%2F`, for the `/` in the name of a subscriber.

It is not known whether API Gateway decodes `rawPath`. Both forms lead to the same request here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from headrace.model.errors import InvalidRequestError
from headrace.topology import ROUTE_BY_KEY, Route

PATH_NOT_CANONICAL = "path_not_canonical"

_WITH_SLASH = "subscriber"
"""The only path parameter that may have a `/`: a reader group as `scope/group`."""

_PLAIN = "!$&'()*+,;=:@"
"""What RFC 3986 allows in a part of a path besides letters, digits and `-._~`. Most of it is in no name."""


def canonical_event(event: dict[str, Any]) -> dict[str, Any]:
    """The event with its path in the canonical form.

    Raises:
        InvalidRequestError: code "path_not_canonical": the request has another path.
    """
    raw, route = str(event.get("rawPath", "")), ROUTE_BY_KEY.get(str(event.get("routeKey", "")))
    if route is None:
        for part in raw.split("/")[1:]:
            _check_part(part, unquote(part))
        return event
    values = _values(route, event.get("pathParameters") or {})
    canonical = "/".join(quote(value, safe=_PLAIN) for value in values)
    if raw not in (canonical, "/".join(values)):
        raise _not_canonical()
    for part, value in zip(canonical.split("/")[1:], values[1:], strict=True):
        _check_part(part, value)
    return event | {"rawPath": canonical}


def _values(route: Route, parameters: Mapping[str, str]) -> list[str]:
    """The decoded parts of the path, of which the first is empty."""
    values = []
    for part in route.path.split("/"):
        name = part[1:-1] if part.startswith("{") else None
        values.append(part if name is None else str(parameters.get(name, "")))
        if name not in (None, _WITH_SLASH) and "/" in values[-1]:
            raise _not_canonical()
    return values


def _check_part(part: str, value: str) -> None:
    """A part is not empty, and no dots, which proxies remove; it has no escape but `%2F`, written so."""
    if value in ("", ".", "..") or part.replace("%2F", "/") != value or "%" in value or not value.isprintable():
        raise _not_canonical()


def _not_canonical() -> InvalidRequestError:
    return InvalidRequestError(
        "the path is not in its canonical form: write names as they are, without escapes, empty parts, '.' and '..'; "
        "only the slash in the name of a subscriber is written as %2F",
        code=PATH_NOT_CANONICAL,
    )
