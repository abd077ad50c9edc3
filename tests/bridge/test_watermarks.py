"""Watermarks over gRPC: Pravega's statuses for notes of writers, and mark streams that exist with their stream."""

from __future__ import annotations

import grpc
import pytest
from bridge_in_memory import Bridge
from watermark_world import WatermarkWorld

from headrace.bridge import controller_pb2 as pb

MARK_SEGMENT = "s/_MARKt/0.#epoch.0"


def info(stream: str = "t", scope: str = "s") -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


@pytest.fixture
def with_stream(bridge: Bridge) -> Bridge:
    bridge.world.create()
    return bridge


def _note(bridge: Bridge, time: int, offsets: dict[int, int], stream: str = "t", writer: str = "w") -> int:
    position = pb.StreamCut(streamInfo=info(stream), cut=offsets)
    reply = bridge.call(
        "noteTimestampFromWriter", pb.TimestampFromWriter(writer=writer, position=position, timestamp=time)
    )
    result: int = reply.result
    return result


def test_notes_become_watermarks(with_stream: Bridge):
    status = pb.TimestampResponse
    assert _note(with_stream, 5, {0: 10, 1: 0}) == status.SUCCESS
    assert _note(with_stream, 4, {0: 10}) == status.INVALID_TIME
    assert _note(with_stream, 6, {0: 9}) == status.INVALID_POSITION
    assert _note(with_stream, 6, {9: 9}) == status.INVALID_POSITION
    assert _note(with_stream, 6, {}) == status.INVALID_POSITION
    assert _note(with_stream, -(1 << 63), {0: 10}) == status.INVALID_TIME
    marks = WatermarkWorld(with_stream.world)
    marks.tick()
    assert marks.bounds() == [(5, 5)]


def test_notes_that_are_no_notes(with_stream: Bridge):
    note = pb.TimestampFromWriter(writer="w", position=pb.StreamCut(streamInfo=info("none"), cut={0: 1}), timestamp=1)
    assert with_stream.refused("noteTimestampFromWriter", note) == grpc.StatusCode.NOT_FOUND
    note = pb.TimestampFromWriter(writer="_", position=pb.StreamCut(streamInfo=info(), cut={0: 1}), timestamp=1)
    assert with_stream.refused("noteTimestampFromWriter", note) == grpc.StatusCode.INVALID_ARGUMENT


def test_a_writer_is_removed(with_stream: Bridge):
    def remove(stream: str = "t") -> int:
        result: int = with_stream.call("removeWriter", pb.RemoveWriterRequest(writer="w", stream=info(stream))).result
        return result

    status = pb.RemoveWriterResponse
    assert remove() == status.UNKNOWN_WRITER
    _note(with_stream, 5, {0: 10})
    assert remove() == status.SUCCESS
    assert remove("none") == status.STREAM_DOES_NOT_EXIST
    assert remove("a/b") == status.STREAM_DOES_NOT_EXIST


def test_mark_stream_has_one_segment_created_on_request(with_stream: Bridge):
    stores = with_stream.world.bare_segment_stores
    assert MARK_SEGMENT not in stores.names()
    for _ in range(2):
        (segment_range,) = with_stream.call("getCurrentSegments", info("_MARKt")).segmentRanges
        assert (segment_range.segmentId.streamInfo.stream, segment_range.segmentId.segmentId) == ("_MARKt", 0)
        assert (segment_range.minKey, segment_range.maxKey) == (0.0, 1.0)
    assert stores.segment_info(MARK_SEGMENT).length == 0
    (segment_range,) = with_stream.call(
        "getEpochSegments", pb.GetEpochSegmentsRequest(streamInfo=info("_MARKt"))
    ).segmentRanges
    assert segment_range.segmentId.segmentId == 0
    stores.extend(MARK_SEGMENT, 10)
    stores.truncate_segment(MARK_SEGMENT, 4)
    (location,) = with_stream.call("getSegments", pb.GetSegmentsRequest(streamInfo=info("_MARKt"))).segments
    assert (location.segmentId.segmentId, location.offset) == (0, 4)


def test_other_streams_are_answered_as_ever(with_stream: Bridge):
    assert len(with_stream.call("getCurrentSegments", info()).segmentRanges) == 2
    assert len(with_stream.call("getEpochSegments", pb.GetEpochSegmentsRequest(streamInfo=info())).segmentRanges) == 2
    assert len(with_stream.call("getSegments", pb.GetSegmentsRequest(streamInfo=info())).segments) == 2


@pytest.mark.parametrize("rpc", ["getCurrentSegments", "getSegments", "getEpochSegments"])
def test_there_is_no_mark_stream_without_a_stream(with_stream: Bridge, rpc: str):
    request = {
        "getCurrentSegments": lambda stream: info(stream),
        "getSegments": lambda stream: pb.GetSegmentsRequest(streamInfo=info(stream)),
        "getEpochSegments": lambda stream: pb.GetEpochSegmentsRequest(streamInfo=info(stream)),
    }[rpc]
    for stream in ("_MARKnone", "_MARK", "_MARKa/b"):
        assert with_stream.refused(rpc, request(stream)) == grpc.StatusCode.NOT_FOUND
    with_stream.world.seal()
    with_stream.world.streams.delete_stream("s", "t")
    assert with_stream.refused(rpc, request("_MARKt")) == grpc.StatusCode.NOT_FOUND
    assert MARK_SEGMENT not in with_stream.world.bare_segment_stores.names()


def test_mark_segment_created_during_a_deletion_is_deleted(with_stream: Bridge):
    def delete_first() -> None:
        with_stream.world.seal()
        with_stream.world.delete()

    with with_stream.world.calls.overtaken("segment store create_segment", delete_first):
        assert with_stream.refused("getCurrentSegments", info("_MARKt")) == grpc.StatusCode.NOT_FOUND
    assert with_stream.world.bare_segment_stores.names() == []
