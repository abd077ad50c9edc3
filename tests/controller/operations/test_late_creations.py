"""A processor that slept before it made segments leaves none that a later operation would have removed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from interruptions import after_each_sleep, sleep_at, work_on_request
from stream_world import StreamWorld, ranges

from headrace.controller.operations.registry import undo_request
from headrace.model.errors import HeadraceError, NotFoundError, UnavailableError
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.transactions import TransactionState, transaction_text


def _names(world: StreamWorld) -> list[str]:
    return [name.removeprefix("s/t/") for name in world.bare_segment_stores.names()]


def _accept_creation(world: StreamWorld) -> None:
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2)))


def _accept_scale(world: StreamWorld) -> None:
    world.create()
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))


def _accept_growth(world: StreamWorld) -> None:
    world.create()
    world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(4)))


def _finish(world: StreamWorld) -> None:
    world.process()
    world.bare_queue.acknowledge(world.in_hand.receipt)  # else the queue keeps the next message back


def _delete(world: StreamWorld) -> list[str]:
    _finish(world)
    world.seal()
    world.delete()
    return _names(world)


def _make_again(world: StreamWorld) -> list[str]:
    _delete(world)
    world.create()
    return _names(world)


def _truncate(world: StreamWorld) -> list[str]:
    """All segments that the stream had until then."""
    _finish(world)
    world.update(segments=1)
    tail = world.tail_ids()
    world.scale(tail, [0.0, 1.0])
    world.truncate({world.tail_ids()[0]: 0})
    return _names(world)


def _give_up(world: StreamWorld) -> list[str]:
    """And scale again, which removes what the former scale may have left."""
    pending = world.records.get("s", "t").stream.pending
    assert pending is not None
    undo_request(world.bare_store, "s", "t", pending).write()
    assert world.in_hand is not None
    world.bare_queue.acknowledge(world.in_hand.receipt)
    world.scale([1], [0.5, 1.0])
    return _names(world)


@pytest.mark.parametrize("meanwhile", [_delete, _make_again, _truncate])
@pytest.mark.parametrize("accept", [_accept_creation, _accept_scale, _accept_growth])
def test_a_late_creation_leaves_no_segment(
    accept: Callable[[StreamWorld], None], meanwhile: Callable[[StreamWorld], list[str]]
):
    slept = 0
    for position, world, names in after_each_sleep(work_on_request(accept, _names), meanwhile):
        slept += 1
        assert _names(world) == names, f"asleep at call {position}"
    assert slept >= 4


def test_segments_of_a_scale_that_was_given_up_do_not_come_back():
    """It sleeps at its calls until its epoch is on record: then a scale is not given up any more."""
    work = work_on_request(_accept_scale, _names)
    for position in range(3):
        world = work.accept()
        names = sleep_at(work, world, position, _give_up)
        assert _names(world) == names, f"asleep at call {position}"


def test_a_creation_answered_too_late_leaves_no_segment():
    """The store has carried it out, and the answer comes after the time-out."""
    world = StreamWorld()
    _accept_creation(world)
    world.receive()

    def answer_late(kind: str) -> None:
        if kind == "segment store create_segments":
            world.calls.calm()
            raise UnavailableError("no answer in time")

    def delete_before(kind: str) -> None:
        if kind == "segment store create_segments":
            world.calls.calm()
            _delete(world)
            world.calls.after = answer_late

    world.calls.before = delete_before
    with pytest.raises(UnavailableError):
        world.process()
    assert _names(world) == []


def test_a_late_roll_leaves_no_segment():
    def accept() -> StreamWorld:
        world = StreamWorld()
        world.create()
        world.update(segments=1)
        transaction = world.begin()
        world.write_in(transaction, 0.1, b"late")
        world.scale([0, 1], [0.0, 1.0])
        world.transactions.commit_transaction("s", "t", transaction)
        (world.in_hand,) = world.bare_commits.receive()
        return world

    def meanwhile(world: StreamWorld) -> list[str]:
        world.commits.process(world.in_hand.body)
        world.seal()
        world.delete()
        return _names(world)

    for position in range(60):
        world = accept()
        returned = world.calls.interrupt_at(position, partial(meanwhile, world))
        world.commits.process(world.in_hand.body)
        world.calls.calm()
        if not returned:
            break
        assert [_names(world)] == returned, f"asleep at call {position}"
    assert 10 <= position < 59


def _seal(world: StreamWorld) -> None:
    world.seal()


def _seal_and_delete(world: StreamWorld) -> None:
    world.seal()
    world.delete()


def _mark_for_abort(world: StreamWorld) -> None:
    """As the tick does when a lease has ended."""
    for transaction in world.transactions.list_open("s", "t", 10).items:
        world.transactions.abort_transaction("s", "t", transaction.transaction_id)


def _abort(world: StreamWorld) -> None:
    _mark_for_abort(world)
    world.drain_transactions()


def _commit_as_another(world: StreamWorld) -> None:
    """A client that found the transaction in the list writes an event in it, if it can, and commits it."""
    for transaction in world.transactions.list_open("s", "t", 10).items:
        with suppress(NotFoundError):
            world.write_in(transaction.transaction_id, 0.0, b"event")
        world.another_transaction_service().commit_transaction("s", "t", transaction.transaction_id)


def _transactions_with_segments(world: StreamWorld) -> set[str]:
    return {name.partition("#transaction.")[2] for name in _names(world) if "#transaction." in name}


def _open_transactions(world: StreamWorld) -> set[str]:
    with suppress(NotFoundError):
        return {
            transaction_text(transaction.transaction_id)
            for transaction in world.transactions.list_open("s", "t", 10).items
        }
    return set()


@pytest.mark.parametrize("is_stream_known", [False, True])
@pytest.mark.parametrize("meanwhile", [_seal, _seal_and_delete, _mark_for_abort, _abort, _commit_as_another])
def test_a_late_transaction_leaves_no_segment(meanwhile: Callable[[StreamWorld], None], is_stream_known: bool):
    for position in range(20):
        world = StreamWorld()
        world.create()
        if is_stream_known:
            world.begin()
            _abort(world)
        returned = world.calls.interrupt_at(position, partial(meanwhile, world))
        with suppress(HeadraceError):
            world.begin()
        world.calls.calm()
        world.drain_transactions()
        if not returned:
            break
        assert _transactions_with_segments(world) == _open_transactions(world), f"asleep at call {position}"
    assert 3 <= position < 19


def test_a_repeat_takes_the_place_of_an_aborted_transaction():
    world = StreamWorld()
    world.create()
    with world.calls.overtaken("segment store create_segments", lambda: _abort(world)):
        begun = world.begin()
    assert _open_transactions(world) == _transactions_with_segments(world) == {transaction_text(begun)}


def test_what_another_client_commits_is_kept():
    """It does so between the creation of the segments and the read that follows."""
    world = StreamWorld()
    world.create()

    def commit(kind: str) -> None:
        if kind == "segment store create_segments":
            world.calls.calm()
            _commit_as_another(world)

    world.calls.after = commit
    begun = world.begin()
    world.drain_transactions()
    (ended,) = world.transactions.list_completed("s", "t")
    assert ended.state is TransactionState.COMMITTED
    assert world.bare_segment_stores.segment_info("s/t/0.#epoch.0").length == len(b"event")
    assert _open_transactions(world) == _transactions_with_segments(world) == {transaction_text(begun)}
