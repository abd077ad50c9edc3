"""Whoever works on transactions dies before or after any call, or does the work twice: the outcome is the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.errors import ConflictError, UnavailableError
from headrace.model.transactions import LEASE_GRACE_MS, WriterTime
from headrace.workflows.commit_transactions import CommitProcessor
from headrace.workflows.expire_transactions import expire_transactions

CALLS_MAX = 200
TURNS_MAX = 600


def _begin(world: Any, data: bytes) -> int:
    identifier = world.begin()
    world.write_in(identifier, 0.0, data)
    world.write_in(identifier, 0.9, data)
    return identifier


def _mark_plain(world: Any) -> Any:
    world.create(segments=2)
    for number in range(3):
        time = WriterTime("w", number) if number else None
        world.transactions.commit_transaction("s", "t", _begin(world, b"%d" % number), time)
    return world.commits.process


def _mark_rolling(world: Any) -> Any:
    world.create(segments=1)
    late = [_begin(world, b"a"), _begin(world, b"b")]
    world.scale([0], [0.0, 0.5, 1.0])
    world.append(1 << 32 | 1, 7)
    for one in late:
        world.transactions.commit_transaction("s", "t", one, WriterTime("w", one & 7))
    return world.commits.process


def _mark_set(world: Any) -> Any:
    world.create(segments=1)
    members = [_begin(world, b"%02d" % number) for number in range(30)]
    world.transactions.commit_all("s", "t", "epoch-7", members)
    return world.commits.process


def _mark_abort(world: Any) -> Any:
    world.create(segments=2)
    world.transactions.abort_transaction("s", "t", _begin(world, b"a"))
    return world.aborts.process


MARK: dict[str, Callable[[Any], Any]] = {
    "plain commit": _mark_plain,
    "rolling commit": _mark_rolling,
    "commit set": _mark_set,
    "abort": _mark_abort,
}


def _outcome(world: Any) -> tuple[Any, Any]:
    stores = world.bare_segment_stores
    content = {name: (stores.segment_info(name), stores.read(name, 0, 1_000)) for name in stores.names()}
    return world.everything(), content


def _message(world: Any) -> Any:
    return (world.bare_commits.receive() or world.bare_aborts.receive())[0].body


def _expected(stream_world: Any, kind: str) -> tuple[Any, Any]:
    world = stream_world.StreamWorld()
    process = MARK[kind](world)
    process(_message(world))
    return _outcome(world)


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("kind", MARK)
def test_a_crash_anywhere_loses_and_doubles_nothing(stream_world: Any, kind: str, done: bool):
    wanted = _expected(stream_world, kind)
    crashes = 0
    for position in range(CALLS_MAX):
        world = stream_world.StreamWorld()
        process = MARK[kind](world)
        body = _message(world)
        world.calls.crash_at(position, done=done)
        try:
            process(body)
        except stream_world.Crash:
            crashes += 1
        else:
            break
        finally:
            world.calls.calm()
        process(body)
        assert _outcome(world) == wanted, f"after a crash at call {position}"
        process(body)
        assert _outcome(world) == wanted, "a message after the work is done changes nothing"
    assert crashes >= 3
    assert position < CALLS_MAX - 1


@pytest.mark.parametrize("kind", MARK)
def test_a_crash_at_every_call_in_turn_still_ends(stream_world: Any, kind: str):
    """Each delivery dies one call later than the one before."""
    world = stream_world.StreamWorld()
    process = MARK[kind](world)
    body = _message(world)
    for position in range(CALLS_MAX):
        world.calls.crash_at(position, done=True)
        try:
            process(body)
            break
        except stream_world.Crash:
            world.calls.calm()
    world.calls.calm()
    assert _outcome(world) == _expected(stream_world, kind)


@pytest.mark.parametrize("kind", MARK)
def test_a_segment_store_that_is_away_delays_only(stream_world: Any, kind: str):
    world = stream_world.StreamWorld()
    process = MARK[kind](world)
    body = _message(world)

    def away(call: str) -> None:
        if call.startswith("segment store"):
            raise UnavailableError("the segment store restarts")

    world.calls.before = away
    with pytest.raises(UnavailableError):
        process(body)
    world.calls.calm()
    process(body)
    assert _outcome(world) == _expected(stream_world, kind)


@pytest.mark.parametrize("kind", ["plain commit", "rolling commit"])
def test_a_processor_that_slept_through_a_life_of_the_stream_changes_no_record(stream_world: Any, kind: str):
    """It wakes up at any of its calls, with what it read in the former life, and must leave the present one alone."""
    slept = 0
    for position in range(CALLS_MAX):
        world = stream_world.StreamWorld()
        process = MARK[kind](world)
        body = _message(world)
        present = _sleep_through_a_life(world, process, body, position)
        if not present:
            break
        slept += 1
        assert _outcome(world)[0] == present[0], f"woken up at call {position}"
    assert slept >= 5


def _sleep_through_a_life(world: Any, process: Any, body: Any, position: int) -> list[Any]:
    made = 0
    present: list[Any] = []

    def sleep(_kind: str) -> None:
        nonlocal made
        made += 1
        if made == position + 1:
            world.calls.calm()
            process(body)
            world.seal()
            world.delete()
            world.create(segments=1)
            world.transactions.commit_transaction("s", "t", _begin(world, b"z"))
            process(body)
            present.append(_outcome(world)[0])

    world.calls.before = sleep
    process(body)
    world.calls.calm()
    return present


@pytest.mark.parametrize("kind", ["plain commit", "rolling commit"])
@given(order=st.lists(st.sampled_from([0, 1]), min_size=1, max_size=40))
@settings(max_examples=30)
def test_two_processors_on_one_run(stream_world: Any, kind: str, order: list[int]):
    alone = {key: body for key, (_, body) in _expected(stream_world, kind)[0].items()}
    world = stream_world.StreamWorld()
    MARK[kind](world)
    body = _message(world)
    turns = _Turns(order)
    workers: dict[int, int] = {}
    world.calls.before = lambda _kind: turns.wait(workers[threading.get_ident()])

    def work(worker: int) -> None:
        workers[threading.get_ident()] = worker
        try:
            CommitProcessor(world.tools()).process(body)
        finally:
            turns.leave(worker)

    with ThreadPoolExecutor(2) as pool:
        failures = [one.exception() for one in [pool.submit(work, worker) for worker in (0, 1)]]
    world.calls.calm()
    assert [one for one in failures if one is not None and not isinstance(one, ConflictError)] == []
    world.commits.process(body)
    records, content = _outcome(world)
    assert {key: body for key, (_, body) in records.items()} == alone
    assert content == _expected(stream_world, kind)[1]


class _Turns:
    """Lets two threads make their calls one at a time, in an order that a list of choices decides."""

    def __init__(self, order: list[int]) -> None:
        self._order = order
        self._condition = threading.Condition()
        self._waiting: set[int] = set()
        self._running = {0, 1}
        self._turn: int | None = None
        self._made = 0

    def wait(self, worker: int) -> None:
        with self._condition:
            self._waiting.add(worker)
            self._choose()
            self._condition.wait_for(lambda: self._turn == worker)
            self._waiting.discard(worker)
            self._turn = None

    def leave(self, worker: int) -> None:
        with self._condition:
            self._running.discard(worker)
            self._choose()

    def _choose(self) -> None:
        if self._turn is None and self._waiting and self._waiting == self._running:
            wish = self._order[self._made % len(self._order)]
            self._made += 1
            assert self._made < TURNS_MAX, "the processors keep each other from ending"
            self._turn = wish if wish in self._waiting else next(iter(self._waiting))
            self._condition.notify_all()


def _expire_everything(world: Any) -> None:
    """Ticks until nothing is due."""
    for bucket in range(8):
        while expire_transactions(world.store, world.transaction_queues, world.clock, bucket):
            continue
    world.drain_transactions()


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
def test_a_tick_that_dies_anywhere_leaves_nothing_undone(stream_world: Any, done: bool):
    """One is to be aborted, one has a commit whose message is lost, one an abort, and one is completed."""
    crashes = 0
    for position in range(CALLS_MAX):
        world = stream_world.StreamWorld()
        world.create(segments=1)
        world.begin()
        lost, dropped, completed = (_begin(world, data) for data in (b"l", b"d", b"c"))
        world.commit(completed)
        world.transactions.commit_transaction("s", "t", lost)
        world.transactions.abort_transaction("s", "t", dropped)
        _lose(world.bare_commits)
        _lose(world.bare_aborts)
        world.clock.advance(60_000 + LEASE_GRACE_MS + 1)
        world.calls.crash_at(position, done=done)
        try:
            _expire_everything(world)
        except stream_world.Crash:
            crashes += 1
        else:
            break
        finally:
            world.calls.calm()
        _come_again(world.bare_commits)
        _come_again(world.bare_aborts)
        world.clock.advance(100_000)  # past the lease on the bucket and the next look at what was moved on
        _expire_everything(world)
        world.clock.advance(100_000)
        _expire_everything(world)
        assert world.transactions.list_open("s", "t", 10).items == ()
        outcomes = sorted(str(one.state) for one in world.transactions.list_completed("s", "t"))
        assert outcomes == ["ABORTED", "ABORTED", "COMMITTED", "COMMITTED"], f"after a crash at call {position}"
        assert world.bare_segment_stores.names() == ["s/t/0.#epoch.0"]
    assert crashes >= 10
    assert position < CALLS_MAX - 1


def _come_again(queue: Any) -> None:
    """The visibility time-out of what the dead processor had received is over."""
    for message in list(queue._messages):
        if message.receipt is not None:
            queue.release(message.receipt)


def _lose(queue: Any) -> None:
    while messages := queue.receive():
        for message in messages:
            queue.acknowledge(message.receipt)
