"""What the commit of a micro-batch costs: how many requests, and how many of them wait for one another.

The second number decides how long it takes on AWS, where a request takes some milliseconds and a hundred at the same
time take no longer. Time itself is not measured here.
"""

from __future__ import annotations

import pytest
from round_trips import Counted, RoundTrips
from stream_world import StreamWorld

from headrace.controller.operations import registry
from headrace.controller.operations.commit_transactions import CommitProcessor
from headrace.model.transactions import TransactionState

SEGMENTS = 4
MERGE, CHECK = "segment store merge_segments", "segment store incomplete_segments"


def _members(world: StreamWorld, count: int, streams: int) -> dict[str, list[int]]:
    """Transactions that have events in all segments, spread evenly over the streams."""
    members: dict[str, list[int]] = {}
    for number in range(streams):
        name = f"t{number}"
        world.create(name, SEGMENTS)
        members[name] = [world.begin(name) for _ in range(count // streams)]
        for transaction in members[name]:
            for segment in range(SEGMENTS):
                world.write_in(transaction, segment / SEGMENTS, b"x", name)
    return members


def _answered(world: StreamWorld, trips: RoundTrips, members: dict[str, list[int]]) -> Counted:
    """The call itself, as the sink makes it."""
    service = world.another_transaction_service(trips.workers).sets
    with trips.counting() as counted:
        assert service.commit_all("s", "t0", members, writer="w", epoch=1, abort_labels="w").new
    return counted


def _visible(world: StreamWorld, trips: RoundTrips) -> Counted:
    """The messages that follow on the call, one after another."""
    tools = registry.tools(world.store, world.segment_stores, world.clock, lambda: world.queue, trips.workers)
    world.commits = CommitProcessor(tools)
    with trips.counting() as counted:
        world.drain_transactions()
    return counted


ANSWERED = {
    (1, 1): Counted({"read": 2, "query": 2, "transaction": 2, "write": 1, "send": 1}, 7, 6),
    (200, 1): Counted({"read": 3, "query": 2, "transaction": 4, "send": 1}, 206, 6),
    (200, 4): Counted({"read": 6, "query": 8, "transaction": 6, "send": 4}, 215, 6),
    (2_000, 1): Counted({"read": 21, "query": 3, "transaction": 22, "send": 1}, 2_006, 7),
}
"""By the number of transactions and of streams: reads, begin, prepare, decide, messages, leftovers. A page of leftovers
has up to a thousand transactions."""

VISIBLE = {
    (1, 1): Counted({"read": 4, "query": 2, "transaction": 2, CHECK: 1, MERGE: 4}, 9, 13),
    (200, 1): Counted({"read": 5, "query": 2, "transaction": 8, CHECK: 1, MERGE: 4}, 606, 14),
    (200, 4): Counted({"read": 16, "query": 8, "transaction": 12, CHECK: 4, MERGE: 16}, 624, 4 * 14),
    (2_000, 1): Counted({"read": 59, "query": 9, "transaction": 72, CHECK: 9, MERGE: 32}, 6_041, 100),
}
"""Of the messages of all streams, one after another here. The functions process several streams at the same time."""


@pytest.mark.parametrize(("count", "streams"), ANSWERED)
def test_requests_until_a_set_is_answered(world: StreamWorld, count: int, streams: int):
    trips, members = RoundTrips(world), _members(world, count, streams)
    assert _answered(world, trips, members) == ANSWERED[count, streams]


@pytest.mark.parametrize(("count", "streams"), VISIBLE)
def test_requests_until_a_set_is_visible(world: StreamWorld, count: int, streams: int):
    trips, members = RoundTrips(world), _members(world, count, streams)
    _answered(world, trips, members)
    assert _visible(world, trips) == VISIBLE[count, streams]
    state = {world.transactions.get_transaction("s", "t0", transaction).state for transaction in members["t0"]}
    assert state == {TransactionState.COMMITTED}
