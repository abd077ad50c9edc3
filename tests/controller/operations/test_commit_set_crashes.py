"""A commit set whose process dies, or whose streams end, at any call: all of its members are committed, or none.

The set has two members in t, one in u, and its home is h. Its members have long leases, so that only the set ends them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from stream_commits import all_bytes
from stream_world import StreamWorld

from fuzz.watched_ports import Crash
from headrace import topology
from headrace.metadata.commit_records import find_commit_writer
from headrace.model.errors import HeadraceError
from headrace.model.transactions import CHECK_EVERY_MS, TransactionState

LEASE_MS = 24 * 3600 * 1000
OPEN, ABORTED, COMMITTED = TransactionState.OPEN, TransactionState.ABORTED, TransactionState.COMMITTED


@dataclass
class Case:
    """A world with the members of a set, which is not begun."""

    world: StreamWorld
    members: dict[str, list[int]]

    def commit(self) -> bool:
        """Whether this call committed the set."""
        return self.world.commit_set(self.members, home="h", epoch=1).new

    def state(self) -> TransactionState:
        """The one state that all members are in."""
        service = self.world.transactions
        (found,) = {
            service.get_transaction("s", name, transaction).state
            for name, ids in self.members.items()
            for transaction in ids
        }
        return found

    def states(self, stream: str) -> set[TransactionState]:
        return {
            self.world.transactions.get_transaction("s", stream, transaction).state
            for transaction in self.members[stream]
        }

    def bytes(self) -> tuple[bytes, bytes]:
        return all_bytes(self.world), all_bytes(self.world, "u")


def _case() -> Case:
    world = StreamWorld()
    for name in "htu":
        world.create(name, segments=1)
    members = {name: [world.begin(name, LEASE_MS) for _ in range(2 if name == "t" else 1)] for name in "tu"}
    for name, ids in members.items():
        for number, transaction in enumerate(ids):
            world.write_in(transaction, 0.0, b"%d" % number, name)
    return Case(world, members)


def _work_off(world: StreamWorld) -> None:
    """Ticks and messages for some minutes."""
    for _ in range(3):
        world.clock.advance(CHECK_EVERY_MS + 1)
        for bucket in range(topology.BUCKET_COUNT):
            while world.expire_transactions(bucket):
                continue
        world.drain()
        world.drain_transactions()


def _dead(done: bool) -> Iterator[tuple[int, Case]]:
    """The set, whose process died at each of its calls in turn, before or after it."""
    position = 0
    while True:
        case = _case()
        if not case.world.calls.dies(case.commit, position, done=done):
            break
        yield position, case
        position += 1
    assert position >= 10


def _records(world: StreamWorld, stream: str) -> list[str]:
    """What there is in the partition of the transactions of a stream."""
    return [sort for partition, sort in world.everything() if partition == f"transactions/s/{stream}"]


def _left(world: StreamWorld, stream: str) -> list[str]:
    """What a set leaves in the records of a stream, except for its writer."""
    return [sort for sort in _records(world, stream) if sort.startswith(("commit-part/", "order/"))]


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
def test_a_repetition_completes_what_a_dead_process_began(done: bool):
    news: Counter[bool] = Counter()
    for position, case in _dead(done):
        news[case.commit()] += 1
        case.world.drain_transactions()
        _work_off(case.world)
        assert case.state() is COMMITTED, f"dead at call {position}"
        assert case.bytes() == (b"01", b"0"), f"dead at call {position}"
        assert _left(case.world, "t") + _left(case.world, "u") == []
        assert not case.commit()
    assert news[True]
    assert news[False]


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
def test_the_tick_ends_what_a_dead_process_prepared(done: bool):
    """The driver never comes back. What has no prepared member stays open: it was never more than a request."""
    outcomes: Counter[TransactionState] = Counter()
    for position, case in _dead(done):
        _work_off(case.world)
        outcomes[case.state()] += 1
        assert case.state() in (OPEN, COMMITTED), f"dead at call {position}"
        assert case.bytes() == ((b"01", b"0") if case.state() is COMMITTED else (b"", b""))
        told = case.world.commit_sets.committed_epoch("s", "h", "w").epoch
        case.world.drain_transactions()
        _work_off(case.world)
        assert (case.state(), told) in ((COMMITTED, 1), (OPEN, None)), f"dead at call {position}"
        assert _left(case.world, "t") + _left(case.world, "u") == []
    assert set(outcomes) == {OPEN, COMMITTED}


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
def test_a_tick_that_dies_too_is_followed_by_another(done: bool):
    for position, case in _dead(done):
        for later in range(3):
            case.world.clock.advance(CHECK_EVERY_MS + 1)
            for bucket in range(topology.BUCKET_COUNT):
                case.world.calls.dies(partial(case.world.expire_transactions, bucket), later, done=done)
        case.world.clock.advance(200_000)  # past the leases on the buckets
        _work_off(case.world)
        assert case.state() in (OPEN, COMMITTED), f"dead at call {position}"


def _seal(name: str) -> Callable[[StreamWorld], None]:
    return lambda world: world.seal(name)


def _delete(name: str) -> Callable[[StreamWorld], None]:
    def delete(world: StreamWorld) -> None:
        world.seal(name)
        world.delete(name)

    return delete


def _recreate(name: str) -> Callable[[StreamWorld], None]:
    def recreate(world: StreamWorld) -> None:
        _delete(name)(world)
        world.create(name, segments=1)

    return recreate


END: dict[str, tuple[str, Callable[[StreamWorld], None]]] = {
    f"{how.__name__[1:]} {name}": (name, how(name)) for how in (_seal, _delete, _recreate) for name in "htu"
}


def _assert_settled(case: Case, ended: str, how: str, position: int) -> None:
    """No member waits for a decision, and the members that can still be seen have one outcome."""
    _work_off(case.world)
    case.world.calls.calm()
    seen = [name for name in "tu" if name != ended or how == "seal"]
    found = {name: case.states(name) for name in seen}
    committed = {COMMITTED} in found.values()
    for name, states in found.items():
        allowed = [{COMMITTED}] if committed else [{OPEN}, {ABORTED}]
        assert states in allowed, f"{found} at call {position}"
        assert _left(case.world, name) == [], f"at call {position}"
        expected = (b"01" if name == "t" else b"0") if committed else b""
        assert all_bytes(case.world, name) == expected
    if ended in "tu" and how == "seal" and not committed:
        assert found[ended] == {ABORTED}


@pytest.mark.parametrize("end", END)
def test_a_stream_that_ends_amid_a_set(end: str):
    """It ends before any call of the commit. The call fails, or the set was decided before the end."""
    ended, finish = END[end]
    how = end.split()[0]
    position, told = 0, Counter[str]()
    while True:
        case = _case()
        came = case.world.calls.interrupt_at(position, lambda: finish(case.world))  # noqa: B023
        try:
            told["new" if case.commit() else "known"] += 1
        except HeadraceError as error:
            told[error.specific_code] += 1
        case.world.calls.calm()
        if not came:
            break
        _assert_settled(case, ended, how, position)
        if how == "delete":
            assert _records(case.world, ended) == [], f"at call {position}"
        position += 1
    assert position >= 12
    assert told["new"] > 1
    assert len(told) > 1


@pytest.mark.parametrize("end", END)
def test_a_stream_that_ends_after_the_process_died(end: str):
    """What is left of the set does not keep a stream from its end, and no other stream waits for it."""
    ended, finish = END[end]
    how = end.split()[0]
    for position, case in _dead(done=True):
        finish(case.world)
        if how == "delete":
            assert _records(case.world, ended) == [], f"dead at call {position}"
        if ended != "h" and find_commit_writer(case.world.store, "s", "h", "w") is not None:
            case.world.commit_sets.committed_epoch("s", "h", "w")
        _assert_settled(case, ended, how, position)


def test_a_dead_process_leaves_nothing_that_stops_a_later_set():
    """Its members are aborted by the driver, which then commits others under the same epoch."""
    for position, case in _dead(done=True):
        fresh = [case.world.begin("t", LEASE_MS)]
        answer = case.world.commit_set({"t": fresh}, home="h", epoch=1)
        case.world.drain_transactions()
        _work_off(case.world)
        (state,) = {case.world.transactions.get_transaction("s", "t", transaction).state for transaction in fresh}
        assert state is (COMMITTED if answer.new else ABORTED), f"dead at call {position}"


def test_a_member_that_is_prepared_too_late_is_released():
    """Between the read and the write of a chunk another process refuses the set: the members belong to no set."""
    case = _case()
    writes = 0

    def refuse(kind: str) -> None:
        nonlocal writes
        writes += kind == "transaction"
        if writes == 2:  # the members in t are prepared after the beginning
            case.world.calls.calm()
            case.world.another_transaction_service().abort_transaction("s", "u", case.members["u"][0])
            case.world.another_commit_set_service().committed_epoch("s", "h", "w")
            assert case.states("t") == {OPEN}

    case.world.calls.before = refuse
    with pytest.raises(HeadraceError) as refused:
        case.commit()
    assert refused.value.specific_code == "transaction_aborted"
    assert case.states("t") == {OPEN}
    assert _left(case.world, "t") == []
    assert case.world.commit_set({"t": case.members["t"]}, home="h", epoch=1).new


def test_crash_is_not_an_error_of_the_controller():
    """Or a test that expects errors would take a crash for one."""
    assert not issubclass(Crash, HeadraceError)
