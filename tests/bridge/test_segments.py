"""Segments over gRPC: what clients learn before they talk to a segment store."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from bridge_in_memory import Bridge
from stream_world import segment

from headrace import topology
from headrace.bridge import controller_pb2 as pb
from headrace.bridge.service import ControllerService
from headrace.metadata.cluster_records import claim_body, claim_sort, write_lease
from headrace.model.cluster import StoreLease
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.errors import UnavailableError
from headrace.model.external_access import ExternalAddress, Network
from headrace.model.names import container_of_segment
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.ports.metadata_store import Create, Key, Replace

INFO = pb.StreamInfo(scope="s", stream="t")


def ids(ranges: pb.SegmentRanges) -> list[int]:
    return [segment_range.segmentId.segmentId for segment_range in ranges.segmentRanges]


@pytest.fixture
def scaled(bridge: Bridge) -> list[int]:
    """A stream of two segments whose first was split."""
    bridge.world.create()
    bridge.world.append(0, 100)
    bridge.world.scale([0], [0.0, 0.25, 0.5])
    return [segment(2, 1), segment(3, 1)]


def test_the_ends_and_epochs_of_a_stream(bridge: Bridge, scaled: list[int]):
    current = bridge.call("getCurrentSegments", INFO)
    assert sorted(ids(current)) == sorted([*scaled, 1])
    assert max(segment_range.maxKey for segment_range in current.segmentRanges) == 1.0
    assert min(segment_range.minKey for segment_range in current.segmentRanges) == 0.0
    epoch = bridge.call("getEpochSegments", pb.GetEpochSegmentsRequest(streamInfo=INFO, epoch=0))
    assert [(segment_range.minKey, segment_range.maxKey) for segment_range in epoch.segmentRanges] == [
        (0.0, 0.5),
        (0.5, 1.0),
    ]
    later = pb.GetEpochSegmentsRequest(streamInfo=INFO, epoch=9)
    assert bridge.refused("getEpochSegments", later) is grpc.StatusCode.NOT_FOUND
    head = bridge.call("getSegments", pb.GetSegmentsRequest(streamInfo=INFO, timestamp=12345))
    assert [(position.segmentId.segmentId, position.offset) for position in head.segments] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("count", [3, 49, 100])
def test_ranges_of_many_segments_have_equal_bounds(bridge: Bridge, count: int):
    """Clients look a key up in a map by these bounds, so a gap as small as a rounding error would lose keys."""
    bridge.world.create(segments=count)
    ranges = sorted(
        (segment_range.minKey, segment_range.maxKey)
        for segment_range in bridge.call("getCurrentSegments", INFO).segmentRanges
    )
    assert len(ranges) == count
    assert [high for _, high in ranges] == [*(low for low, _ in ranges[1:]), 1.0]
    assert ranges[0][0] == 0.0


def test_a_stream_being_created_is_asked_about_again_later(bridge: Bridge):
    bridge.world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    assert bridge.refused("getCurrentSegments", INFO) is grpc.StatusCode.UNAVAILABLE


def test_a_sealed_stream_has_no_current_segments(bridge: Bridge):
    bridge.world.create()
    bridge.world.seal()
    assert ids(bridge.call("getCurrentSegments", INFO)) == []
    none = pb.StreamInfo(scope="s", stream="none")
    assert bridge.refused("getCurrentSegments", none) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("rpc", ["getSegmentsImmediatlyFollowing", "getSegmentsImmediatelyFollowing"])
def test_successors_name_the_segment_among_their_predecessors(bridge: Bridge, scaled: list[int], rpc):
    reply = bridge.call(rpc, pb.SegmentId(streamInfo=INFO, segmentId=0))
    assert [(segment.segment.segmentId.segmentId, list(segment.value)) for segment in reply.segments] == [
        (scaled[0], [0]),
        (scaled[1], [0]),
    ]


def test_no_successors_are_told_only_where_the_stream_ends(bridge: Bridge):
    """A client takes an empty list for the end of the stream, so an active segment must not have one."""
    bridge.world.create()
    asked = pb.SegmentId(streamInfo=INFO, segmentId=0)
    assert bridge.refused("getSegmentsImmediatelyFollowing", asked) is grpc.StatusCode.UNAVAILABLE
    bridge.world.streams.seal_stream("s", "t")
    assert not bridge.call("getSegmentsImmediatelyFollowing", asked).segments
    bridge.world.drain()
    assert not bridge.call("getSegmentsImmediatelyFollowing", asked).segments
    never = pb.SegmentId(streamInfo=INFO, segmentId=99)
    assert bridge.refused("getSegmentsImmediatelyFollowing", never) is grpc.StatusCode.NOT_FOUND


def test_segments_between_cuts_and_whether_a_cut_is_one(bridge: Bridge, scaled: list[int]):
    everything = bridge.call("getSegmentsBetween", pb.StreamCutRange(streamInfo=INFO))
    assert [segment.segmentId for segment in everything.segments] == [0, 1, *scaled]
    behind = pb.StreamCutRange(streamInfo=INFO)
    getattr(behind, "from").update({scaled[0]: 0, scaled[1]: 0, 1: 0})
    assert {segment.segmentId for segment in bridge.call("getSegmentsBetween", behind).segments} == {1, *scaled}
    valid = {0: 50, 1: 0}
    assert bridge.call("isStreamCutValid", pb.StreamCut(streamInfo=INFO, cut=valid)).response
    assert not bridge.call("isStreamCutValid", pb.StreamCut(streamInfo=INFO, cut={0: 50})).response
    assert bridge.call("isStreamCutValid", pb.StreamCut(streamInfo=INFO, cut={0: -1, 1: 0})).response
    assert not bridge.call("isStreamCutValid", pb.StreamCut(streamInfo=INFO, cut={0: 0, 1: -1})).response
    assert not bridge.call("isStreamCutValid", pb.StreamCut(streamInfo=INFO, cut={0: -2, 1: 0})).response
    torn = pb.StreamCutRange(streamInfo=INFO, to={0: 50})
    assert bridge.refused("getSegmentsBetween", torn) is grpc.StatusCode.INVALID_ARGUMENT


def test_segments_after_an_end_that_was_read(bridge: Bridge, scaled: list[int]):
    """A Java client subtracts the offsets of its cut from the lengths of these segments."""
    asked = pb.StreamCutRange(streamInfo=INFO)
    getattr(asked, "from").update({0: -1, 1: 0})
    segments = bridge.call("getSegmentsBetween", asked).segments
    assert [segment.segmentId for segment in segments] == [1, *scaled]
    asked.to.update({scaled[0]: 0, scaled[1]: 0, 1: 0})
    assert {segment.segmentId for segment in bridge.call("getSegmentsBetween", asked).segments} == {1, *scaled}
    to_the_end = pb.StreamCutRange(streamInfo=INFO, to={0: (1 << 63) - 1, 1: 0})
    assert [segment.segmentId for segment in bridge.call("getSegmentsBetween", to_the_end).segments] == [0, 1]
    still_open = pb.StreamCutRange(streamInfo=INFO)
    getattr(still_open, "from").update({0: 0, 1: -1})
    assert bridge.refused("getSegmentsBetween", still_open) is grpc.StatusCode.INVALID_ARGUMENT


def _between(bridge: Bridge, start: dict[int, int], end: dict[int, int] | None = None) -> list[int]:
    asked = pb.StreamCutRange(streamInfo=INFO, to=end or {})
    getattr(asked, "from").update(start)
    return [segment.segmentId for segment in bridge.call("getSegmentsBetween", asked).segments]


def test_segments_after_a_checkpoint_that_waits_for_a_merge(bridge: Bridge):
    """Java readers finished 0. The merged segment waits for 1, so that no reader owns it and no checkpoint names it."""
    bridge.world.create()
    bridge.world.append(0, 100)
    bridge.world.append(1, 50)
    bridge.world.update(segments=1)
    bridge.world.scale([0, 1], [0.0, 1.0])
    merged = segment(2, 1)
    assert _between(bridge, {1: 20}) == [1, merged]
    assert _between(bridge, {1: 20}, {merged: 0}) == [1, merged]
    assert _between(bridge, {1: 20, merged: -1}) == [1, merged]
    assert _between(bridge, {1: -1, 0: 100}) == [0, merged]
    bridge.world.truncate({0: 100, 1: 10})
    assert _between(bridge, {1: 20}) == [1, merged]
    truncated = pb.StreamCutRange(streamInfo=INFO)
    getattr(truncated, "from").update({1: 5})
    assert bridge.refused("getSegmentsBetween", truncated) is grpc.StatusCode.OUT_OF_RANGE


def test_segments_after_a_checkpoint_with_finished_parts(bridge: Bridge, scaled: list[int]):
    """In a sealed stream, or before the ending cut of a group, nothing follows the segments that were left out."""
    low, high = scaled
    assert _between(bridge, {low: 0, high: 0}, {low: 0, high: 0, 1: 0}) == [low, high]
    unread = pb.StreamCutRange(streamInfo=INFO)
    getattr(unread, "from").update({low: 0, high: 0})
    assert bridge.refused("getSegmentsBetween", unread) is grpc.StatusCode.INVALID_ARGUMENT
    bridge.world.scale([1], [0.5, 0.75, 1.0])
    bridge.world.scale([high], [0.25, 0.375, 0.5])
    newest = [segment(6, 3), segment(7, 3)]
    assert _between(bridge, dict.fromkeys(newest, 0), {low: 0, **dict.fromkeys(newest, 0), 1: 0}) == newest
    bridge.world.seal()
    assert _between(bridge, dict.fromkeys(newest, 0)) == newest
    assert _between(bridge, {high: -1, 1: 0}) == [1, segment(4, 2), segment(5, 2), *newest]


def test_whether_a_segment_is_active(bridge: Bridge, scaled: list[int]):
    def active(number: int, stream: str = "t") -> bool:
        asked = pb.SegmentId(streamInfo=pb.StreamInfo(scope="s", stream=stream), segmentId=number)
        answer: bool = bridge.call("isSegmentValid", asked).response
        return answer

    assert [active(number) for number in (0, 1, *scaled)] == [False, True, True, True]
    assert not active(0, stream="none")


@pytest.mark.parametrize("stream", ["t", "group_kvtable", "_RGgroup", "none"])
def test_any_name_has_an_endpoint_which_follows_the_container(bridge: Bridge, stream):
    """Reader groups of the Rust client keep their state in tables that no controller has heard of."""
    container = container_of_segment(f"s/{stream}/0.#epoch.0", topology.CONTAINER_COUNT)
    key = Key(CLUSTER_PARTITION, claim_sort(container))
    asked = pb.SegmentId(streamInfo=pb.StreamInfo(scope="s", stream=stream), segmentId=0)
    assert bridge.refused("getURI", asked) is grpc.StatusCode.UNAVAILABLE
    bridge.world.bare_store.write(Create(key, claim_body(ContainerClaim("store-0", "host-a", 1234, "z"))))
    assert bridge.call("getURI", asked) == pb.NodeUri(endpoint="host-a", port=1234)
    bridge.world.bare_store.write(Replace(key, claim_body(ContainerClaim("store-1", "host-b", 1235, "z")), 0))
    assert bridge.call("getURI", asked) == pb.NodeUri(endpoint="host-b", port=1235)


def _with_a_certified_store(bridge: Bridge, **options: Any) -> ControllerService:
    """A service of which the first segment of `s/t` is at a store with a certificate."""
    world = bridge.world
    claim = ContainerClaim("store-0", "host-a", 1234, "z", tls_name="store-0.headrace.internal")
    container = container_of_segment("s/t/0.#epoch.0", topology.CONTAINER_COUNT)
    world.bare_store.write(Create(Key(CLUSTER_PARTITION, claim_sort(container)), claim_body(claim)))
    return ControllerService(world.scopes, world.streams, world.segments, bridge.waits, lambda: ("b", 1), **options)


@pytest.mark.parametrize(
    ("names_stores", "store_name", "told"),
    [(True, "", "store-0.headrace.internal"), (True, "localhost", "localhost"), (False, "localhost", "host-a")],
)
def test_with_tls_clients_are_told_the_name_of_a_store(bridge: Bridge, names_stores: bool, store_name: str, told: str):
    """Pravega's clients check the name that they connect to, and the Rust client fails at an address."""
    service = _with_a_certified_store(bridge, names_stores=names_stores, store_name=store_name)
    asked = pb.SegmentId(streamInfo=pb.StreamInfo(scope="s", stream="t"), segmentId=0)
    assert service.segment_uri(asked) == pb.NodeUri(endpoint=told, port=1234)


def test_clients_outside_are_told_the_external_address(bridge: Bridge):
    world, service = bridge.world, _with_a_certified_store(bridge, names_stores=True, network=Network.EXTERNAL)
    asked = pb.SegmentId(streamInfo=pb.StreamInfo(scope="s", stream="t"), segmentId=0)
    with pytest.raises(UnavailableError):  # a store of the release before says nothing of the network outside
        service.segment_uri(asked)
    outside = ExternalAddress("store-0.streams.example.com", 12346)
    lease = StoreLease("store-0", "host-a", 1234, "z", 100, "disk", "", 60, external=outside)
    world.bare_store.write(write_lease(lease, None))
    assert service.segment_uri(asked) == pb.NodeUri(endpoint="store-0.streams.example.com", port=12346)


def test_names_that_no_segment_can_have_have_no_endpoint(bridge: Bridge):
    for scope, stream, number in (("s", "a/b", 0), ("", "t", 0), ("s", "", 0), ("s", "t", -1)):
        asked = pb.SegmentId(streamInfo=pb.StreamInfo(scope=scope, stream=stream), segmentId=number)
        assert bridge.refused("getURI", asked) is grpc.StatusCode.INVALID_ARGUMENT


def test_tokens_are_empty_and_the_bridge_names_itself(bridge: Bridge):
    assert bridge.call("getDelegationToken", INFO).delegationToken == ""
    controllers = bridge.call("getControllerServerList", pb.ServerRequest()).nodeURI
    assert [(controller.endpoint, controller.port) for controller in controllers] == [("bridge.test", bridge.port)]
