"""Requests that need more time than a function has: they go on in another message, and nothing is done twice."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld, StreamBody
from lambda_context import FunctionContext

from functions import wiring
from functions.processors import aborts, commits, stream_requests
from functions.processors.fifo_queues import GROUP_SHARE, REST_S
from functions.time_limits import RESERVE_S
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.request_queue import MemoryRequestQueue
from headrace.controller.steps import transaction_commits
from headrace.metadata.history_records import create_epoch
from headrace.metadata.stream import current_key, stream_body
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.transaction import create_open
from headrace.metadata.transaction_messages import ABORT, TransactionMessage, transaction_message_body
from headrace.model.epochs import Epoch
from headrace.model.errors import UnavailableError
from headrace.model.names import segment_name
from headrace.model.segments import KeyRange, StreamSegment, segment_id
from headrace.model.stream_state import StreamState
from headrace.model.transactions import Transaction, TransactionState, marked_for_abort
from headrace.ports.clock import time_left_s
from headrace.ports.metadata_store import Replace
from headrace.ports.segment_stores import SegmentScaleRate

FUNCTION_S = 60
EPOCHS = 10_000
SEGMENTS, TRANSACTIONS = 1_000, 2_000
REQUEST_MS = 100
SEGMENT_MS = 1
"""For a segment that is deleted, in addition to its request."""


class SlowStores:
    """Segment stores that take their time, and count what they are asked to delete: a transaction's as a whole."""

    def __init__(self, inner: Any, clock: ManualClock) -> None:
        self._inner, self._clock = inner, clock
        self.deleted: Counter[str] = Counter()

    def delete_segments(self, names: Sequence[str]) -> None:
        self._clock.advance(REQUEST_MS + SEGMENT_MS * len(names))
        self.deleted.update({name.rpartition("#transaction.")[2] for name in names})
        self._inner.delete_segments(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class SlowStore:
    """A metadata store whose requests take their time."""

    def __init__(self, inner: Any, clock: ManualClock) -> None:
        self._inner, self._clock = inner, clock

    def __getattr__(self, name: str) -> Any:
        self._clock.advance(REQUEST_MS)
        return getattr(self._inner, name)


class Processor:
    """The function behind the queue of requests, stopped by Lambda when its time is over."""

    def __init__(self, world: FunctionWorld, clock: ManualClock) -> None:
        self._queue: MemoryRequestQueue = world.queue
        self._clock = clock
        self.invocations = 0

    def drain(self) -> None:
        while messages := self._queue.receive():
            for message in messages:
                assert message.receive_count == 1, "a delivery failed"
                end_s = self._clock.monotonic_s() + FUNCTION_S
                record = _record(message.receipt, message.group, message.body)
                answer = stream_requests.handler({"Records": [record]}, _context(self._clock, end_s))
                assert self._clock.monotonic_s() < end_s, "Lambda would have stopped the function"
                assert answer == {"batchItemFailures": []}
                self._queue.acknowledge(message.receipt)
                self.invocations += 1


class HangingStore:
    """Segment stores of which one hangs: it takes all the time that its caller has, once the others are done."""

    def __init__(self, inner: Any, hanging: str, others: int, clock: ManualClock) -> None:
        self._inner, self._hanging, self._others, self._clock = inner, hanging, others, clock
        self._done = threading.Semaphore(0)
        self._waits = threading.Event()

    def delete_segments(self, names: Sequence[str]) -> None:
        if any(self._hanging in name for name in names):
            left_s = time_left_s()
            self._waits.set()
            for _ in range(self._others):
                assert self._done.acquire(timeout=30), "unrelated aborts wait for the store that hangs"
            self._clock.advance(int(left_s * 1000))
            raise UnavailableError("the store did not answer in time")
        assert self._waits.wait(timeout=30), "the hanging group has its turn at the same time"
        self._inner.delete_segments(names)
        self._done.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _context(clock: ManualClock, end_s: float) -> FunctionContext:
    return FunctionContext(lambda: round((end_s - clock.monotonic_s()) * 1000))


def _record(identifier: str, group: str, body: Any, queue: str = "headrace-requests.fifo") -> dict[str, Any]:
    return {
        "messageId": identifier,
        "receiptHandle": f"handle-{identifier}",
        "body": json.dumps(body),
        "attributes": {"MessageGroupId": group, "ApproximateReceiveCount": "1"},
        "messageAttributes": {},
        "md5OfBody": "",
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:123456789012:{queue}",
        "awsRegion": "us-east-1",
    }


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    made = ManualClock()
    monkeypatch.setattr(wiring, "clock", lambda: made)
    return made


@pytest.fixture
def stores(world: FunctionWorld, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> SlowStores:
    made = SlowStores(world.segment_stores, clock)
    monkeypatch.setattr(wiring, "segment_stores", lambda: made)
    return made


@pytest.fixture
def slow_metadata(world: FunctionWorld, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "metadata_store", lambda: SlowStore(world.store, clock))
    wiring.forget_services()


def _epochs(first: Epoch) -> list[Epoch]:
    """Each replaces the right one of two segments."""
    epochs, (left, right) = [first], first.segments
    for number in range(1, EPOCHS):
        following = StreamSegment(segment_id(number, number + 1), KeyRange(0.5, 1.0))
        epochs.append(Epoch(number, first.creation_time_ms + number, (left, following), (right,)))
        right = following
    return epochs


def test_deleting_10_000_epochs_resumes_and_repeats_nothing(
    world: FunctionWorld, clock: ManualClock, stores: SlowStores, active_stream: str, call: Call, slow_metadata: None
):
    stored = StreamRecords(world.store).find("s", "t")
    assert stored is not None
    epochs = _epochs(stored.stream.epoch)
    stream = replace(stored.stream, epoch=epochs[-1], recorded_epoch=EPOCHS - 1)
    writes = [write for epoch in epochs[1:] for write in create_epoch(stream, epoch)]
    for start in range(0, len(writes), 100):
        world.store.write(*writes[start : start + 100])
    world.store.write(Replace(current_key("s", "t"), stream_body(stream), stored.version))
    names = [segment_name("s", "t", segment.segment_id) for segment in epochs[-1].segments]
    world.segment_stores.create_segments(names, SegmentScaleRate())
    assert call("PUT", f"{active_stream}/state", {"streamState": "SEALED"}).status == 202
    Processor(world, clock).drain()
    assert call("DELETE", active_stream).status == 202
    processor = Processor(world, clock)
    processor.drain()
    assert call("GET", active_stream).status == 404
    of_epochs = {name: times for name, times in stores.deleted.items() if "_MARK" not in name}
    assert len(of_epochs) == EPOCHS + 1
    assert set(of_epochs.values()) == {1}
    assert processor.invocations > 1


def test_sealing_aborts_2_000_transactions_of_1_000_segments(
    world: FunctionWorld, clock: ManualClock, stores: SlowStores, call: Call, fixed_stream: StreamBody
):
    assert call("POST", "/v1/scopes", {"scopeName": "s"}).status == 201
    assert call("POST", "/v1/scopes/s/streams", fixed_stream(segments=SEGMENTS)).status == 201
    Processor(world, clock).drain()
    for identifier in range(TRANSACTIONS):
        opened = Transaction(identifier, TransactionState.OPEN, clock.now_ms(), clock.now_ms() + 600_000, 0)
        world.store.write(create_open("s", "t", opened))
    assert call("PUT", "/v1/scopes/s/streams/t/state", {"streamState": "SEALED"}).status == 202
    processor = Processor(world, clock)
    processor.drain()
    assert wiring.stream_service().get_stream("s", "t").state is StreamState.SEALED
    assert len(stores.deleted) == TRANSACTIONS
    assert set(stores.deleted.values()) == {1}
    assert processor.invocations > 1


def test_a_busy_stream_is_no_failure_of_its_commits(
    world: FunctionWorld, active_stream: str, clock: ManualClock, call: Call, monkeypatch: pytest.MonkeyPatch
):
    """As many runs as marks, as if one came during each: the message goes on in others when its time is over."""
    monkeypatch.setattr(transaction_commits, "TRANSACTIONS_PER_RUN_MAX", 1)
    service, marked = wiring.transaction_service(), 100
    for _ in range(marked):
        begun = service.create_transaction("s", "t", 60_000).transaction_id
        service.commit_transaction("s", "t", begun)
    merge = world.segment_stores.merge_segments

    def slow_merge(target: str, sources: Sequence[str]) -> None:
        clock.advance(1_000)
        merge(target, sources)

    monkeypatch.setattr(world.segment_stores, "merge_segments", slow_merge)
    messages = 0
    while received := world.commits.receive():
        for message in received:
            end_s = clock.monotonic_s() + FUNCTION_S
            record = _record(message.receipt, message.group, message.body, "headrace-commits.fifo")
            answer = commits.handler({"Records": [record]}, _context(clock, end_s))
            assert answer == {"batchItemFailures": []}
            assert clock.monotonic_s() < end_s, "Lambda would have stopped the function"
            world.commits.acknowledge(message.receipt)
            messages += 1
    assert len(service.list_completed("s", "t")) == marked
    assert messages > 1


def _aborts(world: FunctionWorld, count: int) -> list[dict[str, Any]]:
    """Transactions that are marked for abort, and the records of their messages: a group each."""
    records = []
    for identifier in range(count):
        opened = Transaction(identifier, TransactionState.OPEN, 0, 60_000, 0)
        world.store.write(create_open("s", "t", marked_for_abort(opened)))
        body = transaction_message_body(TransactionMessage(ABORT, "s", "t", identifier))
        records.append(_record(str(identifier), body["transaction"], body, "headrace-aborts.fifo"))
    return records


@pytest.mark.parametrize(("groups", "share"), [(10, GROUP_SHARE), (1, 1.0)])
def test_a_hanging_store_takes_the_time_of_its_group_only(
    world: FunctionWorld,
    active_stream: str,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    groups: int,
    share: float,
):
    """The batch is reported when the share of the hanging group is over; a group by itself has all of the time."""
    records = _aborts(world, groups)
    stores = HangingStore(world.segment_stores, f"{0:032x}", groups - 1, clock)
    monkeypatch.setattr(wiring, "segment_stores", lambda: stores)
    wiring.forget_services()
    start_s = clock.monotonic_s()
    answer = aborts.handler({"Records": records}, _context(clock, start_s + FUNCTION_S))
    assert answer == {"batchItemFailures": [{"itemIdentifier": "0"}]}
    work_s = FUNCTION_S - RESERVE_S
    taken_s = clock.monotonic_s() - start_s
    assert work_s * share - REST_S - 0.01 <= taken_s <= work_s * share
    states = [wiring.transaction_service().get_transaction("s", "t", number).state for number in range(groups)]
    assert states == [TransactionState.ABORTING, *[TransactionState.ABORTED] * (groups - 1)]


class OneStoreAway:
    """One of the segment stores does not answer until all unrelated work is done."""

    def __init__(self, inner: Any, away: str, others: int) -> None:
        self._inner, self._away = inner, away
        self._done = threading.Semaphore(0)
        self._others = others
        self.stalled = False
        """Said here: the handler takes an exception for a message that failed, which this one does."""

    def delete_segments(self, names: Sequence[str]) -> None:
        if any(self._away in name for name in names):
            for _ in range(self._others):
                if not self._done.acquire(timeout=30):
                    self.stalled = True
                    break
            raise UnavailableError("the store does not answer")
        self._inner.delete_segments(names)
        self._done.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_dead_store_does_not_stall_unrelated_aborts(
    world: FunctionWorld, active_stream: str, context: FunctionContext, monkeypatch: pytest.MonkeyPatch
):
    records = _aborts(world, 10)
    stores = OneStoreAway(world.segment_stores, f"{0:032x}", others=9)
    monkeypatch.setattr(wiring, "segment_stores", lambda: stores)
    wiring.forget_services()
    assert aborts.handler({"Records": records}, context) == {"batchItemFailures": [{"itemIdentifier": "0"}]}
    assert not stores.stalled, "unrelated aborts wait for the store that is away"
    states = {
        identifier: wiring.transaction_service().get_transaction("s", "t", identifier).state for identifier in range(10)
    }
    assert states.pop(0) is TransactionState.ABORTING
    assert set(states.values()) == {TransactionState.ABORTED}
