"""Transactions on DynamoDB (moto): the largest of everything fits into its items, batches and transactions."""

from __future__ import annotations

import itertools
import random
import threading
import time
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
from headrace.adapters.worker_threads import WorkerThreads
from headrace.controller.engine import RequestProcessor
from headrace.controller.operations import registry
from headrace.controller.operations.commit_transactions import CommitProcessor
from headrace.controller.services.commit_set_service import CommitSetService
from headrace.controller.services.scope_service import ScopeService
from headrace.controller.services.stream_service import StreamService
from headrace.controller.services.transaction_service import TransactionService
from headrace.controller.ticks.expire_transactions import transaction_ticks
from headrace.deployment_defaults import COMPLETED_TRANSACTIONS_KEPT_MS
from headrace.metadata.optimistic_retry import ConflictBackoff
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.transaction_messages import TransactionQueues
from headrace.model.errors import IllegalStateError
from headrace.model.segments import equal_ranges
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.transactions import TransactionState, WriterTime
from headrace.ports.metadata_store import Write


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
        self.commit_sets = CommitSetService(
            self.store,
            self.queues,
            self.clock,
            lambda _bits: next(numbers),
            ConflictBackoff(time.sleep, random.random),
            WorkerThreads(4),
        )
        self.streams = StreamService(self.store, self.requests, self.clock)
        self.records = StreamRecords(self.store)
        self.tools = registry.tools(self.store, self.segment_stores, self.clock, lambda: self.requests)
        self._processes = (
            (self.requests, RequestProcessor(self.tools).process),
            (self.commits, CommitProcessor(self.tools).process),
        )
        ScopeService(self.store).create_scope("s")

    def work(self) -> None:
        for queue, process in self._processes:
            while messages := queue.receive():
                for message in messages:
                    process(message.body)
                    queue.acknowledge(message.receipt)

    def create(self, segments: int, name: str = "t") -> None:
        self.streams.create_stream("s", name, StreamConfiguration(ScalingPolicy.fixed(segments)))
        self.work()


@pytest.fixture
def cloud(aws_environment: dict[str, str]) -> Iterator[World]:
    with mock_aws():
        yield World()


def test_a_roll_of_a_thousand_segments_fits(cloud: World):
    cloud.create(1_000)
    made = cloud.transactions.create_transaction("s", "t", 60_000)
    identifier = made.transaction_id
    for segment in made.segments[::100]:
        cloud.segment_stores.append(segment.transaction_segment, b"event", 0)
    active = [segment.segment_id for segment in cloud.records.get("s", "t").stream.epoch.segments]
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


def test_a_commit_set_of_three_streams_on_dynamodb(cloud: World):
    """With threads, as the API has them; moto takes a minute for larger sets."""
    members: dict[str, list[int]] = {}
    for name, count in (("t", 101), ("u", 1), ("v", 2)):
        cloud.create(1, name)
        members[name] = [
            cloud.transactions.create_transaction("s", name, 60_000, on_demand=True).transaction_id
            for _ in range(count)
        ]
    assert cloud.commit_sets.commit_all("s", "t", members, writer="w", epoch=7).new
    cloud.work()
    assert not cloud.commit_sets.commit_all("s", "t", members, writer="w", epoch=7).new
    for name, ids in members.items():
        completed = cloud.transactions.list_completed("s", name)
        assert {
            transaction.transaction_id for transaction in completed if transaction.state is TransactionState.COMMITTED
        } == set(ids)
    for _ in range(8):
        cloud.clock.advance(COMPLETED_TRANSACTIONS_KEPT_MS)
        for bucket in range(8):
            transaction_ticks(cloud.tools, cloud.queues).run(bucket)
    pages = cloud.dynamodb.get_paginator("scan").paginate(TableName=cloud.table)
    left = {item["sort"]["S"] for page in pages for item in page["Items"]}
    assert not [sort for sort in left if sort.startswith(("open/", "done/", "completed/", "order/", "commit-part/"))]
    assert "commit-writer/w" in left


def test_a_commit_set_that_is_refused_releases_its_members(cloud: World):
    """One member is aborted before several threads prepare them."""
    cloud.create(1)
    ids = [cloud.transactions.create_transaction("s", "t", 60_000).transaction_id for _ in range(102)]
    prepare, seen = cloud.store.write, threading.Event()

    def write(*writes: Write) -> None:
        prepare(*writes)
        if not seen.is_set():  # the write that begins the set
            seen.set()
            cloud.transactions.abort_transaction("s", "t", ids[101])

    cloud.store.write = write
    with pytest.raises(IllegalStateError):
        cloud.commit_sets.commit_all("s", "t", {"t": ids}, writer="w", epoch=7)
    cloud.store.write = prepare
    opened = cloud.transactions.list_open("s", "t", 250).items
    assert sum(transaction.state is TransactionState.OPEN for transaction in opened) == 101
    assert cloud.commit_sets.committed_epoch("s", "t", "w").epoch is None
    assert cloud.commit_sets.commit_all("s", "t", {"t": ids[:3]}, writer="w", epoch=7).new
