"""The whole control plane in one process, on ports in memory that are watched."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, cast

from fuzz.watched_ports import Calls, TornQueryStore, WatchedQueue, WatchedSegmentStores, WatchedStore
from headrace import topology
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.adapters.memory.request_queue import MemoryRequestQueue
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.controller.engine import RequestProcessor, Tools
from headrace.controller.operations import registry, truncate_stream
from headrace.controller.operations.abort_transaction import AbortProcessor
from headrace.controller.operations.commit_transactions import CommitProcessor
from headrace.controller.services.commit_set_service import CommitSetService
from headrace.controller.services.dead_letter_service import DeadLetterService
from headrace.controller.services.key_value_table_service import KeyValueTableService
from headrace.controller.services.reader_group_service import ReaderGroupService
from headrace.controller.services.scope_deletion import ScopeDeletionService
from headrace.controller.services.scope_service import ScopeService
from headrace.controller.services.segment_service import SegmentService
from headrace.controller.services.stream_cut_service import StreamCutService
from headrace.controller.services.stream_service import ScalingEventService, StreamService
from headrace.controller.services.transaction_service import TransactionService
from headrace.controller.ticks.expire_transactions import transaction_ticks
from headrace.controller.ticks.resend_intents import IntentSweep
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.transaction_messages import TransactionQueues
from headrace.model.requests import ResourceKind
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.ports.metadata_store import Check, Key, Record
from headrace.ports.segment_stores import SegmentStores
from headrace.ports.workers import Workers


class ControlPlane:
    """Services, processors and ticks over a store, queues, segment stores and a clock in memory. The scope `s` exists.

    Batch reads are torn: their order follows from `seed`, and hooks of `calls` run between their single reads. Without
    `workers` pieces of work are done in turn. With `torn_queries` others may also write during a query.
    """

    def __init__(self, seed: int = 0, workers: Workers | None = None, *, torn_queries: bool = False) -> None:
        self.workers = workers
        self.clock = ManualClock()
        self.calls = Calls()
        self.bare_store = MemoryMetadataStore(TornReads(seed, self.calls.between_reads))
        self.bare_queue = MemoryRequestQueue()
        self.bare_segment_stores = MemorySegmentStores(self.clock)
        self.store = WatchedStore(self.bare_store, self.calls)
        if torn_queries:
            self.store = TornQueryStore(self.bare_store, self.calls, seed)
        self.queue = WatchedQueue(self.bare_queue, self.calls)
        self.queues = dict.fromkeys(ResourceKind, self.queue)
        self.reader_groups = ReaderGroupService(self.store, self.queue, self.clock)
        self.tables = KeyValueTableService(self.store, self.queue, self.clock)
        self.segment_stores = cast(SegmentStores, WatchedSegmentStores(self.bare_segment_stores, self.calls))
        self.scopes = ScopeService(self.store)
        self.scope_deletions = ScopeDeletionService(self.store, self.queue, self.clock)
        self.streams = StreamService(self.store, self.queue, self.clock)
        self.segments = SegmentService(
            self.store, self.segment_stores, lambda: self.streams.acceptance, topology.CONTAINER_COUNT
        )
        self.cuts = StreamCutService(self.store, self.segment_stores, self.segments)
        self.scaling_events = ScalingEventService(self.store)
        self.requests = self.processor = RequestProcessor(self.tools())
        self.records = StreamRecords(self.bare_store)
        self.bare_commits, self.bare_aborts = MemoryRequestQueue(), MemoryRequestQueue()
        self.commit_queue = WatchedQueue(self.bare_commits, self.calls)
        self.abort_queue = WatchedQueue(self.bare_aborts, self.calls)
        self.transaction_queues = TransactionQueues(self.commit_queue, self.abort_queue)
        self._random_numbers = itertools.count(1)
        self.transactions = self.another_transaction_service()
        self.commit_sets = self.transactions.sets
        self.commits = CommitProcessor(self.tools())
        self.aborts = AbortProcessor(self.tools())
        self.dead_letters = DeadLetterService(
            self.store, {topology.REQUESTS_QUEUE.name: self.queue}, self.streams.acceptance
        )
        self.scopes.create_scope("s")

    def another_transaction_service(self, workers: Workers | None = None) -> TransactionService:
        """What a process that has just started answers with."""
        places = self.store, self.segment_stores, self.transaction_queues, self.clock
        return TransactionService(*places, lambda _bits: next(self._random_numbers), workers=workers or self.workers)

    def another_commit_set_service(self) -> CommitSetService:
        """What a process that has just started answers with."""
        return self.another_transaction_service().sets

    def tools(self) -> Tools:
        """What a process that has just started works with."""
        return registry.tools(self.store, self.segment_stores, self.clock, lambda: self.queue, self.workers)

    def accept_truncation(self, scope: str, stream: str, offsets: Mapping[int, int], planned_on: Check) -> object:
        """What the tick of retention calls."""
        return truncate_stream.accept(self.streams.acceptance, scope, stream, offsets, planned_on)

    def create(
        self, stream: str = "t", segments: int = 2, scaling: ScalingPolicy | None = None, **settings: Any
    ) -> None:
        """A stream that is ACTIVE, with so many segments unless its policy of `scaling` is given."""
        policy = scaling or ScalingPolicy.fixed(segments)
        self.streams.create_stream("s", stream, StreamConfiguration(policy, **settings))
        self.drain()

    def drain(self) -> int:
        """Work on queued messages until there are none; how many there were."""
        done = 0
        while messages := self.bare_queue.receive():
            for message in messages:
                self.requests.process(message.body)
                self.bare_queue.acknowledge(message.receipt)
                done += 1
        return done

    def resend_intents(self, bucket: int, older_than_ms: int = 30_000) -> int:
        """One tick on a bucket; how many intents were sent."""
        return IntentSweep(self.store, self.queues, self.clock, older_than_ms).run(bucket)[0]

    def expire_transactions(self, bucket: int) -> bool:
        """One tick on a bucket; whether more is due than it did."""
        return transaction_ticks(self.tools(), self.transaction_queues).run(bucket)

    def drain_transactions(self) -> int:
        """Work on queued commits and aborts until there are none; how many there were."""
        done = 0
        for queue, process in ((self.bare_commits, self.commits.process), (self.bare_aborts, self.aborts.process)):
            while messages := queue.receive():
                for message in messages:
                    process(message.body)
                    queue.acknowledge(message.receipt)
                    done += 1
        return done

    def record(self, key: Key) -> Record:
        """A record that exists."""
        found = self.bare_store.get(key)
        assert found is not None
        return found

    def everything(self) -> dict[tuple[str, str], tuple[int, Mapping[str, Any]]]:
        """All records of the store: what two runs may be compared by."""
        found: dict[tuple[str, str], tuple[int, Mapping[str, Any]]] = {}
        for partition in list(self.bare_store._partitions):
            for record in self.bare_store.query(partition, limit=10_000).records:
                found[record.key.partition, record.key.sort] = (record.version, record.body)
        return found
