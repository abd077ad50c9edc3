"""Members that a slow process prepared after its set was refused: the process that finds them releases them.

A process that prepares the chunks of a large set goes on for some time when another one has refused it. So there may be
many such members, and they must be released together: one by one would take a tick, or a request, for each.
"""

from __future__ import annotations

import pytest
from stream_world import StreamWorld

from headrace import topology
from headrace.metadata.transaction import replace_open
from headrace.metadata.transaction_records import TransactionRecords
from headrace.model.errors import IllegalStateError
from headrace.model.transactions import CHECK_EVERY_MS, TransactionState, prepared

COUNT = 120
LEASE_MS = 24 * 3600 * 1000


@pytest.fixture
def late(world: StreamWorld) -> list[int]:
    """Transactions of t that are prepared by a set that is gone."""
    world.create(segments=1)
    members = [world.begin(lease_ms=LEASE_MS) for _ in range(COUNT)]
    for stored in TransactionRecords(world.store).still_open("s", "t", members):
        world.store.write(replace_open("s", "t", stored, prepared(stored.transaction, "gone")))
    assert _states(world, members) == {TransactionState.COMMITTING}
    return members


def _states(world: StreamWorld, members: list[int]) -> set[TransactionState]:
    return {world.transactions.get_transaction("s", "t", member).state for member in members}


def test_one_tick_releases_all(world: StreamWorld, late: list[int]):
    world.clock.advance(CHECK_EVERY_MS + 1)
    for bucket in range(topology.BUCKET_COUNT):
        world.expire_transactions(bucket)
    assert _states(world, late) == {TransactionState.OPEN}


def test_the_next_set_takes_all(world: StreamWorld, late: list[int]):
    world.calls.counts.clear()
    assert world.commit_set({"t": late}, home="t", epoch=1).new
    assert world.calls.counts.total() < 40
    world.drain_transactions()
    assert _states(world, late) == {TransactionState.COMMITTED}


def test_an_aborted_member_leaves_no_other_prepared(world: StreamWorld, late: list[int]):
    """The set is refused because of the first member. The others do not wait for the tick."""
    aborted = world.begin()
    world.transactions.abort_transaction("s", "t", aborted)
    with pytest.raises(IllegalStateError) as refused:
        world.commit_set({"t": [aborted, *late]}, home="t", epoch=1)
    assert refused.value.specific_code == "transaction_aborted"
    assert _states(world, late) == {TransactionState.OPEN}


def test_a_seal_releases_all_at_once(world: StreamWorld, late: list[int]):
    world.calls.counts.clear()
    world.seal()
    assert _states(world, late) == {TransactionState.ABORTED}
    assert world.calls.counts["query"] < 40, "it does not read all of them again for each"
