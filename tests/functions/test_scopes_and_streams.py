"""Scopes and streams through the handlers, from creation to deletion."""

from __future__ import annotations

from functions_in_memory import Call, FunctionWorld, StreamBody


def test_life_of_a_scope(call: Call):
    assert call("POST", "/v1/scopes", {"scopeName": "s"}).body == {"scopeName": "s"}
    assert call("GET", "/v1/scopes/s").body == {"scopeName": "s", "deleting": False}
    assert call("POST", "/v1/scopes", {"scopeName": "s"}).code == "already_exists"
    answer = call("DELETE", "/v1/scopes/s")
    assert (answer.status, answer.body) == (204, None)
    assert call("GET", "/v1/scopes/s").status == 404


def test_scopes_by_page(call: Call):
    for name in ("c", "a", "b"):
        call("POST", "/v1/scopes", {"scopeName": name})
    first = call("GET", "/v1/scopes", limit="2").body
    assert [scope["scopeName"] for scope in first["scopes"]] == ["a", "b"]
    rest = call("GET", "/v1/scopes", limit="2", continuationToken=first["continuationToken"]).body
    assert [scope["scopeName"] for scope in rest["scopes"]] == ["c"]
    assert rest["continuationToken"] is None


def test_a_scope_with_streams_is_not_deleted(call: Call, active_stream: str):
    answer = call("DELETE", "/v1/scopes/s")
    assert (answer.status, answer.code) == (412, "scope_not_empty")


def test_a_scope_with_everything_in_it(call: Call, world: FunctionWorld, active_stream: str):
    answer = call("DELETE", "/v1/scopes/s", recursive="true")
    assert (answer.status, answer.body) == (202, {"scopeName": "s", "deleting": True})
    assert call("GET", "/v1/scopes/s").body == {"scopeName": "s", "deleting": True}
    assert call("DELETE", "/v1/scopes/s", recursive="true").status == 202
    refused = call("DELETE", "/v1/scopes/s")
    assert (refused.status, refused.code) == (412, "scope_deleting")
    world.work()
    assert call("GET", "/v1/scopes/s").status == 404
    assert call("DELETE", "/v1/scopes/s", recursive="true").status == 404
    assert call("DELETE", "/v1/scopes/s", recursive="perhaps").status == 400
    assert world.segment_stores.names() == []


def test_a_stream_is_created_with_everything_that_was_asked(call: Call, world: FunctionWorld):
    call("POST", "/v1/scopes", {"scopeName": "s"})
    asked = {
        "streamName": "t",
        "scalingPolicy": {
            "type": "BY_RATE_IN_EVENTS_PER_SEC",
            "minSegments": 3,
            "targetRate": 100,
            "scaleFactor": 2,
        },
        "retentionPolicy": {"type": "LIMITED_DAYS", "value": 7, "maxValue": 30},
        "streamTags": ["b", "a"],
        "timestampAggregationTimeout": 5000,
        "rolloverSizeBytes": 1024,
    }
    created = call("POST", "/v1/scopes/s/streams", asked)
    assert (created.status, created.body["state"]) == (201, "CREATING")
    world.work()
    body = call("GET", "/v1/scopes/s/streams/t").body
    assert body["creationTime"] > 0
    assert body == asked | {
        "scopeName": "s",
        "streamTags": ["a", "b"],
        "acknowledgedBy": "STORES",
        "state": "ACTIVE",
        "epoch": 0,
        "segments": 3,
        "creationTime": body["creationTime"],
        "configurationVersion": 0,
    }


def test_streams_by_tag_in_both_spellings(call: Call, world: FunctionWorld, fixed_stream: StreamBody):
    call("POST", "/v1/scopes", {"scopeName": "s"})
    call("POST", "/v1/scopes/s/streams", fixed_stream("t", streamTags=["blue"]))
    call("POST", "/v1/scopes/s/streams", fixed_stream("u"))
    world.work()
    wanted = [{"scopeName": "s", "streamName": "t", "streamTags": ["blue"]}]
    assert call("GET", "/v1/scopes/s/streams", tag="blue").body["streams"] == wanted
    assert call("GET", "/v1/scopes/s/streams", filter_type="tag", filter_value="blue").body["streams"] == wanted
    assert len(call("GET", "/v1/scopes/s/streams").body["streams"]) == 2
    assert call("GET", "/v1/scopes/s/streams", filter_type="tag").status == 400
    assert call("GET", "/v1/scopes/s/streams", tag="a", filter_type="tag", filter_value="b").status == 400


def test_a_scale_runs_and_tells_how_far_it_is(call: Call, world: FunctionWorld, active_stream: str):
    request = {"sealedSegments": [0], "newRanges": [{"low": 0.0, "high": 0.25}, {"low": 0.25, "high": 0.5}]}
    accepted = call("POST", f"{active_stream}/scale", request)
    assert accepted.status == 202
    assert accepted.body == {
        "epoch": 1,
        "status": "IN_PROGRESS",
        "segments": [
            {"segmentId": (1 << 32) + 2, "low": 0.0, "high": 0.25},
            {"segmentId": (1 << 32) + 3, "low": 0.25, "high": 0.5},
        ],
    }
    assert call("POST", f"{active_stream}/scale", request).body == accepted.body
    other = {"sealedSegments": [1], "newRanges": [{"low": 0.5, "high": 1.0}]}
    conflict = call("POST", f"{active_stream}/scale", other)
    assert (conflict.status, conflict.code, conflict.body["error"]["retry"]) == (409, "conflict", "now")
    assert call("GET", f"{active_stream}/scale/1").body == {"epoch": 1, "status": "IN_PROGRESS"}
    world.work()
    assert call("GET", f"{active_stream}/scale/1").body == {"epoch": 1, "status": "SUCCESS"}
    assert call("GET", f"{active_stream}/scale/2").body == {"epoch": 2, "status": "INVALID"}


def test_a_stream_is_sealed_and_deleted(call: Call, world: FunctionWorld, active_stream: str):
    for _ in range(2):
        sealing = call("PUT", f"{active_stream}/state", {"streamState": "SEALED"})
        assert (sealing.status, sealing.body) == (202, {"streamState": "SEALING"})
    world.work()
    assert call("GET", active_stream).body["state"] == "SEALED"
    deleting = call("DELETE", active_stream)
    assert (deleting.status, deleting.body) == (202, {"streamState": "SEALED", "deleting": True})
    world.work()
    assert call("GET", active_stream).status == 404
    assert call("DELETE", "/v1/scopes/s").status == 204


def test_streams_by_page(call: Call, active_stream: str, fixed_stream: StreamBody):
    assert call("POST", "/v1/scopes/s/streams", fixed_stream("u")).status == 201
    first = call("GET", "/v1/scopes/s/streams", limit="1").body
    assert ([stream["streamName"] for stream in first["streams"]], first["continuationToken"]) == (["t"], "t")
    last = call("GET", "/v1/scopes/s/streams", limit="1", continuationToken="t").body
    assert ([stream["streamName"] for stream in last["streams"]], last["continuationToken"]) == (["u"], None)
