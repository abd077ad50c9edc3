"""A transaction that its creator has left in a later incarnation of the stream is unknown to all clients.

The creator has begun it on the stream as it remembers it, and dies before it reads that the stream was deleted and
created again. The tick removes it within a minute.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stream_commits import states
from stream_world import StreamWorld

from headrace import topology
from headrace.model.backoff import bucket_of_stream
from headrace.model.errors import NotFoundError, SealedError
from headrace.model.transactions import CHECK_EVERY_MS, TransactionState

BUCKET = bucket_of_stream("s/t", topology.BUCKET_COUNT)
COMMITTED, OPEN = TransactionState.COMMITTED, TransactionState.OPEN
LEASE_MS = 600_000


def _tick(world: StreamWorld) -> None:
    world.clock.advance(CHECK_EVERY_MS)
    while world.expire_transactions(BUCKET):
        continue
    world.drain_transactions()


def _leave_one(world: StreamWorld, change: Callable[[StreamWorld], None]) -> int:
    """A creator remembers the stream, and dies behind its next transaction, begun after the change; its id."""
    late = world.another_transaction_service()
    late.create_transaction("s", "t", LEASE_MS)
    change(world)
    before = {transaction.transaction_id for transaction in world.transactions.list_open("s", "t", 10).items}
    assert world.calls.dies(lambda: late.create_transaction("s", "t", LEASE_MS, on_demand=True), 0, done=True)
    (left,) = (transaction.transaction_id for transaction in world.transactions.list_open("s", "t", 10).items)
    assert left not in before
    return left


def _create_again(world: StreamWorld) -> None:
    world.seal()
    world.delete()
    world.create()


@pytest.fixture(params=["in an epoch of both", "in a former epoch"])
def left(world: StreamWorld, request: pytest.FixtureRequest) -> int:
    world.create()
    if request.param == "in a former epoch":
        world.scale([0], [0.0, 0.25, 0.5])
    return _leave_one(world, _create_again)


def test_a_set_with_it_is_refused(world: StreamWorld, left: int):
    """Else the set would be decided, and its commit would wait for a transaction that the tick removes."""
    own = world.begin()
    for home in ("t", "u"):
        if home == "u":
            world.create("u")
        with pytest.raises(NotFoundError) as refused:
            world.commit_set({"t": [own, left]}, home=home)
        assert refused.value.specific_code == "transaction_not_found"
    assert states(world, own) == [OPEN]
    _tick(world)
    assert world.commit_set([own], epoch=1).new
    world.commit(following := world.begin())
    assert states(world, own, following) == [COMMITTED, COMMITTED]


@pytest.mark.parametrize(
    "ask",
    [
        lambda world, left: world.transactions.segments_of("s", "t", left),
        lambda world, left: world.transactions.create_segments("s", "t", left, [world.tail_ids()[0]]),
        lambda world, left: world.transactions.commit_transaction("s", "t", left),
        lambda world, left: world.transactions.ping_transaction("s", "t", left, LEASE_MS),
    ],
    ids=["segments", "create segments", "commit", "ping"],
)
def test_a_call_on_it_is_refused(world: StreamWorld, left: int, ask: Callable[[StreamWorld, int], object]):
    """Else its events would go with it, when the tick removes it."""
    names = world.bare_segment_stores.names()
    with pytest.raises(NotFoundError) as refused:
        ask(world, left)
    assert refused.value.specific_code == "transaction_not_found"
    _tick(world)
    assert world.bare_segment_stores.names() == names
    assert world.transactions.list_open("s", "t", 10).items == ()


def test_a_commit_after_a_ping_knows_the_stream(world: StreamWorld):
    """A transaction that was begun after the seal cannot be committed by a process that has only renewed it."""
    world.create()
    left = _leave_one(world, StreamWorld.seal)
    other = world.another_transaction_service()
    other.ping_transaction("s", "t", left, LEASE_MS)
    with pytest.raises(SealedError):
        other.commit_transaction("s", "t", left)


def test_a_process_that_pings_reads_once(world: StreamWorld):
    world.create()
    transaction, other = world.begin(), world.another_transaction_service()
    world.calls.counts.clear()
    for _ in range(3):
        other.ping_transaction("s", "t", transaction, LEASE_MS)
    assert dict(world.calls.counts) == {"read": 1, "write": 3}


def test_sets_read_other_streams_in_one_request(world: StreamWorld):
    """Without a conflict with what changes them meanwhile."""
    world.create()
    world.create("u")
    members = {"t": [world.begin()], "u": [world.begin("u")]}
    with world.calls.overtaken("transaction", lambda: world.scale([0], [0.0, 0.1, 0.5], stream="u")):
        assert world.commit_set(members, home="t").new
    world.drain_transactions()
    members = {"t": [world.begin()], "u": [world.begin("u")]}
    world.calls.counts.clear()
    assert world.commit_set(members, home="t", epoch=1).new
    assert world.calls.counts["read"] == 2 + len(members), (
        "the home with the writer, the others, members of each stream"
    )


def test_a_stream_with_one_is_deleted(world: StreamWorld):
    """It was begun after the seal, in an epoch that the stream never had."""
    world.create()
    world.scale([0], [0.0, 0.25, 0.5])

    def create_again_and_seal(world: StreamWorld) -> None:
        _create_again(world)
        world.seal()

    _leave_one(world, create_again_and_seal)
    world.delete()
    assert world.bare_segment_stores.names() == []
