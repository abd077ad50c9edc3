"""Updates, truncation, stream cuts, scaling events and lists by prefix through the handlers."""

from __future__ import annotations

from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld

NEW_LOW, NEW_HIGH = (1 << 32) + 2, (1 << 32) + 3
FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2, "targetRate": 0, "scaleFactor": 0}


@pytest.fixture
def scaled_stream(call: Call, world: FunctionWorld, active_stream: str) -> str:
    """s/t after segment 0, of 10 bytes, was split in two; segment 1 holds 20 bytes."""
    world.segment_stores.extend("s/t/0.#epoch.0", 10)
    world.segment_stores.extend("s/t/1.#epoch.0", 20)
    request = {"sealedSegments": [0], "newRanges": [{"low": 0.0, "high": 0.25}, {"low": 0.25, "high": 0.5}]}
    assert call("POST", f"{active_stream}/scale", request).status == 202
    world.work()
    return active_stream


def _cut(**offsets: int) -> dict[str, Any]:
    return {"cut": {name.removeprefix("s"): offset for name, offset in offsets.items()}}


def test_an_update(call: Call, world: FunctionWorld, active_stream: str):
    asked = {
        "scalingPolicy": FIXED | {"minSegments": 3},
        "retentionPolicy": {"type": "LIMITED_DAYS", "value": 7, "maxValue": None},
        "streamTags": ["x"],
        "timestampAggregationTimeout": 5,
        "rolloverSizeBytes": 6,
    }
    answer = call("PUT", active_stream, asked)
    assert (answer.status, answer.body) == (202, {"streamState": "UPDATING", "configurationVersion": 1})
    other = call("PUT", active_stream, {"scalingPolicy": FIXED})
    assert (other.status, other.code, other.body["error"]["retry"]) == (409, "conflict", "now")
    world.work()
    body = call("GET", active_stream).body
    assert {name: body[name] for name in asked} == asked
    assert (body["state"], body["configurationVersion"]) == ("ACTIVE", 1)


def test_a_truncation(call: Call, world: FunctionWorld, scaled_stream: str):
    wanted = {"cut": {str(NEW_LOW): 0, str(NEW_HIGH): 0, "1": 7}}
    answer = call("POST", f"{scaled_stream}/truncate", wanted)
    assert (answer.status, answer.body) == (202, {"streamState": "TRUNCATING"})
    world.work()
    assert call("POST", f"{scaled_stream}/truncate", wanted).body == {"streamState": "ACTIVE"}
    assert call("GET", f"{scaled_stream}/stream-cut", at="head").body["cut"] == wanted["cut"]
    assert "s/t/0.#epoch.0" not in world.segment_stores.names()
    behind = call("POST", f"{scaled_stream}/truncate", _cut(s0=0, s1=0))
    assert (behind.status, behind.code) == (410, "truncated")
    beyond = call("POST", f"{scaled_stream}/truncate", {"cut": wanted["cut"] | {"1": 21}})
    assert (beyond.status, beyond.code) == (400, "invalid_stream_cut")
    assert call("GET", f"{scaled_stream}/segments/0/successors").status == 410
    recorded = call("GET", f"{scaled_stream}/segments/0/successors", asRecorded="true").body
    assert [segment["segmentId"] for segment in recorded["segments"]] == [NEW_LOW, NEW_HIGH]
    assert call("GET", f"{scaled_stream}/segments", epoch="0").body["segments"][0]["segmentId"] == NEW_LOW


def test_checks_of_cuts(call: Call, scaled_stream: str):
    check = f"{scaled_stream}/stream-cuts/check"
    assert call("POST", check, _cut(s0=10, s1=20)).body == {"valid": True}
    assert call("POST", check, _cut(s0=11, s1=20)).body == {"valid": False}
    assert call("POST", check, _cut(s0=1)).body == {"valid": False}
    assert call("POST", check, _cut(s0=-1, s1=20)).body == {"valid": True}
    assert call("POST", check, _cut(s0=10, s1=-1)).body == {"valid": False}
    assert call("POST", check, _cut(s0=10, s1=20), explain="true").body == {"valid": True, "problem": None}
    explained = call("POST", check, _cut(s0=11, s1=20), explain="true").body
    assert (explained["valid"], explained["problem"]["code"]) == (False, "invalid_stream_cut")
    assert "segment 0" in explained["problem"]["message"]
    strange: dict[str, Any]
    for strange in ({"cut": {}}, {"cut": {"x": 1}}, {"cut": {"0": -2}}, {}, {"cut": None}):
        assert call("POST", check, strange).status == 400
    assert call("POST", "/v1/scopes/s/streams/nothing/stream-cuts/check", _cut(s0=0)).status == 404


def test_distances(call: Call, scaled_stream: str):
    distance = f"{scaled_stream}/stream-cuts/distance"
    assert call("POST", distance, {}).body == {"bytes": 30}
    assert call("POST", distance, {"from": {"0": -1, "1": 5}}).body == {"bytes": 15}
    open_end = call("POST", distance, {"from": {"0": 0, "1": -1}})
    assert (open_end.status, open_end.code) == (400, "invalid_stream_cut")
    assert "segment 1, which is not sealed" in open_end.body["error"]["message"]
    assert call("POST", distance, {"from": {"0": 4, "1": 0}, "to": {"0": 10, "1": 5}}).body == {"bytes": 11}
    assert call("POST", distance, {"from": {"0": 4}}).code == "invalid_stream_cut"


def test_scaling_events(call: Call, scaled_stream: str):
    path = f"{scaled_stream}/scaling-events"
    body = call("GET", path).body
    (event,) = body["events"]
    assert (event["epoch"], event["sealedSegments"], event["splits"], event["merges"]) == (1, [0], 1, 0)
    assert [segment["segmentId"] for segment in event["newSegments"]] == [NEW_LOW, NEW_HIGH]
    assert body["next"] is None
    assert call("GET", path, **{"from": str(event["time"] + 1)}).body["events"] == []
    assert call("GET", path, **{"from": "5", "to": "4"}).status == 400
    assert call("GET", path, **{"from": "-5"}).status == 400
    assert call("GET", path, limit="1").body["next"] is not None


def test_streams_by_prefix(call: Call, active_stream: str):
    path = active_stream.rpartition("/")[0]
    assert [stream["streamName"] for stream in call("GET", path, prefix="t").body["streams"]] == ["t"]
    assert call("GET", path, prefix="u").body["streams"] == []
    assert call("GET", path, prefix="a/b").status == 400
