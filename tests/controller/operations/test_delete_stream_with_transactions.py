"""A deletion of a stream with completed transactions: its requests, and a transaction that ends while it runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from stream_world import StreamWorld

from fuzz.watched_ports import Crash
from headrace.controller.engine import RequestProcessor
from headrace.controller.operations.abort_transaction import AbortProcessor
from headrace.controller.services.transaction_service import TransactionService
from headrace.metadata.stream import epoch_key
from headrace.model.errors import NotFoundError

DELETE = "segment store delete_segments"
LEASE_MS = 10_000
CALLS_MAX = 60
"""More calls than a deletion makes here."""


def _process(world: StreamWorld) -> None:
    """In a process that has just started, and remembers no epoch."""
    RequestProcessor(world.tools()).process(world.in_hand.body)


def _being_deleted(*, on_demand: bool = False) -> tuple[StreamWorld, Callable[[], object]]:
    """A world with a deletion to process; and a creator that begins a transaction of the first epoch, and dies."""
    world = StreamWorld()
    world.create()
    late = world.another_transaction_service()
    late.create_transaction("s", "t", LEASE_MS)
    world.scale([0], [0.0, 0.25, 0.5])
    world.seal()
    world.streams.delete_stream("s", "t")
    world.receive()

    def begin() -> None:
        late.create_transaction("s", "t", LEASE_MS, on_demand=on_demand)

    return world, lambda: world.calls.dies(begin, 0, done=True)


def _abort_before_call(position: int) -> tuple[StreamWorld, bool, bool]:
    """The process of a deletion dies behind the first epoch; the world, whether one was aborted, whether it died."""
    world, begin_and_die = _being_deleted()

    def die_without_epoch(kind: str) -> None:
        if world.bare_store.get(epoch_key("s", "t", 0)) is None:
            raise Crash(kind)

    def abort() -> None:
        assert begin_and_die()
        for transaction in world.transactions.list_open("s", "t", 10).items:
            world.transactions.abort_transaction("s", "t", transaction.transaction_id)
        world.aborts = AbortProcessor(world.tools())
        world.drain_transactions()
        world.calls.after = die_without_epoch

    aborted, died = world.calls.interrupt_at(position, abort), False
    try:
        _process(world)
    except Crash:
        died = True
    world.calls.calm()
    return world, bool(aborted), died


def test_an_abort_amid_a_deletion_does_not_stop_it():
    """It completes the transaction after the deletion has forgotten the others, and before it deletes their epoch."""
    deaths = 0
    for position in range(CALLS_MAX):
        world, aborted, died = _abort_before_call(position)
        _process(world)
        with pytest.raises(NotFoundError):
            world.records.get("s", "t")
        assert world.bare_segment_stores.names() == [], f"ended before call {position}"
        deaths += died
        if not aborted:
            break
    assert deaths > 5


def _create_segment(client: TransactionService, transaction_id: int) -> bool:
    """Whether the transaction was there."""
    try:
        client.create_segments("s", "t", transaction_id, [0])
    except NotFoundError:
        return False
    return True


def test_segments_created_amid_a_deletion_do_not_stay():
    """Another client writes into a transaction that was begun after the seal, while the deletion forgets it."""
    outcomes: set[bool] = set()
    for position in range(CALLS_MAX):
        world, begin_and_die = _being_deleted(on_demand=True)
        assert begin_and_die()
        open_ones = world.transactions.list_open("s", "t", 10).items
        writes = partial(_create_segment, world.another_transaction_service(), open_ones[0].transaction_id)
        created = world.calls.interrupt_at(position, writes)
        _process(world)
        assert world.bare_segment_stores.names() == [], f"created before call {position}"
        if not created:
            break
        outcomes.update(created)
    assert outcomes == {True, False}


@pytest.mark.parametrize(("segments", "aborts", "requests"), [(2, 200, 3), (500, 5, 3)])
def test_late_segments_of_many_go_in_few_requests(segments: int, aborts: int, requests: int):
    """A request for each would take a stream with many transactions much longer than an invocation lasts."""
    world = StreamWorld()
    world.create(segments=segments)
    for _ in range(aborts):
        world.transactions.abort_transaction("s", "t", world.begin())
    world.drain_transactions()
    world.seal()
    world.calls.counts.clear()
    world.delete()
    assert world.calls.counts[DELETE] == requests + 1, "one more for the segments of the stream itself"
    assert world.bare_segment_stores.names() == []
