"""What acknowledges a stream's appends, in the HTTP API: chosen at its creation, refused where it is not possible."""

from __future__ import annotations

from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld

from functions import wiring
from headrace.model.log_classes import NUMBER_BLOCK

SCALING = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}
STREAMS, STREAM = "/v1/scopes/s/streams", "/v1/scopes/s/streams/t"


def body(**fields: Any) -> dict[str, Any]:
    return {"scalingPolicy": SCALING, **fields}


@pytest.fixture
def scope(call: Call, world: FunctionWorld) -> None:
    assert call("POST", "/v1/scopes", {"scopeName": "s"}).status == 201


@pytest.fixture
def s3_containers(monkeypatch: pytest.MonkeyPatch, world: FunctionWorld) -> None:
    monkeypatch.setenv("HEADRACE_S3_CONTAINERS", "4")
    wiring.forget_services()


@pytest.mark.usefixtures("s3_containers", "scope")
def test_a_stream_keeps_the_class_of_its_creation(call: Call, world: FunctionWorld):
    assert call("POST", STREAMS, body(streamName="t", acknowledgedBy="S3")).status == 201
    world.work()
    assert call("GET", STREAM).body["acknowledgedBy"] == "S3"
    segments = call("GET", f"{STREAM}/segments").body["segments"]
    assert [segment["segmentId"] for segment in segments] == [NUMBER_BLOCK, NUMBER_BLOCK + 1]
    for fields in ({}, {"acknowledgedBy": "S3"}):
        assert call("PUT", STREAM, body(**fields)).status == 202
        world.work()
        assert call("GET", STREAM).body["acknowledgedBy"] == "S3"
    refused = call("PUT", STREAM, body(acknowledgedBy="STORES"))
    assert (refused.status, refused.code) == (400, "log_class_fixed")


@pytest.mark.usefixtures("scope")
def test_a_deployment_without_s3_containers_refuses_the_class(call: Call, world: FunctionWorld):
    refused = call("POST", STREAMS, body(streamName="t", acknowledgedBy="S3"))
    assert (refused.status, refused.code) == (412, "no_s3_containers")
    assert call("GET", STREAM).status == 404
    assert call("POST", STREAMS, body(streamName="t", acknowledgedBy="STORES")).status == 201


@pytest.mark.usefixtures("s3_containers", "scope")
@pytest.mark.parametrize("name", ["s3", "DISK", "", 3])
def test_an_unknown_class_is_refused(call: Call, world: FunctionWorld, name: object):
    assert call("POST", STREAMS, body(streamName="t", acknowledgedBy=name)).status == 400
    assert call("GET", STREAM).status == 404
