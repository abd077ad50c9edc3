"""The whole life of a stream on DynamoDB and SQS (moto): what memory lets pass might be too much for the real thing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from functools import partial

import boto3
import pytest
from moto import mock_aws

from headrace import topology
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.dynamodb.record_item import create_table
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.request_queue import MemoryRequestQueue
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.adapters.sqs import SqsRequestQueue
from headrace.controller.operations import truncate_stream
from headrace.controller.operations.registry import request_processor
from headrace.controller.services.auto_scaling import AutoScalingService, ReportOutcome
from headrace.controller.services.retention_service import SubscriberService
from headrace.controller.services.scope_service import ScopeService
from headrace.controller.services.segment_service import SegmentService
from headrace.controller.services.stream_service import StreamService
from headrace.controller.ticks.apply_retention import RetentionTicks
from headrace.metadata.scope import CREATION_LOCKS
from headrace.model.errors import NotFoundError
from headrace.model.rates import ScalingReport
from headrace.model.segments import equal_ranges
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState


class CloudWorld:
    """The control plane on AWS's doubles."""

    def __init__(self) -> None:
        # Names of its own: the double is one per process, and another test may hold it open.
        name = uuid.uuid4().hex
        dynamodb = boto3.client("dynamodb", region_name="us-east-1")
        create_table(name, dynamodb)
        self.dynamodb, self.table = dynamodb, name
        self.sqs = boto3.client("sqs", region_name="us-east-1")
        self.url = self.sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        self.store = store = DynamoMetadataStore(name, dynamodb)
        self.clock = clock = ManualClock()
        self.segment_stores = MemorySegmentStores()
        self.scopes = ScopeService(store)
        self.streams = StreamService(store, SqsRequestQueue(self.url, self.sqs), clock)
        self.auto_scaling = AutoScalingService(store, self.streams.acceptance, clock)
        self.segments = SegmentService(store, self.segment_stores, lambda: self.streams.acceptance, 8)
        self.processor = request_processor(store, self.segment_stores, clock, lambda: MemoryRequestQueue())

    def drain(self) -> None:
        while messages := self.sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                self.processor.process(json.loads(message["Body"]))
                self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])


@pytest.fixture
def cloud_world(aws_environment: dict[str, str]) -> Iterator[CloudWorld]:
    with mock_aws():
        yield CloudWorld()


def test_a_stream_with_everything_comes_and_goes(cloud_world: CloudWorld):
    world = cloud_world
    tags = tuple(f"tag-{index:03d}" for index in range(128))
    world.scopes.create_scope("s")
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(3), tags=tags))
    world.drain()
    assert world.streams.get_stream("s", "t").state is StreamState.ACTIVE
    assert [summary.tags for summary in world.streams.list_streams("s", 10, tag="tag-127").items] == [tags]
    for epoch in range(1, 4):
        active = [segment.segment_id for segment in world.segments.segments_at_tail("s", "t").segments]
        world.streams.scale_stream("s", "t", active, equal_ranges(3 + epoch))
        world.drain()
    between = world.segments.between("s", "t", None, None)
    assert len(between.ranges) == 3 + 4 + 5 + 6
    assert world.segments.successors("s", "t", 0).segments
    world.streams.seal_stream("s", "t")
    world.drain()
    assert world.segments.between("s", "t", None, None) == between
    world.streams.delete_stream("s", "t")
    world.drain()
    with pytest.raises(NotFoundError):
        world.streams.get_stream("s", "t")
    assert world.segment_stores.names() == []
    world.scopes.delete_scope("s")
    items = world.dynamodb.scan(TableName=world.table)["Items"]
    left = [item for item in items if not item["partition"]["S"].startswith("creations/")]
    assert len(items) - len(left) == 4, "notes of the creation and of three scales stay for an hour"
    assert {item["partition"]["S"] for item in left} == {"stream/s/t", "scope-guard/s"}
    assert len(left) == 2 + CREATION_LOCKS, "the tombstone, and the guard of the scope with its creation locks"


def test_retention_finds_cuts_and_truncates(cloud_world: CloudWorld):
    world = cloud_world
    truncate = partial(truncate_stream.accept, world.streams.acceptance)
    ticks = RetentionTicks(world.store, world.segment_stores, world.clock, truncate, 1_000)
    subscribers = SubscriberService(world.store, world.clock)
    world.scopes.create_scope("s")
    world.streams.create_stream(
        "s", "t", StreamConfiguration(ScalingPolicy.fixed(2), RetentionPolicy.by_size(100, 500))
    )
    world.drain()
    subscribers.register("s", "t", "g", 0)
    heads = []
    for step in range(6):
        world.segment_stores.extend("s/t/0.#epoch.0", 50)
        if step == 3:
            subscribers.update_stream_cut("s", "t", "g", 0, {0: 70, 1: 0})
        world.clock.advance(1_000)
        for bucket in range(topology.BUCKET_COUNT):
            assert ticks.run(bucket) is False
        world.drain()
        heads.append(world.segments.stream_cut("s", "t", "head").offsets[0])
    assert heads == [0, 0, 0, 70, 70, 70]
    assert [subscriber.name for subscriber in subscribers.list_subscribers("s", "t", 10).items] == ["g"]
    world.streams.seal_stream("s", "t")
    world.drain()
    world.streams.delete_stream("s", "t")
    world.drain()
    partitions = {item["partition"]["S"] for item in world.dynamodb.scan(TableName=world.table)["Items"]}
    left = {
        partition for partition in partitions if not partition.startswith("creations/")
    }  # those notes stay for an hour
    assert left <= {"stream/s/t", "scope-guard/s", "scopes", "bucket-leases"}


def test_a_stream_of_a_thousand_segments_fits(cloud_world: CloudWorld):
    world = cloud_world
    world.scopes.create_scope("s")
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1_000)))
    world.drain()
    active = [segment.segment_id for segment in world.segments.segments_at_tail("s", "t").segments]
    world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(999)))
    world.drain()
    world.streams.scale_stream("s", "t", active, equal_ranges(999))
    world.drain()
    assert world.streams.get_stream("s", "t").segments == 999
    assert len(world.segments.stream_cut("s", "t", "tail").positions) == 999


def test_a_stream_splits_merges_and_grows(cloud_world: CloudWorld):
    world = cloud_world
    world.scopes.create_scope("s")
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.by_event_rate(10, 2, 1)))
    world.drain()

    def report(name: str, kind: str) -> ReportOutcome:
        outcome = world.auto_scaling.handle(ScalingReport(f"s/t/{name}", kind, world.clock.now_ms(), splits=2))  # type: ignore[arg-type]
        world.drain()
        return outcome

    assert report("0.#epoch.0", "hot") is ReportOutcome.SPLIT
    assert report("1.#epoch.1", "cold") is ReportOutcome.KEPT
    assert report("1.#epoch.1", "cold") is ReportOutcome.KEPT, "once more, as a queue may deliver it"
    assert report("2.#epoch.1", "cold") is ReportOutcome.MERGED
    assert len(world.segments.segments_at_tail("s", "t").segments) == 1
    world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.by_event_rate(10, 2, 3)))
    world.drain()
    assert len(world.segments.segments_at_tail("s", "t").segments) == 3
    left = world.dynamodb.scan(TableName=world.table)["Items"]
    assert not [item for item in left if item["sort"]["S"].startswith("cold/")]
