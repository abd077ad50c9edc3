"""The policies for callers allow what our own writers and readers call, and nothing that manages streams.

What they call is not listed here: it is found in the client's modules, and asked of the client's own admin.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from iam_policies import allows
from syntax_trees import syntax_tree

from headrace import client
from headrace.adapters.gateway_events import match_route
from headrace.client import StreamCut
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.lazy_imports import lazy_part
from headrace.topology import ROUTES
from headrace.topology.caller_access import (
    CONSUME_STREAMS_POLICY,
    INCLUDED,
    MANAGE_STREAMS_POLICY,
    MANAGED_POLICIES,
    OPERATE_POLICY,
    WRITE_STREAMS_POLICY,
    named_patterns,
    patterns_of,
    policy_document,
)
from headrace.topology.kinds import Access, Route

LIBRARY = Path(client.__file__).parents[1]
ADMIN_NAMES = {"admin", "_admin"}
GROUPS = {name for name, value in vars(AsyncAdmin).items() if isinstance(value, lazy_part)}
ARGUMENTS = {
    "scope": "s",
    "stream": "t",
    "table": "t",
    "segment_id": 0,
    "writer": "w",
    "time": 1,
    "offsets": {0: 0},
    "transaction": "0123456789abcdef0123456789abcdef",
    "lease_ms": 10_000,
    "subscriber": "g",
    "position": {0: 0},
    "cut": StreamCut.of("s", "t", {0: 0}),
    "start": None,
    "end": None,
    "at": "tail",
    "group": "g",
    "key": "k",
    "from_offset": 0,
    "to_offset": 1,
    "limit": 1,
    "epoch": 0,
    "segments": [0],
    "label_prefix": "q",
    "transactions": ["0123456789abcdef0123456789abcdef"],
    "ranges": [],
}
CALLED_OTHERWISE = {
    ("subscribers", "register"),
    ("subscribers", "publish"),
    ("subscribers", "unregister"),
    ("transactions", "commit_all"),
    ("transactions", "committed_epoch"),
    ("transactions", "abort_labelled"),
    ("tables", "segments"),
    ("tables", "endpoint"),
    (None, "endpoint"),
}
"""What applications that read or write call themselves, as the manual shows it, and what goes through a protocol."""


MANAGING = {
    ("reader_groups", "update"),
    (None, "seal_stream"),
    (None, "create_scope"),
    (None, "create_stream"),
}
"""What only managers may call: a reset changes the record of a reader group, `close_and_seal` the state of a
stream, and a sink of Spark creates streams."""

OF_A_SCOPE = {(None, "list_streams"), (None, "scope_exists")}
"""What is asked about a whole scope, when Spark looks for streams or prepares one: a policy for names has it not."""


class _Called(Exception):
    """The request is known: no answer is needed."""


class _Recorder:
    """An API that takes down what it is asked for."""

    def __init__(self) -> None:
        self.request_of: tuple[str, str] | None = None
        self.network_query = None

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        self.request_of = (method, path)
        raise _Called


def _chain(node: ast.expr) -> list[str]:
    """The names of `a.b.c`; empty for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def _calls_of(module: Path) -> Iterator[tuple[str | None, str]]:
    """The group, if it is named there, and the method of each call of an admin."""
    for node in ast.walk(syntax_tree(module.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=method)):
                chain = _chain(owner)
                if chain and chain[-1] in ADMIN_NAMES:
                    yield None, method
                elif len(chain) > 1 and chain[-1] in GROUPS and chain[-2] in ADMIN_NAMES:
                    yield chain[-1], method


def _modules() -> list[Path]:
    """Of the client and of Spark, without the admins themselves."""
    found = [*(LIBRARY / "client").rglob("*.py"), *(LIBRARY / "spark").glob("*.py")]
    return [module for module in found if not module.stem.endswith("admin")]


def _called_methods() -> set[tuple[str | None, str]]:
    return {call for module in _modules() for call in _calls_of(module)} - MANAGING | CALLED_OTHERWISE


CALLED = sorted(_called_methods(), key=str)


async def _request_of(group: str | None, method: str) -> tuple[str, str]:
    """Method and path of the request that a method of the admin sends."""
    recorder = _Recorder()
    admin: Any = AsyncAdmin(recorder)  # type: ignore[arg-type]
    bound = getattr(admin if group is None else getattr(admin, group), method)
    required = [
        parameter for parameter in inspect.signature(bound).parameters.values() if parameter.default is parameter.empty
    ]
    arguments = {parameter.name: ARGUMENTS[parameter.name] for parameter in required}
    with pytest.raises(_Called):
        await bound(**arguments)
    assert recorder.request_of is not None
    return recorder.request_of


async def _route_of(group: str | None, method: str) -> Route:
    match = match_route(ROUTES, *await _request_of(group, method))
    assert match is not None
    return match.route


def _allows(policy: str, route: Route) -> bool:
    """Whether the managed policy lets a call of the route pass."""
    (routes,) = [managed.routes for managed in MANAGED_POLICIES if managed.name == policy]
    called = route.method + route.path.replace("{", "").replace("}", "")
    return allows([policy_document(patterns_of(routes), "arn")], f"arn/{called}")


def test_there_are_calls_to_look_at():
    assert {
        (None, "successors"),
        (None, "endpoint"),
        ("watermarks", "note_position"),
        ("transactions", "commit"),
        ("transactions", "create"),
    } <= set(CALLED)


@pytest.mark.anyio
@pytest.mark.parametrize(("group", "method"), CALLED)
async def test_writers_and_readers_may_call_what_our_client_calls(group: str | None, method: str):
    assert _allows(WRITE_STREAMS_POLICY, await _route_of(group, method))


@pytest.mark.anyio
@pytest.mark.parametrize(("group", "method"), [called for called in CALLED if called not in OF_A_SCOPE])
async def test_a_policy_for_names_allows_what_our_client_calls(group: str | None, method: str):
    """Also the streams with the watermarks and with the state of a group, whose names no user writes."""
    names = {"scope": "s", "stream": "t", "group": "g", "table": "t"}
    granted = INCLUDED[Access.WRITE] | INCLUDED[Access.CONSUME]
    asked, path = await _request_of(group, method)
    assert allows([policy_document(named_patterns(granted, names), "arn")], f"arn/{asked}{path}")
    others = {"scope": "s", "stream": "u", "group": "h", "table": "u"}
    assert not allows([policy_document(named_patterns(granted, others), "arn")], f"arn/{asked}{path}")


@pytest.mark.anyio
async def test_a_member_of_a_group_needs_no_right_to_write():
    for method in ("register", "publish", "unregister"):
        route = await _route_of("subscribers", method)
        assert _allows(CONSUME_STREAMS_POLICY, route)
        assert route.access not in INCLUDED[Access.WRITE]


def test_writers_may_not_manage():
    refused = {(route.method, route.path) for route in ROUTES if not _allows(WRITE_STREAMS_POLICY, route)}
    stream = "/v1/scopes/{scope}/streams/{stream}"
    assert {("DELETE", stream), ("PUT", stream), ("POST", f"{stream}/truncate"), ("POST", f"{stream}/scale")} <= refused


def test_managers_of_streams_may_not_decide_about_logs():
    refused = {route for route in ROUTES if not _allows(MANAGE_STREAMS_POLICY, route)}
    assert refused == {route for route in ROUTES if route.access is Access.OPERATE}
    assert all(_allows(OPERATE_POLICY, route) for route in refused)
