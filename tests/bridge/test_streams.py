"""Scopes and streams over gRPC: Pravega's statuses, waiting for workflows, pages."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from bridge_in_memory import Bridge
from stream_world import ranges

from headrace.bridge import controller_pb2 as pb
from headrace.model.log_classes import LogClass
from headrace.model.stream_configuration import (
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    StreamConfiguration,
)
from headrace.model.stream_state import StreamState

DAY_MS = 24 * 3600 * 1000
INT64_MAX = (1 << 63) - 1
IN_S3 = "headrace.acknowledged-by=s3"


def info(stream: str = "t", scope: str = "s") -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


def config(stream: str = "t", scope: str = "s", segments: int = 2, **fields: Any) -> pb.StreamConfig:
    scaling = pb.ScalingPolicy(minNumSegments=segments, scaleFactor=1)
    return pb.StreamConfig(streamInfo=info(stream, scope), scalingPolicy=scaling, **fields)


def test_scopes(bridge: Bridge):
    status = pb.CreateScopeStatus
    assert bridge.call("createScope", pb.ScopeInfo(scope="new")).status == status.SUCCESS
    assert bridge.call("createScope", pb.ScopeInfo(scope="new")).status == status.SCOPE_EXISTS
    assert bridge.call("createScope", pb.ScopeInfo(scope="_system")).status == status.INVALID_SCOPE_NAME
    assert bridge.call("createScope", pb.ScopeInfo(scope="")).status == status.INVALID_SCOPE_NAME
    assert bridge.call("checkScopeExists", pb.ScopeInfo(scope="new")).exists
    assert bridge.call("deleteScope", pb.ScopeInfo(scope="new")).status == pb.DeleteScopeStatus.SUCCESS
    assert bridge.call("deleteScope", pb.ScopeInfo(scope="new")).status == pb.DeleteScopeStatus.SCOPE_NOT_FOUND
    assert bridge.call("deleteScope", pb.ScopeInfo(scope="a/b")).status == pb.DeleteScopeStatus.SCOPE_NOT_FOUND
    assert not bridge.call("checkScopeExists", pb.ScopeInfo(scope="new")).exists
    bridge.call("createStream", config())
    assert bridge.call("deleteScope", pb.ScopeInfo(scope="s")).status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY


@pytest.mark.parametrize("name", [".", ".."])
def test_dot_names_are_refused(bridge: Bridge, name: str):
    before = bridge.world.everything()
    assert bridge.call("createScope", pb.ScopeInfo(scope=name)).status == pb.CreateScopeStatus.INVALID_SCOPE_NAME
    assert bridge.call("createStream", config(name)).status == pb.CreateStreamStatus.INVALID_STREAM_NAME
    assert bridge.call("deleteScope", pb.ScopeInfo(scope=name)).status == pb.DeleteScopeStatus.SCOPE_NOT_FOUND
    assert bridge.call("deleteStream", info(name)).status == pb.DeleteStreamStatus.STREAM_NOT_FOUND
    assert bridge.call("deleteStream", info("t", name)).status == pb.DeleteStreamStatus.STREAM_NOT_FOUND
    assert bridge.world.everything() == before


def test_creation_and_deletion_are_complete_when_answered(bridge: Bridge):
    assert bridge.call("createStream", config()).status == pb.CreateStreamStatus.SUCCESS
    assert bridge.world.streams.get_stream("s", "t").state is StreamState.ACTIVE
    assert bridge.call("createStream", config()).status == pb.CreateStreamStatus.STREAM_EXISTS
    assert bridge.call("deleteStream", info()).status == pb.DeleteStreamStatus.STREAM_NOT_SEALED
    assert bridge.call("sealStream", info()).status == pb.UpdateStreamStatus.SUCCESS
    assert bridge.world.streams.get_stream("s", "t").state is StreamState.SEALED
    assert bridge.call("sealStream", info()).status == pb.UpdateStreamStatus.SUCCESS
    assert bridge.call("deleteStream", info()).status == pb.DeleteStreamStatus.SUCCESS
    assert not bridge.call("checkStreamExists", info()).exists
    assert bridge.call("deleteStream", info()).status == pb.DeleteStreamStatus.STREAM_NOT_FOUND
    assert bridge.call("sealStream", info()).status == pb.UpdateStreamStatus.STREAM_NOT_FOUND
    assert bridge.call("createStream", config()).status == pb.CreateStreamStatus.SUCCESS


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (config(scope="none"), pb.CreateStreamStatus.SCOPE_NOT_FOUND),
        (config(stream="_RGgroup"), pb.CreateStreamStatus.INVALID_STREAM_NAME),
        (config(stream="a/b"), pb.CreateStreamStatus.INVALID_STREAM_NAME),
        (config(stream=""), pb.CreateStreamStatus.INVALID_STREAM_NAME),
    ],
)
def test_streams_that_cannot_be_created(bridge: Bridge, request_, status):
    assert bridge.call("createStream", request_).status == status


def test_a_configuration_out_of_range_is_refused_for_good(bridge: Bridge):
    assert bridge.refused("createStream", config(segments=0)) is grpc.StatusCode.INVALID_ARGUMENT
    assert bridge.refused("createStream", config(segments=1_000_000)) is grpc.StatusCode.INVALID_ARGUMENT
    assert not bridge.call("checkStreamExists", info()).exists


def test_who_finds_a_stream_being_created_waits_for_it_too(bridge: Bridge):
    bridge.world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    assert bridge.call("createStream", config()).status == pb.CreateStreamStatus.STREAM_EXISTS
    assert bridge.world.streams.get_stream("s", "t").state is StreamState.ACTIVE


def test_sealing_waits_for_a_scale_under_way(bridge: Bridge):
    bridge.world.create()
    bridge.world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
    assert bridge.call("sealStream", info()).status == pb.UpdateStreamStatus.SUCCESS
    assert bridge.world.streams.get_stream("s", "t").epoch == 1


def test_a_wait_ends_at_its_deadline_and_the_operation_goes_on(bridge: Bridge):
    bridge.work = lambda: None
    bridge.waits._deadline_s = 0
    assert bridge.refused("createStream", config()) is grpc.StatusCode.DEADLINE_EXCEEDED
    bridge.work = bridge.world.drain
    bridge.waits._deadline_s = 60
    assert bridge.call("createStream", config()).status in (
        pb.CreateStreamStatus.STREAM_EXISTS,
        pb.CreateStreamStatus.SUCCESS,  # the deadline came before the call had begun
    )


def test_rolled_back_creation_may_be_repeated(bridge: Bridge):
    def undo() -> None:
        bridge.world.drain()
        bridge.world.seal()
        bridge.world.delete()
        bridge.work = bridge.world.drain

    bridge.world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    bridge.work = undo
    assert bridge.refused("createStream", config()) is grpc.StatusCode.UNAVAILABLE
    assert bridge.call("createStream", config()).status == pb.CreateStreamStatus.SUCCESS


def test_a_configuration_comes_back_whole(bridge: Bridge):
    sent = config(
        retentionPolicy=pb.RetentionPolicy(
            retentionType=pb.RetentionPolicy.TIME, retentionParam=2 * DAY_MS, retentionMax=INT64_MAX
        ),
        tags=pb.Tags(tag=["a", "b"]),
        timestampAggregationTimeout=5_000,
        rolloverSizeBytes=1 << 20,
    )
    sent.scalingPolicy.CopyFrom(
        pb.ScalingPolicy(
            scaleType=pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC, targetRate=100, scaleFactor=3, minNumSegments=4
        )
    )
    bridge.call("createStream", sent)
    assert bridge.call("getStreamConfiguration", info()) == sent


def test_every_inner_message_of_a_configuration_is_set(bridge: Bridge):
    """The Rust client takes an absent one for a broken server."""
    bridge.call("createStream", config(segments=3))
    reply = bridge.call("getStreamConfiguration", info())
    assert reply.HasField("streamInfo")
    assert reply.HasField("tags")
    assert reply.scalingPolicy == pb.ScalingPolicy(minNumSegments=3)
    assert reply.retentionPolicy == pb.RetentionPolicy(retentionMax=INT64_MAX)
    assert bridge.refused("getStreamConfiguration", info("none")) is grpc.StatusCode.NOT_FOUND
    assert bridge.refused("getStreamConfiguration", info("a/b")) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (pb.RetentionPolicy(retentionType="TIME", retentionParam=1), RetentionPolicy(RetentionType.LIMITED_TIME_MS, 1)),
        (
            pb.RetentionPolicy(retentionType="TIME", retentionParam=DAY_MS + 1, retentionMax=3 * DAY_MS),
            RetentionPolicy(RetentionType.LIMITED_TIME_MS, DAY_MS + 1, 3 * DAY_MS),
        ),
        (
            pb.RetentionPolicy(retentionType="TIME", retentionParam=DAY_MS, retentionMax=3 * DAY_MS),
            RetentionPolicy(RetentionType.LIMITED_DAYS, 1, 3),
        ),
        (
            pb.RetentionPolicy(retentionType="SIZE", retentionParam=5 << 20, retentionMax=INT64_MAX),
            RetentionPolicy(RetentionType.LIMITED_SIZE_MB, 5),
        ),
        (
            pb.RetentionPolicy(retentionType="SIZE", retentionParam=INT64_MAX - 1, retentionMax=INT64_MAX),
            RetentionPolicy(RetentionType.LIMITED_SIZE_BYTES, INT64_MAX - 1),
        ),
        (pb.RetentionPolicy(retentionType="UNKNOWN", retentionMax=INT64_MAX), None),
    ],
)
def test_retention_is_kept_exactly_as_it_was_asked_for(bridge: Bridge, sent, kept):
    bridge.call("createStream", config(retentionPolicy=sent))
    assert bridge.world.streams.get_stream("s", "t").configuration.retention == kept
    answered = bridge.call("getStreamConfiguration", info()).retentionPolicy
    expected = pb.RetentionPolicy()
    expected.CopyFrom(sent)
    expected.retentionMax = sent.retentionMax or INT64_MAX
    assert answered == expected


def test_lists_come_in_pages_that_end_with_an_empty_one(bridge: Bridge, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.bridge.service.PAGE_ITEMS_MAX", 2)
    for name in ("a", "b", "c"):
        bridge.world.create(name, tags=("x",) if name != "b" else ())

    def listed(rpc: str, **fields: Any) -> list[list[str]]:
        pages, token = [], pb.ContinuationToken()
        while True:
            page = bridge.call(rpc, _list_request(rpc, token, **fields))
            assert page.HasField("continuationToken")
            names = list(page.scopes) if rpc == "listScopes" else [summary.stream for summary in page.streams]
            pages.append(names)
            token = page.continuationToken
            if not names:
                return pages

    assert listed("listScopes") == [["s"], []]
    assert listed("listStreamsInScope") == [["a", "b"], ["c"], []]
    assert listed("listStreamsInScopeForTag", tag="x") == [["a", "c"], []]
    assert listed("listStreamsInScopeForTag", tag="none") == [[]]


def _list_request(rpc: str, token: pb.ContinuationToken, **fields: Any) -> Any:
    if rpc == "listScopes":
        return pb.ScopesRequest(continuationToken=token)
    kind = pb.StreamsInScopeRequest if rpc == "listStreamsInScope" else pb.StreamsInScopeWithTagRequest
    return kind(scope=pb.ScopeInfo(scope="s"), continuationToken=token, **fields)


@pytest.mark.parametrize("scope", ["none", "", "_system", "a/b"])
def test_list_of_a_missing_scope_is_empty_with_its_status(bridge: Bridge, scope):
    reply = bridge.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope=scope)))
    assert (list(reply.streams), reply.status) == ([], pb.StreamsInScopeResponse.SCOPE_NOT_FOUND)


def test_scale(bridge: Bridge):
    bridge.call("createStream", config(segments=1))
    halves = [pb.ScaleRequest.KeyRangeEntry(start=0.0, end=0.5), pb.ScaleRequest.KeyRangeEntry(start=0.5, end=1.0)]
    wrong = bridge.call("scale", pb.ScaleRequest(streamInfo=info(), sealedSegments=[7], newKeyRanges=halves))
    assert wrong.status == pb.ScaleResponse.PRECONDITION_FAILED
    wrong = bridge.call("scale", pb.ScaleRequest(streamInfo=info(), sealedSegments=[0], newKeyRanges=halves[:1]))
    assert wrong.status == pb.ScaleResponse.PRECONDITION_FAILED
    bridge.call("createStream", config("pair", segments=2))
    whole = [pb.ScaleRequest.KeyRangeEntry(start=0.0, end=1.0)]
    too_few = pb.ScaleRequest(streamInfo=info("pair"), sealedSegments=[0, 1], newKeyRanges=whole)
    assert bridge.call("scale", too_few).status == pb.ScaleResponse.PRECONDITION_FAILED
    started = bridge.call("scale", pb.ScaleRequest(streamInfo=info(), sealedSegments=[0], newKeyRanges=halves))
    assert (started.status, started.epoch) == (pb.ScaleResponse.STARTED, 1)
    assert [(segment.minKey, segment.maxKey) for segment in started.segments] == [(0.0, 0.5), (0.5, 1.0)]
    asked = pb.ScaleStatusRequest(streamInfo=info(), epoch=1)
    assert bridge.call("checkScale", asked).status == pb.ScaleStatusResponse.IN_PROGRESS
    bridge.world.drain()
    assert bridge.call("checkScale", asked).status == pb.ScaleStatusResponse.SUCCESS
    unknown = pb.ScaleStatusRequest(streamInfo=info("none"), epoch=1)
    assert bridge.call("checkScale", unknown).status == pb.ScaleStatusResponse.INVALID_INPUT


def test_a_tag_names_what_acknowledges_a_stream(bridge_with_s3: Bridge):
    bridge, tags = bridge_with_s3, pb.Tags(tag=["a", IN_S3])
    assert bridge.call("createStream", config(tags=tags)).status == pb.CreateStreamStatus.SUCCESS
    assert bridge.world.streams.get_stream("s", "t").acknowledged_by is LogClass.S3
    assert bridge.call("getStreamConfiguration", info()).tags == tags
    assert bridge.call("createStream", config("u", tags=pb.Tags(tag=["a"]))).status == pb.CreateStreamStatus.SUCCESS
    assert bridge.world.streams.get_stream("s", "u").acknowledged_by is LogClass.STORES


def test_a_deployment_without_s3_containers_refuses_the_tag(bridge: Bridge):
    assert bridge.refused("createStream", config(tags=pb.Tags(tag=[IN_S3]))) is grpc.StatusCode.OUT_OF_RANGE
    assert not bridge.call("checkStreamExists", info()).exists


@pytest.mark.parametrize("tags", [["headrace.acknowledged-by=disk"], [f"headrace.acknowledged-by={c}" for c in "ab"]])
def test_a_tag_that_names_no_known_class_is_refused(bridge: Bridge, tags: list[str]):
    assert bridge.refused("createStream", config(tags=pb.Tags(tag=tags))) is grpc.StatusCode.INVALID_ARGUMENT
    assert not bridge.call("checkStreamExists", info()).exists
