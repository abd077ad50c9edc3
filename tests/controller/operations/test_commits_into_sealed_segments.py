"""A client seals an active segment over the wire, and transactions are to be merged into it: the commit rolls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from soundness import assert_sound
from stream_commits import all_bytes, states, transaction_with
from stream_world import StreamWorld, ranges, segment

from fuzz.watched_ports import Crash
from headrace.model.errors import ConflictError
from headrace.model.stream_state import StreamState
from headrace.model.transactions import TransactionState

SEALED = "s/t/0.#epoch.0"

OPERATIONS: dict[str, Callable[[Any], object]] = {
    "nothing": lambda w: None,
    "scale": lambda w: w.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5)),
    "scale of both": lambda w: w.streams.scale_stream("s", "t", [0, 1], ranges(0.0, 0.3, 1.0)),
    "truncate": lambda w: w.streams.truncate_stream("s", "t", {0: 3, 1: 0}),
    "update": lambda w: w.update(segments=4),
    "seal": lambda w: w.streams.seal_stream("s", "t"),
}


def _written(world: StreamWorld) -> list[int]:
    """Two transactions in both segments of a stream, marked for commit."""
    world.create(segments=2)
    world.append(0, 3)
    found = []
    for data in (b"1", b"2"):
        transaction = transaction_with(world, data)
        world.write_in(transaction, 0.5, data)
        world.transactions.commit_transaction("s", "t", transaction)
        found.append(transaction)
    return found


def test_the_commit_rolls_and_the_stream_is_writable(world: StreamWorld):
    written = _written(world)
    world.bare_segment_stores.seal_segment(SEALED)
    young = transaction_with(world, b"3")
    world.drain_transactions()
    assert states(world, *written) == [TransactionState.COMMITTED] * 2
    stream = world.records.get("s", "t").stream
    assert (stream.state, stream.epoch.number, stream.epoch.reference_epoch) == (StreamState.ACTIVE, 2, 0)
    assert world.tail_ids() == [segment(0, 2), segment(1, 2)]
    assert not any(world.bare_segment_stores.segment_info(f"s/t/{number}.#epoch.2").is_sealed for number in (0, 1))
    world.commit(young)
    assert world.records.get("s", "t").stream.epoch.number == 2, "it did not roll again"
    assert all_bytes(world) == b"\0\0\x00123"
    assert_sound(world)


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_was_merged_before_stays_in_front(world: StreamWorld, name: str):
    """The run has merged into the other segment; an operation waits for it."""
    written = _written(world)
    merges = count()

    def seal_then_die(kind: str) -> None:
        if kind == "segment store merge_segments" and next(merges) == 1:
            raise Crash(kind)

    world.calls.before = seal_then_die
    (message, *_) = world.bare_commits.receive()
    with pytest.raises(Crash):
        world.commits.process(message.body)
    world.calls.calm()
    world.bare_commits.release(message.receipt)
    world.bare_segment_stores.seal_segment("s/t/1.#epoch.0")
    OPERATIONS[name](world)
    world.drain()
    world.drain_transactions()
    world.drain()
    assert states(world, *written) == [TransactionState.COMMITTED] * 2
    stream = world.records.get("s", "t").stream
    assert stream.state is (StreamState.SEALED if name == "seal" else StreamState.ACTIVE)
    if name == "nothing":
        assert all_bytes(world) == b"\0\0\x0012"
    if name == "scale":
        assert [segment.segment_id for segment in stream.epoch.segments] == [
            segment(2, 3),
            segment(3, 3),
            segment(1, 2),
        ]
    if name == "scale of both":
        assert [segment.segment_id for segment in stream.epoch.segments] == [segment(2, 3), segment(3, 3)]
    assert_sound(world)


def test_a_segment_that_waits_for_its_scale_may_stop_a_commit(world: StreamWorld):
    """A writer has found it sealed while transactions were committed."""
    written = _written(world)
    world.calls.refuse("segment store merge_segments", Crash())
    (message, *_) = world.bare_commits.receive()
    with pytest.raises(Crash):
        world.commits.process(message.body)
    world.calls.calm()
    world.bare_commits.release(message.receipt)
    world.bare_segment_stores.seal_segment(SEALED)
    assert world.segments.successors("s", "t", 0, as_recorded=True).segments == ()
    assert world.records.get("s", "t").stream.shown_state is StreamState.SCALING
    world.drain()
    world.drain_transactions()
    assert states(world, *written) == [TransactionState.COMMITTED] * 2
    assert world.segments.successors("s", "t", 0, as_recorded=True).segments
    assert all_bytes(world) == b"\0\0\x0012"
    assert_sound(world)


def test_processes_that_meet_lose_and_double_nothing():
    """Another process commits the same run at each call of the first."""
    position = 0
    while True:
        world = StreamWorld()
        written = _written(world)
        world.bare_segment_stores.seal_segment(SEALED)
        (message, *_) = world.bare_commits.receive()

        def commit(world: StreamWorld = world, body: Any = message.body) -> None:
            world.commits.process(body)

        asked = world.calls.interrupt_at(position, commit)
        try:
            commit()
        except ConflictError:
            assert asked
        world.calls.calm()
        world.bare_commits.release(message.receipt)
        world.drain_transactions()
        assert states(world, *written) == [TransactionState.COMMITTED] * 2
        assert all_bytes(world) == b"\0\0\x0012"
        assert world.tail_ids() == [segment(0, 2), segment(1, 2)]
        assert_sound(world)
        if not asked:
            return
        position += 1


def test_crashes_lose_and_double_nothing():
    position = 0
    while True:
        for done in (False, True):
            world = StreamWorld()
            written = _written(world)
            world.bare_segment_stores.seal_segment(SEALED)
            (message, *_) = world.bare_commits.receive()

            def commit(world: StreamWorld = world, body: Any = message.body) -> None:
                world.commits.process(body)

            died = world.calls.dies(commit, position, done=done)
            commit()
            world.bare_commits.release(message.receipt)
            world.drain_transactions()
            assert states(world, *written) == [TransactionState.COMMITTED] * 2
            assert all_bytes(world) == b"\0\0\x0012"
            assert_sound(world)
        if not died:
            return
        position += 1


def test_a_stream_that_is_sealed_commits_them_first(world: StreamWorld):
    """The run begins while the stream is being sealed, after a client has sealed a segment."""
    written = _written(world)
    world.bare_segment_stores.seal_segment(SEALED)
    world.streams.seal_stream("s", "t")
    world.drain()
    world.drain_transactions()
    assert states(world, *written) == [TransactionState.COMMITTED] * 2
    assert world.records.get("s", "t").stream.state is StreamState.SEALED
    assert all_bytes(world) == b"\0\0\x0012"
    assert_sound(world)
    world.delete()
    assert world.bare_segment_stores.names() == []
