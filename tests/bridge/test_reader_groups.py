"""Reader groups as Pravega's clients see them."""

from __future__ import annotations

import grpc
import pytest
from bridge_in_memory import Bridge
from stream_world import segment

from headrace.bridge import controller_pb2 as pb
from headrace.controller.services.retention_service import SubscriberService
from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration

ID, OTHER_ID = "0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def _cut(stream: str = "t", **offsets: int) -> pb.StreamCut:
    cut = {int(key[1:]): offset for key, offset in offsets.items()}
    return pb.StreamCut(streamInfo=pb.StreamInfo(scope="s", stream=stream), cut=cut)


def _config(name: str = "g", scope: str = "s", **more: object) -> pb.ReaderGroupConfiguration:
    settings: dict[str, object] = {
        "groupRefreshTimeMillis": 3_000,
        "automaticCheckpointIntervalMillis": 30_000,
        "maxOutstandingCheckpointRequest": 3,
        "retentionType": pb.ReaderGroupConfiguration.MANUAL,
        "generation": 0,
        "readerGroupId": ID,
        "startingStreamCuts": [_cut()],
        "endingStreamCuts": [_cut()],
        "rolloverSizeBytes": 4 << 20,
    }
    return pb.ReaderGroupConfiguration(scope=scope, readerGroupName=name, **(settings | more))  # type: ignore[arg-type]


def _info(group_id: str = ID, name: str = "g") -> pb.ReaderGroupInfo:
    return pb.ReaderGroupInfo(scope="s", readerGroup=name, readerGroupId=group_id)


@pytest.fixture
def groups_bridge(bridge: Bridge):
    """The streams `t` and `u` are there."""
    bridge.world.create("t")
    bridge.world.create("u")
    return bridge


def test_a_group_can_be_used_when_its_creation_is_answered(groups_bridge):
    bridge = groups_bridge
    created = bridge.call("createReaderGroup", _config())
    assert (created.status, created.config) == (pb.CreateReaderGroupResponse.SUCCESS, _config())
    reply = bridge.call("getReaderGroupConfig", _info())
    assert (reply.status, reply.config) == (pb.ReaderGroupConfigResponse.SUCCESS, _config())
    segments = bridge.call("getCurrentSegments", pb.StreamInfo(scope="s", stream="_RGg")).segmentRanges
    assert [segment.segmentId.segmentId for segment in segments] == [0]
    listed = bridge.call("listSubscribers", pb.StreamInfo(scope="s", stream="t"))
    assert list(listed.subscribers) == ["s/g"]


def test_creating_an_existing_group_returns_its_configuration(groups_bridge):
    groups_bridge.call("createReaderGroup", _config())
    again = groups_bridge.call("createReaderGroup", _config(readerGroupId=OTHER_ID, groupRefreshTimeMillis=1))
    assert (again.status, again.config) == (pb.CreateReaderGroupResponse.SUCCESS, _config())


def test_creation_waits_for_a_concurrent_one(groups_bridge):
    groups_bridge.world.reader_groups.create_reader_group(
        "s", "g", OTHER_ID, ReaderGroupConfiguration((GroupStream("s", "t"),))
    )
    reply = groups_bridge.call("createReaderGroup", _config())
    assert reply.config.readerGroupId == OTHER_ID
    assert groups_bridge.world.streams.get_stream("s", "_RGg").segments == 1


def test_cuts_come_back_as_they_were_sent(groups_bridge):
    sent = _config(startingStreamCuts=[_cut(s0=0, s1=0), _cut("u")], endingStreamCuts=[_cut(s0=5, s1=5), _cut("u")])
    assert groups_bridge.call("createReaderGroup", sent).config == sent


def test_a_group_without_automatic_checkpoints(groups_bridge):
    off = _config(automaticCheckpointIntervalMillis=-1)
    assert groups_bridge.call("createReaderGroup", off).config == off
    updated = groups_bridge.call("updateReaderGroup", off)
    assert (updated.status, updated.generation) == (pb.UpdateReaderGroupResponse.SUCCESS, 1)
    wrong = _config("other", automaticCheckpointIntervalMillis=-2)
    assert groups_bridge.refused("createReaderGroup", wrong) is grpc.StatusCode.INVALID_ARGUMENT


def test_cuts_at_the_ends_of_segments_are_kept(groups_bridge):
    """As the positions of a Java checkpoint: the group reads the successors of such a segment next."""
    bridge = groups_bridge
    bridge.world.append(0, 10)
    bridge.world.scale([0], [0.0, 0.25, 0.5])
    sent = _config(startingStreamCuts=[_cut(s0=-1, s1=0)], endingStreamCuts=[_cut(s0=-1, s1=-1)])
    assert bridge.refused("createReaderGroup", sent) is grpc.StatusCode.INVALID_ARGUMENT
    sent = _config(startingStreamCuts=[_cut(s0=-1, s1=0)])
    assert bridge.call("createReaderGroup", sent).config == sent
    assert bridge.call("getReaderGroupConfig", _info()).config == sent
    subscribers = SubscriberService(bridge.world.store, bridge.world.clock)
    assert subscribers.get_subscriber("s", "t", "s/g").position.cut.offsets == {0: 10, 1: 0}
    change = _config(startingStreamCuts=[_cut(s0=10, s1=0)], endingStreamCuts=[_cut(s0=-1, s1=0)])
    assert bridge.call("updateReaderGroup", change).generation == 1
    assert bridge.call("getReaderGroupConfig", _info()).config.endingStreamCuts[0].cut == {0: -1, 1: 0}


def test_a_reset_to_a_checkpoint_with_finished_parts(groups_bridge):
    """Java readers leave out of their checkpoints what they have read to its end."""
    bridge = groups_bridge
    bridge.world.append(1, 10)
    bridge.call("createReaderGroup", _config())
    torn = _config(startingStreamCuts=[_cut(s1=5)])
    assert bridge.call("updateReaderGroup", torn).status == pb.UpdateReaderGroupResponse.FAILURE
    bounded = _config(startingStreamCuts=[_cut(s1=5)], endingStreamCuts=[_cut(s0=0, s1=10)])
    assert bridge.call("updateReaderGroup", bounded).status == pb.UpdateReaderGroupResponse.SUCCESS
    bridge.world.seal()
    torn.generation = 1
    assert bridge.call("updateReaderGroup", torn).status == pb.UpdateReaderGroupResponse.SUCCESS
    assert bridge.call("getReaderGroupConfig", _info()).config.startingStreamCuts[0].cut == {1: 5}


def test_a_reset_to_a_checkpoint_that_waits_for_a_merge(groups_bridge):
    """New readers read 1 only. The merged segment would wait for 0 forever, which they do not know to be finished."""
    bridge = groups_bridge
    bridge.world.append(0, 5)
    bridge.world.append(1, 10)
    bridge.world.update(segments=1)
    bridge.world.scale([0, 1], [0.0, 1.0])
    bridge.call("createReaderGroup", _config())
    waits = [_cut(s1=5)]
    merged = pb.StreamCut(streamInfo=pb.StreamInfo(scope="s", stream="t"), cut={segment(2, 1): 0})
    beyond = _config(startingStreamCuts=waits, endingStreamCuts=[merged])
    assert bridge.call("updateReaderGroup", beyond).status == pb.UpdateReaderGroupResponse.FAILURE
    before = _config(startingStreamCuts=waits, endingStreamCuts=[_cut(s0=5, s1=10)])
    assert bridge.call("updateReaderGroup", before).status == pb.UpdateReaderGroupResponse.SUCCESS
    bridge.world.seal()
    sealed = _config(startingStreamCuts=waits, generation=1)
    assert bridge.call("updateReaderGroup", sealed).status == pb.UpdateReaderGroupResponse.FAILURE
    complete = _config(startingStreamCuts=[_cut(s0=5, s1=5)], generation=1)
    assert bridge.call("updateReaderGroup", complete).status == pb.UpdateReaderGroupResponse.SUCCESS


def test_streams_without_an_ending_cut_come_back_so(groups_bridge):
    """A Java client compares the configuration with the one that it sent, and refuses to continue if they differ."""
    sent = _config(startingStreamCuts=[_cut("u"), _cut(s0=0, s1=0)], endingStreamCuts=[])
    assert groups_bridge.call("createReaderGroup", sent).config == sent
    again = groups_bridge.call("createReaderGroup", _config(readerGroupId=OTHER_ID, endingStreamCuts=[]))
    assert len(again.config.startingStreamCuts) == 2


def test_an_update_is_done_when_it_is_answered(groups_bridge):
    bridge = groups_bridge
    bridge.call("createReaderGroup", _config())
    change = _config(startingStreamCuts=[_cut("u")], endingStreamCuts=[_cut("u")])
    updated = bridge.call("updateReaderGroup", change)
    assert (updated.status, updated.generation) == (pb.UpdateReaderGroupResponse.SUCCESS, 1)
    subscribers = {
        stream: list(bridge.call("listSubscribers", pb.StreamInfo(scope="s", stream=stream)).subscribers)
        for stream in ("t", "u")
    }
    assert subscribers == {"t": [], "u": ["s/g"]}
    assert bridge.call("updateReaderGroup", change).generation == 1
    assert bridge.call("updateReaderGroup", _config()).status == pb.UpdateReaderGroupResponse.INVALID_CONFIG


def test_what_an_update_is_refused_for(groups_bridge):
    """After INVALID_CONFIG Java clients fetch the configuration and repeat, which helps with a generation only."""
    bridge = groups_bridge
    bridge.call("createReaderGroup", _config())
    before = bridge.world.everything()
    statuses = [
        bridge.call("updateReaderGroup", change).status
        for change in (
            _config(readerGroupId=OTHER_ID),
            _config(generation=7),
            _config(startingStreamCuts=[_cut("nowhere")], endingStreamCuts=[]),
            _config(startingStreamCuts=[], endingStreamCuts=[]),
            _config(retentionType=9),
        )
    ]
    assert statuses == [pb.UpdateReaderGroupResponse.INVALID_CONFIG] * 2 + [pb.UpdateReaderGroupResponse.FAILURE] * 3
    assert bridge.call("updateReaderGroup", _config("none")).status == pb.UpdateReaderGroupResponse.RG_NOT_FOUND
    assert bridge.world.everything() == before


def test_a_group_is_gone_when_its_deletion_is_answered(groups_bridge):
    bridge = groups_bridge
    bridge.call("createReaderGroup", _config())
    other = bridge.call("deleteReaderGroup", _info(OTHER_ID))
    assert other.status == pb.DeleteReaderGroupStatus.RG_NOT_FOUND
    assert bridge.call("deleteReaderGroup", _info()).status == pb.DeleteReaderGroupStatus.SUCCESS
    assert not bridge.call("listSubscribers", pb.StreamInfo(scope="s", stream="t")).subscribers
    assert bridge.call("getReaderGroupConfig", _info()).status == pb.ReaderGroupConfigResponse.RG_NOT_FOUND
    assert bridge.call("deleteReaderGroup", _info()).status == pb.DeleteReaderGroupStatus.RG_NOT_FOUND
    assert bridge.call("deleteReaderGroup", _info(name="a/b")).status == pb.DeleteReaderGroupStatus.RG_NOT_FOUND


@pytest.mark.parametrize(
    ("config", "status"),
    [
        (_config(scope="none"), pb.CreateReaderGroupResponse.SCOPE_NOT_FOUND),
        (_config("a/b"), pb.CreateReaderGroupResponse.INVALID_RG_NAME),
        (_config(startingStreamCuts=[_cut("nowhere")]), pb.CreateReaderGroupResponse.FAILURE),
    ],
)
def test_what_creation_refuses(groups_bridge, config, status):
    before = groups_bridge.world.everything()
    assert groups_bridge.call("createReaderGroup", config).status == status
    assert groups_bridge.world.everything() == before
