"""Valid bodies of all routes with one or two changes are never an internal error."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from functions_in_memory import Call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from functions import wiring
from functions.openapi import api_functions, operations_of
from headrace.adapters.memory.chunk_storage import MemoryChunkLinks, MemoryChunkStorage
from headrace.adapters.memory.manual_clock import ManualClock

STREAM = "/v1/scopes/<scope>/streams/<stream>"
TRANSACTION = f"{STREAM}/transactions/<transaction>"
GROUPS = "/v1/scopes/<scope>/reader-groups"
ID = "01234567-89ab-4cde-8f01-23456789abcd"
CONFIGURATION = {
    "scalingPolicy": {"type": "BY_RATE_IN_EVENTS_PER_SEC", "minSegments": 1, "targetRate": 10, "scaleFactor": 2},
    "retentionPolicy": {"type": "LIMITED_DAYS", "value": 1, "maxValue": 3},
    "streamTags": ["b", "a"],
    "timestampAggregationTimeout": 5,
    "rolloverSizeBytes": 0,
    "acknowledgedBy": "STORES",
}
CUT = {"0": 0, "1": 0}
GROUP = {
    "streams": [{"scopeName": "s", "streamName": "t", "from": CUT, "to": None}],
    "retentionType": "MANUAL",
    "groupRefreshTimeMillis": 3_000,
    "automaticCheckpointIntervalMillis": 3_000,
    "maxOutstandingCheckpointRequest": 3,
    "rolloverSizeBytes": 4_096,
}
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/cluster/logs/<container>/accept-loss"): {"lost": ["0a" * 16], "version": 1},
    ("PUT", "/v1/cluster/copies"): {"copies": 3},
    ("POST", "/v1/cluster/raise-epochs"): {"above": 7},
    ("POST", "/v1/scopes"): {"scopeName": "new"},
    ("POST", "/v1/scopes/<scope>/streams"): {"streamName": "new", **CONFIGURATION},
    ("PUT", STREAM): {"expectedConfigurationVersion": 0, **CONFIGURATION},
    ("PUT", f"{STREAM}/state"): {"streamState": "SEALED"},
    ("POST", f"{STREAM}/scale"): {"sealedSegments": [0, 1], "newRanges": [{"low": 0, "high": 0.5}]},
    ("POST", f"{STREAM}/truncate"): {"cut": CUT},
    ("POST", f"{STREAM}/stream-cuts/check"): {"cut": CUT},
    ("POST", f"{STREAM}/stream-cuts/distance"): {"from": CUT, "to": None},
    ("POST", f"{STREAM}/segments/between"): {"from": CUT, "to": None},
    ("POST", f"{STREAM}/next-cut"): {"from": CUT, "bytes": 5, "strictKeyOrder": True, "onTruncation": "skip"},
    ("POST", f"{STREAM}/range-plans"): {
        "ranges": [{"segmentId": 0, "start": 0, "end": 9, "pieceBytes": 4}],
        "links": False,
    },
    ("POST", f"{STREAM}/transactions"): {"lease": 30_000, "label": "q/1", "segments": "on-demand"},
    ("PUT", f"{TRANSACTION}/lease"): {"lease": 30_000},
    ("PUT", f"{TRANSACTION}/state"): {"state": "COMMITTING", "writer": "w", "time": 5},
    ("POST", f"{TRANSACTION}/segments"): {"segments": [0, 1]},
    ("POST", f"{STREAM}/transaction-aborts"): {"labelPrefix": "q", "continuationToken": "0" * 32},
    ("POST", f"{STREAM}/transaction-leases"): {"lease": 30_000, "transactions": ["0" * 32]},
    ("POST", f"{STREAM}/commit-sets"): {
        "writer": "w:1",
        "epoch": 1,
        "transactions": {"t": ["0" * 32]},
        "abortLabels": "q",
    },
    ("PUT", f"{STREAM}/writers/<writer>/position"): {"time": 5, "position": CUT},
    ("PUT", f"{STREAM}/subscribers/<subscriber>"): {"generation": 0, "streamCut": CUT},
    ("PUT", f"{STREAM}/subscribers/<subscriber>/position"): {"generation": 0, "streamCut": CUT},
    ("POST", GROUPS): {"readerGroupName": "g", "readerGroupId": ID, **GROUP},
    ("PUT", f"{GROUPS}/<group>"): {"readerGroupId": ID, "generation": 0, **GROUP},
    ("POST", f"{GROUPS}/<group>/reset"): {"readerGroupId": ID, "generation": 0},
    ("POST", "/v1/scopes/<scope>/key-value-tables"): {
        "tableName": "k",
        "partitionCount": 2,
        "primaryKeyLength": 8,
        "secondaryKeyLength": 2,
        "rolloverSizeBytes": 0,
    },
}
PATH = {"scope": "s", "stream": "t", "container": "0", "transaction": "0" * 32, "subscriber": "g", "group": "g"}

_TEXT = st.text(st.characters(), max_size=6) | st.sampled_from(["\ud800", "null", "0", "OPEN"])
_NUMBER = st.integers(-2, 3) | st.sampled_from([1 << 63, -(1 << 63) - 1, 1 << 70, 1.0, 1e300, -0.0])
_JUNK = st.recursive(
    st.none() | st.booleans() | _NUMBER | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=4,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for step in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _places(value[step], (*path, step))


@st.composite
def _changed(draw: st.DrawFn, valid: dict[str, Any]) -> Any:
    """The body after a value was replaced, left out, repeated, or a field was added."""
    body = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 2))):
        *path, last = draw(st.sampled_from([place for place in _places(body) if place] or [("new",)]))
        parent = body
        for step in path:
            parent = parent[step]
        change = draw(st.sampled_from(["replace", "remove", "repeat", "repeat", "add"]))
        if change == "remove":
            parent.pop(last, None) if isinstance(parent, dict) else parent.pop(last)
        elif change == "repeat" and isinstance(parent, dict) and isinstance(parent.get(last), list):
            parent[last] *= 2
        elif change == "repeat" and isinstance(parent, list):
            parent.append(parent[last])
        elif change == "add" and isinstance(parent, dict):
            parent[draw(_TEXT)] = draw(_JUNK)
        else:
            parent[last] = draw(_JUNK)
    return body


@pytest.fixture(autouse=True)
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tier 2 of no bucket."""
    links = MemoryChunkLinks(MemoryChunkStorage(), 60, ManualClock())
    monkeypatch.setattr(wiring, "chunk_links", lambda: links)


def test_each_route_with_a_body_has_a_valid_one(call: Call, active_stream: str):
    with_body = {
        (operation.method, operation.path)
        for declared in api_functions()
        for operation in operations_of(declared)
        if any(parameter.declared is None for parameter in operation.parameters)
    }
    assert with_body == BODIES.keys()
    for (method, path), body in BODIES.items():
        answer = call(method, _filled(path), body)
        assert answer.status < 300 or answer.code != "invalid_request", (method, path, answer)
        assert answer.status < 500, (method, path, answer)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), route=st.sampled_from(list(BODIES)))
def test_changed_body_is_never_an_internal_error(
    call: Call, active_stream: str, data: st.DataObject, route: tuple[str, str]
):
    """The examples share one stream: any state that they leave it in must not matter."""
    method, path = route
    answer = call(method, _filled(path), json.dumps(data.draw(_changed(BODIES[route]))))
    assert answer.status < 500


def _filled(path: str) -> str:
    return re.sub(r"<(\w+)>", lambda name: PATH.get(name[1], "w"), path)
