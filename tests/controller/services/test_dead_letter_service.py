"""The dead-letter service: list, inspect, replay, drop, and what each costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from stream_world import StreamWorld, ranges

from fuzz.watched_ports import Crash
from headrace.controller.write_dead_letter import handle_dead_letter
from headrace.model.dead_letters import Cause, DeadLetter, DeadLetterStatus, Delivery
from headrace.model.errors import ConflictError, IllegalStateError, InvalidRequestError, NotFoundError
from headrace.model.stream_state import StreamState
from headrace.topology import REQUESTS_QUEUE, TICKS_QUEUE

CAUSE = Cause("unavailable", "no segment store answers")
NOWHERE = f"{0:013d}-{'0' * 32}"


def _write_letter(world: StreamWorld, body: Any, queue: str = REQUESTS_QUEUE.name) -> DeadLetter:
    text = body if isinstance(body, str) else json.dumps(body)
    delivery = Delivery(queue, "s/t", text, 1_000, 10)
    letter = handle_dead_letter(world.bare_store, delivery, CAUSE, world.clock.now_ms())
    assert letter is not None
    return letter


def _die(world: StreamWorld) -> DeadLetter:
    """The one message in the queue dies, as if it had been moved to the dead letters."""
    (message,) = world.bare_queue.receive()
    world.bare_queue.acknowledge(message.receipt)
    return _write_letter(world, message.body)


@pytest.fixture
def undone(world: StreamWorld) -> DeadLetter:
    """The letter of a scale of s/t that was taken back."""
    world.create()
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
    return _die(world)


@pytest.fixture
def stuck(world: StreamWorld) -> DeadLetter:
    """The letter of the seal of s/u, which must complete."""
    world.create("u")
    world.streams.seal_stream("s", "u")
    return _die(world)


def test_letters_are_listed_by_time_page_by_page(world: StreamWorld):
    ids = []
    for number in range(5):
        world.clock.advance(1)
        ids.append(_write_letter(world, f"message {4 - number}").letter_id)
    first = world.dead_letters.list_letters(3)
    second = world.dead_letters.list_letters(3, first.next_after)
    assert [letter.letter_id for letter in first.items + second.items] == ids
    assert second.next_after is None
    with pytest.raises(InvalidRequestError):
        world.dead_letters.list_letters(0)


def test_a_scale_that_was_taken_back_is_asked_for_anew(world: StreamWorld, undone: DeadLetter):
    assert undone.status is DeadLetterStatus.UNDONE
    replayed = world.dead_letters.replay_letter(undone.letter_id)
    assert (replayed.status, replayed.replays) == (DeadLetterStatus.REPLAYED, 1)
    assert world.streams.get_stream("s", "t").state is StreamState.SCALING
    world.drain()
    assert len(world.tail_ids()) == 3


def test_replaying_twice_does_it_once(world: StreamWorld, undone: DeadLetter):
    first = world.dead_letters.replay_letter(undone.letter_id)
    world.drain()
    after = world.everything()
    assert world.dead_letters.replay_letter(undone.letter_id) == first
    assert world.drain() == 0
    assert world.everything() == after


def test_a_replay_that_crashed_before_its_note_can_be_repeated(world: StreamWorld, undone: DeadLetter):
    """The stream takes the very same request for the one that runs."""
    world.calls.refuse("write", Crash())
    with pytest.raises(Crash):
        world.dead_letters.replay_letter(undone.letter_id)
    world.calls.calm()
    assert world.dead_letters.replay_letter(undone.letter_id).status is DeadLetterStatus.REPLAYED
    assert world.drain() == 1
    assert world.streams.get_stream("s", "t").epoch == 2, "the first one used up its number"


def test_a_request_that_is_stuck_is_sent_at_once(world: StreamWorld, stuck: DeadLetter):
    assert world.dead_letters.get_letter(stuck.letter_id).status is DeadLetterStatus.STUCK
    assert world.dead_letters.replay_letter(stuck.letter_id).status is DeadLetterStatus.STUCK
    assert world.drain() == 1
    assert world.streams.get_stream("s", "u").state is StreamState.SEALED
    assert world.dead_letters.get_letter(stuck.letter_id).status is DeadLetterStatus.DONE
    assert world.dead_letters.replay_letter(stuck.letter_id).status is DeadLetterStatus.DONE
    assert world.drain() == 0


def test_the_next_request_leaves_an_old_letter_done(world: StreamWorld, stuck: DeadLetter):
    world.dead_letters.replay_letter(stuck.letter_id)
    world.drain()
    world.streams.delete_stream("s", "u")
    assert world.dead_letters.get_letter(stuck.letter_id).status is DeadLetterStatus.DONE


def test_replaying_may_meet_another_operation(world: StreamWorld, undone: DeadLetter):
    world.streams.seal_stream("s", "t")
    with pytest.raises(ConflictError):
        world.dead_letters.replay_letter(undone.letter_id)
    world.drain()
    with pytest.raises(IllegalStateError):
        world.dead_letters.replay_letter(undone.letter_id)
    assert world.dead_letters.get_letter(undone.letter_id).status is DeadLetterStatus.UNDONE


def test_an_unread_message_goes_to_its_queue_again(world: StreamWorld):
    letter = _write_letter(world, {"kind": "of a later version", "scope": "s"})
    assert world.dead_letters.replay_letter(letter.letter_id).status is DeadLetterStatus.REPLAYED
    (message,) = world.bare_queue.receive()
    assert (message.body, message.group) == ({"kind": "of a later version", "scope": "s"}, "s/t")
    assert _write_letter(world, message.body).letter_id != ""
    assert world.dead_letters.get_letter(letter.letter_id).status is DeadLetterStatus.UNPROCESSED


@pytest.mark.parametrize(
    ("body", "queue"), [("no JSON", REQUESTS_QUEUE.name), ({"kind": "resend-intents", "bucket": 1}, TICKS_QUEUE.name)]
)
def test_some_letters_can_only_be_dropped(world: StreamWorld, body: Any, queue: str):
    letter = _write_letter(world, body, queue)
    with pytest.raises(IllegalStateError) as error:
        world.dead_letters.replay_letter(letter.letter_id)
    assert error.value.specific_code == "not_replayable"
    world.dead_letters.drop_letter(letter.letter_id)
    assert world.dead_letters.list_letters(10).items == ()


def test_a_letter_that_was_dropped_is_gone_and_may_come_again(world: StreamWorld, stuck: DeadLetter):
    world.dead_letters.drop_letter(stuck.letter_id)
    for operation in (world.dead_letters.get_letter, world.dead_letters.replay_letter, world.dead_letters.drop_letter):
        with pytest.raises(NotFoundError):
            operation(stuck.letter_id)
    assert not [key for key in world.everything() if key[0].startswith("dead-letter")]
    world.clock.advance(5)
    assert _write_letter(world, stuck.message).letter_id != stuck.letter_id


@pytest.mark.parametrize("operation", ["get_letter", "replay_letter", "drop_letter"])
def test_ids_are_checked(world: StreamWorld, operation: str):
    with pytest.raises(InvalidRequestError):
        getattr(world.dead_letters, operation)("../etc")
    with pytest.raises(NotFoundError):
        getattr(world.dead_letters, operation)(NOWHERE)


READ, QUERY, WRITE, TRANSACTION, SEND = "read", "query", "write", "transaction", "send"
COSTS: dict[str, tuple[Callable[[Any, str, str], object], dict[str, int]]] = {
    "list without stuck ones": (lambda w, undone, stuck: w.dead_letters.list_letters(1), {QUERY: 1}),
    "list with stuck ones": (lambda w, undone, stuck: w.dead_letters.list_letters(100), {QUERY: 1, READ: 1}),
    "get": (lambda w, undone, stuck: w.dead_letters.get_letter(undone), {READ: 1}),
    "get a stuck one": (lambda w, undone, stuck: w.dead_letters.get_letter(stuck), {READ: 2}),
    "replay": (
        lambda w, undone, stuck: w.dead_letters.replay_letter(undone),
        {READ: 2, TRANSACTION: 1, SEND: 1, WRITE: 1},
    ),
    "replay a stuck one": (
        lambda w, undone, stuck: w.dead_letters.replay_letter(stuck),
        {READ: 2, SEND: 1, WRITE: 1},
    ),
    "drop": (lambda w, undone, stuck: w.dead_letters.drop_letter(stuck), {READ: 1, TRANSACTION: 1}),
}


@pytest.mark.parametrize(("operation", "cost"), COSTS.values(), ids=COSTS.keys())
def test_costs(world: StreamWorld, undone: DeadLetter, stuck: DeadLetter, operation: Any, cost: dict[str, int]):
    world.calls.counts.clear()
    operation(world, undone.letter_id, stuck.letter_id)
    assert dict(world.calls.counts) == cost
