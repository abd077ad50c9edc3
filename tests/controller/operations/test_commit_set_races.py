"""Two processes commit sets at the same time, call by call in any order: each member has one outcome, with its set."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_commits import all_bytes, transaction_with
from stream_world import StreamWorld
from turns import run_in_turns

from fuzz.watched_ports import Crash, ShuffledWorkers
from headrace import topology
from headrace.controller.steps import transaction_commits
from headrace.model import commit_sets
from headrace.model.errors import HeadraceError
from headrace.model.transactions import CHECK_EVERY_MS, TransactionState

OPEN, ABORTED, COMMITTED = TransactionState.OPEN, TransactionState.ABORTED, TransactionState.COMMITTED
ORDERS = st.lists(st.sampled_from([0, 1]), min_size=1, max_size=60)


class Race:
    """Three transactions with a byte each, and what two processes were answered."""

    def __init__(self) -> None:
        self.world = StreamWorld()
        self.world.create(segments=1)
        self.ids = [transaction_with(self.world, data) for data in (b"a", b"b", b"c")]
        self.news: dict[str, bool] = {}

    def commit(self, name: str, members: list[int], writer: str = "w") -> Callable[[], None]:
        def run() -> None:
            given = [self.ids[index] for index in members]
            self.news[name] = self.world.commit_set(given, writer=writer, epoch=3).new

        return run

    def run(self, order: list[int], *work: Callable[[], None]) -> list[BaseException]:
        waiting = iter(work)
        failures = run_in_turns(self.world.calls, lambda: next(waiting)(), order)
        for _ in range(3):
            self.world.drain_transactions()
            self.world.clock.advance(CHECK_EVERY_MS // 2 + 1)
            for bucket in range(topology.BUCKET_COUNT):
                self.world.expire_transactions(bucket)
        assert [error for error in failures if not isinstance(error, HeadraceError)] == []
        left = [sort for _, sort in self.world.everything() if sort.startswith(("commit-part/", "order/"))]
        assert left == []
        return failures

    def states(self) -> list[TransactionState]:
        return [self.world.transactions.get_transaction("s", "t", transaction).state for transaction in self.ids]


@given(order=ORDERS)
@settings(max_examples=60, deadline=None)
def test_one_set_by_two_processes(order: list[int]):
    race = Race()
    failures = race.run(order, race.commit("one", [0, 1]), race.commit("other", [0, 1]))
    assert failures == [], "a repetition succeeds, whichever process decided"
    assert race.states()[:2] == [COMMITTED, COMMITTED]
    assert all_bytes(race.world) == b"ab"
    assert set(race.news) == {"one", "other"}


@given(order=ORDERS)
@settings(max_examples=60, deadline=None)
def test_one_epoch_with_two_sets(order: list[int]):
    race = Race()
    assert race.run(order, race.commit("one", [0, 1]), race.commit("other", [2])) == []
    assert sorted(race.news.values()) == [False, True], "one call commits its set"
    assert all_bytes(race.world) == (b"ab" if race.news["one"] else b"c")
    assert race.states() == ([COMMITTED, COMMITTED, ABORTED] if race.news["one"] else [ABORTED, ABORTED, COMMITTED])


@given(order=ORDERS)
@settings(max_examples=100, deadline=None)
def test_two_writers_with_a_common_member(order: list[int]):
    """Each needs the second transaction. Both may be refused, but not both be committed."""
    race = Race()
    race.run(order, race.commit("a", [0, 1], "a"), race.commit("b", [1, 2], "b"))
    epochs = {name: race.world.commit_sets.committed_epoch("s", "t", name).epoch for name in "ab"}
    assert list(epochs.values()) != [3, 3]
    committed = [state is COMMITTED for state in race.states()]
    assert committed == [epochs["a"] == 3, 3 in epochs.values(), epochs["b"] == 3]
    assert ABORTED not in [state for state, done in zip(race.states(), committed, strict=True) if done]
    for name, new in race.news.items():
        assert new == (epochs[name] == 3)


@pytest.mark.parametrize("seed", range(4))
def test_epochs_of_a_writer_appear_in_their_order(seed: int):
    """Also if the call with the earlier one comes while the later one reads, in whichever order it does so."""
    for position in itertools.count():
        world = StreamWorld(seed, ShuffledWorkers(seed))
        world.create(segments=1)
        later, earlier = transaction_with(world, b"2"), transaction_with(world, b"1")
        overtook = world.calls.interrupt_at(position, partial(world.commit_set, [earlier], epoch=1))
        assert world.commit_set([later], epoch=2).new
        if not overtook:
            break
        world.drain_transactions()
        assert all_bytes(world) == (b"12" if overtook[0].new else b"2"), f"before call {position}"
    assert position >= 7


def test_the_entry_of_a_set_stays_at_its_key(monkeypatch: pytest.MonkeyPatch):
    """A query reads one record after the other. It could miss an entry that moves, and a later epoch come first."""
    for module in (commit_sets, transaction_commits):
        monkeypatch.setattr(module, "TRANSACTIONS_PER_RUN_MAX", 2)
    world = StreamWorld()
    world.create(segments=1)
    world.commit_set([transaction_with(world, b"%d" % number) for number in range(7)])
    seen: list[list[str]] = []
    world.calls.after = lambda _kind: seen.append([sort for _, sort in world.everything() if sort.startswith("order/")])
    world.drain_transactions()
    world.calls.calm()
    assert all_bytes(world) == b"0123456"
    ((entry,), *_) = seen
    done = seen.index([])
    assert done >= 20
    assert seen == [[entry]] * done + [[]] * (len(seen) - done)


def test_a_seal_takes_no_merge_of_another_for_a_loss(monkeypatch: pytest.MonkeyPatch):
    """Two processes seal, and one dies when it has merged a part of the set, while the other looks for losses."""
    for module in (commit_sets, transaction_commits):
        monkeypatch.setattr(module, "TRANSACTIONS_PER_RUN_MAX", 2)
    for position in itertools.count():
        world = StreamWorld()
        world.create(segments=1)
        ids = [transaction_with(world, b"%d" % number) for number in range(3)]
        world.commit_set(ids)
        world.streams.seal_stream("s", "t")
        world.receive()
        interrupted = world.calls.interrupt_at(position, partial(_die_after_a_merge, world))
        world.process()
        world.calls.calm()
        assert all_bytes(world) == b"012", f"before call {position}"
        states = {world.transactions.get_transaction("s", "t", transaction).state for transaction in ids}
        assert states == {COMMITTED}, f"before call {position}"
        if not interrupted:
            break
    assert position >= 20


def _die_after_a_merge(world: StreamWorld) -> None:
    def die(kind: str) -> None:
        if kind == "segment store merge_segments":
            raise Crash(kind)

    world.calls.after = die
    with contextlib.suppress(Crash):
        world.process()
    world.calls.calm()


def _commit_and_seal(world: StreamWorld, members: dict[str, list[int]], sealed: str) -> None:
    world.commit_set(members)
    world.drain_transactions()
    world.seal(sealed)


@pytest.mark.parametrize("sealed", ["t", "u"])
def test_a_set_committed_before_a_seal_is_known(sealed: str):
    """Another process commits it, and the stream is sealed, between the reads of this one."""
    for seed, position in itertools.product(range(10), range(6)):
        world = StreamWorld(seed, workers=ShuffledWorkers(seed))
        world.create()
        world.create("u")
        members = {"t": [world.begin()], "u": [world.begin("u")]}
        answered = world.calls.interrupt_at(position, partial(_commit_and_seal, world, members, sealed))
        assert not world.commit_set(members).new, f"before call {position} with the seed {seed}"
        assert answered
