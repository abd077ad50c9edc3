"""Entries of due transactions that fail, do not decode or are of a former incarnation hold up no other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace import topology
from headrace.controller.operations import registry
from headrace.controller.services.transaction_service import TransactionService
from headrace.controller.ticks.expire_transactions import transaction_ticks
from headrace.metadata.transaction import due_partition, open_key
from headrace.model.backoff import UNDECODABLE_AGAIN_MS, bucket_of_stream
from headrace.model.errors import ThrottledError
from headrace.model.transactions import (
    CHECK_EVERY_MS,
    LEASE_GRACE_MS,
    TransactionState,
    transaction_id_of,
)
from headrace.ports.metadata_store import Create, Key, Replace, Write

BUCKET = bucket_of_stream("s/t", topology.BUCKET_COUNT)
LEASE_MS = 10_000
TICK_MS = 10_000


class BrokenRecords:
    """A metadata store that refuses writes to the records of one transaction."""

    def __init__(self, inner: Any, broken: str) -> None:
        self._inner, self._broken = inner, broken

    def write(self, *writes: Write) -> None:
        if any(write.key.sort == f"open/{self._broken}" for write in writes):
            raise ThrottledError("this record takes no more writes")
        self._inner.write(*writes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _tick(world: StreamWorld, store: Any = None, noted: list[str] | None = None) -> None:
    note = None if noted is None else noted.append
    tools = (
        world.tools()
        if store is None
        else registry.tools(store, world.segment_stores, world.clock, lambda: world.queue)
    )
    ticks = transaction_ticks(tools, world.transaction_queues, note_undecodable=note)
    while ticks.run(BUCKET):
        continue


def _due(world: StreamWorld) -> list[str]:
    return [sort for partition, sort in world.everything() if partition == due_partition(BUCKET)]


def _state(world: StreamWorld, transaction: int) -> TransactionState:
    return world.transactions.get_transaction("s", "t", transaction).state


def _create_again(world: StreamWorld) -> None:
    world.seal()
    world.delete()
    world.create()


def _creator_dies_on_a_cached_stream(world: StreamWorld) -> int:
    """It begins a transaction in an epoch that the stream, created again meanwhile, does not have."""
    world.create()
    world.scale([0], [0.0, 0.25, 0.5])
    bits = iter([1, 2])
    late = TransactionService(
        world.store, world.segment_stores, world.transaction_queues, world.clock, lambda _: next(bits)
    )
    late.create_transaction("s", "t", LEASE_MS)
    _create_again(world)
    died = world.calls.dies(lambda: late.create_transaction("s", "t", LEASE_MS), 0, done=True)
    assert died, "the creator dies behind its first write"
    return transaction_id_of(1, 2)


def test_a_creator_that_dies_on_a_cached_stream_leaves_nothing(world: StreamWorld):
    late = _creator_dies_on_a_cached_stream(world)
    own = world.begin(lease_ms=LEASE_MS)
    assert {transaction.transaction_id for transaction in world.transactions.list_open("s", "t", 10).items} == {
        late,
        own,
    }
    world.clock.advance(CHECK_EVERY_MS)
    _tick(world)
    assert [transaction.transaction_id for transaction in world.transactions.list_open("s", "t", 10).items] == [own]
    assert all(f"{late:032x}" not in sort for sort in _due(world))
    world.drain_transactions()
    assert _state(world, own) is TransactionState.ABORTED


def test_an_abort_forgets_a_transaction_of_a_former_incarnation(world: StreamWorld):
    late = _creator_dies_on_a_cached_stream(world)
    world.transactions.abort_transaction("s", "t", late)
    world.drain_transactions()
    assert world.transactions.list_open("s", "t", 10).items == ()


@pytest.mark.parametrize("body", [{"format": 2}, {"format": 1, "due": "soon"}, {}])
def test_an_entry_that_does_not_decode_is_stepped_over(world: StreamWorld, body: dict[str, Any]):
    world.create()
    healthy = [world.begin(lease_ms=LEASE_MS) for _ in range(3)]
    corrupt = Key(due_partition(BUCKET), f"{0:020d}/s/t/corrupt")
    world.bare_store.write(Create(corrupt, body))
    world.clock.advance(LEASE_MS + LEASE_GRACE_MS + 1)
    noted: list[str] = []
    _tick(world, noted=noted)
    world.drain_transactions()
    assert {_state(world, transaction) for transaction in healthy} == {TransactionState.ABORTED}
    for _ in range(5):
        world.clock.advance(TICK_MS)
        _tick(world, noted=noted)
    assert noted == ["transactions"]
    (kept,) = (sort for sort in _due(world) if sort.endswith("/corrupt"))
    assert world.record(Key(corrupt.partition, kept)).body == body
    world.clock.advance(UNDECODABLE_AGAIN_MS)
    _tick(world, noted=noted)
    assert noted == ["transactions"] * 2


def test_a_transaction_that_does_not_decode_holds_up_no_other(world: StreamWorld):
    world.create()
    corrupt, healthy = world.begin(lease_ms=LEASE_MS), world.begin(lease_ms=LEASE_MS)
    key = open_key("s", "t", corrupt)
    record = world.bare_store.get(key)
    assert record is not None
    world.bare_store.write(Create(Key(key.partition, "kept"), record.body))
    _replace(world, key, {"format": 1})
    world.clock.advance(LEASE_MS + LEASE_GRACE_MS + 1)
    _tick(world)
    world.drain_transactions()
    assert _state(world, healthy) is TransactionState.ABORTED
    world.calls.counts.clear()
    _tick(world)
    assert dict(world.calls.counts) == {"query": 1}, "it is tried again at once"
    _replace(world, key, dict(record.body))
    world.clock.advance(CHECK_EVERY_MS)
    _tick(world)
    world.drain_transactions()
    assert _state(world, corrupt) is TransactionState.ABORTED


def test_a_failing_transaction_is_put_off_longer_each_time(world: StreamWorld):
    world.create()
    failing, healthy = world.begin(lease_ms=LEASE_MS), world.begin(lease_ms=LEASE_MS)
    store = BrokenRecords(world.store, f"{failing:032x}")
    world.clock.advance(LEASE_MS + LEASE_GRACE_MS + 1)
    tried_ms: list[int] = []
    for _ in range(26):
        before = {sort for sort in _due(world) if f"{failing:032x}" in sort}
        _tick(world, store)
        if {sort for sort in _due(world) if f"{failing:032x}" in sort} != before:
            tried_ms.append(world.clock.now_ms())
        world.clock.advance(TICK_MS)
    gaps = [after - before for before, after in pairwise(tried_ms)]
    assert gaps == [10_000, 20_000, 40_000, 60_000, 60_000, 60_000]
    world.drain_transactions()
    assert (_state(world, failing), _state(world, healthy)) == (TransactionState.OPEN, TransactionState.ABORTED)
    world.clock.advance(CHECK_EVERY_MS)
    _tick(world)
    world.drain_transactions()
    assert _state(world, failing) is TransactionState.ABORTED


def test_a_batch_whose_reads_fail_does_not_block_later_entries(world: StreamWorld):
    world.create()
    many = [world.begin(lease_ms=LEASE_MS) for _ in range(3)]
    world.clock.advance(LEASE_MS + LEASE_GRACE_MS + 1)
    passed = 0

    def refuse_the_second_read(kind: str) -> None:
        nonlocal passed
        passed += kind == "read"
        if kind == "read" and passed == 2:  # the first one is that of the lease
            raise ThrottledError("no reads now")

    world.calls.before = refuse_the_second_read
    _tick(world)
    world.calls.calm()
    world.calls.counts.clear()
    _tick(world)
    assert dict(world.calls.counts) == {"query": 1}, "the batch comes first again"
    world.clock.advance(TICK_MS)
    _tick(world)
    world.drain_transactions()
    assert {_state(world, transaction) for transaction in many} == {TransactionState.ABORTED}


def _replace(world: StreamWorld, key: Key, body: dict[str, Any]) -> None:
    record = world.bare_store.get(key)
    assert record is not None
    world.bare_store.write(Replace(key, body, record.version))
