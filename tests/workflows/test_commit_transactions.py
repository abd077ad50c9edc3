"""Commits: in the order of the marks, in batches, and past the epoch of transactions that a scale has overtaken."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace.codec.records.writer_mark_record import writer_mark_sort
from headrace.metadata.keys import current_key
from headrace.model.epochs import overlapping
from headrace.model.errors import ConflictError, InvalidRequestError, NotFoundError, SealedError, UnavailableError
from headrace.model.segments import KeyRange
from headrace.model.stream_state import StreamState
from headrace.model.transactions import TransactionState, WriterTime, reference_epoch_of
from headrace.ports.deadlines import PIECE_S, WorkLeftError, time_limit
from headrace.workflows import commit_transactions


def _all_bytes(world: Any, stream: str = "t") -> bytes:
    """What a reader sees of a stream of one key, from the head to the tail."""
    found = world.segments.between("s", stream, None, None)
    return b"".join(
        world.bare_segment_stores.read(one.segment.name, one.start_offset, 1 << 20)
        for one in found.ranges
        if one.segment.key_range.low == 0.0
    )


def _transaction(world: Any, data: bytes, position: float = 0.0) -> int:
    identifier = world.begin()
    world.write_in(identifier, position, data)
    return identifier


def _states(world: Any, *transactions: int) -> list[TransactionState]:
    return [world.transactions.get_transaction("s", "t", one).state for one in transactions]


def test_events_come_in_the_order_of_the_marks(world: Any):
    world.create(segments=2)
    first, second, third = (_transaction(world, data) for data in (b"1", b"2", b"3"))
    for one in (second, third, first):
        world.transactions.commit_transaction("s", "t", one)
    assert _all_bytes(world) == b""
    world.drain_transactions()
    assert _all_bytes(world) == b"231"
    assert _states(world, first, second, third) == [TransactionState.COMMITTED] * 3
    assert world.streams.get_stream("s", "t").state is StreamState.ACTIVE
    assert world.bare_segment_stores.names() == ["s/t/0.#epoch.0", "s/t/1.#epoch.0"]


def test_one_message_commits_everything_that_is_marked(world: Any):
    world.create(segments=1)
    count = commit_transactions.TRANSACTIONS_PER_RUN_MAX + 5
    for number in range(count):
        one = _transaction(world, b"%03d" % number)
        world.transactions.commit_transaction("s", "t", one)
    message, *_ = world.bare_commits.receive()
    world.commits.process(message.body)
    assert _all_bytes(world) == b"".join(b"%03d" % number for number in range(count))
    assert world.transactions.list_open("s", "t", 10).items == ()
    assert len(world.transactions.list_completed("s", "t")) == count


def test_a_message_whose_time_is_over_goes_on_in_another(world: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commit_transactions, "TRANSACTIONS_PER_RUN_MAX", 2)
    world.create(segments=1)
    for number in range(5):
        world.transactions.commit_transaction("s", "t", _transaction(world, b"%d" % number))
    (message,) = world.bare_commits.receive()
    world.calls.after = lambda kind: world.clock.advance(4_000 if kind == "segment store merge_segments" else 0)
    with time_limit(world.clock, 2 * 4 + PIECE_S), pytest.raises(WorkLeftError):
        world.commits.process(message.body)
    assert _all_bytes(world) == b"0123"
    world.commits.process(message.body)
    assert _all_bytes(world) == b"01234"


def test_a_transaction_that_a_scale_overtook_rolls(world: Any):
    world.create(segments=1)
    late = _transaction(world, b"late")
    world.bare_segment_stores.append("s/t/0.#epoch.0", b"a", 0)
    world.scale([0], [0.0, 0.5, 1.0])
    world.bare_segment_stores.append("s/t/1.#epoch.1", b"b", 0)
    world.commit(late)
    stream = world.records.get("s", "t").stream
    assert (stream.state, stream.epoch.number, stream.recorded_epoch) == (StreamState.ACTIVE, 3, 3)
    assert stream.epoch.reference_epoch == 1
    assert world.tail_ids() == [3 << 32 | 1, 3 << 32 | 2]
    world.bare_segment_stores.append("s/t/1.#epoch.3", b"c", 0)
    assert _all_bytes(world) == b"ablatec", "behind what was there before, before what comes after"
    followers = world.segments.successors("s", "t", 1 << 32 | 1).segments
    assert [one.segment.name for one in followers] == ["s/t/0.#epoch.2"]
    assert [one.segment.name for one in world.segments.successors("s", "t", 2 << 32).segments] == [
        "s/t/1.#epoch.3",
        "s/t/2.#epoch.3",
    ]
    world.scale([3 << 32 | 1], [0.0, 0.25, 0.5])
    assert [one & 0xFFFFFFFF for one in world.tail_ids()] == [3, 4, 2]


def test_transactions_begun_behind_a_roll_do_not_roll(world: Any):
    world.create(segments=1)
    late = _transaction(world, b"late")
    world.scale([0], [0.0, 1.0])
    early = _transaction(world, b"x")
    world.commit(late)
    young = world.transactions.create_transaction("s", "t", 60_000)
    assert reference_epoch_of(young.transaction_id) == 1
    assert [one.name for one in young.segments] == ["s/t/1.#epoch.1"]
    world.write_in(young.transaction_id, 0.0, b"y")
    world.commit(early, young.transaction_id)
    assert world.records.get("s", "t").stream.epoch.number == 3
    assert _all_bytes(world) == b"latexy"


def test_one_roll_serves_all_transactions_of_an_epoch_and_the_order_stays(world: Any):
    world.create(segments=1)
    old = [_transaction(world, data) for data in (b"1", b"2", b"3")]
    world.scale([0], [0.0, 1.0])
    new = _transaction(world, b"n")
    for one in (old[0], old[1], new, old[2]):
        world.transactions.commit_transaction("s", "t", one)
    world.drain_transactions()
    assert _all_bytes(world) == b"12n3"
    assert world.records.get("s", "t").stream.epoch.number == 5


def test_amid_a_roll_writers_and_readers_find_their_way(world: Any, stream_world: Any):
    """Between sealing the old segments and the end of the roll, successors and the tail are known."""
    world.create(segments=1)
    late = _transaction(world, b"late")
    world.scale([0], [0.0, 0.5, 1.0])
    world.transactions.commit_transaction("s", "t", late)
    (message,) = world.bare_commits.receive()
    seen: list[tuple[int, bool]] = []

    def look(kind: str) -> None:
        world.calls.calm()
        tail = world.segments.stream_cut("s", "t", "tail")
        infos = {one: world.bare_segment_stores.segment_info(one) for one in world.bare_segment_stores.names()}
        for identifier in world.tail_ids():
            sealed = infos[f"s/t/{identifier & 0xFFFFFFFF}.#epoch.{identifier >> 32}"].is_sealed
            followers = world.segments.successors("s", "t", identifier).segments
            assert followers or not sealed, f"a writer of segment {identifier} would not know where to go on"
            while followers and infos[followers[0].segment.name].is_sealed:
                followers = world.segments.successors("s", "t", followers[0].segment.segment_id).segments
                assert followers
        seen.append((tail.last_epoch, tail.positions != ()))
        world.segments.between("s", "t", None, tail.offsets)
        world.calls.after = look

    world.calls.after = look
    world.commits.process(message.body)
    world.calls.calm()
    assert {epoch for epoch, _ in seen} == {1, 3}


def test_while_another_operation_runs_a_commit_waits(world: Any, stream_world: Any):
    world.create(segments=1)
    one = _transaction(world, b"x")
    world.streams.scale_stream("s", "t", [0], stream_world.ranges(0.0, 1.0))
    world.transactions.commit_transaction("s", "t", one)
    (message,) = world.bare_commits.receive()
    with pytest.raises(ConflictError):
        world.commits.process(message.body)
    world.drain()
    world.commits.process(message.body)
    assert _all_bytes(world) == b"x"


@pytest.mark.parametrize("has_begun", [True, False], ids=["begun", "ended"])
def test_a_run_that_begins_or_ends_amid_the_read_is_read_again(world: Any, stream_world: Any, has_begun: bool):
    """The batch sees the stream of before and the run of after."""
    world.create(segments=1)
    world.transactions.commit_transaction("s", "t", _transaction(world, b"x"))
    (message,) = world.bare_commits.receive()

    def begin() -> None:
        world.calls.refuse("segment store merge_segments", stream_world.Crash())
        with pytest.raises(stream_world.Crash):
            world.commits.process(message.body)
        world.calls.calm()

    if not has_begun:
        begin()
    real, current = world.store.get_many, world.bare_store.get(current_key("s", "t"))

    def torn(keys: Any) -> Any:
        world.store.get_many = real
        if has_begun:
            begin()
        else:
            world.commits.process(message.body)
        return [current, world.bare_store.get(keys[1])]

    world.store.get_many = torn
    world.commits.process(message.body)
    assert _all_bytes(world) == b"x"
    assert world.records.get("s", "t").stream.state is StreamState.ACTIVE


def test_the_position_of_a_commit_with_a_time_is_kept(world: Any):
    world.create(segments=2)
    timed, plain = _transaction(world, b"abc", 0.7), _transaction(world, b"d")
    world.transactions.commit_transaction("s", "t", timed, WriterTime("w", 7))
    world.commit(plain)
    done = world.transactions.get_transaction("s", "t", timed)
    assert done.writer_time == WriterTime("w", 7)
    assert done.position == ((0, 1), (1, 3))
    assert world.transactions.get_transaction("s", "t", plain).position == ()
    (mark,) = [body for (_, sort), (_, body) in world.everything().items() if sort == writer_mark_sort("w")]
    assert mark["time"] == 7


def test_the_position_of_a_roll_is_in_the_epoch_that_was_passed(world: Any):
    world.create(segments=1)
    late = _transaction(world, b"late")
    world.scale([0], [0.0, 0.5, 1.0])
    world.transactions.commit_transaction("s", "t", late, WriterTime("w", -1))
    world.drain_transactions()
    assert world.transactions.get_transaction("s", "t", late).position == ((2 << 32, 4),)


def test_sealing_aborts_what_is_open_and_commits_what_was_marked(world: Any):
    world.create(segments=1)
    rolling, dropped = _transaction(world, b"old"), _transaction(world, b"never")
    world.scale([0], [0.0, 0.5, 1.0])
    plain = _transaction(world, b"new")
    for one in (plain, rolling):
        world.transactions.commit_transaction("s", "t", one)
    world.seal()
    assert _states(world, plain, rolling, dropped) == [
        TransactionState.COMMITTED,
        TransactionState.COMMITTED,
        TransactionState.ABORTED,
    ]
    assert _all_bytes(world) == b"newold"
    assert world.streams.get_stream("s", "t").state is StreamState.SEALED
    assert not [name for name in world.bare_segment_stores.names() if "#transaction" in name]
    assert world.drain_transactions() == 1, "a message that comes late finds nothing to do"
    with pytest.raises(SealedError):
        world.begin()


def test_deleting_forgets_transactions(world: Any):
    world.create(segments=1)
    late = _transaction(world, b"late")
    aborted = _transaction(world, b"never")
    world.transactions.abort_transaction("s", "t", aborted)
    world.drain_transactions()
    world.scale([0], [0.0, 1.0])
    world.commit(late)
    world.seal()
    # A creator that slept makes segments after its transaction was aborted.
    name = next(one.transaction_segment for one in world.transactions.segments_of("s", "t", aborted).segments)
    world.bare_segment_stores.create_segments([name], None)
    world.delete()
    assert world.bare_segment_stores.names() == []
    assert [sort for partition, sort in world.everything() if partition == "transactions/s/t"] == []
    with pytest.raises(NotFoundError):
        world.transactions.get_transaction("s", "t", late)
    world.create(segments=1)
    assert world.tail_ids() == [2], "numbers go on behind all epochs, duplicates too"


def test_a_segment_that_must_be_there_but_is_not_is_an_error(world: Any):
    world.create(segments=1)
    one = _transaction(world, b"x")
    world.bare_segment_stores.delete_segment("s/t/0.#epoch.0")
    world.transactions.commit_transaction("s", "t", one)
    (message,) = world.bare_commits.receive()
    with pytest.raises(NotFoundError):
        world.commits.process(message.body)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "abort_transaction", "scope": "s", "stream": "t", "transaction": "0" * 32},
        {"kind": "commit_transaction", "scope": "s", "stream": "t", "transaction": "0"},
        {"kind": "commit_transaction", "scope": "s/", "stream": "t", "transaction": "0" * 32},
        {"kind": "commit_transaction", "scope": "s", "stream": 1, "transaction": "0" * 32},
    ],
)
def test_what_is_no_message_is_refused_for_good(world: Any, body: dict[str, Any]):
    with pytest.raises(InvalidRequestError):
        world.commits.process(body)


def test_many_rolls_of_many_segments_stay_within_what_a_record_holds(world: Any):
    """Each roll seals all segments twice under old numbers: their sizes must not gather in one record."""
    world.create(segments=40)
    late = [_transaction(world, b"x") for _ in range(30)]
    world.scale([0], [0.0, 1 / 40])
    for one in late:
        world.commit(one)
    stream = world.records.get("s", "t").stream
    assert stream.epoch.number == 1 + 2 * len(late)
    epoch_of_dups = [one for one in stream.epoch.segments if one.epoch == stream.epoch.number]
    assert overlapping(epoch_of_dups, KeyRange(0.0, 1.0)) == stream.epoch.segments
    shards = [body for (_, sort), (_, body) in world.everything().items() if sort.startswith("sealed/")]
    assert max(len(body["segments"]) for body in shards) <= 16 * 41


@pytest.mark.parametrize("rolls", [False, True], ids=["in place", "rolling"])
def test_a_transaction_that_may_lack_bytes_is_aborted_alone(world: Any, rolls: bool, caplog: pytest.LogCaptureFixture):
    """The store refuses to merge it. The others of its batch are committed, and the stream goes on."""
    world.create(segments=1)
    first, lost, last = (_transaction(world, data) for data in (b"1", b"lost", b"2"))
    (name,) = [one.transaction_segment for one in world.transactions.segments_of("s", "t", lost).segments]
    if rolls:
        world.scale([0], [0.0, 0.5, 1.0])
    world.bare_segment_stores.lose_volume(name)
    for one in (first, lost, last):
        world.transactions.commit_transaction("s", "t", one)
    world.drain_transactions()
    aborted, committed = TransactionState.ABORTED, TransactionState.COMMITTED
    assert _states(world, first, lost, last) == [committed, aborted, committed]
    assert _all_bytes(world) == b"12"
    assert name not in world.bare_segment_stores.names()
    assert world.streams.get_stream("s", "t").state is StreamState.ACTIVE
    assert f"{lost:032x} of s/t is aborted" in caplog.text
    world.commit(_transaction(world, b"3"))
    assert _all_bytes(world) == b"123"


@pytest.mark.parametrize("rolls", [False, True], ids=["in place", "rolling"])
@pytest.mark.parametrize("gone", [False, True], ids=["incomplete", "gone"])
def test_nothing_is_shown_of_a_transaction_that_is_aborted(world: Any, rolls: bool, gone: bool):
    """The first of its segments is whole, on another volume. Of the second bytes are lost, or all that there was."""
    world.create(segments=2)
    lost, other = _transaction(world, b"lost"), _transaction(world, b"other")
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
    assert _states(world, lost, other) == [TransactionState.ABORTED, TransactionState.COMMITTED]
    assert _all_bytes(world) == b"other"


def test_a_commit_set_is_aborted_as_a_whole(world: Any):
    """Its transactions are committed together or not at all, also when a volume with one of them is lost."""
    world.create(segments=2)
    whole, lost, other = (_transaction(world, data) for data in (b"whole", b"lost", b"other"))
    (name, _) = [one.transaction_segment for one in world.transactions.segments_of("s", "t", lost).segments]
    world.bare_segment_stores.lose_volume(name)
    world.transactions.commit_all("s", "t", "key", [whole, lost])
    world.transactions.commit_transaction("s", "t", other)
    world.drain_transactions()
    aborted, committed = TransactionState.ABORTED, TransactionState.COMMITTED
    assert _states(world, whole, lost, other) == [aborted, aborted, committed]
    assert _all_bytes(world) == b"other"
    assert world.bare_segment_stores.names() == ["s/t/0.#epoch.0", "s/t/1.#epoch.0"]


def test_a_store_that_is_away_amid_an_abort_lets_nothing_be_shown(world: Any, monkeypatch: pytest.MonkeyPatch):
    """A volume is lost after the commit began; when the rest is removed, the last segment's store does not answer."""
    world.create(segments=3)
    lost = _transaction(world, b"lost", 0.9)
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
    assert _states(world, lost) == [TransactionState.ABORTED]
    assert [stores.segment_info(f"s/t/{number}.#epoch.0").length for number in range(3)] == [0, 0, 0]
    assert stores.names() == ["s/t/0.#epoch.0", "s/t/1.#epoch.0", "s/t/2.#epoch.0"]


@pytest.mark.parametrize("gone", [False, True], ids=["incomplete", "gone"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "behind"])
def test_a_crash_anywhere_amid_such_an_abort_loses_nothing_unsaid(stream_world: Any, done: bool, gone: bool):
    """The one that lacks bytes never counts as committed, whichever of its segments are gone, and nothing is shown."""
    for position in itertools.count():
        world = stream_world.StreamWorld()
        world.create(segments=2)
        lost, other = _transaction(world, b"lost"), _transaction(world, b"other")
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
        assert _states(world, lost, other) == [TransactionState.ABORTED, TransactionState.COMMITTED], position
        assert _all_bytes(world) == b"other"
        assert world.bare_segment_stores.names() == ["s/t/0.#epoch.0", "s/t/1.#epoch.0"]
        if not died:
            break
    assert position > 5


@pytest.mark.parametrize("away", [0, 1, 2])
def test_a_part_of_such_an_abort_that_is_not_deleted_is_not_merged(
    world: Any, monkeypatch: pytest.MonkeyPatch, away: int
):
    """The store of one of its segments is away, the others are deleted: the commit comes again."""
    world.create(segments=3)
    lost = _transaction(world, b"lost", 0.0)
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
    assert _states(world, lost) == [TransactionState.ABORTED]
    own = [f"s/t/{number}.#epoch.0" for number in range(3)]
    assert stores.names() == own
    assert [stores.segment_info(name).length for name in own] == [0, 0, 0]
