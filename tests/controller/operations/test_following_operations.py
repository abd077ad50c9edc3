"""One operation may be accepted while transactions are committed: it waits for the batch, and then it is its turn."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from interruptions import assert_crashes_lose_and_double_nothing, work_on_request
from soundness import assert_sound
from stream_world import StreamWorld, ranges

from fuzz.watched_ports import Crash
from headrace.api.streams import ScaleStatus
from headrace.controller.steps import transaction_commits
from headrace.controller.write_dead_letter import handle_dead_letter
from headrace.model.dead_letters import Cause, DeadLetterStatus, Delivery
from headrace.model.errors import ConflictError, SealedError
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import STREAM_OPERATIONS, StreamState
from headrace.model.transactions import TransactionState
from headrace.topology import REQUESTS_QUEUE

RATED = StreamConfiguration(ScalingPolicy.by_event_rate(5, 2, 2), tags=("x",))

OPERATIONS: dict[str, tuple[Callable[[Any], Any], StreamState]] = {
    "scale": (lambda w: w.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5)), StreamState.SCALING),
    "truncate": (lambda w: w.streams.truncate_stream("s", "t", {0: 3, 1: 0}), StreamState.TRUNCATING),
    "update": (lambda w: w.streams.update_stream("s", "t", RATED), StreamState.UPDATING),
    "seal": (lambda w: w.streams.seal_stream("s", "t"), StreamState.SEALING),
    "freeze": (lambda w: w.streams.freeze_stream("s", "t"), StreamState.FREEZING),
}


def test_every_operation_that_may_wait_is_tested():
    waiting = {operation.state for operation in STREAM_OPERATIONS.values() if operation.may_wait_for_commits}
    assert {state for _, state in OPERATIONS.values()} == waiting


def _commit_that_is_interrupted(world: StreamWorld, rolls: bool = False) -> int:
    """A transaction whose commit run has begun; the message is in hand."""
    world.create(segments=2)
    world.append(0, 7)
    transaction = world.begin()
    world.write_in(transaction, 0.0, b"events")
    if rolls:
        world.scale([0], [0.0, 0.5])
    world.transactions.commit_transaction("s", "t", transaction)
    (message,) = world.bare_commits.receive()
    world.calls.refuse("segment store merge_segments", Crash())
    with pytest.raises(Crash):
        world.commits.process(message.body)
    world.calls.calm()
    world.bare_commits.release(message.receipt)
    assert world.records.get("s", "t").stream.state is StreamState.COMMITTING_TXN
    return transaction


def _state(world: StreamWorld, transaction: int) -> TransactionState:
    return world.transactions.get_transaction("s", "t", transaction).state


@pytest.mark.parametrize("first", ["the request", "the commit"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_waits_for_a_batch_of_commits(world: StreamWorld, name: str, first: str):
    transaction = _commit_that_is_interrupted(world)
    ask, state = OPERATIONS[name]
    ask(world)
    assert world.streams.get_stream("s", "t").state is state, "as if it ran"
    assert world.records.get("s", "t").stream.state is StreamState.COMMITTING_TXN
    ask(world)
    assert len(world.bare_queue) == 1, "the same request again is the one that waits"
    if first == "the commit":
        world.drain_transactions()
        assert world.records.get("s", "t").stream.state is state, "its turn comes with the end of the batch"
    world.drain()
    world.drain_transactions()
    assert _state(world, transaction) is TransactionState.COMMITTED
    assert world.bare_segment_stores.segment_info("s/t/0.#epoch.0").length == 7 + len(b"events")
    assert_sound(world)


def test_only_one_operation_waits(world: StreamWorld):
    _commit_that_is_interrupted(world)
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
    for name in ("truncate", "update", "seal"):
        with pytest.raises(ConflictError):
            OPERATIONS[name][0](world)
    with pytest.raises(ConflictError):
        world.streams.scale_stream("s", "t", [1], ranges(0.5, 0.75, 1.0))
    assert world.streams.scale_status("s", "t", 1) is ScaleStatus.IN_PROGRESS
    world.drain()
    assert world.streams.scale_status("s", "t", 1) is ScaleStatus.SUCCESS


def test_nothing_begins_on_a_stream_whose_seal_waits(world: StreamWorld):
    _commit_that_is_interrupted(world)
    world.streams.seal_stream("s", "t")
    with pytest.raises(SealedError):
        world.begin()


def test_operations_on_replaced_segments_wait_for_no_commit(world: StreamWorld):
    transaction = _commit_that_is_interrupted(world, rolls=True)
    with pytest.raises(ConflictError):
        world.streams.scale_stream("s", "t", [1], ranges(0.5, 0.75, 1.0))
    with pytest.raises(ConflictError):
        world.streams.truncate_stream("s", "t", {1 << 32 | 2: 0, 1: 0})
    world.streams.seal_stream("s", "t")
    world.drain()
    world.drain_transactions()
    assert _state(world, transaction) is TransactionState.COMMITTED
    assert_sound(world)


@pytest.mark.parametrize("name", OPERATIONS)
def test_amid_a_backlog_of_commits_no_operation_is_refused(name: str, monkeypatch: pytest.MonkeyPatch):
    """It is asked for before any call of the processor, gets its turn, and all that was marked is committed."""
    monkeypatch.setattr(transaction_commits, "TRANSACTIONS_PER_RUN_MAX", 2)
    position = 0
    while True:
        world = StreamWorld()
        world.create(segments=2)
        world.append(0, 7)
        ids = [world.begin() for _ in range(6)]
        for transaction in ids:
            world.transactions.commit_transaction("s", "t", transaction)
        (message,) = world.bare_commits.receive()
        asked = world.calls.interrupt_at(position, partial(OPERATIONS[name][0], world))
        try:
            world.commits.process(message.body)
        except ConflictError:
            assert asked
        world.calls.calm()
        if not asked:
            break
        world.bare_commits.release(message.receipt)
        world.drain()
        world.drain_transactions()
        assert {_state(world, transaction) for transaction in ids} == {TransactionState.COMMITTED}
        assert_sound(world)
        position += 1
    assert position > 20


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_crash_anywhere_loses_and_doubles_nothing(name: str, done: bool):
    def accept(world: StreamWorld) -> None:
        _commit_that_is_interrupted(world)
        OPERATIONS[name][0](world)

    def outcome(world: StreamWorld) -> Any:
        bodies = {key: body for key, (_, body) in world.everything().items()}
        return bodies, [
            world.bare_segment_stores.segment_info(segment) for segment in world.bare_segment_stores.names()
        ]

    assert assert_crashes_lose_and_double_nothing(work_on_request(accept, outcome), done=done) > 8


def test_the_letter_of_a_request_that_waits_is_stuck(world: StreamWorld):
    _commit_that_is_interrupted(world)
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
    (message,) = world.bare_queue.receive()
    delivery = Delivery(REQUESTS_QUEUE.name, message.group, json.dumps(message.body), 0, 10)
    letter = handle_dead_letter(world.bare_store, delivery, Cause("unavailable", "away"), world.clock.now_ms())
    assert letter is not None
    assert letter.status is DeadLetterStatus.STUCK
    world.bare_queue.release(message.receipt)
    world.drain()
    world.drain_transactions()
    assert_sound(world)
