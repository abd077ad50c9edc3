"""Time-outs by tick: a lease and its grace, marks whose message was lost, and what is forgotten when."""

from __future__ import annotations

import pytest
from stream_world import StreamWorld

from headrace.controller.ticks import expire_transactions as module
from headrace.controller.ticks.due_work import ENTRY_S_MAX
from headrace.deployment_defaults import COMPLETED_TRANSACTIONS_KEPT_MS
from headrace.model.errors import NotFoundError
from headrace.model.transactions import (
    CHECK_EVERY_MS,
    LEASE_GRACE_MS,
    TransactionState,
)


def _tick(world: StreamWorld) -> bool:
    more = [world.expire_transactions(bucket) for bucket in range(8)]
    return any(more)


def _state(world: StreamWorld, transaction: int) -> TransactionState:
    return world.transactions.get_transaction("s", "t", transaction).state


def _due(world: StreamWorld) -> list[str]:
    return [sort for partition, sort in world.everything() if partition.startswith("transactions-due/")]


def test_a_transaction_lives_for_its_lease_and_the_grace(world: StreamWorld):
    world.create()
    transaction = world.begin(lease_ms=10_000)
    world.clock.advance(10_000 + LEASE_GRACE_MS)
    _tick(world)
    world.drain_transactions()
    assert _state(world, transaction) is TransactionState.OPEN
    world.clock.advance(1)
    _tick(world)
    world.drain_transactions()
    assert _state(world, transaction) is TransactionState.ABORTED


def test_a_ping_keeps_it_alive_without_touching_the_due_list(world: StreamWorld):
    world.create()
    transaction = world.begin(lease_ms=10_000)
    before = _due(world)
    for _ in range(20):
        world.clock.advance(10_000)
        world.transactions.ping_transaction("s", "t", transaction, 10_000)
        assert len(_due(world)) == len(before)
        _tick(world)
        world.drain_transactions()
    assert _state(world, transaction) is TransactionState.OPEN
    assert _due(world) != before


def test_a_lost_message_is_sent_again_within_a_minute(world: StreamWorld):
    world.create()
    committed, aborted = world.begin(), world.begin()
    for queue in (world.commit_queue, world.abort_queue):
        queue.is_down = True
    world.transactions.commit_transaction("s", "t", committed)
    world.transactions.abort_transaction("s", "t", aborted)
    assert world.drain_transactions() == 0
    world.clock.advance(CHECK_EVERY_MS)
    _tick(world)
    for queue in (world.commit_queue, world.abort_queue):
        queue.is_down = False
    world.clock.advance(CHECK_EVERY_MS)
    _tick(world)
    assert world.drain_transactions() == 2
    assert (_state(world, committed), _state(world, aborted)) == (TransactionState.COMMITTED, TransactionState.ABORTED)


def test_one_message_for_all_lost_commits_of_a_stream(world: StreamWorld):
    world.create()
    world.create("u")
    lost = [world.begin() for _ in range(5)]
    elsewhere = world.begin("u")
    world.commit_queue.is_down = True
    for transaction in lost:
        world.transactions.commit_transaction("s", "t", transaction)
    world.transactions.commit_transaction("s", "u", elsewhere)
    world.commit_queue.is_down = False
    world.clock.advance(CHECK_EVERY_MS)
    _tick(world)
    assert world.drain_transactions() == 2
    assert {_state(world, transaction) for transaction in lost} == {TransactionState.COMMITTED}


def test_completed_ones_are_forgotten_after_a_day(world: StreamWorld):
    world.create()
    first, second = world.begin(), world.begin()
    world.commit(first)
    world.transactions.abort_transaction("s", "t", second)
    world.drain_transactions()
    world.clock.advance(CHECK_EVERY_MS)
    _tick(world)
    assert len(_due(world)) == 2
    world.clock.advance(COMPLETED_TRANSACTIONS_KEPT_MS - CHECK_EVERY_MS - 1)
    _tick(world)
    assert _state(world, first) is TransactionState.COMMITTED
    world.clock.advance(1)
    _tick(world)
    for forgotten in (first, second):
        with pytest.raises(NotFoundError):
            _state(world, forgotten)
    assert world.transactions.list_completed("s", "t") == ()
    assert _due(world) == []


def test_entries_of_a_stream_that_is_gone_go(world: StreamWorld):
    world.create()
    world.begin()
    world.commit(world.begin())
    world.seal()
    world.delete()
    assert len(_due(world)) == 2
    world.clock.advance(COMPLETED_TRANSACTIONS_KEPT_MS)
    _tick(world)
    assert _due(world) == []


def test_a_tick_ends_in_time_and_goes_on(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_ENTRIES_PER_BATCH", 1)
    world.create()
    many = [world.begin(lease_ms=10_000) for _ in range(20)]
    world.clock.advance(10_000 + LEASE_GRACE_MS + 1)
    entry_ms = int(ENTRY_S_MAX * 1000) - 1  # what it sends behind its write is still in time
    world.calls.after = lambda kind: world.clock.advance(entry_ms if kind == "transaction" else 0)
    ticks = 1
    while _tick(world):
        ticks += 1
    world.calls.calm()
    world.drain_transactions()
    assert ticks == 3
    assert {_state(world, transaction) for transaction in many} == {TransactionState.ABORTED}


def test_an_idle_bucket_costs_one_query(world: StreamWorld):
    world.create()
    world.begin()
    world.calls.counts.clear()
    _tick(world)
    assert dict(world.calls.counts) == {"query": 8}


def test_a_ping_amid_the_tick_wins_by_its_version(world: StreamWorld):
    world.create()
    transaction = world.begin(lease_ms=10_000)
    world.clock.advance(10_000 + LEASE_GRACE_MS + 1)

    with world.calls.overtaken(
        "transaction", lambda: world.transactions.ping_transaction("s", "t", transaction, 10_000)
    ):
        _tick(world)
    assert _state(world, transaction) is TransactionState.OPEN
    _tick(world)
    assert world.drain_transactions() == 0
    assert _state(world, transaction) is TransactionState.OPEN


def test_completed_ones_stay_as_long_as_the_deployment_says(world: StreamWorld):
    world.create()
    transaction = world.begin()
    world.commit(transaction)
    kept_ms = 10 * COMPLETED_TRANSACTIONS_KEPT_MS
    ticks = module.transaction_ticks(world.tools(), world.transaction_queues, kept_ms=kept_ms)
    world.clock.advance(CHECK_EVERY_MS)
    for passed_ms, state in ((kept_ms - CHECK_EVERY_MS - 1, TransactionState.COMMITTED), (1, None)):
        for bucket in range(8):
            ticks.run(bucket)
        world.clock.advance(passed_ms)
        for bucket in range(8):
            ticks.run(bucket)
        if state is None:
            with pytest.raises(NotFoundError):
                _state(world, transaction)
        else:
            assert _state(world, transaction) is state
