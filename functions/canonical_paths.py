"""Refuses a request whose path has another form than the one that IAM's policies are written for.

IAM decides by the path as text, handlers by the names in it. If a path may be written in several ways, a policy that
denies `/v1/scopes/secret` does not match `/v1/scopes/%73ecret`. So each path has one form, and any other is refused
before a handler, an audit line or a token uses a name from it: the words of the route, and names without escapes, empty
parts or dots. The one escape is `%2F`, for the `/` in the name of a subscriber.

It is not known whether API Gateway decodes `rawPath` and the path parameters. All forms lead to the same request here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from headrace.model.errors import InvalidRequestError
from headrace.topology import ROUTE_BY_KEY

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
    parts, template, parameters = raw.split("/"), route.path.split("/"), event.get("pathParameters") or {}
    if len(parts) != len(template):
        parts = _decoded_parts(raw, template, parameters)
    if parts[0]:
        raise _not_canonical()  # It does not begin with a slash.
    for part, declared in zip(parts[1:], template[1:], strict=True):
        name = _parameter(declared)
        if name is None and part != declared:
            raise _not_canonical()
        value = unquote(part)
        if name is not None and parameters.get(name) not in (value, part):
            raise _not_canonical()
        if "/" in value and name != _WITH_SLASH:
            raise _not_canonical()
        _check_part(part, value)
    return event | {"rawPath": "/".join(parts)}


def _parameter(declared: str) -> str | None:
    """The name of the parameter that a part of a route's path is, or None for a word."""
    return declared[1:-1] if declared.startswith("{") else None


def _decoded_parts(raw: str, template: Sequence[str], parameters: Mapping[str, str]) -> list[str]:
    """The parts of a path in which the gateway has decoded the `/` of a name, so that it has more parts."""
    names = [_parameter(declared) for declared in template]
    values = [
        part if name is None else str(parameters.get(name, "")) for part, name in zip(template, names, strict=True)
    ]
    if "/".join(values) != raw:
        raise _not_canonical()
    return [_escaped(value) for value in values]


def _check_part(part: str, value: str) -> None:
    """A part is not empty, and no dots, which proxies remove; it has no escape but `%2F`, written so."""
    if value in ("", ".", "..") or _escaped(value) != part or "%" in part.replace("%2F", ""):
        raise _not_canonical()


def _escaped(value: str) -> str:
    """The part of a path for a value; half a character, which JSON can have, becomes another text."""
    return quote(value, safe=_PLAIN, errors="replace")


def _not_canonical() -> InvalidRequestError:
    return InvalidRequestError(
        "the path is not in its canonical form: write names as they are, without escapes, empty parts, '.' and '..'; "
        "only the slash in the name of a subscriber is written as %2F",
        code=PATH_NOT_CANONICAL,
    )
