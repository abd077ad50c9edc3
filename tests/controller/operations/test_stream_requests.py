"""Requests: which messages are understood, which are refused, and in which order the steps of each workflow run.

The second part follows the requests that freeze and unfreeze a stream: with real clients and a store, over the bridge,
and by processors that stall.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import pytest
from accepted_requests import ACCEPT_ON_STREAM
from bridge_in_memory import Bridge
from interruptions import after_each_sleep, work_on_request
from real_cluster import RealCluster, WorkingQueue, client_of, connected_to, serve_functions
from soundness import assert_sound
from stream_commits import all_bytes
from stream_world import StreamWorld, ranges

from functions import wiring
from headrace import topology
from headrace.bridge import controller_pb2 as pb
from headrace.cli import main, session
from headrace.client import (
    EventReader,
    EventWriter,
    GroupReader,
    GroupStream,
    Headrace,
    ReaderGroupConfiguration,
    ReaderOptions,
    ReadOrder,
    WriterOptions,
)
from headrace.client.groups.group_positions import complete_cut
from headrace.controller.operations.registry import ALL_OPERATIONS, request_processor
from headrace.controller.services import transaction_service
from headrace.controller.steps.stream_segments import scale_rate
from headrace.metadata.history_records import SealedSegment, sealed_segments_body, sealed_segments_key
from headrace.metadata.intent import Intent
from headrace.metadata.request_messages import parse_request_message, request_message_body
from headrace.model.errors import (
    ConflictError,
    CorruptError,
    FrozenError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
)
from headrace.model.names import segment_name
from headrace.model.requests import PendingRequest, RequestKind, ResourceKind
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_cuts import END_OF_SEGMENT
from headrace.model.stream_state import StreamState
from headrace.model.transactions import CHECK_EVERY_MS, TransactionState
from headrace.ports.metadata_store import Create, Key, WriteConflictError
from headrace.ports.segment_stores import SegmentScaleRate

GOOD = {"kind": "seal_stream", "scope": "s", "stream": "t", "request": "seal_stream-0-1"}


def test_the_order_of_the_steps():
    on_streams = [operation for operation in ALL_OPERATIONS if operation.kind.resource is ResourceKind.STREAM]
    scale = [
        "create segments",
        "record the epoch",
        "seal replaced segments",
        "record sizes",
        "remove cold marks",
        "remove leftovers",
        "activate the epoch",
    ]
    assert {str(operation.kind): [step.name for step in operation.steps] for operation in on_streams} == {
        "create_stream": ["create segments", "index tags", "open"],
        "update_stream": [
            "teach the rate",
            "index added tags",
            "put in force",
            "plan growth",
            "create segments",
            "record the epoch",
            "seal replaced segments",
            "record sizes",
            "remove cold marks",
            "remove leftovers",
            "go over to the epoch",
            "unindex removed tags",
            "close",
        ],
        "truncate_stream": ["record the head", "truncate segments", "delete segments", "close"],
        "scale_stream": scale,
        "unfreeze_stream": scale,
        "commit_transactions": ["finish the batch"],
        "seal_stream": ["settle transactions", "seal segments and close"],
        "freeze_stream": ["settle transactions", "seal segments and close"],
        "delete_stream": [
            "forget transactions",
            "delete replaced segments",
            "delete last segments",
            "delete leftovers",
            "unindex tags",
            "leave the index of due retention",
            "delete remaining records",
            "forget",
        ],
    }


def test_a_good_message_is_understood():
    assert parse_request_message(GOOD) == ("s", "t", PendingRequest(RequestKind.SEAL_STREAM, "seal_stream-0-1"))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {**GOOD, "kind": "explode"},
        {**GOOD, "more": "x"},
        {key: GOOD[key] for key in ("kind", "scope", "stream")},
        {**GOOD, "scope": 7},
        {**GOOD, "scope": "a/b"},
        {**GOOD, "stream": ""},
        {**GOOD, "request": "x" * 201},
    ],
)
def test_anything_else_is_refused_for_good(world: StreamWorld, body: dict[str, Any]):
    before = world.everything()
    with pytest.raises(InvalidRequestError) as refused:
        world.processor.process(body)
    assert refused.value.retry == "never"
    assert world.everything() == before


def test_messages_for_what_is_not_there_are_done(world: StreamWorld):
    before = world.everything()
    world.processor.process(GOOD)
    world.create()
    assert world.streams.get_stream("s", "t").segments == 2
    world.processor.process(GOOD)
    after = {key: value for key, value in world.everything().items() if key not in before}
    assert not any(partition.startswith("requests/") for partition, _ in after)


def test_conflicts_without_end_are_given_back_to_the_queue(world: StreamWorld):
    world.create()
    world.streams.seal_stream("s", "t")
    (message,) = world.bare_queue.receive()
    world.calls.refuse("transaction", WriteConflictError("somebody else was faster", {0: None}))
    with pytest.raises(ConflictError) as error:
        world.processor.process(message.body)
    assert error.value.retry == "now"
    assert 1 < world.calls.counts["read"] < 100


def test_a_corrupt_record_is_no_reason_to_write(world: StreamWorld):
    world.create()
    world.streams.seal_stream("s", "t")
    (message,) = world.bare_queue.receive()
    record = world.bare_store._partitions["stream/s/t"].records["current"]
    record.text = record.text.replace('"SEALING"', '"MELTING"')
    before = world.everything()
    with pytest.raises(CorruptError):
        world.processor.process(message.body)
    assert world.everything() == before
    assert world.bare_store.get(Key("stream/s/t", "current")) is not None


def test_deleting_takes_more_records_than_one_transaction_holds(world: StreamWorld):
    """As after very many scales: far more blocks of sealed segments than a page or a transaction takes."""
    world.create()
    world.seal()
    for shard in range(1, 251):
        body = sealed_segments_body({shard * 400: SealedSegment(0, 1)})
        world.bare_store.write(Create(sealed_segments_key("s", "t", (shard, 0)), body))
    world.delete()
    assert [sort for partition, sort in world.everything() if partition == "stream/s/t"] == ["current"]


def test_a_segment_that_must_be_there_but_is_not_is_an_error(world: StreamWorld):
    world.create()
    world.streams.seal_stream("s", "t")
    world.bare_segment_stores.delete_segment("s/t/1.#epoch.0")
    (message,) = world.bare_queue.receive()
    with pytest.raises(NotFoundError):
        world.processor.process(message.body)


@pytest.mark.parametrize(
    ("policy", "rate"),
    [
        (ScalingPolicy.fixed(3), SegmentScaleRate(0, 0)),
        (ScalingPolicy.by_data_rate(500, 2, 1), SegmentScaleRate(1, 500)),
        (ScalingPolicy.by_event_rate(700, 2, 1), SegmentScaleRate(2, 700)),
    ],
)
def test_segments_carry_the_rate_of_their_policy(policy: ScalingPolicy, rate: SegmentScaleRate):
    assert scale_rate(policy) == rate


def test_request_ids_never_return(world: StreamWorld):
    seen: list[dict[str, str]] = []
    send = world.bare_queue.send

    def keep(*, group: str, body: Any, deduplication_id: str) -> None:
        seen.append({"id": deduplication_id, **body})
        send(group=group, body=body, deduplication_id=deduplication_id)

    world.bare_queue.send = keep
    for _ in range(3):
        for name in ("t", "u"):
            world.create(name)
            first = world.tail_ids(name)[0]
            world.scale([first], [0.0, 0.1, 0.5], name)
            world.seal(name)
            world.delete(name)
    assert len(seen) == 24
    assert len({request["id"] for request in seen}) == 24
    assert all(len(request["id"]) <= 128 for request in seen)


def test_a_message_says_what_the_intent_says(world: StreamWorld):
    intent = Intent("s", "t", PendingRequest(RequestKind.SEAL_STREAM, "seal_stream-0-1"), 5)
    assert request_message_body(intent) == GOOD


def test_a_batch_of_commits_comes_through_no_request_queue(world: StreamWorld):
    world.create()
    world.transactions.commit_transaction("s", "t", world.begin())
    body = {"kind": "commit_transactions", "scope": "s", "stream": "t", "request": "1"}
    with pytest.raises(InvalidRequestError, match="does not come through a request queue"):
        world.processor.process(body)


# Freezing and unfreezing

KEYS = [f"key-{number}" for number in range(8)]
Reader = EventReader | GroupReader


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealCluster]:
    """A cluster on which the functions work."""
    cluster, other_requests = RealCluster(), WorkingQueue()
    serve_functions(cluster, monkeypatch)
    other_requests.start(
        request_processor(cluster.metadata, cluster.segment_stores, cluster.clock, lambda: other_requests)
    )
    for queue in ("request_queue", "commit_queue", "abort_queue"):
        monkeypatch.setattr(wiring, queue, lambda: other_requests)
    yield cluster
    other_requests.stop()
    cluster.close()
    wiring.forget_services()


@pytest.fixture
def orders(real: RealCluster) -> Iterator[Headrace]:
    """A client, and the stream `shop/orders` of two segments."""
    with client_of(real) as client:
        client.admin.create_scope("shop")
        client.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2))
        yield client


def _write(writer: EventWriter, numbers: range) -> None:
    for number in numbers:
        writer.write_batch([f"{key}:{number}".encode() for key in KEYS], KEYS)
    writer.flush()


def _read(reader: Reader, numbers: range) -> None:
    """Read the events of these numbers, those of each key in their order."""
    numbers_by_key: dict[str, list[int]] = {key: [] for key in KEYS}
    while sum(map(len, numbers_by_key.values())) < len(numbers) * len(KEYS):
        batch = reader.read_batch(timeout_s=60)
        assert batch is not None
        for event in batch.events:
            key, number = event.decode().split(":")
            numbers_by_key[key].append(int(number))
    assert numbers_by_key == {key: list(numbers) for key in KEYS}


def _in_order(order: ReadOrder) -> Callable[[Headrace], Reader]:
    return lambda client: client.reader("shop", "orders", "head", options=ReaderOptions(order=order))


def _of_group(client: Headrace) -> Reader:
    client.admin.reader_groups.create("shop", "billing", ReaderGroupConfiguration((GroupStream("shop", "orders"),)))
    return client.reader_group("shop", "billing").reader()


READERS = {"arrival": _in_order(ReadOrder.ARRIVAL), "time": _in_order(ReadOrder.TIME), "group": _of_group}


@pytest.mark.parametrize("opened", READERS.values(), ids=READERS)
def test_events_go_on_in_order_after_a_freeze(orders: Headrace, opened: Callable[[Headrace], Reader]):
    """Also those of a writer that writes nothing during the freeze."""
    admin = orders.admin
    with opened(orders) as reader, orders.writer("shop", "orders") as idle:
        _write(idle, range(50))
        admin.freeze_stream("shop", "orders")
        admin.freeze_stream("shop", "orders")
        assert admin.get_stream("shop", "orders").state is StreamState.FROZEN
        _read(reader, range(50))
        assert reader.read_batch(timeout_s=0.01) is None
        assert isinstance(reader, GroupReader) or not reader.ended
        admin.unfreeze_stream("shop", "orders")
        admin.unfreeze_stream("shop", "orders")
        _write(idle, range(50, 75))
        with orders.writer("shop", "orders") as writer:
            _write(writer, range(75, 100))
        _read(reader, range(50, 100))
    assert admin.get_stream("shop", "orders").epoch == 1


def test_a_frozen_stream_refuses_to_be_written(orders: Headrace):
    refused = r"shop/orders is frozen: unfreeze it"
    with orders.writer("shop", "orders") as open_before:
        orders.admin.freeze_stream("shop", "orders")
        with orders.writer("shop", "orders") as writer:
            for open_writer in (open_before, writer):
                with pytest.raises(FrozenError, match=refused):
                    open_writer.write(b"event", "key").result()
                with pytest.raises(FrozenError, match=refused):
                    open_writer.write(b"event", "key")
    with pytest.raises(FrozenError, match=refused):
        orders.transactional_writer("shop", "orders").begin()
    with pytest.raises(FrozenError, match=refused):
        orders.admin.update_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))


def test_a_freeze_under_load_stores_what_was_acknowledged(orders: Headrace):
    """A freeze meets blocks in flight. What is refused is not in the stream, and the next writer writes it again."""
    admin = orders.admin
    writer, acks = orders.writer("shop", "orders", WriterOptions(block_bytes=2_000, buffer_bytes=50_000)), []
    acks.append(writer.write(b"key-0:0", "key-0"))
    freezing = threading.Thread(target=admin.freeze_stream, args=("shop", "orders"))
    freezing.start()
    with suppress(FrozenError):
        while True:
            acks.append(writer.write(f"key-0:{len(acks)}".encode(), "key-0"))
    writer.close()
    freezing.join()
    stored = [ack.exception() is None for ack in acks]
    assert stored == sorted(stored, reverse=True), "no event after one that was refused"
    admin.unfreeze_stream("shop", "orders")
    with orders.writer("shop", "orders") as writer:
        for again in range(sum(stored), len(acks)):
            writer.write(f"key-0:{again}".encode(), "key-0")
    with orders.reader("shop", "orders", "head", admin.stream_cut("shop", "orders")) as reader:
        assert [read.event for read in reader] == [f"key-0:{number}".encode() for number in range(len(acks))]


def test_a_stream_is_frozen_by_commands(orders: Headrace, real: RealCluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "open_client", lambda *_: connected_to(real))
    for command, state in (("freeze", StreamState.FROZEN), ("unfreeze", StreamState.ACTIVE), ("freeze", "FROZEN")):
        assert main(["stream", command, "shop/orders"]) == 0
        assert orders.admin.get_stream("shop", "orders").state is StreamState(state)
    assert main(["stream", "seal", "shop/orders"]) == 0
    assert main(["stream", "unfreeze", "shop/orders"]) == 1, "a sealed stream stays sealed"


def test_a_group_amid_a_scale_has_a_cut_of_a_frozen_stream(orders: Headrace):
    """One of two segments that were merged is not read, and the part of the other one is in no position."""
    admin = orders.admin
    first, second = admin.segments("shop", "orders")
    halves = [(0.0, 0.25), (0.25, 0.5)]
    admin.scale_stream("shop", "orders", seal=[first.segment_id], ranges=halves)
    low, high = (segment.segment_id for segment in admin.segments("shop", "orders")[:2])
    admin.scale_stream("shop", "orders", seal=[low, high], ranges=[(0.0, 0.5)])
    admin.freeze_stream("shop", "orders")
    positions = {second.segment_id: 0, low: 0}
    cut = admin._thread.run(complete_cut(admin._core, "shop", "orders", positions))
    assert cut.offsets == {second.segment_id: 0, low: 0, high: END_OF_SEGMENT}


@pytest.fixture
def frozen() -> StreamWorld:
    """The stream `s/t` of two segments, which is frozen; an open transaction was aborted."""
    world = StreamWorld()
    world.create(segments=2)
    world.append(0, 10)
    transaction = world.begin()
    world.streams.freeze_stream("s", "t")
    world.drain()
    assert world.transactions.get_transaction("s", "t", transaction).state is TransactionState.ABORTED
    assert_sound(world)
    return world


OPERATIONS: dict[str, Callable[[StreamWorld], object]] = {
    "update": lambda w: w.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(3))),
    "truncate": lambda w: w.streams.truncate_stream("s", "t", {0: 5, 1: 0}),
    "scale": lambda w: w.streams.scale_stream("s", "t", [0], ranges(0.0, 0.2, 0.5)),
    "transaction": lambda w: w.begin(),
}


@pytest.mark.parametrize("refused", OPERATIONS.values(), ids=OPERATIONS)
def test_a_frozen_stream_refuses_an_operation(frozen: StreamWorld, refused: Callable[[StreamWorld], object]):
    before = frozen.records.get("s", "t")
    with pytest.raises(FrozenError) as error:
        refused(frozen)
    assert error.value.retry == "never"
    assert frozen.records.get("s", "t") == before
    assert_sound(frozen)


def test_a_frozen_stream_can_be_read_sealed_and_deleted(frozen: StreamWorld):
    assert frozen.segments.stream_cut("s", "t", "tail").offsets == {0: 10, 1: 0}
    for segment in (0, 1):
        successors = frozen.segments.successors("s", "t", segment)
        assert (successors.segments, successors.sealed) == ((), False)
        with pytest.raises(FrozenError):  # what writers and readers ask
            frozen.segments.successors("s", "t", segment, as_recorded=True)
    assert len(frozen.bare_queue) == 0, "its segments are not replaced while it is frozen"
    frozen.seal()
    with pytest.raises(SealedError):
        frozen.streams.unfreeze_stream("s", "t")
    with pytest.raises(SealedError):
        frozen.streams.freeze_stream("s", "t")
    assert_sound(frozen)
    frozen.delete()
    assert_sound(frozen)


def test_requests_that_meet_a_running_one_are_repeated(frozen: StreamWorld):
    frozen.streams.unfreeze_stream("s", "t")
    with pytest.raises(ConflictError):
        frozen.streams.freeze_stream("s", "t")
    frozen.drain()
    frozen.streams.freeze_stream("s", "t")
    with pytest.raises(ConflictError):
        frozen.streams.unfreeze_stream("s", "t")
    frozen.drain()
    assert frozen.streams.get_stream("s", "t").state is StreamState.FROZEN
    assert_sound(frozen)


def _freeze_or_unfreeze(world: StreamWorld) -> None:
    """Complete the request, and change the stream to the other state and back twice, by other processors."""
    world.process()
    world.acknowledge()
    for _ in range(2):
        is_frozen = world.streams.get_stream("s", "t").state is StreamState.FROZEN
        (world.streams.unfreeze_stream if is_frozen else world.streams.freeze_stream)("s", "t")
        world.drain()
    (world.streams.freeze_stream if is_frozen else world.streams.unfreeze_stream)("s", "t")
    world.drain()


@pytest.mark.parametrize("kind", [RequestKind.FREEZE_STREAM, RequestKind.UNFREEZE_STREAM])
def test_a_late_processor_neither_freezes_nor_unfreezes(kind: RequestKind):
    """It wakes up at any of its calls after the stream was frozen and unfrozen again."""
    work = work_on_request(ACCEPT_ON_STREAM[kind], lambda world: world.everything())
    wanted = StreamState.ACTIVE if kind is RequestKind.FREEZE_STREAM else StreamState.FROZEN
    for position, world, _ in after_each_sleep(work, _freeze_or_unfreeze):
        world.drain_transactions()
        assert world.streams.get_stream("s", "t").state is wanted, f"woken up at call {position}"
        assert_sound(world)


@pytest.mark.parametrize("calls", [0, 4, 8, 12, 16])
def test_a_freeze_does_not_end_amid_a_commit(monkeypatch: pytest.MonkeyPatch, calls: int):
    for world, late, where in _amid_a_commit(monkeypatch, RequestKind.FREEZE_STREAM, calls):
        assert world.streams.get_stream("s", "t").state is StreamState.FROZEN
        (active,) = world.segments.segments_at_tail("s", "t").segments
        assert world.bare_segment_stores.segment_info(active.name).is_sealed
        world.streams.unfreeze_stream("s", "t")
        world.drain()
        world.clock.advance(CHECK_EVERY_MS + 1)
        for bucket in range(topology.BUCKET_COUNT):
            world.expire_transactions(bucket)
        world.drain_transactions()
        assert world.transactions.get_transaction("s", "t", late).state is TransactionState.COMMITTED, where
        assert all_bytes(world) == b"event", where
        assert_sound(world)


@pytest.mark.parametrize("calls", [0, 4, 8, 12, 16, 20])
def test_a_seal_does_not_end_amid_a_commit(monkeypatch: pytest.MonkeyPatch, calls: int):
    """As for a freeze: no commit stays without an end, and no segment unsealed."""
    for world, late, where in _amid_a_commit(monkeypatch, RequestKind.SEAL_STREAM, calls):
        stream = world.records.get("s", "t").stream
        assert stream.state is StreamState.SEALED
        names = [segment_name("s", "t", segment.segment_id) for segment in stream.epoch.segments]
        assert all(world.bare_segment_stores.segment_info(name).is_sealed for name in names)
        state = world.transactions.get_transaction("s", "t", late).state
        assert state in (TransactionState.COMMITTED, TransactionState.ABORTED), where
        assert_sound(world)


def _amid_a_commit(
    monkeypatch: pytest.MonkeyPatch, kind: RequestKind, calls: int
) -> Iterator[tuple[StreamWorld, int, str]]:
    """Worlds after a request amid which a late transaction was committed, before one call of it after the other.

    It is begun and marked by processes that have read the stream before the request. Another processor of the request
    dies after `calls` of the commit, and the request is processed again.
    """
    for position in range(60):
        world = StreamWorld()
        world.create(segments=1)
        streams = world.streams
        accept = streams.seal_stream if kind is RequestKind.SEAL_STREAM else streams.freeze_stream
        accept("s", "t")
        world.receive()
        late: list[int] = []
        world.calls.interrupt_at(position, partial(_commit_late, monkeypatch, world, late, calls))
        world.process()
        world.calls.calm()
        if not late:
            break
        world.process()
        world.acknowledge()
        world.drain_transactions()
        yield world, late[0], f"before call {position}"
    assert position >= 8


@pytest.fixture
def bridge(frozen: StreamWorld) -> Iterator[Bridge]:
    made = Bridge(frozen)
    yield made
    made.close()


def test_pravegas_clients_ask_again_while_it_is_frozen(bridge: Bridge):
    """An empty reply would tell them that the stream has ended."""
    asked = pb.SegmentId(streamInfo=pb.StreamInfo(scope="s", stream="t"), segmentId=0)
    assert bridge.refused("getSegmentsImmediatelyFollowing", asked) is grpc.StatusCode.UNAVAILABLE
    bridge.world.streams.unfreeze_stream("s", "t")
    bridge.world.drain()
    assert len(bridge.call("getSegmentsImmediatelyFollowing", asked).segments) == 1


def _commit_late(monkeypatch: pytest.MonkeyPatch, world: StreamWorld, late: list[int], calls: int) -> None:
    """Begin a transaction and mark it, as processes that have read the stream before.

    A processor dies after `calls`.
    """
    with monkeypatch.context() as stale:
        stale.setattr(transaction_service, "check_accepts_transactions", lambda stream: stream)
        stale.setattr(transaction_service, "takes_transactions_of", lambda *_: True)
        late.append(world.begin())
        world.write_in(late[0], 0.0, b"event")
        world.transactions.commit_transaction("s", "t", late[0])
    world.calls.dies(world.process, calls, done=True)
