"""A message that failed for the last time: its letter, and what becomes of its stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from interruptions import Work, assert_crashes_lose_and_double_nothing
from soundness import assert_sound
from stream_world import StreamWorld, ranges

from headrace.adapters.memory.request_queue import QueuedMessage
from headrace.controller.write_dead_letter import handle_dead_letter
from headrace.model.dead_letters import PROCESSOR_DIED, Cause, DeadLetterStatus, Delivery
from headrace.model.errors import UnavailableError
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState
from headrace.topology import REQUESTS_QUEUE, TICKS_QUEUE

CAUSE = Cause("unavailable", "no segment store answers")


def _accept_scale(world: StreamWorld) -> QueuedMessage:
    world.create()
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
    (message,) = world.bare_queue.receive()
    return message


def _accept_seal(world: StreamWorld) -> QueuedMessage:
    world.create()
    world.streams.seal_stream("s", "t")
    (message,) = world.bare_queue.receive()
    return message


def _delivery(body: Any, queue: str = REQUESTS_QUEUE.name) -> Delivery:
    text = body if isinstance(body, str) else json.dumps(body)
    return Delivery(queue, "s/t", text, first_try_ms=1_000, tries=10)


def _write_letter(world: StreamWorld, body: Any, cause: Cause = CAUSE, **more: Any) -> Any:
    return handle_dead_letter(world.store, _delivery(body), cause, world.clock.now_ms(), **more)


def _letters(world: StreamWorld) -> list[Any]:
    return list(world.dead_letters.list_letters(100).items)


def test_a_scale_that_has_not_begun_is_undone_with_its_letter(world: StreamWorld):
    message = _accept_scale(world)
    letter = _write_letter(world, message.body)
    assert letter.status is DeadLetterStatus.UNDONE
    assert letter.parameters == {"sealedSegments": [0], "newRanges": [[0.0, 0.25], [0.25, 0.5]]}
    assert (letter.cause, letter.subject, letter.kind) == (CAUSE, "s/t", "scale_stream")
    assert _letters(world) == [letter]
    assert world.streams.get_stream("s", "t").state is StreamState.ACTIVE
    world.processor.process(message.body)
    assert world.tail_ids() == [0, 1]


def test_a_scale_on_record_is_stuck_until_it_is_done(world: StreamWorld):
    message = _accept_scale(world)
    steps = world.processor.work(message.body)
    while next(steps) != "record the epoch":
        continue
    assert _write_letter(world, message.body).status is DeadLetterStatus.STUCK
    assert [letter.status for letter in _letters(world)] == [DeadLetterStatus.STUCK]
    world.processor.process(message.body)
    assert [letter.status for letter in _letters(world)] == [DeadLetterStatus.DONE]


def test_one_request_has_one_letter_however_often_it_dies(world: StreamWorld):
    message = _accept_seal(world)
    first = _write_letter(world, message.body)
    world.clock.advance(60_000)
    _write_letter(world, message.body, Cause("internal", "RuntimeError: another reason"))
    (letter,) = _letters(world)
    assert letter.letter_id == first.letter_id
    assert (letter.tries, letter.last_try_ms) == (20, world.clock.now_ms())
    assert letter.cause.message == "RuntimeError: another reason"


def test_a_request_that_was_done_after_all_has_no_letter(world: StreamWorld):
    message = _accept_seal(world)
    world.processor.process(message.body)
    before = world.everything()
    assert _write_letter(world, message.body) is None
    assert world.everything() == before


@pytest.mark.parametrize("accept", [_accept_scale, _accept_seal])
def test_the_dead_letter_queue_leaves_an_existing_letter_as_is(
    world: StreamWorld, accept: Callable[[StreamWorld], QueuedMessage]
):
    message = accept(world)
    letter = _write_letter(world, message.body)
    before = world.everything()
    assert _write_letter(world, message.body, PROCESSOR_DIED, only_unknown=True) == letter
    assert world.everything() == before


def test_a_crashed_processor_leaves_a_usable_stream(world: StreamWorld):
    message = _accept_scale(world)
    letter = _write_letter(world, message.body, PROCESSOR_DIED, only_unknown=True)
    assert (letter.status, letter.cause) == (DeadLetterStatus.UNDONE, PROCESSOR_DIED)
    assert world.streams.get_stream("s", "t").state is StreamState.ACTIVE


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}", '{"kind": "unknown", "scope": "s"}', "[" * 5_000])
def test_what_nobody_can_read_is_kept(world: StreamWorld, text: str):
    letter = _write_letter(world, text)
    assert (letter.status, letter.message) == (DeadLetterStatus.UNPROCESSED, text)
    assert _letters(world) == [letter]


def test_messages_of_other_queues_are_kept_too(world: StreamWorld):
    delivery = _delivery({"kind": "resend-intents", "bucket": 3}, TICKS_QUEUE.name)
    letter = handle_dead_letter(world.store, delivery, CAUSE, 5_000)
    assert letter is not None
    assert (letter.status, letter.kind, letter.subject) == (DeadLetterStatus.UNPROCESSED, "resend-intents", "3")


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("accept", [_accept_scale, _accept_seal])
def test_a_crash_anywhere_leaves_one_letter_and_the_same_stream(
    accept: Callable[[StreamWorld], QueuedMessage], done: bool
):
    """The dead-letter queue's function comes after the processor, whatever that one still did."""

    def accepted() -> StreamWorld:
        world = StreamWorld()
        world.in_hand = accept(world)
        return world

    work = Work(
        accepted,
        lambda world: _write_letter(world, world.in_hand.body),
        lambda world: world.everything(),
        recover=lambda world: _write_letter(world, world.in_hand.body, only_unknown=True),
    )
    assert assert_crashes_lose_and_double_nothing(work, done=done) >= 3


def test_a_workflow_that_is_faster_wins(world: StreamWorld):
    message = _accept_scale(world)

    with world.calls.overtaken("transaction", lambda: world.processor.process(message.body)):
        assert _write_letter(world, message.body) is None
    assert world.streams.get_stream("s", "t").epoch == 1
    assert _letters(world) == []


def test_a_store_that_does_not_answer_leaves_all_records(world: StreamWorld):
    message = _accept_scale(world)
    before = world.everything()
    world.calls.refuse("", UnavailableError("the store does not answer"))
    with pytest.raises(UnavailableError):
        _write_letter(world, message.body)
    assert world.everything() == before


CONFIGURATION = StreamConfiguration(ScalingPolicy.by_event_rate(7, 2, 2), tags=("a", "c"))


def _accept_update(world: StreamWorld) -> QueuedMessage:
    world.create(tags=("a", "b"))
    world.streams.update_stream("s", "t", CONFIGURATION)
    (message,) = world.bare_queue.receive()
    return message


def _accept_truncation(world: StreamWorld) -> QueuedMessage:
    world.create()
    world.append(0, 100)
    world.streams.truncate_stream("s", "t", {0: 40, 1: 0})
    (message,) = world.bare_queue.receive()
    return message


POINTS_OF_NO_RETURN = {
    "update": (_accept_update, ["teach the rate", "index added tags"], "put in force"),
    "truncation": (_accept_truncation, [], "record the head"),
}


@pytest.mark.parametrize(("accept", "before", "point"), POINTS_OF_NO_RETURN.values(), ids=POINTS_OF_NO_RETURN)
def test_up_to_the_point_of_no_return_a_request_is_undone(
    accept: Callable[[StreamWorld], QueuedMessage], before: list[str], point: str
):
    for done in range(len(before) + 1):
        world = StreamWorld()
        message = accept(world)
        shown = world.streams.get_stream("s", "t").configuration
        steps = world.processor.work(message.body)
        assert [next(steps) for _ in range(done)] == before[:done]
        letter = _write_letter(world, message.body)
        assert letter.status is DeadLetterStatus.UNDONE
        view = world.streams.get_stream("s", "t")
        assert (view.state, view.configuration) == (StreamState.ACTIVE, shown)
        assert [key for key in world.everything() if key[0] == "tag/s/c"] == []
        world.processor.process(message.body)
        assert world.streams.get_stream("s", "t") == view, "a message that is late changes nothing"
        world.bare_queue.acknowledge(message.receipt)
        assert world.dead_letters.replay_letter(letter.letter_id).status is DeadLetterStatus.REPLAYED
        assert world.drain() == 1
        assert_sound(world)
        _assert_done(world, accept)


@pytest.mark.parametrize(("accept", "before", "point"), POINTS_OF_NO_RETURN.values(), ids=POINTS_OF_NO_RETURN)
def test_a_request_that_must_complete_is_stuck_until_it_is_done(
    world: StreamWorld, accept: Callable[[StreamWorld], QueuedMessage], before: list[str], point: str
):
    message = accept(world)
    steps = world.processor.work(message.body)
    while next(steps) != point:
        continue
    letter = _write_letter(world, message.body)
    assert letter.status is DeadLetterStatus.STUCK
    world.processor.process(message.body)
    world.bare_queue.acknowledge(message.receipt)
    assert world.dead_letters.get_letter(letter.letter_id).status is DeadLetterStatus.DONE
    assert_sound(world)
    _assert_done(world, accept)


def _assert_done(world: StreamWorld, accept: Callable[[StreamWorld], QueuedMessage]) -> None:
    if accept is _accept_update:
        assert world.streams.get_stream("s", "t").configuration == CONFIGURATION
        assert [summary.stream for summary in world.streams.list_streams("s", 10, tag="c").items] == ["t"]
    else:
        assert world.segments.stream_cut("s", "t", "head").offsets == {0: 40, 1: 0}


def test_a_truncation_that_is_recorded_meanwhile_is_not_undone(world: StreamWorld):
    """Putting the cut on record leaves the stream's current record as it is: the running truncation decides."""
    message = _accept_truncation(world)
    steps = world.processor.work(message.body)

    def run_ahead() -> None:
        assert next(steps) == "record the head"

    with world.calls.overtaken("transaction", run_ahead):
        assert _write_letter(world, message.body).status is DeadLetterStatus.STUCK
    world.processor.process(message.body)
    world.bare_queue.acknowledge(message.receipt)
    assert world.segments.stream_cut("s", "t", "head").offsets == {0: 40, 1: 0}
    assert_sound(world)


def test_a_scale_whose_batch_ends_meanwhile_is_undone(world: StreamWorld):
    """It waits for a batch of commits, so it cannot be rolled back yet; while the letter is written the batch ends."""
    world.create()
    identifier = world.begin()
    world.transactions.commit_transaction("s", "t", identifier)
    (commit,) = world.bare_commits.receive()
    world.calls.refuse("segment store merge", UnavailableError("the store does not answer"))
    with pytest.raises(UnavailableError):
        world.commits.process(commit.body)
    world.calls.calm()
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
    (message,) = world.bare_queue.receive()
    assert world.records.get("s", "t").stream.state is StreamState.COMMITTING_TXN
    with world.calls.overtaken("transaction", lambda: world.commits.process(commit.body)):
        assert _write_letter(world, message.body).status is DeadLetterStatus.UNDONE
    world.bare_queue.acknowledge(message.receipt)
    world.bare_commits.acknowledge(commit.receipt)
    assert world.records.get("s", "t").stream.state is StreamState.ACTIVE
    assert_sound(world)


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_a_commit_or_abort_is_stuck_until_it_is_done(world: StreamWorld, ending: str):
    world.create()
    identifier = world.begin()
    queue = world.bare_commits if ending == "commit" else world.bare_aborts
    getattr(world.transactions, f"{ending}_transaction")("s", "t", identifier)
    (message,) = queue.receive()
    letter = _write_letter(world, message.body)
    assert (letter.status, letter.subject) == (DeadLetterStatus.STUCK, f"s/t/{message.body['transaction']}")
    assert world.dead_letters.get_letter(letter.letter_id) == letter
    queue.release(message.receipt)
    world.drain_transactions()
    assert world.dead_letters.get_letter(letter.letter_id).status is DeadLetterStatus.DONE
    assert _write_letter(world, message.body) is None


READ, TRANSACTION = "read", "transaction"
COSTS = {
    "a scale": (_accept_scale, {READ: 5, TRANSACTION: 1}),
    "an update": (_accept_update, {READ: 4, TRANSACTION: 2}),
    "a truncation": (_accept_truncation, {READ: 4, TRANSACTION: 1}),
    "a seal": (_accept_seal, {READ: 3, TRANSACTION: 1}),
}


@pytest.mark.parametrize(("accept", "cost"), COSTS.values(), ids=COSTS)
def test_what_a_letter_costs(world: StreamWorld, accept: Callable[[StreamWorld], QueuedMessage], cost: dict[str, int]):
    message = accept(world)
    world.calls.counts.clear()
    _write_letter(world, message.body)
    assert dict(world.calls.counts) == cost
