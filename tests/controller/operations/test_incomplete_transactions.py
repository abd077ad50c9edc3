"""A transaction that may lack bytes is aborted when it is to be committed, and nothing of it is shown."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from stream_commits import all_bytes, states, transaction_with
from stream_world import StreamWorld

from fuzz.watched_ports import Crash
from headrace.controller.steps import transaction_commits
from headrace.model import commit_sets
from headrace.model.commit_sets import TRANSACTIONS_PER_RUN_MAX
from headrace.model.errors import UnavailableError
from headrace.model.stream_state import StreamState
from headrace.model.transactions import TransactionState
from headrace.ports.clock import PIECE_S, WorkLeftError, time_limit

IN_TWO_RUNS = (0, TRANSACTIONS_PER_RUN_MAX - 1, TRANSACTIONS_PER_RUN_MAX + 49)
"""Members of a set: the first one, the last of the first run, and the last of the second one."""


@pytest.mark.parametrize("rolls", [False, True], ids=["in place", "rolling"])
def test_a_transaction_that_may_lack_bytes_is_aborted_alone(
    world: StreamWorld, rolls: bool, caplog: pytest.LogCaptureFixture
):
    """The store refuses to merge it. The others of its batch are committed, and the stream goes on."""
    world.create(segments=1)
    first, lost, last = (transaction_with(world, data) for data in (b"1", b"lost", b"2"))
    (name,) = [segment.transaction_segment for segment in world.transactions.segments_of("s", "t", lost).segments]
    if rolls:
        world.scale([0], [0.0, 0.5, 1.0])
    world.bare_segment_stores.lose_volume(name)
    for transaction in (first, lost, last):
        world.transactions.commit_transaction("s", "t", transaction)
    world.drain_transactions()
    aborted, committed = TransactionState.ABORTED, TransactionState.COMMITTED
    assert states(world, first, lost, last) == [committed, aborted, committed]
    assert all_bytes(world) == b"12"
    assert name not in world.bare_segment_stores.names()
    assert world.streams.get_stream("s", "t").state is StreamState.ACTIVE
    assert f"{lost:032x} of s/t is aborted" in caplog.text
    world.commit(transaction_with(world, b"3"))
    assert all_bytes(world) == b"123"


@pytest.mark.parametrize("rolls", [False, True], ids=["in place", "rolling"])
@pytest.mark.parametrize("gone", [False, True], ids=["incomplete", "gone"])
def test_nothing_is_shown_of_a_transaction_that_is_aborted(world: StreamWorld, rolls: bool, gone: bool):
    """The first of its segments is whole, on another volume. Of the second bytes are lost, or all that there was."""
    world.create(segments=2)
    lost, other = transaction_with(world, b"lost"), transaction_with(world, b"other")
    _, name = [segment.transaction_segment for segment in world.transactions.segments_of("s", "t", lost).segments]
    if gone:
        world.bare_segment_stores.delete_segment(name)
    else:
        world.bare_segment_stores.lose_volume(name)
    if rolls:
        world.scale([0], [0.0, 0.25, 0.5])
    for transaction in (lost, other):
        world.transactions.commit_transaction("s", "t", transaction)
    world.drain_transactions()
    assert states(world, lost, other) == [TransactionState.ABORTED, TransactionState.COMMITTED]
    assert all_bytes(world) == b"other"


def test_a_commit_set_is_aborted_as_a_whole(world: StreamWorld):
    """Its transactions are committed together or not at all, also when a volume with one of them is lost."""
    world.create(segments=2)
    whole, lost, other = (transaction_with(world, data) for data in (b"whole", b"lost", b"other"))
    (name, _) = [segment.transaction_segment for segment in world.transactions.segments_of("s", "t", lost).segments]
    world.bare_segment_stores.lose_volume(name)
    world.commit_set([whole, lost])
    world.transactions.commit_transaction("s", "t", other)
    world.drain_transactions()
    aborted, committed = TransactionState.ABORTED, TransactionState.COMMITTED
    assert states(world, whole, lost, other) == [aborted, aborted, committed]
    assert all_bytes(world) == b"other"
    assert world.bare_segment_stores.names() == ["s/t/0.#epoch.0", "s/t/1.#epoch.0"]


def test_an_abort_with_a_store_away_shows_no_events(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    """A volume is lost after the commit began; when the rest is removed, the last segment's store does not answer."""
    world.create(segments=3)
    lost = transaction_with(world, b"lost", 0.9)
    names = [segment.transaction_segment for segment in world.transactions.segments_of("s", "t", lost).segments]
    world.transactions.commit_transaction("s", "t", lost)
    (message,) = world.bare_commits.receive()
    stores, delete = world.bare_segment_stores, world.bare_segment_stores.delete_segments
    away = {names[2]}

    def delete_some(wanted: list[str]) -> None:
        delete([name for name in wanted if name not in away])
        if not away.isdisjoint(wanted):
            away.clear()
            raise UnavailableError("the store does not answer")

    monkeypatch.setattr(stores, "delete_segments", delete_some)
    world.calls.before = lambda kind: stores.lose_volume(names[1]) if kind == "segment store merge_segments" else None
    with pytest.raises(UnavailableError):
        world.commits.process(message.body)
    world.calls.calm()
    world.commits.process(message.body)
    assert states(world, lost) == [TransactionState.ABORTED]
    assert [stores.segment_info(f"s/t/{number}.#epoch.0").length for number in range(3)] == [0, 0, 0]
    assert stores.names() == ["s/t/0.#epoch.0", "s/t/1.#epoch.0", "s/t/2.#epoch.0"]


@pytest.mark.parametrize("gone", [False, True], ids=["incomplete", "gone"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "behind"])
def test_a_crash_during_an_incomplete_abort_reports_every_loss(done: bool, gone: bool):
    """The one that lacks bytes never counts as committed, whichever of its segments are gone, and nothing is shown."""
    for position in itertools.count():
        world = StreamWorld()
        world.create(segments=2)
        lost, other = transaction_with(world, b"lost"), transaction_with(world, b"other")
        names = [segment.transaction_segment for segment in world.transactions.segments_of("s", "t", lost).segments]
        if gone:
            world.bare_segment_stores.delete_segment(names[1])
        else:
            world.bare_segment_stores.lose_volume(names[1])
        for transaction in (lost, other):
            world.transactions.commit_transaction("s", "t", transaction)
        (message,) = world.bare_commits.receive()
        died = world.calls.dies(lambda: world.commits.process(message.body), position, done=done)  # noqa: B023
        world.commits.process(message.body)
        assert states(world, lost, other) == [TransactionState.ABORTED, TransactionState.COMMITTED], position
        assert all_bytes(world) == b"other"
        assert world.bare_segment_stores.names() == ["s/t/0.#epoch.0", "s/t/1.#epoch.0"]
        if not died:
            break
    assert position > 5


@pytest.mark.parametrize("away", [0, 1, 2])
def test_a_segment_left_by_an_incomplete_abort_is_not_merged(
    world: StreamWorld, monkeypatch: pytest.MonkeyPatch, away: int
):
    """The store of one of its segments is away, the others are deleted: the commit comes again."""
    world.create(segments=3)
    lost = transaction_with(world, b"lost", 0.0)
    for position in (0.5, 0.9):
        world.write_in(lost, position, b"lost")
    names = [segment.transaction_segment for segment in world.transactions.segments_of("s", "t", lost).segments]
    stores = world.bare_segment_stores
    stores.lose_volume(names[0])
    world.transactions.commit_transaction("s", "t", lost)
    (message,) = world.bare_commits.receive()
    delete = stores.delete_segments

    def delete_what_is_there(wanted: list[str]) -> None:
        delete([name for name in wanted if name != names[away]])
        if names[away] in wanted:
            raise UnavailableError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(stores, "delete_segments", delete_what_is_there)
        with pytest.raises(UnavailableError):
            world.commits.process(message.body)
    world.commits.process(message.body)
    assert states(world, lost) == [TransactionState.ABORTED]
    own = [f"s/t/{number}.#epoch.0" for number in range(3)]
    assert stores.names() == own
    assert [stores.segment_info(name).length for name in own] == [0, 0, 0]


def _large_set(world: StreamWorld) -> list[int]:
    """A set that needs two runs, and bytes in three of its members: of the first run, and of the second."""
    count = TRANSACTIONS_PER_RUN_MAX + 50
    members = [world.transactions.create_transaction("s", "t", 60_000, on_demand=True) for _ in range(count)]
    ids = [stored.transaction_id for stored in members]
    for index in IN_TWO_RUNS:
        world.transactions.create_segments("s", "t", ids[index], [0])
        world.write_in(ids[index], 0.0, b"%d," % index)
    return ids


def _segment_of(world: StreamWorld, transaction: int) -> str:
    return world.transactions.segments_of("s", "t", transaction).segments[0].transaction_segment


@pytest.mark.parametrize("index", IN_TWO_RUNS)
def test_a_set_of_several_runs_is_aborted_as_a_whole(world: StreamWorld, index: int):
    """Before its first run all members are checked, also those that a later run would take."""
    world.create(segments=1)
    ids, other = _large_set(world), transaction_with(world, b"other")
    world.bare_segment_stores.lose_volume(_segment_of(world, ids[index]))
    world.commit_set(ids)
    world.transactions.commit_transaction("s", "t", other)
    world.drain_transactions()
    assert set(states(world, *ids)) == {TransactionState.ABORTED}
    assert states(world, other) == [TransactionState.COMMITTED]
    assert all_bytes(world) == b"other"
    assert world.bare_segment_stores.names() == ["s/t/0.#epoch.0"]
    assert [sort for _, sort in world.everything() if sort.startswith(("commit-part/", "order/", "open/"))] == []


def test_a_loss_after_the_first_run_of_a_set_aborts_one(world: StreamWorld):
    """The members of the first run are committed: only the one that lost bytes can still be aborted."""
    world.create(segments=1)
    ids = _large_set(world)
    world.commit_set(ids)
    world.calls.before = lambda kind: (
        world.bare_segment_stores.lose_volume(_segment_of_undisturbed(world, ids[-1]))
        if kind == "segment store merge_segments"
        else None
    )
    world.drain_transactions()
    world.calls.calm()
    assert set(states(world, *ids[:-1])) == {TransactionState.COMMITTED}
    assert states(world, ids[-1]) == [TransactionState.ABORTED]
    assert all_bytes(world) == b"0,%d," % (TRANSACTIONS_PER_RUN_MAX - 1)
    assert [sort for _, sort in world.everything() if sort.startswith(("commit-part/", "order/", "open/"))] == []


def test_a_loss_that_another_has_noted_is_not_missed(monkeypatch: pytest.MonkeyPatch):
    """A volume is lost while a run is planned. Another process notes that, and dies before it begins the run."""
    for module in (commit_sets, transaction_commits):
        monkeypatch.setattr(module, "TRANSACTIONS_PER_RUN_MAX", 2)
    was_noted = False
    for position in itertools.count():
        world = StreamWorld()
        world.create(segments=1)
        ids = [transaction_with(world, b"%d" % number) for number in range(4)]
        name = _segment_of(world, ids[-1])
        world.commit_set(ids)
        (message,) = world.bare_commits.receive()
        begun = world.calls.interrupt_at(position, partial(_lose_and_note, world, name, message.body))
        world.commits.process(message.body)
        world.calls.calm()
        if not begun or not begun[0]:
            break
        was_noted = True
        assert set(states(world, *ids)) == {TransactionState.ABORTED}, f"before call {position}"
        assert all_bytes(world) == b"", f"before call {position}"
    assert was_noted


def _lose_and_note(world: StreamWorld, name: str, message: Mapping[str, Any]) -> bool:
    """Whether a process notes the loss of a member's segment. It dies of that."""
    world.bare_segment_stores.lose_volume(name)
    noted: list[str] = []

    def die_when_noted(kind: str) -> None:
        noted.extend(sort for (_, sort), (_, body) in world.everything().items() if body.get("lost"))
        if noted:
            raise Crash(kind)

    world.calls.after = die_when_noted
    with contextlib.suppress(Crash):
        world.commits.process(message)
    world.calls.calm()
    return bool(noted)


def _segment_of_undisturbed(world: StreamWorld, transaction: int) -> str:
    world.calls.calm()
    return _segment_of(world, transaction)


def test_aborting_many_that_lost_bytes_goes_on(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    """Each invocation has the time for a few of them, and the next one begins where it stopped."""
    world.create(segments=1)
    *lost, whole = (transaction_with(world, b"%d" % number) for number in range(11))
    stores, asked = world.bare_segment_stores, list[str]()
    names = [_segment_of(world, transaction) for transaction in lost]
    stores.lose_volume(*names)
    for transaction in (*lost, whole):
        world.transactions.commit_transaction("s", "t", transaction)
    delete = stores.delete_segments

    def slow(wanted: Sequence[str]) -> None:
        world.clock.advance(1_000)
        asked.extend(wanted)
        delete(wanted)

    monkeypatch.setattr(stores, "delete_segments", slow)
    message, *_ = world.bare_commits.receive()
    for _ in names:
        with time_limit(world.clock, PIECE_S + 3), contextlib.suppress(WorkLeftError):
            world.commits.process(message.body)
    assert states(world, *lost, whole) == [*([TransactionState.ABORTED] * len(lost)), TransactionState.COMMITTED]
    assert all_bytes(world) == b"10"
    assert set(asked) == set(names)
    assert max(Counter(asked).values()) <= 2, "only the last one may be deleted again"
    assert stores.names() == ["s/t/0.#epoch.0"]


def test_a_check_for_losses_holds_few_names_at_once(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    """A set of 2,500 transactions has millions of segments if each has those of a stream of a thousand."""
    monkeypatch.setattr(transaction_commits, "SEGMENTS_CHECKED_MAX", 4)
    monkeypatch.setattr(transaction_commits, "TRANSACTIONS_PER_RUN_MAX", 3)
    world.create(segments=3)
    *whole, lost = (transaction_with(world, b"%d" % number) for number in range(8))
    (*_, name) = [segment.transaction_segment for segment in world.transactions.segments_of("s", "t", lost).segments]
    stores, asked = world.bare_segment_stores, list[int]()
    stores.lose_volume(name)
    find = stores.incomplete_segments

    def counted(names: Sequence[str]) -> set[str]:
        asked.append(len(names))
        return find(names)

    monkeypatch.setattr(stores, "incomplete_segments", counted)
    world.commit_set([*whole, lost])
    world.drain_transactions()
    assert set(states(world, *whole, lost)) == {TransactionState.ABORTED}
    assert max(asked) <= 6, "the segments of a transaction are asked for together"
    assert sum(asked) >= 8 * 3
