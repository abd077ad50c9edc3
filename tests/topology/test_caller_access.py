"""Each route has its class, and the patterns of policies allow its callers exactly the routes of their classes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import pytest
from iam_policies import allows

from headrace.model.names import mark_stream_name
from headrace.model.reader_groups import state_stream_name
from headrace.topology import ROUTES, Route
from headrace.topology.caller_access import (
    INCLUDED,
    MANAGED_POLICIES,
    ManagedPolicy,
    named_patterns,
    patterns_of,
    policy_document,
    routes_of,
)
from headrace.topology.kinds import Access
from headrace.topology.routes import RESOURCE_PATHS

ARN = "arn:aws:execute-api:eu-west-1:111122223333:a1b2c3/$default"
POLICY_CHARACTERS_MAX = 6_144
"""IAM's limit for a managed policy, without blanks."""

SCOPE = "/v1/scopes/{scope}"
STREAM = f"{SCOPE}/streams/{{stream}}"
GROUP = f"{SCOPE}/reader-groups/{{group}}"
TABLE = f"{SCOPE}/key-value-tables/{{table}}"

CLASSES = {
    Access.CONSUME: {
        f"PUT {STREAM}/subscribers/{{subscriber}}",
        f"PUT {STREAM}/subscribers/{{subscriber}}/position",
        f"DELETE {STREAM}/subscribers/{{subscriber}}",
        f"POST {SCOPE}/reader-groups",
        f"POST {GROUP}/reset",
        f"POST {GROUP}/delegation-token",
    },
    Access.WRITE: {
        f"POST {STREAM}/delegation-token",
        f"POST {TABLE}/delegation-token",
        f"POST {STREAM}/transactions",
        f"PUT {STREAM}/transactions/{{transaction}}/lease",
        f"PUT {STREAM}/transactions/{{transaction}}/state",
        f"POST {STREAM}/transactions/{{transaction}}/segments",
        f"POST {STREAM}/transaction-aborts",
        f"POST {STREAM}/transaction-leases",
        f"POST {STREAM}/commit-sets",
        f"PUT {STREAM}/writers/{{writer}}/position",
        f"DELETE {STREAM}/writers/{{writer}}",
    },
    Access.MANAGE: {
        "POST /v1/scopes",
        f"DELETE {SCOPE}",
        f"POST {SCOPE}/streams",
        f"PUT {STREAM}",
        f"DELETE {STREAM}",
        f"PUT {STREAM}/state",
        f"POST {STREAM}/scale",
        f"POST {STREAM}/truncate",
        f"PUT {STREAM}/delegation-token",
        f"PUT {GROUP}",
        f"DELETE {GROUP}",
        f"POST {SCOPE}/key-value-tables",
        f"DELETE {TABLE}",
    },
}
"""The classes that change something in scopes, as docs/operating/security.md has them."""

QUESTIONS = {
    f"POST {STREAM}/segments/between",
    f"POST {STREAM}/stream-cuts/check",
    f"POST {STREAM}/stream-cuts/distance",
    f"POST {STREAM}/next-cut",
    f"POST {STREAM}/range-plans",
}
"""The routes that read although their method is not GET."""

GRANTS_BY_GET = {
    f"GET {STREAM}/delegation-token",
    f"GET {GROUP}/delegation-token",
    f"GET {TABLE}/delegation-token",
    f"GET {STREAM}/segments/{{segment}}/chunks",
}

TRUST = "GET /v1/trust"
"""Whom to trust, for each caller that connects to segment stores. It is about no scope."""

OPERATORS_SEE = {
    TRUST,
    "GET /v1/scopes",
    f"GET {SCOPE}/streams",
    f"GET {STREAM}/scaling-events",
    f"GET {STREAM}/epochs",
    f"GET {STREAM}/transactions",
    f"GET {STREAM}/segments",
    f"GET {STREAM}/segments/{{segment}}/successors",
    f"GET {STREAM}/segments/{{segment}}/predecessors",
    f"GET {STREAM}/segments/{{segment}}/endpoint",
    f"GET {STREAM}/stream-cut",
    f"GET {STREAM}/watermark",
    f"GET {STREAM}/retention",
    f"GET {STREAM}/subscribers",
    f"GET {SCOPE}/reader-groups",
    f"GET {SCOPE}/key-value-tables",
    f"GET {TABLE}/segments",
    f"GET {TABLE}/segments/{{segment}}/endpoint",
}

WORDS = sorted({part for route in ROUTES for part in route.path.split("/")[3:] if part and "{" not in part})
"""The words of the API, all of which may be names, too."""
VALUES: Mapping[str, Sequence[str]] = {
    "container": ["7"],
    "segment": ["4294967296"],
    "epoch": ["3"],
    "letter": ["1763800000000-0123456789abcdef0123456789abcdef"],
    "transaction": ["0123456789abcdef0123456789abcdef"],
    "writer": ["w", "W.1-a", "position", "lease", "state", "segments", "streams", "delegation-token", "transactions"],
    "subscriber": ["g", "shop%2Fg", "position", "state", "segments", "streams", "writers", "delegation-token"],
}
"""Values of path parameters that the handlers accept (no writer `subscribers`); of others all in NAMES."""
NAMES = ["orders", "shop", "shop-eu", "a.b", "_system", "v1", *WORDS]


def _paths(route: Route, names: Sequence[str] = NAMES) -> Iterator[str]:
    """The paths of a route with each combination of names."""
    parameters = re.findall(r"{([^}]*)}", route.path)
    for values in itertools.product(*(VALUES.get(parameter, names) for parameter in parameters)):
        path = route.path
        for parameter, value in zip(parameters, values, strict=True):
            path = path.replace(f"{{{parameter}}}", value)
        yield path


def _resource(route: Route, path: str) -> str:
    return f"{ARN}/{route.method}{path}"


def _managed(name: str) -> ManagedPolicy:
    return next(managed for managed in MANAGED_POLICIES if managed.name == f"headrace-{name}")


def test_a9_each_route_has_the_class_of_the_design():
    by_class = {access: {route.key for route in routes_of({access})} for access in Access}
    assert sum(map(len, by_class.values())) == len(ROUTES) == len({route.key for route in ROUTES})
    assert by_class[Access.OPERATE] == {route.key for route in ROUTES if not route.path.startswith("/v1/scopes")} - {
        TRUST
    }
    assert {access: by_class[access] for access in CLASSES} == CLASSES
    reads = {route.key for route in ROUTES if route.path.startswith("/v1/scopes") and route.method == "GET"}
    assert by_class[Access.READ] == reads | QUESTIONS | {TRUST}


def test_a_route_without_a_class_is_an_error():
    with pytest.raises(TypeError, match="access"):
        Route("GET", "/v1/new", "scopes")  # type: ignore[call-arg]


def test_what_changes_or_grants_has_an_action():
    silent = {route.key for route in ROUTES if not route.action}
    asks = {route.key for route in ROUTES if route.method == "GET"} - GRANTS_BY_GET
    assert silent == asks | (QUESTIONS - {f"POST {STREAM}/range-plans"})


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("read-streams", {Access.READ}),
        ("consume-streams", {Access.READ, Access.CONSUME}),
        ("write-streams", {Access.READ, Access.WRITE, Access.CONSUME}),
        ("manage-streams", {Access.READ, Access.WRITE, Access.CONSUME, Access.MANAGE}),
    ],
)
def test_a9_a_managed_policy_has_its_classes(name: str, classes: set[Access]):
    assert {route.key for route in _managed(name).routes} == {route.key for route in ROUTES if route.access in classes}


def test_a9_operators_get_no_tokens_and_no_links():
    operated = {route.key for route in ROUTES if route.access is Access.OPERATE}
    assert {route.key for route in _managed("operate").routes} == operated | OPERATORS_SEE


@pytest.mark.parametrize("policy", MANAGED_POLICIES, ids=lambda policy: policy.name)
def test_a9_a_managed_policy_allows_no_other_route(policy: ManagedPolicy):
    document = policy_document(patterns_of(policy.routes), ARN)
    granted = set(policy.routes)
    if policy is _managed("operate"):
        # A stream whose name is a word of the API may be seen, as any other resource, but not read.
        granted |= {route for route in routes_of({Access.READ}) if route.key not in GRANTS_BY_GET | QUESTIONS}
    refused = [route for route in ROUTES if route not in granted]
    assert [path for route in refused for path in _paths(route) if allows([document], _resource(route, path))] == []
    for route in policy.routes:
        paths = _paths(route, ["orders", "_system", "a.b-c"])
        assert all(allows([document], _resource(route, path)) for path in paths), route.key


@pytest.mark.parametrize("policy", MANAGED_POLICIES, ids=lambda policy: policy.name)
def test_a_managed_policy_fits_into_iams_limit(policy: ManagedPolicy):
    arn = "arn:aws-us-gov:execute-api:ap-southeast-2:111122223333:abcdefghij/$default"
    text = str(policy_document(patterns_of(policy.routes), arn)).replace(" ", "")
    assert len(text) < POLICY_CHARACTERS_MAX


NAMED = [
    {"scope": "shop"},
    {"scope": "shop", "stream": "orders"},
    {"scope": "shop", "stream": "orders", "group": "billing"},
    {"scope": "shop", "table": "prices"},
    {"scope": "a.b", "stream": "streams"},
    {"scope": "scopes", "stream": "_system.1-x"},
    {"scope": "v1", "group": "delegation-token"},
]


@pytest.mark.parametrize("access", INCLUDED, ids=str)
@pytest.mark.parametrize("names", NAMED, ids=lambda names: "-".join(names.values()))
def test_a9_a_policy_for_a_name_allows_only_that_name(names: Mapping[str, str], access: Access):
    resources = [name for name in names if name != "scope"] or ["scope"]
    granted = set(routes_of(INCLUDED[access], resources))
    assert granted
    document = policy_document(named_patterns(INCLUDED[access], names), ARN)
    internal = {mark_stream_name(names.get("stream", "-")), state_stream_name(names.get("group", "-"))}
    others = [*names.values(), *internal, "shop-eu", "orders2", "order", "v1", "scopes", "streams", "_MARKx", "_RGx"]
    for route in ROUTES:
        for path in _paths(route, others):
            expected = route.key == TRUST or (route in granted and _is_named(route, path, names))
            expected |= _is_named(route, path, {"scope": names["scope"]}) and _asks_internal(route.key, path, names)
            assert allows([document], _resource(route, path)) == expected, (route.key, path)


def _asks_internal(key: str, path: str, names: Mapping[str, str]) -> bool:
    """Whether the path is of a question about the internal stream of a named stream or group."""
    stream = (path.split("/") + [""] * 6)[5]
    is_of_stream = "stream" in names and stream == mark_stream_name(names["stream"])
    is_of_group = "group" in names and stream == state_stream_name(names["group"])
    asks_of_group = {f"GET {STREAM}/segments{rest}" for rest in ("", "/{segment}/endpoint", "/{segment}/chunks")}
    return (is_of_stream and key == f"GET {STREAM}/segments/{{segment}}/endpoint") or (
        is_of_group and key in asks_of_group
    )


def _is_named(route: Route, path: str, names: Mapping[str, str]) -> bool:
    """Whether the path has the given names where the route has these parameters."""
    parts = dict(zip(route.path.split("/"), path.split("/"), strict=True))
    return all(parts.get(f"{{{parameter}}}", name) == name for parameter, name in names.items())


@pytest.mark.parametrize(
    "path",
    [
        "/v1/scopes/secret/streams/s",
        "/v1/scopes/%73hop/streams/orders",
        "/v1/scopes/shop%2Fstreams/orders",
        "/v1/scopes/shop//streams/orders",
        "/v1/scopes/shop/./streams/orders",
        "/v1/scopes/shop/streams/orders%2F",
        "/v1/scopes/shop/streams/order%73",
        "/v1/scopes/shop-eu/streams/orders",
        "/V1/scopes/shop/streams/orders",
    ],
)
def test_a_policy_refuses_other_forms_of_a_path(path: str):
    granted = routes_of(INCLUDED[Access.MANAGE], ["stream"])
    document = policy_document(patterns_of(granted, {"scope": "shop", "stream": "orders"}), ARN)
    assert allows([document], f"{ARN}/GET/v1/scopes/shop/streams/orders")
    assert not allows([document], f"{ARN}/GET{path}")


def test_a_deny_of_a_team_wins_over_a_managed_policy():
    allow = policy_document(patterns_of(_managed("manage-streams").routes), ARN)
    deny = policy_document(patterns_of(routes_of(set(Access), ["scope"]), {"scope": "secret"}), ARN)
    deny = deny | {"Statement": [statement | {"Effect": "Deny"} for statement in deny["Statement"]]}  # type: ignore[attr-defined]
    assert allows([allow, deny], f"{ARN}/GET/v1/scopes/shop/streams/orders")
    assert not allows([allow, deny], f"{ARN}/GET/v1/scopes/secret/streams/orders")
    assert not allows([allow, deny], f"{ARN}/DELETE/v1/scopes/secret")


def test_patterns_for_a_stream_are_few():
    names = {"scope": "shop", "stream": "orders"}
    assert patterns_of(routes_of(INCLUDED[Access.READ], ["stream"]), names) == (
        "GET/v1/scopes/shop/streams/orders",
        "GET/v1/scopes/shop/streams/orders/*",
        "POST/v1/scopes/shop/streams/orders/next-cut",
        "POST/v1/scopes/shop/streams/orders/range-plans",
        "POST/v1/scopes/shop/streams/orders/segments/between",
        "POST/v1/scopes/shop/streams/orders/stream-cuts/check",
        "POST/v1/scopes/shop/streams/orders/stream-cuts/distance",
    )
    assert set(RESOURCE_PATHS) == {"scope", "stream", "group", "table"}
