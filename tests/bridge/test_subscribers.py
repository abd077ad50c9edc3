"""Subscribers through the bridge, as Java reader groups publish their stream cuts."""

from __future__ import annotations

import uuid
from typing import Any

import grpc
import pytest
from bridge_in_memory import Bridge

from headrace.bridge import controller_pb2 as pb
from headrace.controller.services.retention_service import SubscriberService
from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, RetentionMode

Status = pb.UpdateSubscriberStatus


@pytest.fixture
def subscribers(bridge: Bridge) -> SubscriberService:
    """Of stream `t` of two segments with 100 bytes each; `s/group` is subscribed in generation 2."""
    bridge.world.create(segments=2)
    bridge.world.append(0, 100)
    bridge.world.append(1, 100)
    service = SubscriberService(bridge.world.store, bridge.world.clock)
    service.register("s", "t", "s/group", 2)
    return service


def _info(stream: str = "t") -> pb.StreamInfo:
    return pb.StreamInfo(scope="s", stream=stream)


def _publish(
    bridge: Bridge,
    cut: dict[int, int],
    subscriber: str = "s/group",
    generation: int = 2,
    stream: str = "t",
    group: str = "2b7e1516-28ae-4d2a-8bf7-158809cf4f3c",
) -> Any:
    return bridge.call(
        "updateSubscriberStreamCut",
        pb.SubscriberStreamCut(
            subscriber=subscriber,
            generation=generation,
            readerGroupId=group,
            streamCut=pb.StreamCut(streamInfo=_info(stream), cut=cut),
        ),
    ).status


def test_they_are_listed(bridge: Bridge, subscribers: SubscriberService, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.bridge.reader_group_rpcs.PAGE_ITEMS_MAX", 2)
    for name in ("s/a", "s/b", "other/c", "d"):
        subscribers.register("s", "t", name, 0)
    reply = bridge.call("listSubscribers", _info())
    assert (reply.status, sorted(reply.subscribers)) == (0, ["d", "other/c", "s/a", "s/b", "s/group"])
    assert bridge.call("listSubscribers", _info("none")).status == pb.SubscribersResponse.STREAM_NOT_FOUND
    assert bridge.call("listSubscribers", _info("a/b")).status == pb.SubscribersResponse.STREAM_NOT_FOUND


def test_cuts_are_published(bridge: Bridge, subscribers: SubscriberService):
    assert _publish(bridge, {0: 10, 1: 20}) == Status.SUCCESS
    assert _publish(bridge, {0: 10, 1: 20}) == Status.SUCCESS
    assert subscribers.get_subscriber("s", "t", "s/group").position.cut.offsets == {0: 10, 1: 20}


def test_a_segment_that_is_not_reached_yet_may_be_named(bridge: Bridge, subscribers: SubscriberService):
    bridge.world.update(segments=1)
    bridge.world.scale([0, 1], [0.0, 1.0])
    merged = 1 << 32 | 2
    assert _publish(bridge, {1: 5, merged: -1}) == Status.SUCCESS
    assert subscribers.get_subscriber("s", "t", "s/group").position.cut.offsets == {0: 100, 1: 5}


def test_each_refusal_has_its_status(bridge: Bridge, subscribers: SubscriberService):
    _publish(bridge, {0: 10, 1: 20})
    assert _publish(bridge, {0: 9, 1: 20}) == Status.STREAM_CUT_NOT_VALID
    assert _publish(bridge, {0: 50}) == Status.STREAM_CUT_NOT_VALID
    assert _publish(bridge, {}) == Status.STREAM_CUT_NOT_VALID
    assert _publish(bridge, {0: 50, 1: 50}, generation=1) == Status.GENERATION_MISMATCH
    assert _publish(bridge, {0: 50, 1: 50}, subscriber="s/none") == Status.SUBSCRIBER_NOT_FOUND
    assert _publish(bridge, {0: 50, 1: 50}, stream="none") == Status.STREAM_NOT_FOUND
    request = pb.SubscriberStreamCut(subscriber="a b", streamCut=pb.StreamCut(streamInfo=_info(), cut={0: 1, 1: 1}))
    assert bridge.refused("updateSubscriberStreamCut", request) is grpc.StatusCode.INVALID_ARGUMENT


def test_readers_of_a_group_that_was_made_anew_publish_nothing(bridge: Bridge):
    """Both groups are in generation 0: only the id tells them apart."""
    world = bridge.world
    world.create(segments=2)
    world.append(0, 100)
    streams = (GroupStream("s", "t"),)
    configuration = ReaderGroupConfiguration(streams, retention=RetentionMode.MANUAL)
    groups = [str(uuid.UUID(int=number)) for number in (1, 2)]
    world.reader_groups.create_reader_group("s", "group", groups[0], configuration)
    world.drain()
    assert _publish(bridge, {0: 10, 1: 0}, generation=0, group=groups[0]) == Status.SUCCESS
    world.reader_groups.delete_reader_group("s", "group", groups[0])
    world.drain()
    assert _publish(bridge, {0: 20, 1: 0}, generation=0, group=groups[0]) == Status.SUBSCRIBER_NOT_FOUND
    world.reader_groups.create_reader_group("s", "group", groups[1], configuration)
    world.drain()
    assert _publish(bridge, {0: 100, 1: 0}, generation=0, group=groups[0]) == Status.GENERATION_MISMATCH
    assert _publish(bridge, {0: 30, 1: 0}, generation=0, group=groups[1].upper()) == Status.SUCCESS
