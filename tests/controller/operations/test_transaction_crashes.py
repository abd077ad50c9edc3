"""Whoever works on transactions dies before or after any call, or does the work twice: the outcome is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interruptions import (
    Work,
    after_each_crash,
    after_each_sleep,
    assert_an_absent_segment_store_only_delays,
    assert_crashes_lose_and_double_nothing,
    assert_dying_one_call_later_each_time_still_ends,
    undisturbed,
)
from stream_world import StreamWorld
from turns import run_in_turns

from fuzz.watched_ports import ShuffledWorkers
from headrace.controller.operations.commit_transactions import CommitProcessor
from headrace.controller.steps import transaction_commits
from headrace.metadata.transaction_messages import COMMIT, TransactionMessage, transaction_message_body
from headrace.model import commit_sets
from headrace.model.errors import ConflictError
from headrace.model.transactions import LEASE_GRACE_MS, WriterTime

RUN = 40
"""The transactions of a run here, so that few are needed for two runs, and for a run that is completed in pieces."""


@pytest.fixture(autouse=True, scope="module")
def _small_runs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for module in (commit_sets, transaction_commits):
            patched.setattr(module, "TRANSACTIONS_PER_RUN_MAX", RUN)
        yield


def _begin(world: StreamWorld, data: bytes) -> int:
    identifier = world.begin()
    world.write_in(identifier, 0.0, data)
    world.write_in(identifier, 0.9, data)
    return identifier


def _mark_plain(world: StreamWorld) -> None:
    world.create(segments=2)
    for number in range(3):
        time = WriterTime("w", number) if number else None
        world.transactions.commit_transaction("s", "t", _begin(world, b"%d" % number), time)


def _mark_rolling(world: StreamWorld) -> None:
    world.create(segments=1)
    late = [_begin(world, b"a"), _begin(world, b"b")]
    world.scale([0], [0.0, 0.5, 1.0])
    world.append(1 << 32 | 1, 7)
    for transaction in late:
        world.transactions.commit_transaction("s", "t", transaction, WriterTime("w", transaction & 7))


def _mark_set(world: StreamWorld) -> None:
    world.create(segments=1)
    members = [_begin(world, b"%02d" % number) for number in range(30)]
    world.commit_set(members, epoch=7)


def _mark_large_set(world: StreamWorld) -> None:
    """A set that needs two runs."""
    world.create(segments=1)
    members = [
        world.transactions.create_transaction("s", "t", 60_000, on_demand=True).transaction_id for _ in range(RUN + 3)
    ]
    for number in (0, RUN - 1, RUN, RUN + 2):
        world.transactions.create_segments("s", "t", members[number], [0])
        world.write_in(members[number], 0.0, b"%d," % number)
    world.commit_set(members, epoch=7)


def _mark_abort(world: StreamWorld) -> None:
    world.create(segments=2)
    world.transactions.abort_transaction("s", "t", _begin(world, b"a"))


MARK: dict[str, Callable[[Any], None]] = {
    "plain commit": _mark_plain,
    "rolling commit": _mark_rolling,
    "commit set": _mark_set,
    "commit set of two runs": _mark_large_set,
    "abort": _mark_abort,
}


def _outcome(world: StreamWorld) -> tuple[Any, Any]:
    stores = world.bare_segment_stores
    content = {name: (stores.segment_info(name), stores.read(name, 0, 1_000)) for name in stores.names()}
    return world.everything(), content


def _bodies(records: Any) -> Any:
    """Records without their versions: a second processor may write an equal record once more, and no other."""
    return {key: body for key, (_, body) in records.items()}


def _marked(kind: str) -> StreamWorld:
    """The first message of what is marked is in hand; a commit takes the marks of the other messages along."""
    world = StreamWorld(workers=ShuffledWorkers(0))
    MARK[kind](world)
    world.in_hand = (world.bare_commits.receive() or world.bare_aborts.receive())[0]
    return world


def _work(kind: str) -> Work[StreamWorld]:
    def run(world: StreamWorld) -> None:
        (world.aborts if kind == "abort" else world.commits).process(world.in_hand.body)

    return Work(lambda: _marked(kind), run, _outcome)


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("kind", MARK)
def test_a_crash_anywhere_loses_and_doubles_nothing(kind: str, done: bool):
    assert assert_crashes_lose_and_double_nothing(_work(kind), done=done) >= 3


@pytest.mark.parametrize("kind", MARK)
def test_a_crash_at_every_call_in_turn_still_ends(kind: str):
    """Each delivery dies one call later than the one before."""
    assert assert_dying_one_call_later_each_time_still_ends(_work(kind)) >= 2


@pytest.mark.parametrize("kind", MARK)
def test_a_segment_store_that_is_away_delays_only(kind: str):
    assert_an_absent_segment_store_only_delays(_work(kind))


def _live_on(world: StreamWorld) -> Any:
    """The stream is finished, deleted and created again, and has a commit again; what records there are then."""
    body = world.in_hand.body
    world.commits.process(body)
    world.seal()
    world.delete()
    world.create(segments=1)
    present = _begin(world, b"z")
    world.transactions.commit_transaction("s", "t", present)
    world.commits.process(transaction_message_body(TransactionMessage(COMMIT, "s", "t", present)))
    return world.everything()


@pytest.mark.parametrize("kind", ["plain commit", "rolling commit", "commit set of two runs"])
def test_a_late_processor_leaves_a_recreated_stream_unchanged(kind: str):
    """It wakes up at any of its calls, with what it read in the former life, and must leave the present one alone."""
    slept = 0
    for position, world, present in after_each_sleep(_work(kind), _live_on):
        assert world.everything() == present, f"woken up at call {position}"
        slept += 1
    assert slept >= 5


@pytest.mark.parametrize("kind", ["plain commit", "rolling commit", "commit set of two runs"])
@given(order=st.lists(st.sampled_from([0, 1]), min_size=1, max_size=40))
@settings(max_examples=30)
def test_two_processors_on_one_run(kind: str, order: list[int]):
    records, content = undisturbed(_work(kind)).outcome
    world = _marked(kind)
    body = world.in_hand.body
    failures = run_in_turns(world.calls, lambda: CommitProcessor(world.tools()).process(body), order)
    assert [failure for failure in failures if not isinstance(failure, ConflictError)] == []
    world.commits.process(body)
    found, found_content = _outcome(world)
    assert _bodies(found) == _bodies(records)
    assert found_content == content


def _expire_everything(world: StreamWorld) -> None:
    """Ticks until nothing is due."""
    for bucket in range(8):
        while world.expire_transactions(bucket):
            continue
    world.drain_transactions()


def _due() -> StreamWorld:
    """One is to be aborted, one has a commit whose message is lost, one an abort, and one is completed."""
    world = StreamWorld()
    world.create(segments=1)
    world.begin()
    lost, dropped, completed = (_begin(world, data) for data in (b"l", b"d", b"c"))
    world.commit(completed)
    world.transactions.commit_transaction("s", "t", lost)
    world.transactions.abort_transaction("s", "t", dropped)
    _lose(world.bare_commits)
    _lose(world.bare_aborts)
    world.clock.advance(60_000 + LEASE_GRACE_MS + 1)
    return world


def _states(world: StreamWorld) -> Any:
    """Who is open, what became of the others, and the segments."""
    states = sorted(str(transaction.state) for transaction in world.transactions.list_completed("s", "t"))
    return world.transactions.list_open("s", "t", 10).items, states, world.bare_segment_stores.names()


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
def test_a_tick_that_dies_anywhere_leaves_nothing_undone(done: bool):
    crashes = 0
    for position, world in after_each_crash(Work(_due, _expire_everything, _states), done=done):
        crashes += 1
        _come_again(world.bare_commits)
        _come_again(world.bare_aborts)
        world.clock.advance(100_000)  # past the lease on the bucket and the next look at what was moved on
        _expire_everything(world)
        world.clock.advance(100_000)
        _expire_everything(world)
        wanted = (), ["ABORTED", "ABORTED", "COMMITTED", "COMMITTED"], ["s/t/0.#epoch.0"]
        assert _states(world) == wanted, f"after a crash at call {position}"
    assert crashes >= 10


def _come_again(queue: Any) -> None:
    """The visibility time-out of what the dead processor had received is over."""
    for message in list(queue._messages):
        if message.receipt is not None:
            queue.release(message.receipt)


def _lose(queue: Any) -> None:
    while messages := queue.receive():
        for message in messages:
            queue.acknowledge(message.receipt)
