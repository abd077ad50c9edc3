"""Transactions on DynamoDB (moto): the largest of everything fits into its items, batches and transactions."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.dynamodb.record_item import create_table
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.request_queue import MemoryRequestQueue
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.controller.engine import RequestProcessor
from headrace.controller.operations import registry
from headrace.controller.operations.commit_transactions import CommitProcessor
from headrace.controller.services.scopes import ScopeService
from headrace.controller.services.streams import StreamService
from headrace.controller.services.transactions import TransactionService
from headrace.controller.ticks.expire_transactions import transaction_ticks
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.transaction_messages import TransactionQueues
from headrace.model.key_ranges import equal_ranges
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.transactions import (
    COMMIT_SET_KEPT_MS,
    COMMIT_SET_TRANSACTIONS_MAX,
    TransactionState,
    WriterTime,
)


class World:
    """Services over DynamoDB's double and queues in memory. The scope `s` is there."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex
        self.dynamodb = boto3.client("dynamodb", region_name="us-east-1")
        self.table = name
        create_table(name, self.dynamodb)
        self.store, self.clock = DynamoMetadataStore(name, self.dynamodb), ManualClock()
        self.segment_stores = MemorySegmentStores(self.clock)
        self.requests, self.commits = MemoryRequestQueue(), MemoryRequestQueue()
        self.queues = TransactionQueues(self.commits, MemoryRequestQueue())
        numbers = itertools.count(1)
        self.transactions = TransactionService(
            self.store, self.segment_stores, self.queues, self.clock, lambda _bits: next(numbers)
        )
        self.streams = StreamService(self.store, self.requests, self.clock)
        self.records = StreamRecords(self.store)
        tools = registry.tools(self.store, self.segment_stores, self.clock, lambda: self.requests)
        self._processes = (
            (self.requests, RequestProcessor(tools).process),
            (self.commits, CommitProcessor(tools).process),
        )
        ScopeService(self.store).create_scope("s")

    def work(self) -> None:
        for queue, process in self._processes:
            while messages := queue.receive():
                for message in messages:
                    process(message.body)
                    queue.acknowledge(message.receipt)

    def create(self, segments: int) -> None:
        self.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(segments)))
        self.work()


@pytest.fixture
def cloud(aws_environment: dict[str, str]) -> Iterator[World]:
    with mock_aws():
        yield World()


def test_a_roll_of_a_thousand_segments_fits(cloud: World):
    cloud.create(1_000)
    made = cloud.transactions.create_transaction("s", "t", 60_000)
    identifier = made.transaction_id
    for one in made.segments[::100]:
        cloud.segment_stores.append(one.transaction_segment, b"event", 0)
    active = [one.segment_id for one in cloud.records.get("s", "t").stream.epoch.segments]
    cloud.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(999)))
    cloud.work()
    cloud.streams.scale_stream("s", "t", active, equal_ranges(999))
    cloud.work()
    cloud.transactions.commit_transaction("s", "t", identifier, WriterTime("w", 1))
    cloud.work()
    done = cloud.transactions.get_transaction("s", "t", identifier)
    assert done.state is TransactionState.COMMITTED
    assert [offset for _, offset in done.position].count(5) == 10
    stream = cloud.records.get("s", "t").stream
    assert (stream.epoch.number, len(stream.epoch.segments)) == (3, 999)


def test_the_largest_commit_set_is_committed_and_forgotten(cloud: World):
    cloud.create(1)
    members = [
        cloud.transactions.create_transaction("s", "t", 60_000).transaction_id
        for _ in range(COMMIT_SET_TRANSACTIONS_MAX)
    ]
    assert cloud.transactions.commit_all("s", "t", "k", members).new
    cloud.work()
    assert not cloud.transactions.commit_all("s", "t", "k", members).new
    completed = cloud.transactions.list_completed("s", "t")
    assert {one.transaction_id for one in completed if one.state is TransactionState.COMMITTED} == set(members)
    for _ in range(2):
        cloud.clock.advance(COMMIT_SET_KEPT_MS)
        for bucket in range(8):
            transaction_ticks(cloud.store, cloud.queues, cloud.clock).run(bucket)
    left = {item["sort"]["S"] for item in cloud.dynamodb.scan(TableName=cloud.table)["Items"]}
    assert not [sort for sort in left if sort.startswith(("open/", "done/", "completed/", "order/", "commit-set/"))]
