"""A transaction that may lack bytes is aborted when it is to be committed, and nothing of it is shown."""

from __future__ import annotations

import itertools

import pytest
from stream_commits import all_bytes, states, transaction_with
from stream_world import StreamWorld

from headrace.model.errors import UnavailableError
from headrace.model.stream_state import StreamState
from headrace.model.transactions import TransactionState


@pytest.mark.parametrize("rolls", [False, True], ids=["in place", "rolling"])
def test_a_transaction_that_may_lack_bytes_is_aborted_alone(
    world: StreamWorld, rolls: bool, caplog: pytest.LogCaptureFixture
):
    """The store refuses to merge it. The others of its batch are committed, and the stream goes on."""
    world.create(segments=1)
    first, lost, last = (transaction_with(world, data) for data in (b"1", b"lost", b"2"))
    (name,) = [one.transaction_segment for one in world.transactions.segments_of("s", "t", lost).segments]
    if rolls:
        world.scale([0], [0.0, 0.5, 1.0])
    world.bare_segment_stores.lose_volume(name)
    for one in (first, lost, last):
        world.transactions.commit_transaction("s", "t", one)
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
    _, name = [one.transaction_segment for one in world.transactions.segments_of("s", "t", lost).segments]
    if gone:
        world.bare_segment_stores.delete_segment(name)
    else:
        world.bare_segment_stores.lose_volume(name)
    if rolls:
        world.scale([0], [0.0, 0.25, 0.5])
    for one in (lost, other):
        world.transactions.commit_transaction("s", "t", one)
    world.drain_transactions()
    assert states(world, lost, other) == [TransactionState.ABORTED, TransactionState.COMMITTED]
    assert all_bytes(world) == b"other"


def test_a_commit_set_is_aborted_as_a_whole(world: StreamWorld):
    """Its transactions are committed together or not at all, also when a volume with one of them is lost."""
    world.create(segments=2)
    whole, lost, other = (transaction_with(world, data) for data in (b"whole", b"lost", b"other"))
    (name, _) = [one.transaction_segment for one in world.transactions.segments_of("s", "t", lost).segments]
    world.bare_segment_stores.lose_volume(name)
    world.transactions.commit_all("s", "t", "key", [whole, lost])
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
    names = [one.transaction_segment for one in world.transactions.segments_of("s", "t", lost).segments]
    world.transactions.commit_transaction("s", "t", lost)
    (message,) = world.bare_commits.receive()
    stores, delete = world.bare_segment_stores, world.bare_segment_stores.delete_segments
    away = {names[2]}

    def delete_some(wanted: list[str]) -> None:
        delete([one for one in wanted if one not in away])
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
        names = [one.transaction_segment for one in world.transactions.segments_of("s", "t", lost).segments]
        if gone:
            world.bare_segment_stores.delete_segment(names[1])
        else:
            world.bare_segment_stores.lose_volume(names[1])
        for one in (lost, other):
            world.transactions.commit_transaction("s", "t", one)
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
    names = [one.transaction_segment for one in world.transactions.segments_of("s", "t", lost).segments]
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
