"""Bad input: the right status and a stable code, nothing changed, never a fault of ours."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.topology import ROUTES
from headrace.topology.kinds import Route

STREAMS = "/v1/scopes/s/streams"
STREAM = f"{STREAMS}/t"
SCALE = f"{STREAM}/scale"
HALVES = [{"low": 0.0, "high": 0.25}, {"low": 0.25, "high": 0.5}]
FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1}


def scale(*ranges: Any, seal: Any = (0,)) -> dict[str, Any]:
    return {
        "sealedSegments": list(seal) if isinstance(seal, tuple) else seal,
        "newRanges": [{"low": low, "high": high} for low, high in ranges],
    }


CASES = {
    "name with a blank": ("POST", "/v1/scopes", {"scopeName": "a b"}, 400, "invalid_name"),
    "empty name": ("POST", "/v1/scopes", {"scopeName": ""}, 400, "invalid_name"),
    "name too long": ("POST", "/v1/scopes", {"scopeName": "a" * 256}, 400, "invalid_name"),
    "name of the system": ("POST", "/v1/scopes", {"scopeName": "_system"}, 400, "invalid_name"),
    "name of another alphabet": ("POST", "/v1/scopes", {"scopeName": "ström"}, 400, "invalid_name"),
    "name that is no text in Unicode": ("POST", "/v1/scopes", '{"scopeName": "\\ud800"}', 400, "invalid_name"),
    "stream name with a slash": (
        "POST", STREAMS, {"streamName": "a/b", "scalingPolicy": FIXED}, 400, "invalid_name",
    ),
    "percent-encoded slash in a path": ("GET", "/v1/scopes/a%2Fb", None, 400, "path_not_canonical"),
    "percent-encoded slash in a stream's path": ("GET", f"{STREAMS}/t%2Fsegments", None, 400, "path_not_canonical"),
    "percent-encoded percent": ("GET", "/v1/scopes/a%252Fb", None, 400, "path_not_canonical"),
    "escape that no name needs": ("GET", "/v1/scopes/%73", None, 400, "path_not_canonical"),
    "escape of the escape": ("GET", "/v1/scopes/%2573", None, 400, "path_not_canonical"),
    "escape that is not UTF-8": ("GET", "/v1/scopes/%ff", None, 400, "path_not_canonical"),
    "half an escape": ("GET", "/v1/scopes/a%2", None, 400, "path_not_canonical"),
    "not JSON": ("POST", "/v1/scopes", "{scopeName: s}", 400, "invalid_request"),
    "half of JSON": ("POST", "/v1/scopes", '{"scopeName": "s"', 400, "invalid_request"),
    "JSON, but a list": ("POST", "/v1/scopes", "[]", 400, "invalid_request"),
    "JSON, but a number": ("POST", "/v1/scopes", "7", 400, "invalid_request"),
    "JSON, but null": ("POST", "/v1/scopes", "null", 400, "invalid_request"),
    "a field twice": ("POST", "/v1/scopes", '{"scopeName": "x", "scopeName": "y"}', 400, "invalid_request"),
    "a segment of a cut twice": (
        "POST", f"{STREAM}/segments/between", '{"from": {"0": 1, "0": 2, "1": 0}}', 400, "invalid_request",
    ),
    "no body": ("POST", "/v1/scopes", None, 400, "invalid_request"),
    "nested without end": ("POST", "/v1/scopes", "[" * 200_000, 400, "invalid_request"),
    "a number of a million digits": ("POST", "/v1/scopes", "1" * 200_000, 400, "invalid_request"),
    "body too large": ("POST", "/v1/scopes", '"' + "a" * 600_000 + '"', 413, "body_too_large"),
    "unknown field": ("POST", "/v1/scopes", {"scopeName": "x", "owner": "me"}, 400, "invalid_request"),
    "unknown field inside": (
        "POST", STREAMS, {"streamName": "u", "scalingPolicy": FIXED | {"max": 3}}, 400, "invalid_request",
    ),
    "number for a text": ("POST", "/v1/scopes", {"scopeName": 7}, 400, "invalid_request"),
    "text for a number": (
        "POST", STREAMS, {"streamName": "u", "scalingPolicy": FIXED | {"minSegments": "2"}}, 400, "invalid_request",
    ),
    "fraction for a number": (
        "POST", STREAMS, {"streamName": "u", "scalingPolicy": FIXED | {"minSegments": 1.5}}, 400, "invalid_request",
    ),
    "true for a number": (
        "POST", STREAMS, {"streamName": "u", "scalingPolicy": FIXED | {"minSegments": True}}, 400, "invalid_request",
    ),
    "unknown policy": (
        "POST", STREAMS, {"streamName": "u", "scalingPolicy": {"type": "X", "minSegments": 1}}, 400, "invalid_request",
    ),
    "no segments": (
        "POST", STREAMS,
        {"streamName": "u", "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 0}}, 400, "invalid_request",
    ),
    "number beyond 64 bits": (
        "POST", STREAMS,
        {"streamName": "u", "scalingPolicy": FIXED, "rolloverSizeBytes": 1 << 70}, 400, "invalid_request",
    ),
    "tag that is no text in Unicode": (
        "POST", STREAMS,
        '{"streamName": "u", "scalingPolicy": ' + json.dumps(FIXED) + ', "streamTags": ["\\ud800"]}',
        400, "invalid_request",
    ),
    "state that is no text in Unicode": (
        "PUT", f"{STREAM}/state", '{"streamState": "\\ud800"}', 400, "invalid_request",
    ),
    "unknown field that is no text in Unicode": (
        "POST", "/v1/scopes", '{"scopeName": "x", "\\ud800": 1}', 400, "invalid_request",
    ),
    "empty id of a group": (
        "POST", "/v1/scopes/s/reader-groups",
        {"readerGroupName": "g", "readerGroupId": "", "streams": [{"streamName": "t"}]}, 400, "invalid_request",
    ),
    "too many tags": (
        "POST", STREAMS,
        {"streamName": "u", "scalingPolicy": FIXED, "streamTags": [str(n) for n in range(200)]}, 400, "invalid_request",
    ),
    "stream in no scope": (
        "POST", "/v1/scopes/none/streams", {"streamName": "u", "scalingPolicy": FIXED}, 404, "not_found",
    ),
    "stream that exists": ("POST", STREAMS, {"streamName": "t", "scalingPolicy": FIXED}, 409, "already_exists"),
    "stream that does not exist": ("GET", f"{STREAMS}/none", None, 404, "not_found"),
    "scope that does not exist": ("DELETE", "/v1/scopes/none", None, 404, "not_found"),
    "deleting an unsealed stream": ("DELETE", STREAM, None, 412, "stream_not_sealed"),
    "a state that cannot be asked for": ("PUT", f"{STREAM}/state", {"streamState": "SEALING"}, 400, "invalid_request"),
    "ranges that overlap": ("POST", SCALE, scale((0.0, 0.3), (0.25, 0.5)), 400, "invalid_key_ranges"),
    "ranges with a hole": ("POST", SCALE, scale((0.0, 0.2), (0.25, 0.5)), 400, "invalid_key_ranges"),
    "ranges that cover too much": ("POST", SCALE, scale((0.0, 0.75)), 400, "invalid_key_ranges"),
    "range upside down": ("POST", SCALE, scale((0.5, 0.0)), 400, "invalid_key_ranges"),
    "empty range": ("POST", SCALE, scale((0.2, 0.2)), 400, "invalid_key_ranges"),
    "range outside of the key space": ("POST", SCALE, scale((-0.5, 0.5)), 400, "invalid_key_ranges"),
    "NaN": ("POST", SCALE, '{"sealedSegments":[0],"newRanges":[{"low":NaN,"high":0.5}]}', 400, "invalid_request"),
    "infinity": ("POST", SCALE, '{"sealedSegments":[0],"newRanges":[{"low":0,"high":1e999}]}', 400, "invalid_request"),
    "segment that is not active": ("POST", SCALE, scale((0.0, 0.5), seal=(9,)), 412, "segment_not_active"),
    "no ranges": ("POST", SCALE, {"sealedSegments": [0], "newRanges": []}, 400, "invalid_request"),
    "no segments to seal": ("POST", SCALE, {"sealedSegments": [], "newRanges": HALVES}, 400, "invalid_request"),
    "negative segment": ("POST", SCALE, {"sealedSegments": [-1], "newRanges": HALVES}, 400, "invalid_request"),
    "segment as text": ("POST", SCALE, {"sealedSegments": ["0"], "newRanges": HALVES}, 400, "invalid_request"),
    "scale of no epoch": ("GET", f"{SCALE}/x", None, 400, "invalid_request"),
    "scale of a negative epoch": ("GET", f"{SCALE}/-1", None, 400, "invalid_request"),
    "segment id that is no number": ("GET", f"{STREAM}/segments/x/successors", None, 400, "invalid_request"),
    "segment id in other digits": ("GET", f"{STREAM}/segments/%D9%A1/successors", None, 400, "path_not_canonical"),
    "segment id beyond 64 bits": ("GET", f"{STREAM}/segments/{1 << 64}/endpoint", None, 400, "invalid_request"),
    "segment that never was": ("GET", f"{STREAM}/segments/5/predecessors", None, 404, "not_found"),
    "cut with a key that is no number": (
        "POST", f"{STREAM}/segments/between", {"from": {"a": 0}, "to": None}, 400, "invalid_request",
    ),
    "cut with a negative offset": (
        "POST", f"{STREAM}/segments/between", {"from": {"0": -1, "1": 0}, "to": None}, 400, "invalid_stream_cut",
    ),
    "cut that names a segment twice": (
        "POST", f"{STREAM}/segments/between", {"from": {"0": 1, "00": 2}, "to": None}, 400, "invalid_stream_cut",
    ),
    "cut that does not cover the key space": (
        "POST", f"{STREAM}/segments/between", {"from": {"0": 0}, "to": None}, 400, "invalid_stream_cut",
    ),
    "empty cut": ("POST", f"{STREAM}/segments/between", {"from": {}, "to": None}, 400, "invalid_stream_cut"),
}  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "status", "code"), CASES.values(), ids=CASES.keys())
def test_bad_input(
    call: Call, world: FunctionWorld, active_stream: str, method: str, path: str, body: Any, status: int, code: str
):
    before = world.contents()
    answer = call(method, path, body)
    assert (answer.status, answer.code) == (status, code)
    assert set(answer.body["error"]) == {"code", "message", "retry", "details"}
    assert world.contents() == before
    assert call("GET", STREAM).body["state"] == "ACTIVE"


@pytest.mark.parametrize("name", [".", "..", "%2E%2E"])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_dot_names_in_paths_are_refused(call: Call, world: FunctionWorld, active_stream: str, route: Route, name: str):
    """HTTP clients and proxies remove them, so that a request for one resource reaches another."""
    before = world.contents()
    parameters = re.findall(r"\{(\w+)\}", route.path)
    for parameter in parameters:
        names = {name: "s" if name == "scope" else "t" for name in parameters} | {parameter: name}
        answer = call(route.method, route.path.format(**names), None)
        assert answer.status == 400, parameter
    assert world.contents() == before


QUERIES = {
    "page of nothing": ("/v1/scopes", {"limit": "0"}),
    "page too large": ("/v1/scopes", {"limit": "1001"}),
    "page of words": (STREAMS, {"limit": "many"}),
    "page of a fraction": ("/v1/scopes", {"limit": "1.0"}),
    "page in powers of ten": ("/v1/scopes", {"limit": "1e2"}),
    "page with a blank": ("/v1/scopes", {"limit": " 1"}),
    "page in other digits": ("/v1/scopes", {"limit": "\u0661"}),
    "page that is no text in Unicode": ("/v1/scopes", {"limit": "\ud800"}),
    "page as Python writes numbers": ("/v1/scopes", {"limit": "1_0"}),
    "switch of another language": (f"{STREAM}/segments/0/successors", {"asRecorded": "yes"}),
    "switch that is a negative zero": (f"{STREAM}/segments/0/successors", {"asRecorded": "-0"}),
    "epoch that is null": (f"{STREAM}/segments", {"epoch": "null"}),
    "end that is null": (f"{STREAM}/segments/0/chunks", {"to": "null"}),
    "filter that is null": (STREAMS, {"filter_type": "null"}),
    "token that is no name": (STREAMS, {"continuationToken": "a/b"}),
    "point that is none": (f"{STREAM}/segments", {"at": "middle"}),
    "negative time": (f"{STREAM}/segments", {"at": "-5"}),
    "both a point and an epoch": (f"{STREAM}/segments", {"at": "head", "epoch": "0"}),
    "end that is none": (f"{STREAM}/stream-cut", {"at": "middle"}),
    "empty tag": (STREAMS, {"tag": ""}),
}


@pytest.mark.parametrize(("path", "query"), QUERIES.values(), ids=QUERIES.keys())
def test_bad_query(call: Call, active_stream: str, path: str, query: dict[str, str]):
    assert call("GET", path, **query).status == 400


@pytest.mark.parametrize("given", ["true", "True", "1", "false", "FALSE", "0"])
def test_switches_of_a_query(call: Call, active_stream: str, given: str):
    answer = call("POST", f"{active_stream}/stream-cuts/check", {"cut": {"9": 0}}, explain=given)
    assert ("problem" in answer.body) == (given.lower() in ("true", "1"))


@pytest.mark.parametrize("tags", [["b", "a", "b"], ["a"] * 1_000], ids=len)
def test_repeated_tags_count_once(call: Call, active_stream: str, tags: list[str]):
    body = {"streamName": "u", "scalingPolicy": FIXED, "streamTags": tags}
    unknown = call("POST", STREAMS, body | {"unknown": 1})
    assert (unknown.status, unknown.code) == (400, "invalid_request")
    created = call("POST", STREAMS, body)
    assert (created.status, created.body["streamTags"]) == (201, sorted(set(tags)))


def test_class_of_a_new_stream_may_be_null(call: Call, active_stream: str):
    body = {"streamName": "u", "scalingPolicy": FIXED, "acknowledgedBy": None}
    created = call("POST", STREAMS, body)
    assert (created.status, created.body["acknowledgedBy"]) == (201, "STORES")


def test_unknown_field_is_named(call: Call):
    answer = call("POST", "/v1/scopes", {"scopeName": "s", "owner": "me"})
    assert "owner" in answer.body["error"]["message"]
    assert answer.body["error"]["details"]["problems"][0]["field"] == "body.owner"


def test_sealing_a_sealed_stream_has_its_own_error_code(call: Call, world: FunctionWorld, active_stream: str):
    call("PUT", f"{active_stream}/state", {"streamState": "SEALED"})
    world.work()
    before = world.contents()
    answer = call("PUT", f"{active_stream}/state", {"streamState": "SEALED"})
    assert (answer.status, answer.code) == (412, "sealed")
    assert world.contents() == before


def test_body_sent_as_a_form_is_read_as_json(call: Call):
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert call("POST", "/v1/scopes", {"scopeName": "s"}, headers=headers).status == 201


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
_FIELDS = st.sampled_from(
    [
        "scopeName",
        "streamName",
        "scalingPolicy",
        "streamTags",
        "sealedSegments",
        "newRanges",
        "streamState",
        "from",
        "to",
    ]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.one_of(
        st.dictionaries(_FIELDS, _JSON, max_size=4).map(json.dumps), _JSON.map(json.dumps), st.text(max_size=60)
    ),
    route=st.sampled_from(
        [
            ("POST", "/v1/scopes/s/streams"),
            ("PUT", f"{STREAM}/state"),
            ("POST", SCALE),
            ("POST", f"{STREAM}/segments/between"),
        ]
    ),
)
def test_bad_body_is_never_an_internal_error(call: Call, active_or_any: str, body: str, route: tuple[str, str]):
    answer = call(route[0], route[1], body)
    assert answer.status < 500


@pytest.fixture
def active_or_any(active_stream: str) -> str:
    """The examples share one stream: whatever state they leave it in must not matter."""
    return active_stream


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", "multipart/form-data", ";;", "é"])
def test_missing_body_is_refused_for_any_content_type(call: Call, active_stream: str, content_type: str):
    answer = call("POST", f"{active_stream}/scale", headers={"Content-Type": content_type})
    assert (answer.status, answer.code) == (400, "invalid_request")
