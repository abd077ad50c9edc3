"""Segments that a process creates after their transaction has ended, and dies: they go when it is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from interruptions import sleep_and_die
from stream_world import StreamWorld

from headrace import topology
from headrace.deployment_defaults import COMPLETED_TRANSACTIONS_KEPT_MS
from headrace.model.backoff import bucket_of_stream
from headrace.model.errors import OutOfTimeError, UnavailableError
from headrace.model.transactions import CHECK_EVERY_MS, TransactionState
from headrace.ports.segment_stores import SegmentScaleRate

BUCKET = bucket_of_stream("s/t", topology.BUCKET_COUNT)
CREATE = "segment store create_segments"
MERGE = "segment store merge_segments"
DELETE = "segment store delete_segments"
LEASE_MS = 10_000

Work = Callable[[], object]


def _names(world: StreamWorld) -> list[str]:
    return sorted(name.removeprefix("s/t/") for name in world.bare_segment_stores.names())


def _tick(world: StreamWorld, after_ms: int) -> None:
    world.clock.advance(after_ms)
    while world.expire_transactions(BUCKET):
        continue


def _create_late_and_die(world: StreamWorld, work: Work, meanwhile: Work) -> list[str]:
    """A process sleeps before it creates segments, and dies when that is done; the names without those."""

    def others_work() -> list[str]:
        meanwhile()
        return _names(world)

    left = sleep_and_die(world, CREATE, work, others_work)
    assert set(_names(world)) > set(left), "the process has created nothing, so that nothing is tried"
    return left


def _only_open(world: StreamWorld) -> int:
    (transaction,) = world.transactions.list_open("s", "t", 10).items
    return transaction.transaction_id


def _abort(world: StreamWorld) -> None:
    world.transactions.abort_transaction("s", "t", _only_open(world))
    world.drain_transactions()


def _commit(world: StreamWorld) -> None:
    world.another_transaction_service().commit_transaction("s", "t", _only_open(world))
    world.drain_transactions()


def _seal(world: StreamWorld) -> None:
    world.seal()


def _begin(world: StreamWorld) -> Work:
    """The segments are created with the transaction."""
    return partial(world.transactions.create_transaction, "s", "t", LEASE_MS)


def _create_on_demand(world: StreamWorld) -> Work:
    transaction = world.transactions.create_transaction("s", "t", LEASE_MS, on_demand=True)
    wanted = [transaction.segments[0].segment_id]
    return partial(world.transactions.create_segments, "s", "t", transaction.transaction_id, wanted)


CASES = pytest.mark.parametrize(
    ("create", "end"),
    [(_begin, _abort), (_begin, _seal), (_create_on_demand, _abort), (_create_on_demand, _commit)],
)
"""Commits of segments that a beginning has not created yet are no case: they count as lost, and it is aborted."""


@CASES
def test_late_segments_go_when_it_is_forgotten(
    world: StreamWorld, create: Callable[[StreamWorld], Work], end: Callable[[StreamWorld], None]
):
    world.create()
    names = _create_late_and_die(world, create(world), lambda: end(world))
    _tick(world, CHECK_EVERY_MS)
    assert set(_names(world)) > set(names), "another process may still create"
    _tick(world, COMPLETED_TRANSACTIONS_KEPT_MS)
    assert _names(world) == names


@CASES
def test_late_segments_go_with_their_stream(
    world: StreamWorld, create: Callable[[StreamWorld], Work], end: Callable[[StreamWorld], None]
):
    world.create()
    _create_late_and_die(world, create(world), lambda: end(world))
    if end is not _seal:
        world.seal()
    world.delete()
    assert _names(world) == []


def _share(world: StreamWorld) -> tuple[int, Work]:
    """A transaction with an event, whose segment another client is about to request too."""
    transaction = world.transactions.create_transaction("s", "t", LEASE_MS, on_demand=True)
    wanted = [transaction.segments[0].segment_id]

    def create_and_write() -> None:
        world.another_transaction_service().create_segments("s", "t", transaction.transaction_id, wanted)
        world.write_in(transaction.transaction_id, 0.1, b"event")
        _mark(world, transaction.transaction_id)

    # The first request has noted the segment, and failed.
    world.calls.refuse(CREATE, UnavailableError("the store does not answer"))
    with pytest.raises(UnavailableError):
        world.transactions.create_segments("s", "t", transaction.transaction_id, wanted)
    world.calls.calm()
    return transaction.transaction_id, create_and_write


def _mark(world: StreamWorld, transaction: int) -> None:
    world.another_transaction_service().commit_transaction("s", "t", transaction)


def test_a_segment_created_during_the_commit_goes(world: StreamWorld):
    """After it was merged, and before the commit is complete: a client may leave it, since it may have events."""
    world.create()
    names = _names(world)
    shared, create_and_write = _share(world)
    (segment, *_) = world.transactions.segments_of("s", "t", shared).segments
    work = partial(world.transactions.create_segments, "s", "t", shared, [segment.segment_id])
    world.calls.refuse(CREATE, UnavailableError("the request arrives late"))
    with pytest.raises(UnavailableError):
        work()
    world.calls.calm()
    create_and_write()

    def arrive_late(kind: str) -> None:
        if kind == MERGE:
            world.bare_segment_stores.create_segments([segment.transaction_segment], SegmentScaleRate())

    world.calls.after = arrive_late
    world.drain_transactions()
    world.calls.calm()
    assert world.transactions.get_transaction("s", "t", shared).state is TransactionState.COMMITTED
    assert set(_names(world)) > set(names), "it was created before the merge, so that nothing is tried"
    _tick(world, CHECK_EVERY_MS)
    _tick(world, COMPLETED_TRANSACTIONS_KEPT_MS)
    assert _names(world) == names


def test_a_second_client_that_dies_leaves_nothing(world: StreamWorld):
    world.create()
    shared, create_and_write = _share(world)
    wanted = [world.transactions.segments_of("s", "t", shared).segments[0].segment_id]

    def commit() -> None:
        create_and_write()
        world.drain_transactions()

    names = _create_late_and_die(world, lambda: world.transactions.create_segments("s", "t", shared, wanted), commit)
    _tick(world, CHECK_EVERY_MS)
    _tick(world, COMPLETED_TRANSACTIONS_KEPT_MS)
    assert _names(world) == names


def test_segments_of_one_begun_after_the_seal_go(world: StreamWorld):
    """Its creator has died before it saw the seal, and another client has found it."""
    world.create()
    late = world.another_transaction_service()
    late.create_transaction("s", "t", LEASE_MS)
    world.seal()
    assert world.calls.dies(lambda: late.create_transaction("s", "t", LEASE_MS, on_demand=True), 0, done=True)
    view = world.transactions.segments_of("s", "t", _only_open(world))
    world.transactions.create_segments("s", "t", _only_open(world), [view.segments[0].segment_id])
    world.delete()
    assert _names(world) == []


def test_a_commit_that_is_forgotten_asks_no_store(world: StreamWorld):
    world.create()
    world.commit(world.begin())
    transaction = world.transactions.create_transaction("s", "t", LEASE_MS, on_demand=True)
    world.transactions.create_segments("s", "t", transaction.transaction_id, [transaction.segments[0].segment_id])
    world.commit(transaction.transaction_id)
    _tick(world, CHECK_EVERY_MS)
    world.calls.counts.clear()
    _tick(world, COMPLETED_TRANSACTIONS_KEPT_MS)
    assert world.transactions.list_completed("s", "t") == ()
    assert world.calls.counts[DELETE] == 0


def test_a_store_that_is_away_delays_only_the_removal(world: StreamWorld):
    world.create()
    names = _create_late_and_die(world, _begin(world), lambda: _abort(world))
    _tick(world, CHECK_EVERY_MS)
    world.clock.advance(COMPLETED_TRANSACTIONS_KEPT_MS - CHECK_EVERY_MS - LEASE_MS)
    other = world.begin(lease_ms=LEASE_MS)
    names = sorted([*names, *(name for name in _names(world) if f"{other:032x}" in name)])
    world.clock.advance(CHECK_EVERY_MS)
    world.calls.refuse(DELETE, UnavailableError("the store does not answer"))
    _tick(world, 0)
    world.calls.calm()
    assert world.transactions.get_transaction("s", "t", other).state is TransactionState.ABORTING
    assert set(_names(world)) > set(names)
    _tick(world, CHECK_EVERY_MS)
    assert _names(world) == names
    assert len(world.transactions.list_completed("s", "t")) == 0


def test_an_ended_stream_keeps_no_entry_of_it(world: StreamWorld):
    """Its epochs are gone when the transaction would be forgotten."""
    world.create()
    _create_late_and_die(world, _begin(world), lambda: _abort(world))
    world.seal()
    world.delete()
    world.create()
    _tick(world, CHECK_EVERY_MS)
    _tick(world, COMPLETED_TRANSACTIONS_KEPT_MS)
    assert not [sort for partition, sort in world.everything() if partition.startswith("transactions-due/")]


def test_a_store_without_an_answer_delays_no_commit(world: StreamWorld):
    """Its request takes the time of the whole batch, also that of a committed transaction that needs no store."""
    world.create()
    _create_late_and_die(world, _begin(world), lambda: _abort(world))
    world.clock.advance(1)
    world.commit(world.begin())
    _tick(world, CHECK_EVERY_MS)
    world.calls.refuse(DELETE, OutOfTimeError("the time of the batch is over"))
    _tick(world, COMPLETED_TRANSACTIONS_KEPT_MS)
    world.calls.calm()
    assert [transaction.state for transaction in world.transactions.list_completed("s", "t")] == [
        TransactionState.ABORTED
    ]
