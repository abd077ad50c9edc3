"""Updating and truncating streams over gRPC, and what clients are told of truncated history."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from bridge_in_memory import Bridge

from headrace.bridge import controller_pb2 as pb
from headrace.model.log_classes import LogClass
from headrace.model.stream_state import StreamState

S2, S3 = 1 << 32 | 2, 1 << 32 | 3


def info(stream: str = "t", scope: str = "s") -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


def config(stream: str = "t", segments: int = 2, **fields: Any) -> pb.StreamConfig:
    scaling = pb.ScalingPolicy(minNumSegments=segments, scaleFactor=1)
    return pb.StreamConfig(streamInfo=info(stream), scalingPolicy=scaling, **fields)


def cut(offsets: dict[int, int], stream: str = "t") -> pb.StreamCut:
    return pb.StreamCut(streamInfo=info(stream), cut=offsets)


@pytest.fixture
def scaled(bridge: Bridge) -> Bridge:
    """s/t after segment 0, of 10 bytes, was split in two; segment 1 holds 20 bytes."""
    bridge.world.create()
    bridge.world.append(0, 10)
    bridge.world.append(1, 20)
    bridge.world.scale([0], [0.0, 0.25, 0.5])
    return bridge


def test_an_update_is_in_force_when_it_is_answered(scaled: Bridge):
    assert scaled.call("updateStream", config(tags=pb.Tags(tag=["a"]))).status == pb.UpdateStreamStatus.SUCCESS
    assert scaled.world.streams.get_stream("s", "t").state is StreamState.ACTIVE
    assert list(scaled.call("getStreamConfiguration", info()).tags.tag) == ["a"]
    assert scaled.call("updateStream", config("u")).status == pb.UpdateStreamStatus.STREAM_NOT_FOUND
    assert scaled.refused("updateStream", config(segments=0)) is grpc.StatusCode.INVALID_ARGUMENT
    scaled.world.seal()
    assert scaled.call("updateStream", config()).status == pb.UpdateStreamStatus.STREAM_SEALED


def test_an_update_does_not_change_what_acknowledges_a_stream(bridge_with_s3: Bridge):
    bridge = bridge_with_s3
    in_s3, of_stores = (pb.Tags(tag=[f"headrace.acknowledged-by={each}"]) for each in ("s3", "stores"))
    bridge.call("createStream", config("u", tags=in_s3))
    for tags in (pb.Tags(tag=["a"]), in_s3):
        assert bridge.call("updateStream", config("u", tags=tags)).status == pb.UpdateStreamStatus.SUCCESS
        assert bridge.world.streams.get_stream("s", "u").acknowledged_by is LogClass.S3
    assert bridge.refused("updateStream", config("u", tags=of_stores)) is grpc.StatusCode.INVALID_ARGUMENT
    bridge.call("createStream", config())
    assert bridge.refused("updateStream", config(tags=in_s3)) is grpc.StatusCode.INVALID_ARGUMENT
    assert bridge.call("updateStream", config(tags=of_stores)).status == pb.UpdateStreamStatus.SUCCESS


def test_an_update_waits_for_the_operation_that_runs(scaled: Bridge):
    scaled.world.streams.truncate_stream("s", "t", {S2: 0, S3: 0, 1: 1})
    assert scaled.call("updateStream", config(tags=pb.Tags(tag=["b"]))).status == pb.UpdateStreamStatus.SUCCESS
    assert scaled.world.streams.get_stream("s", "t").configuration.tags == ("b",)


def test_a_truncation_is_done_when_it_is_answered(scaled: Bridge):
    for _ in range(2):
        assert scaled.call("truncateStream", cut({S2: 0, S3: 0, 1: 7})).status == pb.UpdateStreamStatus.SUCCESS
        assert scaled.world.segments.stream_cut("s", "t", "head").offsets == {S2: 0, S3: 0, 1: 7}
    assert scaled.call("truncateStream", cut({0: 0}, "u")).status == pb.UpdateStreamStatus.STREAM_NOT_FOUND
    assert scaled.refused("truncateStream", cut({S2: 0, S3: 0, 1: 21})) is grpc.StatusCode.INVALID_ARGUMENT
    assert scaled.refused("truncateStream", cut({0: 0, 1: 0})) is grpc.StatusCode.OUT_OF_RANGE
    scaled.world.seal()
    assert scaled.call("truncateStream", cut({S2: 0, S3: 0, 1: 8})).status == pb.UpdateStreamStatus.STREAM_SEALED


def test_a_truncation_at_the_end_of_a_segment(scaled: Bridge):
    assert scaled.call("truncateStream", cut({0: -1, 1: 5})).status == pb.UpdateStreamStatus.SUCCESS
    head = scaled.call("getSegments", pb.GetSegmentsRequest(streamInfo=info())).segments
    assert [(position.segmentId.segmentId, position.offset) for position in head] == [(0, 10), (1, 5)]
    assert scaled.call("truncateStream", cut({0: -1, 1: 5})).status == pb.UpdateStreamStatus.SUCCESS
    assert scaled.refused("truncateStream", cut({0: -1, 1: -1})) is grpc.StatusCode.INVALID_ARGUMENT
    assert scaled.call("truncateStream", cut({S2: 0, S3: 0, 1: 5})).status == pb.UpdateStreamStatus.SUCCESS


def test_clients_find_their_way_out_of_truncated_segments(scaled: Bridge):
    scaled.call("truncateStream", cut({S2: 0, S3: 0, 1: 7}))
    reply = scaled.call("getSegmentsImmediatlyFollowing", pb.SegmentId(streamInfo=info(), segmentId=0))
    assert [segment.segment.segmentId.segmentId for segment in reply.segments] == [S2, S3]
    of_epoch = scaled.call("getEpochSegments", pb.GetEpochSegmentsRequest(streamInfo=info(), epoch=0))
    assert [segment_range.segmentId.segmentId for segment_range in of_epoch.segmentRanges] == [0, 1]
    head = scaled.call("getSegments", pb.GetSegmentsRequest(streamInfo=info()))
    assert [(position.segmentId.segmentId, position.offset) for position in head.segments] == [(S2, 0), (S3, 0), (1, 7)]


@pytest.mark.parametrize(
    ("offsets", "valid"), [({0: 10, 1: 20}, True), ({0: 10, 1: 21}, False), ({0: 1}, False), ({}, False)]
)
def test_whether_a_cut_is_valid(scaled: Bridge, offsets: dict[int, int], valid: bool):
    assert scaled.call("isStreamCutValid", cut(offsets)).response is valid


def test_no_cut_of_a_stream_that_is_not_there_is_valid(bridge: Bridge):
    assert not bridge.call("isStreamCutValid", cut({0: 0})).response


def test_a_scope_is_gone_when_its_recursive_deletion_is_answered(scaled: Bridge):
    status = pb.DeleteScopeStatus
    assert scaled.call("deleteScope", pb.ScopeInfo(scope="s")).status == status.SCOPE_NOT_EMPTY
    assert scaled.call("deleteScopeRecursive", pb.ScopeInfo(scope="s")).status == status.SUCCESS
    assert scaled.world.bare_segment_stores.names() == []
    assert not scaled.call("checkScopeExists", pb.ScopeInfo(scope="s")).exists
    for name in ("s", "a/b"):
        assert scaled.call("deleteScopeRecursive", pb.ScopeInfo(scope=name)).status == status.SCOPE_NOT_FOUND
