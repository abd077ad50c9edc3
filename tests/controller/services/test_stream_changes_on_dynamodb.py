"""Updates, truncations and the deletion of a scope on DynamoDB and SQS (moto), with as much as there may be."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.dynamodb.record_item import create_table
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.adapters.sqs import SqsRequestQueue
from headrace.controller.operations import delete_scope
from headrace.controller.operations.registry import request_processor
from headrace.controller.services.scope_deletion import ScopeDeletionService
from headrace.controller.services.scope_service import ScopeService
from headrace.controller.services.segment_service import SegmentService
from headrace.controller.services.stream_cut_service import StreamCutService
from headrace.controller.services.stream_service import StreamService
from headrace.model.segments import equal_ranges
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration

SEGMENTS = 300
"""Enough for several batches and long records; moto is slow."""


class Cloud:
    """What the test needs of the control plane on AWS's doubles."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex
        dynamodb = boto3.client("dynamodb", region_name="us-east-1")
        create_table(name, dynamodb)
        self.sqs = boto3.client("sqs", region_name="us-east-1")
        self.url = self.sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        store, clock, queue = DynamoMetadataStore(name, dynamodb), ManualClock(), SqsRequestQueue(self.url, self.sqs)
        self.segment_stores = MemorySegmentStores()
        self.scopes = ScopeService(store)
        self.scope_deletions = ScopeDeletionService(store, queue, clock)
        self.streams = StreamService(store, queue, clock)
        self.segments = SegmentService(store, self.segment_stores, lambda: self.streams.acceptance, 8)
        self.cuts = StreamCutService(store, self.segment_stores, self.segments)
        self.processor = request_processor(store, self.segment_stores, clock, lambda: queue)

    def drain(self) -> int:
        """Work on queued messages until there are none; how many there were."""
        done = 0
        while found := self.sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=1).get("Messages"):
            for message in found:
                self.processor.process(json.loads(message["Body"]))
                self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
                done += 1
        return done


@pytest.fixture
def cloud(aws_environment: dict[str, str]) -> Iterator[Cloud]:
    with mock_aws():
        yield Cloud()


def _tags(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}-{index:03d}" for index in range(128))


def test_a_stream_is_updated_and_truncated(cloud: Cloud):
    cloud.scopes.create_scope("s")
    cloud.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(SEGMENTS), tags=_tags("old")))
    cloud.drain()
    cloud.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2), tags=_tags("new")))
    cloud.drain()
    assert cloud.streams.get_stream("s", "t").configuration.tags == _tags("new")
    assert [len(cloud.streams.list_streams("s", 9, tag=tag).items) for tag in ("old-007", "new-127")] == [0, 1]
    for name in cloud.segment_stores.names():
        cloud.segment_stores.extend(name, 10)
    first = {segment.segment_id: 4 for segment in cloud.segments.segments_at_tail("s", "t").segments}
    cloud.streams.truncate_stream("s", "t", first)
    cloud.drain()
    cloud.streams.scale_stream("s", "t", list(first), equal_ranges(2))
    cloud.drain()
    assert cloud.cuts.distance_bytes("s", "t", None, None) == 6 * SEGMENTS
    second = {segment.segment_id: 0 for segment in cloud.segments.segments_at_tail("s", "t").segments}
    cloud.streams.truncate_stream("s", "t", second)
    cloud.drain()
    assert cloud.segments.stream_cut("s", "t", "head").offsets == second
    assert len(cloud.segment_stores.names()) == 2


def test_a_scope_goes_with_its_streams(cloud: Cloud, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delete_scope, "RESOURCES_PER_MESSAGE", 2)
    cloud.scopes.create_scope("s")
    for name in "abcde":
        cloud.streams.create_stream("s", name, StreamConfiguration(ScalingPolicy.fixed(2), tags=("x",)))
    cloud.drain()
    cloud.scope_deletions.delete_scope_recursively("s")
    assert cloud.drain() == 3
    assert cloud.segment_stores.names() == []
    assert cloud.scopes.list_scopes(10).items == ()
