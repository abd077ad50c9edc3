"""Commit sets: what they commit, when they are refused, and what a repetition answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from stream_commits import all_bytes, transaction_with
from stream_world import StreamWorld

from fuzz.watched_ports import ShuffledWorkers
from headrace.api.transactions import CommitSetView
from headrace.deployment_defaults import COMPLETED_TRANSACTIONS_KEPT_MS
from headrace.metadata.commit_records import find_commit_writer
from headrace.model.commit_sets import EPOCH_MAX, NOTE_BYTES_MAX, SET_TRANSACTIONS_MAX
from headrace.model.errors import HeadraceError, UnavailableError
from headrace.model.transactions import TransactionState, transaction_text

UNKNOWN = 0xABC
OPEN, ABORTED, COMMITTED = TransactionState.OPEN, TransactionState.ABORTED, TransactionState.COMMITTED


@pytest.fixture
def stream(world: StreamWorld) -> StreamWorld:
    """The streams t and u."""
    world.create(segments=2)
    world.create("u", segments=1)
    return world


def _error(ask: Callable[[], object]) -> HeadraceError:
    with pytest.raises(HeadraceError) as refused:
        ask()
    return refused.value


def _code(ask: Callable[[], object]) -> str:
    return _error(ask).specific_code


def _states(world: StreamWorld, members: list[int], stream: str = "t") -> set[TransactionState]:
    return {world.transactions.get_transaction("s", stream, transaction).state for transaction in members}


def _set_records(world: StreamWorld) -> list[tuple[str, str]]:
    """What must be gone when every set is complete."""
    return [key for key in world.everything() if key[1].startswith(("commit-part/", "order/", "open/"))]


def test_a_set_of_several_streams_is_committed(stream: StreamWorld):
    here, there = [stream.begin() for _ in range(3)], [stream.begin("u") for _ in range(2)]
    made = stream.commit_set({"t": here, "u": there}, writer="spark:1", epoch=7)
    assert (made.writer, made.epoch, made.new, made.time_ms) == ("spark:1", 7, True, stream.clock.now_ms())
    assert stream.drain_transactions() == 2, "one message for each stream"
    assert _states(stream, here) | _states(stream, there, "u") == {COMMITTED}
    assert _set_records(stream) == []


def test_the_home_stream_may_have_no_member(stream: StreamWorld):
    there = [stream.begin("u")]
    assert stream.commit_set({"u": there}, home="t", epoch=1).new
    stream.drain_transactions()
    assert _states(stream, there, "u") == {COMMITTED}
    assert stream.commit_sets.committed_epoch("s", "t", "w").epoch == 1
    assert stream.commit_sets.committed_epoch("s", "u", "w").epoch is None


def test_a_repetition_is_recognised_for_ever(stream: StreamWorld):
    members = [stream.begin()]
    made = stream.commit_set(members, epoch=EPOCH_MAX)
    for pause_ms in (0, 1_000, COMPLETED_TRANSACTIONS_KEPT_MS, 100 * COMPLETED_TRANSACTIONS_KEPT_MS):
        stream.clock.advance(pause_ms)
        stream.drain_transactions()
        for _ in range(3):
            stream.expire_transactions(0)
        again = stream.commit_set(members, epoch=EPOCH_MAX)
        assert (again.new, again.epoch, again.time_ms) == (False, EPOCH_MAX, made.time_ms)


def test_an_epoch_of_the_past_aborts_what_came_with_it(stream: StreamWorld):
    """A sink that wrote an epoch again commits nothing twice, and leaves no transaction open."""
    first, late, prepared = stream.begin(), [stream.begin(), stream.begin()], [stream.begin("u")]
    stream.commit_set([first], epoch=5)
    answer = stream.commit_set({"t": [*late, first], "u": prepared}, epoch=4)
    assert (answer.new, answer.epoch) == (False, 5)
    stream.drain_transactions()
    assert _states(stream, late) | _states(stream, prepared, "u") == {ABORTED}
    assert _states(stream, [first]) == {COMMITTED}


def test_writers_and_homes_do_not_know_each_other(stream: StreamWorld):
    first, second, third = stream.begin(), stream.begin(), stream.begin("u")
    assert stream.commit_set([first], writer="a", epoch=5).new
    assert stream.commit_set([second], writer="b", epoch=3).new
    assert stream.commit_set([third], home="u", writer="a", epoch=0).new
    assert stream.commit_sets.committed_epoch("s", "t", "a").epoch == 5


def test_a_set_is_all_or_nothing(stream: StreamWorld):
    good, aborted, committed = stream.begin(), stream.begin("u"), stream.begin()
    stream.transactions.abort_transaction("s", "u", aborted)
    stream.transactions.commit_transaction("s", "t", committed)
    before = stream.everything()
    error = _error(lambda: stream.commit_set({"t": [good], "u": [aborted]}))
    assert error.specific_code == "transaction_aborted"
    assert (error.details["transaction"], error.details["stream"]) == (transaction_text(aborted), "u")
    assert _code(lambda: stream.commit_set({"t": [good, committed]})) == "transaction_committed"
    assert _code(lambda: stream.commit_set({"t": [good], "u": [UNKNOWN]})) == "transaction_not_found"
    assert _code(lambda: stream.commit_set({"t": [good], "nowhere": [UNKNOWN]})) == "not_found"
    assert _code(lambda: stream.commit_set({"t": [good]}, home="nowhere")) == "not_found"
    assert stream.everything() == before, "a set that cannot be committed writes nothing"
    assert stream.commit_sets.committed_epoch("s", "t", "w").epoch is None


def test_a_sealed_home_takes_no_new_set(stream: StreamWorld):
    member, earlier = stream.begin("u"), stream.begin("u")
    stream.commit_set({"u": [earlier]}, epoch=1)
    stream.seal()
    assert _code(lambda: stream.commit_set({"u": [member]}, epoch=2)) == "sealed"
    assert not stream.commit_set({"u": [earlier]}, epoch=1).new, "what was committed is still known"


def test_the_epochs_go_with_the_incarnation_of_the_home(stream: StreamWorld):
    stream.commit_set([stream.begin()], epoch=9)
    stream.drain_transactions()
    stream.seal()
    stream.delete()
    assert _code(lambda: stream.commit_sets.committed_epoch("s", "t", "w")) == "not_found"
    stream.create()
    assert stream.commit_sets.committed_epoch("s", "t", "w").epoch is None
    assert stream.commit_set([stream.begin()], epoch=0).new


@pytest.mark.parametrize("how", ["abort", "commit"])
def test_a_member_that_ends_amid_the_preparation_refuses_all(stream: StreamWorld, how: str):
    """It ends after the members were read, when the set is begun: those that were prepared are open again."""
    here, there = [stream.begin() for _ in range(150)], stream.begin("u")
    service = stream.transactions
    end = service.abort_transaction if how == "abort" else service.commit_transaction
    writes = 0

    def count(kind: str) -> None:
        nonlocal writes
        writes += kind == "transaction"
        if writes == 3:  # after the beginning and the preparation of a first chunk
            stream.calls.calm()
            end("s", "u", there)

    stream.calls.before = count
    error = _error(lambda: stream.commit_set({"t": here, "u": [there]}, epoch=1))
    assert error.specific_code == ("transaction_aborted" if how == "abort" else "transaction_committed")
    assert _states(stream, here) == {OPEN}
    assert [key for key in stream.everything() if key[1].startswith("commit-part/")] == []
    stored = find_commit_writer(stream.store, "s", "t", "w")
    assert stored is not None
    assert (stored.writer.epoch, stored.writer.pending) == (None, None)
    assert stream.commit_set({"t": here}, epoch=1).new


def _half_prepared(stream: StreamWorld, members: dict[str, list[int]], calls: int) -> None:
    """A process begins a set of epoch 1 and dies before its write with this number."""
    writes = 0

    def die(kind: str) -> None:
        nonlocal writes
        writes += kind in ("transaction", "write")
        if writes == calls:
            raise RuntimeError("died")

    stream.calls.before = die
    with pytest.raises(RuntimeError):
        stream.commit_set(members, epoch=1)
    stream.calls.calm()


def test_a_prepared_member_is_not_pinged_or_ended_alone(stream: StreamWorld):
    members = [stream.begin(), stream.begin()]
    _half_prepared(stream, {"t": members}, 3)
    assert _states(stream, members) == {TransactionState.COMMITTING}
    assert _code(lambda: stream.transactions.ping_transaction("s", "t", members[0], 10_000)) == "transaction_committed"
    other = stream.another_transaction_service()
    assert _code(lambda: other.abort_transaction("s", "t", members[0])) == "transaction_committed"
    assert stream.commit_sets.committed_epoch("s", "t", "w").epoch == 1, "any process finishes an undecided set"
    stream.drain_transactions()
    assert not stream.commit_set(members, epoch=1).new


def test_the_last_epoch_is_asked_after_a_lost_answer(stream: StreamWorld):
    """A driver that does not know the outcome of its call asks: what was prepared is committed before the answer."""
    members = [stream.begin(), stream.begin()]
    _half_prepared(stream, {"t": members}, 3)
    assert stream.another_commit_set_service().committed_epoch("s", "t", "w").epoch == 1
    stream.commit_set([stream.begin()], epoch=2)
    stream.drain_transactions()
    assert _states(stream, members) == {COMMITTED}


def test_a_note_is_kept_with_the_last_epoch(stream: StreamWorld):
    """A repetition, a refused set and an epoch of the past change nothing."""

    def known() -> tuple[int | None, str | None]:
        committed = stream.another_commit_set_service().committed_epoch("s", "t", "w")
        return committed.epoch, committed.note

    assert known() == (None, None)
    stream.commit_set([stream.begin()], epoch=3, note="at 3")
    assert known() == (3, "at 3")
    gone = stream.begin()
    stream.transactions.abort_transaction("s", "t", gone)
    assert not stream.commit_set([stream.begin()], epoch=3, note="other").new
    assert _code(lambda: stream.commit_set([gone], epoch=4, note="at 4")) == "transaction_aborted"
    assert known() == (3, "at 3")
    stream.commit_set([stream.begin()], epoch=5)
    assert known() == (5, None)


def test_the_largest_notes_fit_into_the_record(stream: StreamWorld):
    for epoch in range(2):
        assert stream.commit_set([stream.begin()], epoch=epoch, note="é" * (NOTE_BYTES_MAX // 2)).new


def test_an_unfinished_set_that_fails_makes_room(stream: StreamWorld):
    """The process died before it prepared the second member, which is aborted meanwhile: the first is open again."""
    here, there = stream.begin(), stream.begin("u")
    _half_prepared(stream, {"t": [here], "u": [there]}, 3)
    stream.transactions.abort_transaction("s", "u", there)
    assert stream.commit_sets.committed_epoch("s", "t", "w").epoch is None
    assert _states(stream, [here]) == {OPEN}
    assert stream.commit_set([here], epoch=1).new


def test_a_set_takes_over_members_of_one_that_fails(stream: StreamWorld):
    """Another writer's set has prepared a member and cannot be committed: this one does not wait for the tick."""
    here, there = stream.begin(), stream.begin("u")
    _half_prepared(stream, {"t": [here], "u": [there]}, 3)
    stream.transactions.abort_transaction("s", "u", there)
    assert stream.commit_set([here], writer="other", epoch=0).new
    stream.drain_transactions()
    assert _states(stream, [here]) == {COMMITTED}
    assert stream.commit_sets.committed_epoch("s", "t", "w").epoch is None


def test_a_member_has_one_set(stream: StreamWorld):
    shared, own = stream.begin(), stream.begin()
    assert stream.commit_set([shared], writer="a").new
    assert _code(lambda: stream.commit_set([shared, own], writer="b")) == "transaction_committed"
    assert _states(stream, [own]) == {OPEN}


@pytest.mark.parametrize("same", [True, False], ids=["same members", "other members"])
def test_two_processes_commit_the_same_epoch(stream: StreamWorld, same: bool):
    """At each call of the one the other one comes between: one set is committed, and the other one's are aborted."""
    told: Counter[tuple[bool, bool]] = Counter()
    position = 0
    while True:
        world = StreamWorld()
        world.create(segments=1)
        first = [transaction_with(world, b"a"), transaction_with(world, b"b")]
        second = first if same else [transaction_with(world, b"c")]
        came = world.calls.interrupt_at(position, lambda: world.commit_set(second, epoch=3))  # noqa: B023
        own = world.commit_set(first, epoch=3)
        world.calls.calm()
        if not came:
            break
        (other,) = came
        assert isinstance(other, CommitSetView)
        told[own.new, other.new] += 1
        world.drain_transactions()
        assert world.commit_sets.committed_epoch("s", "t", "w").epoch == 3
        committed = [transaction for transaction in {*first, *second} if _states(world, [transaction]) == {COMMITTED}]
        if same:
            assert own.new or other.new or own.epoch == 3
            assert all_bytes(world) == b"ab", f"at call {position}"
        else:
            assert own.new != other.new, f"at call {position}"
            assert all_bytes(world) == (b"ab" if own.new else b"c"), f"at call {position}"
            assert sorted(committed) == sorted(first if own.new else second)
            assert _states(world, second if own.new else first) == {ABORTED}
        assert _set_records(world) == []
        position += 1
    assert len(told) > 1
    assert position >= 8


def test_the_largest_set_is_committed_in_order(stream: StreamWorld):
    world = stream
    world.create("v", segments=1)
    here, there, third = ([world.begin(stream) for _ in range(SET_TRANSACTIONS_MAX // 3)] for stream in "tuv")
    extra = [world.begin() for _ in range(SET_TRANSACTIONS_MAX % 3)]
    for number, transaction in enumerate(there[:200]):
        world.write_in(transaction, 0.0, bytes([number]), "u")
    earlier, later = transaction_with(world, b"-"), transaction_with(world, b"+")
    world.transactions.commit_transaction("s", "t", earlier)
    assert world.commit_set({"t": [*here, *extra], "u": there, "v": third}).new
    world.transactions.commit_transaction("s", "t", later)
    world.drain_transactions()
    assert _states(world, [*here, *extra]) | _states(world, there, "u") | _states(world, third, "v") == {COMMITTED}
    assert all_bytes(world) == b"-+"
    assert world.bare_segment_stores.read("s/u/0.#epoch.0", 0, 999) == bytes(range(200))
    assert _set_records(world) == []


def test_sets_and_single_marks_keep_their_order(world: StreamWorld):
    world.create(segments=1)
    ids = [transaction_with(world, b"%d" % number) for number in range(8)]
    world.transactions.commit_transaction("s", "t", ids[6])
    world.commit_set([ids[3], ids[2]], writer="a")
    world.transactions.commit_transaction("s", "t", ids[0])
    world.commit_set([ids[5]], writer="b")
    world.commit_set([ids[7], ids[4]], writer="a", epoch=1)
    world.transactions.commit_transaction("s", "t", ids[1])
    assert world.drain_transactions() == 1
    assert all_bytes(world) == b"63205741"


def test_many_small_sets_share_runs(world: StreamWorld):
    """Ten sets are in a run, so a backlog of thirty needs three."""
    world.create(segments=1)
    for epoch in range(30):
        world.commit_set([transaction_with(world, b"x"), world.begin()], epoch=epoch)
    world.calls.counts.clear()
    world.drain_transactions()
    assert world.calls.counts["segment store merge_segments"] == 3
    assert len(all_bytes(world)) == 30
    assert _set_records(world) == []


def test_members_of_two_epochs_are_committed_in_two_runs(world: StreamWorld):
    world.create(segments=1)
    late = transaction_with(world, b"late")
    world.scale([0], [0.0, 0.5, 1.0])
    members = [transaction_with(world, b"new"), late]
    assert world.commit_set(members).new
    world.drain_transactions()
    assert _states(world, members) == {COMMITTED}
    assert all_bytes(world) == b"latenew"
    assert _set_records(world) == []


def test_labels_of_former_epochs_are_aborted(stream: StreamWorld):
    def labelled(label: str | None, name: str = "t") -> int:
        return stream.transactions.create_transaction("s", name, 60_000, label=label).transaction_id

    member, there = labelled("q/7/0"), labelled("q/6/x", "u")
    gone = [labelled("q/7"), labelled("q/3/y"), labelled("q/0")]
    kept = [labelled("q/8"), labelled("q/70"), labelled("r/1"), labelled(None), labelled("q/x"), labelled("qq/1")]
    away = labelled("q/1", "u")
    assert stream.commit_set({"u": [there]}, writer="v", epoch=7, abort_labels="q").new
    assert _states(stream, [*gone, member]) == {TransactionState.ABORTING}, "also in the home stream"
    assert _states(stream, [away], "u") == {TransactionState.ABORTING}
    assert _states(stream, kept) == {OPEN}
    stream.drain_transactions()
    assert _states(stream, gone) == {ABORTED}
    assert _states(stream, [there], "u") == {COMMITTED}


def test_labels_are_aborted_by_a_repetition_too(stream: StreamWorld):
    """The first call may have died before it came to that."""
    member = stream.begin()
    stream.commit_set([member], epoch=7)
    late = stream.transactions.create_transaction("s", "t", 60_000, label="q/7/2").transaction_id
    assert not stream.commit_set([member], epoch=7, abort_labels="q").new
    assert _states(stream, [late]) == {TransactionState.ABORTING}
    assert _states(stream, [member]) == {TransactionState.COMMITTING}


@pytest.mark.parametrize("is_past", [False, True], ids=["leftovers", "members of a past epoch"])
def test_many_aborts_do_not_multiply_threads(is_past: bool):
    """Those of all streams are marked at the same time, and then all messages are sent; never both in one piece."""
    stream = StreamWorld(workers=ShuffledWorkers(0))
    names = [f"t{number}" for number in range(3)]
    for name in names:
        stream.create(name, segments=1)
    first, members = {"t0": [stream.begin("t0")]}, {name: [stream.begin(name) for _ in range(3)] for name in names}
    left = {
        name: [stream.transactions.create_transaction("s", name, 60_000, label="q/1").transaction_id for _ in range(3)]
        for name in names
    }
    if is_past:
        assert stream.commit_set(first, "t0", epoch=1).new
    answer = stream.commit_set(members, "t0", epoch=1, abort_labels="q")
    stream.drain_transactions()
    for name in names:
        assert _states(stream, left[name], name) == {ABORTED}
        assert _states(stream, members[name], name) == {ABORTED if is_past else COMMITTED}
    assert answer.new != is_past


def test_a_failure_in_one_stream_keeps_no_abort_back():
    stream = StreamWorld(workers=ShuffledWorkers(0))
    for name in "tuv":
        stream.create(name, segments=1)
        stream.transactions.create_transaction("s", name, 60_000, label="q/1")
    members = {name: [stream.begin(name)] for name in "tuv"}
    queries = iter([None, None, None, None, UnavailableError("it does not answer"), None])

    def fail(kind: str) -> None:
        if kind == "query" and (error := next(queries)) is not None:
            raise error

    stream.calls.before = fail
    assert _code(lambda: stream.commit_set(members, epoch=1, abort_labels="q")) == "unavailable"
    assert len(stream.bare_aborts) == 2, "those of the other streams are aborted at once"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"writer": "a/b"}, "invalid_commit_set"),
        ({"epoch": -1}, "invalid_commit_set"),
        ({"epoch": EPOCH_MAX + 1}, "invalid_commit_set"),
        ({"abort_labels": "a b"}, "invalid_label"),
        ({"note": "n" * (NOTE_BYTES_MAX + 1)}, "invalid_commit_set"),
    ],
    ids=["writer", "negative", "too_high", "labels", "note"],
)
def test_what_is_no_set(stream: StreamWorld, wrong: dict[str, Any], code: str):
    member = stream.begin()
    assert _code(lambda: stream.commit_set([member], **wrong)) == code
    assert _states(stream, [member]) == {OPEN}
