"""Commits: in the order of the marks, in batches, and past the epoch of transactions that a scale has overtaken."""

from __future__ import annotations

from typing import Any

import pytest
from stream_commits import all_bytes, states, transaction_with
from stream_world import StreamWorld, ranges

from fuzz.watched_ports import Crash
from headrace.controller.steps import transaction_commits
from headrace.metadata.stream import current_key
from headrace.metadata.watermark_records import writer_mark_sort
from headrace.model.commit_sets import TRANSACTIONS_PER_RUN_MAX
from headrace.model.epochs import overlapping
from headrace.model.errors import ConflictError, InvalidRequestError, NotFoundError, SealedError
from headrace.model.segments import KeyRange
from headrace.model.stream_state import StreamState
from headrace.model.transactions import TransactionState, WriterTime, reference_epoch_of
from headrace.ports.clock import PIECE_S, WorkLeftError, time_limit
from headrace.ports.segment_stores import SegmentScaleRate


def test_events_come_in_the_order_of_the_marks(world: StreamWorld):
    world.create(segments=2)
    first, second, third = (transaction_with(world, data) for data in (b"1", b"2", b"3"))
    for transaction in (second, third, first):
        world.transactions.commit_transaction("s", "t", transaction)
    assert all_bytes(world) == b""
    world.drain_transactions()
    assert all_bytes(world) == b"231"
    assert states(world, first, second, third) == [TransactionState.COMMITTED] * 3
    assert world.streams.get_stream("s", "t").state is StreamState.ACTIVE
    assert world.bare_segment_stores.names() == ["s/t/0.#epoch.0", "s/t/1.#epoch.0"]


def test_one_message_commits_everything_that_is_marked(world: StreamWorld):
    world.create(segments=1)
    count = TRANSACTIONS_PER_RUN_MAX + 5
    for number in range(count):
        transaction = transaction_with(world, b"%03d" % number)
        world.transactions.commit_transaction("s", "t", transaction)
    message, *_ = world.bare_commits.receive()
    world.commits.process(message.body)
    assert all_bytes(world) == b"".join(b"%03d" % number for number in range(count))
    assert world.transactions.list_open("s", "t", 10).items == ()
    assert len(world.transactions.list_completed("s", "t")) == count


def test_a_message_whose_time_is_over_goes_on_in_another(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transaction_commits, "TRANSACTIONS_PER_RUN_MAX", 2)
    world.create(segments=1)
    for number in range(5):
        world.transactions.commit_transaction("s", "t", transaction_with(world, b"%d" % number))
    (message,) = world.bare_commits.receive()
    world.calls.after = lambda kind: world.clock.advance(4_000 if kind == "segment store merge_segments" else 0)
    with time_limit(world.clock, 2 * 4 + PIECE_S), pytest.raises(WorkLeftError):
        world.commits.process(message.body)
    assert all_bytes(world) == b"0123"
    world.commits.process(message.body)
    assert all_bytes(world) == b"01234"


def test_a_transaction_that_a_scale_overtook_rolls(world: StreamWorld):
    world.create(segments=1)
    late = transaction_with(world, b"late")
    world.bare_segment_stores.append("s/t/0.#epoch.0", b"a", 0)
    world.scale([0], [0.0, 0.5, 1.0])
    world.bare_segment_stores.append("s/t/1.#epoch.1", b"b", 0)
    world.commit(late)
    stream = world.records.get("s", "t").stream
    assert (stream.state, stream.epoch.number, stream.recorded_epoch) == (StreamState.ACTIVE, 3, 3)
    assert stream.epoch.reference_epoch == 1
    assert world.tail_ids() == [3 << 32 | 1, 3 << 32 | 2]
    world.bare_segment_stores.append("s/t/1.#epoch.3", b"c", 0)
    assert all_bytes(world) == b"ablatec", "behind what was there before, before what comes after"
    followers = world.segments.successors("s", "t", 1 << 32 | 1).segments
    assert [follower.name for follower in followers] == ["s/t/0.#epoch.2"]
    assert [segment.name for segment in world.segments.successors("s", "t", 2 << 32).segments] == [
        "s/t/1.#epoch.3",
        "s/t/2.#epoch.3",
    ]
    world.scale([3 << 32 | 1], [0.0, 0.25, 0.5])
    assert [identifier & 0xFFFFFFFF for identifier in world.tail_ids()] == [3, 4, 2]


def test_transactions_begun_behind_a_roll_do_not_roll(world: StreamWorld):
    world.create(segments=1)
    late = transaction_with(world, b"late")
    world.scale([0], [0.0, 1.0])
    early = transaction_with(world, b"x")
    world.commit(late)
    young = world.transactions.create_transaction("s", "t", 60_000)
    assert reference_epoch_of(young.transaction_id) == 1
    assert [segment.name for segment in young.segments] == ["s/t/1.#epoch.1"]
    world.write_in(young.transaction_id, 0.0, b"y")
    world.commit(early, young.transaction_id)
    assert world.records.get("s", "t").stream.epoch.number == 3
    assert all_bytes(world) == b"latexy"


def test_one_roll_commits_all_transactions_of_an_epoch_in_order(world: StreamWorld):
    world.create(segments=1)
    old = [transaction_with(world, data) for data in (b"1", b"2", b"3")]
    world.scale([0], [0.0, 1.0])
    new = transaction_with(world, b"n")
    for transaction in (old[0], old[1], new, old[2]):
        world.transactions.commit_transaction("s", "t", transaction)
    world.drain_transactions()
    assert all_bytes(world) == b"12n3"
    assert world.records.get("s", "t").stream.epoch.number == 5


def test_amid_a_roll_writers_and_readers_find_their_way(world: StreamWorld):
    """Between sealing the old segments and the end of the roll, successors and the tail are known."""
    world.create(segments=1)
    late = transaction_with(world, b"late")
    world.scale([0], [0.0, 0.5, 1.0])
    world.transactions.commit_transaction("s", "t", late)
    (message,) = world.bare_commits.receive()
    seen: list[tuple[int, bool]] = []

    def look(kind: str) -> None:
        world.calls.calm()
        tail = world.segments.stream_cut("s", "t", "tail")
        infos = {name: world.bare_segment_stores.segment_info(name) for name in world.bare_segment_stores.names()}
        for identifier in world.tail_ids():
            sealed = infos[f"s/t/{identifier & 0xFFFFFFFF}.#epoch.{identifier >> 32}"].is_sealed
            followers = world.segments.successors("s", "t", identifier).segments
            assert followers or not sealed, f"a writer of segment {identifier} would not know where to go on"
            while followers and infos[followers[0].name].is_sealed:
                followers = world.segments.successors("s", "t", followers[0].segment_id).segments
                assert followers
        seen.append((tail.last_epoch, tail.positions != ()))
        world.segments.between("s", "t", None, tail.offsets)
        world.calls.after = look

    world.calls.after = look
    world.commits.process(message.body)
    world.calls.calm()
    assert {epoch for epoch, _ in seen} == {1, 3}


def test_while_another_operation_runs_a_commit_waits(world: StreamWorld):
    world.create(segments=1)
    transaction = transaction_with(world, b"x")
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 1.0))
    world.transactions.commit_transaction("s", "t", transaction)
    (message,) = world.bare_commits.receive()
    with pytest.raises(ConflictError):
        world.commits.process(message.body)
    world.drain()
    world.commits.process(message.body)
    assert all_bytes(world) == b"x"


@pytest.mark.parametrize("has_begun", [True, False], ids=["begun", "ended"])
def test_a_run_that_begins_or_ends_amid_the_read_is_read_again(world: StreamWorld, has_begun: bool):
    """The batch sees the stream of before and the run of after."""
    world.create(segments=1)
    world.transactions.commit_transaction("s", "t", transaction_with(world, b"x"))
    (message,) = world.bare_commits.receive()

    def begin() -> None:
        world.calls.refuse("segment store merge_segments", Crash())
        with pytest.raises(Crash):
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
    assert all_bytes(world) == b"x"
    assert world.records.get("s", "t").stream.state is StreamState.ACTIVE


def test_the_position_of_a_commit_with_a_time_is_kept(world: StreamWorld):
    world.create(segments=2)
    timed, plain = transaction_with(world, b"abc", 0.7), transaction_with(world, b"d")
    world.transactions.commit_transaction("s", "t", timed, WriterTime("w", 7))
    world.commit(plain)
    done = world.transactions.get_transaction("s", "t", timed)
    assert done.writer_time == WriterTime("w", 7)
    assert done.position == ((0, 1), (1, 3))
    assert world.transactions.get_transaction("s", "t", plain).position == ()
    (mark,) = [body for (_, sort), (_, body) in world.everything().items() if sort == writer_mark_sort("w")]
    assert mark["time"] == 7


def test_the_position_of_a_roll_is_in_the_epoch_that_was_passed(world: StreamWorld):
    world.create(segments=1)
    late = transaction_with(world, b"late")
    world.scale([0], [0.0, 0.5, 1.0])
    world.transactions.commit_transaction("s", "t", late, WriterTime("w", -1))
    world.drain_transactions()
    assert world.transactions.get_transaction("s", "t", late).position == ((2 << 32, 4),)


def test_sealing_aborts_what_is_open_and_commits_what_was_marked(world: StreamWorld):
    world.create(segments=1)
    rolling, dropped = transaction_with(world, b"old"), transaction_with(world, b"never")
    world.scale([0], [0.0, 0.5, 1.0])
    plain = transaction_with(world, b"new")
    for transaction in (plain, rolling):
        world.transactions.commit_transaction("s", "t", transaction)
    world.seal()
    assert states(world, plain, rolling, dropped) == [
        TransactionState.COMMITTED,
        TransactionState.COMMITTED,
        TransactionState.ABORTED,
    ]
    assert all_bytes(world) == b"newold"
    assert world.streams.get_stream("s", "t").state is StreamState.SEALED
    assert not [name for name in world.bare_segment_stores.names() if "#transaction" in name]
    assert world.drain_transactions() == 1, "a message that comes late finds nothing to do"
    with pytest.raises(SealedError):
        world.begin()


def test_deleting_forgets_transactions(world: StreamWorld):
    world.create(segments=1)
    late = transaction_with(world, b"late")
    aborted = transaction_with(world, b"never")
    world.transactions.abort_transaction("s", "t", aborted)
    world.drain_transactions()
    world.scale([0], [0.0, 1.0])
    world.commit(late)
    world.seal()
    # A creator that slept makes segments after its transaction was aborted.
    name = next(segment.transaction_segment for segment in world.transactions.segments_of("s", "t", aborted).segments)
    world.bare_segment_stores.create_segments([name], SegmentScaleRate())
    world.delete()
    assert world.bare_segment_stores.names() == []
    assert [sort for partition, sort in world.everything() if partition == "transactions/s/t"] == []
    with pytest.raises(NotFoundError):
        world.transactions.get_transaction("s", "t", late)
    world.create(segments=1)
    assert world.tail_ids() == [2], "numbers go on behind all epochs, duplicates too"


def test_a_segment_that_must_be_there_but_is_not_is_an_error(world: StreamWorld):
    world.create(segments=1)
    transaction = transaction_with(world, b"x")
    world.bare_segment_stores.delete_segment("s/t/0.#epoch.0")
    world.transactions.commit_transaction("s", "t", transaction)
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
def test_what_is_no_message_is_refused_for_good(world: StreamWorld, body: dict[str, Any]):
    with pytest.raises(InvalidRequestError):
        world.commits.process(body)


def test_rolls_of_many_segments_fit_into_one_record(world: StreamWorld):
    """Each roll seals all segments twice under old numbers: their sizes must not gather in one record."""
    world.create(segments=40)
    late = [transaction_with(world, b"x") for _ in range(30)]
    world.scale([0], [0.0, 1 / 40])
    for transaction in late:
        world.commit(transaction)
    stream = world.records.get("s", "t").stream
    assert stream.epoch.number == 1 + 2 * len(late)
    epoch_of_dups = [segment for segment in stream.epoch.segments if segment.epoch == stream.epoch.number]
    assert overlapping(epoch_of_dups, KeyRange(0.0, 1.0)) == stream.epoch.segments
    shards = [body for (_, sort), (_, body) in world.everything().items() if sort.startswith("sealed/")]
    assert max(len(body["segments"]) for body in shards) <= 16 * 41
