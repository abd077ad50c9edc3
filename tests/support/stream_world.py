"""A controller with its store, queue, segment stores and clock in memory, and doubles that count or break calls."""

from __future__ import annotations

import contextvars
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar, cast

from headrace import topology
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.adapters.memory.request_queue import MemoryRequestQueue, QueuedMessage
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.api.transactions import CommitSetView
from headrace.controller.engine import RequestProcessor, Tools
from headrace.controller.operations import registry, truncate_stream
from headrace.controller.operations.abort_transaction import AbortProcessor
from headrace.controller.operations.commit_transactions import CommitProcessor
from headrace.controller.services.commit_sets import CommitSetService
from headrace.controller.services.dead_letters import DeadLetterService
from headrace.controller.services.key_value_tables import KeyValueTableService
from headrace.controller.services.reader_groups import ReaderGroupService
from headrace.controller.services.scaling_events import ScalingEventService
from headrace.controller.services.scope_deletion import ScopeDeletionService
from headrace.controller.services.scopes import ScopeService
from headrace.controller.services.segments import SegmentService
from headrace.controller.services.stream_cuts import StreamCutService
from headrace.controller.services.streams import StreamService
from headrace.controller.services.transactions import TransactionService
from headrace.controller.ticks.expire_transactions import transaction_ticks
from headrace.controller.ticks.resend_intents import IntentSweep
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.transaction_messages import TransactionQueues
from headrace.model.errors import UnavailableError
from headrace.model.requests import ResourceKind
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.ports.metadata_store import Check, Key, Page, Record, Write
from headrace.ports.segment_stores import SegmentStores
from headrace.ports.workers import Workers

T = TypeVar("T")


class Crash(Exception):
    """The process dies here."""


def _in_another_process(action: Callable[[], T]) -> T:
    """Without the deadline of the work that is interrupted, which is in its context."""
    return contextvars.Context().run(action)


class Calls:
    """Counts calls of ports by kind, and runs a hook around each: the hook may raise instead of, or after, the call."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.before: Callable[[str], None] = lambda kind: None
        self.after: Callable[[str], None] = lambda kind: None

    def __call__(self, kind: str, call: Callable[[], T]) -> T:
        self.before(kind)
        self.counts[kind] += 1
        answer = call()
        self.after(kind)
        return answer

    def between_reads(self) -> None:
        """A batch read has read some of its records; the hook may let others write now."""
        self.before("between reads")

    def dies(self, work: Callable[[], object], position: int | None, *, done: bool) -> bool:
        """Whether a process that does the work comes to the call with this number, counted from now, and dies of it.

        That is after the call took effect (`done`), or before. Without a number nothing happens to the process.
        """
        passed = 0

        def hook(kind: str) -> None:
            nonlocal passed
            passed += 1
            if position is not None and passed == position + 1:
                raise Crash(kind)

        self.calm()
        if done:
            self.after = hook
        else:
            self.before = hook
        try:
            work()
        except Crash:
            return True
        finally:
            self.calm()
        return False

    def interrupt_at(self, position: int, action: Callable[[], T]) -> list[T]:
        """Before the call with this number, counted from now, do something else, undisturbed; what that returned."""
        passed = 0
        returned: list[T] = []

        def hook(kind: str) -> None:
            nonlocal passed
            passed += 1
            if passed == position + 1:
                self.calm()
                returned.append(_in_another_process(action))

        self.calm()
        self.before = hook
        return returned

    @contextmanager
    def overtaken(self, kind: str, by: Callable[[], object]) -> Iterator[None]:
        """Others are faster than the first call of this kind that is made meanwhile; there must be one."""
        happened = False

        def hook(called: str) -> None:
            nonlocal happened
            if called == kind:
                self.calm()
                happened = True
                _in_another_process(by)

        self.calm()
        self.before = hook
        try:
            yield
        finally:
            self.calm()
        assert happened, f"no call of the kind {kind} was made"

    def refuse(self, kind: str, error: Exception) -> None:
        """No call whose kind begins so is made from now on: it fails with this error."""

        def hook(called: str) -> None:
            if called.startswith(kind):
                raise error

        self.calm()
        self.before = hook

    def calm(self) -> None:
        self.before = self.after = lambda kind: None


class WatchedStore:
    """A metadata store whose calls go through `Calls`."""

    def __init__(self, inner: MemoryMetadataStore, calls: Calls) -> None:
        self._inner, self._calls = inner, calls

    def get(self, key: Key) -> Record | None:
        return self._calls("read", lambda: self._inner.get(key))

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        return self._calls("read", lambda: self._inner.get_many(keys))

    def query(
        self,
        partition: str,
        *,
        first: str = "",
        last: str | None = None,
        limit: int,
        descending: bool = False,
        bytes_max: int | None = None,
    ) -> Page:
        return self._calls(
            "query",
            lambda: self._inner.query(
                partition, first=first, last=last, limit=limit, descending=descending, bytes_max=bytes_max
            ),
        )

    def write(self, *writes: Write) -> None:
        self._calls("transaction" if len(writes) > 1 else "write", lambda: self._inner.write(*writes))


class WatchedQueue:
    """A request queue whose sends go through `Calls`; `is_down` makes them fail."""

    def __init__(self, inner: MemoryRequestQueue, calls: Calls) -> None:
        self._inner, self._calls = inner, calls
        self.is_down = False

    def send(self, *, group: str, body: Mapping[str, Any], deduplication_id: str) -> None:
        if self.is_down:
            raise UnavailableError("the queue does not answer")
        self._calls("send", lambda: self._inner.send(group=group, body=body, deduplication_id=deduplication_id))


class WatchedSegmentStores:
    """Segment stores whose calls go through `Calls`."""

    def __init__(self, inner: MemorySegmentStores, calls: Calls) -> None:
        self._inner, self._calls = inner, calls

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._inner, name)
        return lambda *arguments: self._calls(f"segment store {name}", lambda: operation(*arguments))


class StreamWorld:
    """Everything the control plane needs, in one process. The scope `s` is there.

    Batch reads are torn: their order follows from `seed`, and hooks of `calls` run between their single reads. Without
    `workers` pieces of work are done in turn.
    """

    def __init__(self, seed: int = 0, workers: Workers | None = None) -> None:
        self._workers = workers
        self.clock = ManualClock()
        self.calls = Calls()
        self.bare_store = MemoryMetadataStore(TornReads(seed, self.calls.between_reads))
        self.bare_queue = MemoryRequestQueue()
        self.bare_segment_stores = MemorySegmentStores(self.clock)
        self.store = WatchedStore(self.bare_store, self.calls)
        self.queue = WatchedQueue(self.bare_queue, self.calls)
        self.queues = dict.fromkeys(ResourceKind, self.queue)
        self.reader_groups = ReaderGroupService(self.store, self.queue, self.clock)
        self.tables = KeyValueTableService(self.store, self.queue, self.clock)
        self.segment_stores = cast(SegmentStores, WatchedSegmentStores(self.bare_segment_stores, self.calls))
        self.scopes = ScopeService(self.store)
        self.scope_deletions = ScopeDeletionService(self.store, self.queue, self.clock)
        self.streams = StreamService(self.store, self.queue, self.clock)
        self.segments = SegmentService(self.store, self.segment_stores, topology.CONTAINER_COUNT)
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
        self._in_hand: QueuedMessage | None = None
        self.scopes.create_scope("s")

    def another_transaction_service(self, workers: Workers | None = None) -> TransactionService:
        """What a process that has just started answers with."""
        places = self.store, self.segment_stores, self.transaction_queues, self.clock
        return TransactionService(*places, lambda _bits: next(self._random_numbers), workers=workers or self._workers)

    def another_commit_set_service(self) -> CommitSetService:
        """What a process that has just started answers with."""
        return self.another_transaction_service().sets

    def commit_set(
        self, members: Mapping[str, Sequence[int]] | Sequence[int], home: str = "t", **options: Any
    ) -> CommitSetView:
        """Commit these transactions, of one stream or by stream; what the service of a new process answers."""
        given = members if isinstance(members, Mapping) else {home: members}
        service = self.another_commit_set_service()
        return service.commit_all("s", home, given, **(dict[str, Any](writer="w", epoch=0) | options))

    def tools(self) -> Tools:
        """What a process that has just started works with."""
        return registry.tools(self.store, self.segment_stores, self.clock, lambda: self.queue, self._workers)

    def accept_truncation(self, scope: str, stream: str, offsets: Mapping[int, int], planned_on: Check) -> object:
        """What the tick of retention calls."""
        return truncate_stream.accept(self.streams.acceptance, scope, stream, offsets, planned_on)

    def create(self, stream: str = "t", segments: int = 2, **settings: Any) -> None:
        """A stream that is ACTIVE."""
        self.streams.create_stream("s", stream, StreamConfiguration(ScalingPolicy.fixed(segments), **settings))
        self.drain()

    def scale(self, sealed: Sequence[int], bounds: Sequence[float], stream: str = "t") -> int:
        """A scale that is done; the new ranges lie between consecutive bounds. The new epoch's number."""
        accepted = self.streams.scale_stream("s", stream, list(sealed), ranges(*bounds))
        self.drain()
        return accepted.epoch

    def update(self, stream: str = "t", segments: int = 2, **settings: Any) -> None:
        """An update that is done."""
        self.streams.update_stream("s", stream, StreamConfiguration(ScalingPolicy.fixed(segments), **settings))
        self.drain()

    def truncate(self, offsets: Mapping[int, int], stream: str = "t") -> None:
        """A truncation that is done."""
        self.streams.truncate_stream("s", stream, offsets)
        self.drain()

    def seal(self, stream: str = "t") -> None:
        self.streams.seal_stream("s", stream)
        self.drain()

    def delete(self, stream: str = "t") -> None:
        self.streams.delete_stream("s", stream)
        self.drain()

    def append(self, segment: int, length_bytes: int, stream: str = "t") -> None:
        name = f"s/{stream}/{segment & 0xFFFFFFFF}.#epoch.{segment >> 32}"
        self.bare_segment_stores.extend(name, length_bytes)

    def drain(self) -> int:
        """Work on queued messages until there are none; how many there were."""
        done = 0
        while messages := self.bare_queue.receive():
            for message in messages:
                self.requests.process(message.body)
                self.bare_queue.acknowledge(message.receipt)
                done += 1
        return done

    def receive(self) -> QueuedMessage:
        """A processor has the one message in hand that is queued, until it is acknowledged."""
        (self._in_hand,) = self.bare_queue.receive()
        return self.in_hand

    @property
    def in_hand(self) -> QueuedMessage:
        """The message that a processor has received and not acknowledged."""
        assert self._in_hand is not None
        return self._in_hand

    @in_hand.setter
    def in_hand(self, message: QueuedMessage) -> None:
        self._in_hand = message

    @property
    def has_message_in_hand(self) -> bool:
        return self._in_hand is not None

    def process(self) -> None:
        """Process the message in hand, for the first time or again."""
        self.requests.process(self.in_hand.body)

    def acknowledge(self) -> None:
        """What was in hand does not come again."""
        self.bare_queue.acknowledge(self.in_hand.receipt)
        self._in_hand = None

    def sweep(self) -> None:
        """Send the intents again that are on record and old."""
        self.clock.advance(30_001)
        for bucket in range(topology.BUCKET_COUNT):
            self.resend_intents(bucket)

    def resend_intents(self, bucket: int, older_than_ms: int = 30_000) -> int:
        """One tick on a bucket; how many intents were sent."""
        return IntentSweep(self.store, self.queues, self.clock, older_than_ms).run(bucket)[0]

    def expire_transactions(self, bucket: int) -> bool:
        """One tick on a bucket; whether more is due than it did."""
        return transaction_ticks(self.store, self.transaction_queues, self.clock).run(bucket)

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

    def begin(self, stream: str = "t", lease_ms: int = 60_000) -> int:
        """The id of a new transaction."""
        return self.transactions.create_transaction("s", stream, lease_ms).transaction_id

    def write_in(self, transaction: int, position: float, data: bytes, stream: str = "t") -> None:
        """Append to the segment of a transaction that owns the position."""
        found = self.transactions.segments_of("s", stream, transaction)
        (name,) = [
            one.transaction_segment for one in found.segments if one.key_range.low <= position < one.key_range.high
        ]
        stores = self.bare_segment_stores
        stores.append(name, data, stores.segment_info(name).length)

    def commit(self, *transactions: int, stream: str = "t") -> None:
        """Commits that are done."""
        for one in transactions:
            self.transactions.commit_transaction("s", stream, one)
        self.drain_transactions()

    def tail_ids(self, stream: str = "t") -> list[int]:
        return [one.segment_id for one in self.segments.segments_at_tail("s", stream).segments]

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


def ranges(*bounds: float) -> list[KeyRange]:
    """Ranges between consecutive bounds."""
    return [KeyRange(low, high) for low, high in pairwise(bounds)]


def segment(number: int, epoch: int = 0) -> int:
    """A segment id."""
    return epoch << 32 | number
