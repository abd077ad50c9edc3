"""What callers of the HTTP API may do, as patterns for policies of IAM. All follow from the table of routes.

A pattern is the end of the ARN of `execute-api`: the method and the path, such as `GET/v1/scopes/shop/*`. IAM's `*`
matches any text, slashes too. So a pattern with a `*` in the middle may match the path of another route, if a name in
it is a word of the API. `patterns_of` makes only patterns for which no name that may exist does that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from headrace.topology.kinds import Access, Route
from headrace.topology.routes import RESOURCE_PATHS, ROUTES, TRUST_PATH

READ_STREAMS_POLICY = "headrace-read-streams"
CONSUME_STREAMS_POLICY = "headrace-consume-streams"
WRITE_STREAMS_POLICY = "headrace-write-streams"
MANAGE_STREAMS_POLICY = "headrace-manage-streams"
OPERATE_POLICY = "headrace-operate"

INCLUDED: Mapping[Access, frozenset[Access]] = MappingProxyType(
    {
        Access.READ: frozenset({Access.READ}),
        Access.CONSUME: frozenset({Access.READ, Access.CONSUME}),
        Access.WRITE: frozenset({Access.READ, Access.WRITE}),
        Access.MANAGE: frozenset({Access.READ, Access.CONSUME, Access.WRITE, Access.MANAGE}),
    }
)
"""The classes of routes that a use needs. Operating is not here: it is about no scope."""

NO_NAMES: Mapping[str, str] = MappingProxyType({})

_PARAMETER = re.compile(r"{([^}]*)}")
_BASES = ("/v1/cluster", "/v1/dead-letters", "/v1/scopes", *RESOURCE_PATHS.values())
"""The paths below which one pattern may stand for all routes of a method."""

_SEGMENTS = f"{RESOURCE_PATHS['stream']}/segments"
_ENDPOINT = f"{_SEGMENTS}/{{segment}}/endpoint"
_CHUNKS = f"{_SEGMENTS}/{{segment}}/chunks"
_INTERNAL_STREAMS = (("stream", "_MARK", (_ENDPOINT,)), ("group", "_RG", (_SEGMENTS, _ENDPOINT, _CHUNKS)))
"""The stream with the watermarks of a stream, and the one with the state of a group: the prefix of its name, and what
clients ask about it. Its path is not below that of what it belongs to."""


@dataclass(frozen=True, slots=True)
class ManagedPolicy:
    """A policy that each deployment has, for roles of callers."""

    name: str
    description: str
    routes: tuple[Route, ...]


def routes_of(granted: Collection[Access], resources: Collection[str] = ()) -> tuple[Route, ...]:
    """The routes of these classes; with `resources` (keys of RESOURCE_PATHS) only those on such a resource or in it."""
    paths = [RESOURCE_PATHS[resource] for resource in resources]
    return tuple(
        route
        for route in ROUTES
        if route.access in granted
        and (not paths or any(route.path == path or route.path.startswith(f"{path}/") for path in paths))
    )


def _operated_routes() -> tuple[Route, ...]:
    """All that is for operators, and what they may see of scopes: no tokens and no links.

    A pattern for a path that ends with a name, such as that of a stream, would match those too.
    """
    seen = [
        route
        for route in ROUTES
        if route.access is Access.READ and route.method == "GET" and not route.action and not route.path.endswith("}")
    ]
    return (*routes_of({Access.OPERATE}), *seen)


MANAGED_POLICIES = (
    ManagedPolicy(READ_STREAMS_POLICY, "Read events of any stream", routes_of(INCLUDED[Access.READ])),
    ManagedPolicy(
        CONSUME_STREAMS_POLICY, "Read any stream, also as a member of a group", routes_of(INCLUDED[Access.CONSUME])
    ),
    ManagedPolicy(
        WRITE_STREAMS_POLICY,
        "Write and read events of any stream",
        # With the routes of groups until 0.4.0: before 0.3.0 members of groups had this policy.
        routes_of(INCLUDED[Access.WRITE] | INCLUDED[Access.CONSUME]),
    ),
    ManagedPolicy(MANAGE_STREAMS_POLICY, "Create, change and delete any stream", routes_of(INCLUDED[Access.MANAGE])),
    ManagedPolicy(OPERATE_POLICY, "Operate stores, logs and dead letters; read no events", _operated_routes()),
)


def patterns_of(granted: Collection[Route], names: Mapping[str, str] = NO_NAMES) -> tuple[str, ...]:
    """The fewest patterns for these routes, in the order of the table. `names` are the values of path parameters.

    A parameter without a value becomes a `*`.
    """
    left, patterns = list(granted), []
    for base in _BASES:
        filled = _filled(base, names)
        if "*" in filled:
            continue  # A text with a slash in place of this `*` would lead to another resource.
        further = [f"{{{name}}}" for name in names if f"{{{name}}}" not in base]
        for method in sorted({route.method for route in left}):
            below = [route for route in ROUTES if route.method == method and route.path.startswith(f"{base}/")]
            is_narrower = any(name in route.path for route in below for name in further)
            if len(below) > 1 and not is_narrower and all(route in left for route in below):
                patterns.append(f"{method}{filled}/*")
                left = [route for route in left if route not in below]
    return tuple(sorted([*patterns, *(f"{route.method}{_filled(route.path, names)}" for route in left)], key=_order))


def named_patterns(granted: Collection[Access], names: Mapping[str, str]) -> tuple[str, ...]:
    """The patterns for routes of these classes on the named resources and in them, by keys of RESOURCE_PATHS.

    A scope alone means everything in it. Otherwise it only says where the others are. Each caller that connects to
    segment stores must know whom to trust.
    """
    patterns = list(patterns_of(routes_of(granted, [kind for kind in names if kind != "scope"] or ["scope"]), names))
    for kind, prefix, paths in _INTERNAL_STREAMS:
        if kind in names and Access.READ in granted:
            asked = [route for route in ROUTES if route.method == "GET" and route.path in paths]
            patterns += patterns_of(asked, {**names, "stream": f"{prefix}{names[kind]}"})
    patterns += patterns_of([route for route in ROUTES if route.path == TRUST_PATH])
    return tuple(patterns)


def policy_document(patterns: Sequence[str], arn: str) -> dict[str, object]:
    """The policy of IAM that allows these patterns. `arn` is that of the API's stage, without a slash at its end."""
    resources = [f"{arn}/{pattern}" for pattern in patterns]
    statement = {"Sid": "Headrace", "Effect": "Allow", "Action": "execute-api:Invoke", "Resource": resources}
    return {"Version": "2012-10-17", "Statement": [statement]}


def _filled(path: str, names: Mapping[str, str]) -> str:
    return _PARAMETER.sub(lambda match: names.get(match[1], "*"), path)


def _order(pattern: str) -> tuple[str, str]:
    method, _, path = pattern.partition("/")
    return path, method
