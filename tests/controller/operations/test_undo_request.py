"""Rolling back a scale that cannot begin."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import StreamWorld, ranges

from headrace.controller.operations.registry import undo_request
from headrace.metadata.request_messages import parse_request_message
from headrace.model.errors import IllegalStateError, NotFoundError, UnavailableError
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.stream_state import StreamState
from headrace.ports.metadata_store import WriteConflictError


def _roll_back(world: StreamWorld, stream: str = "t") -> None:
    """Roll back the request that runs on the stream."""
    found = world.records.get("s", stream).stream
    pending = found.pending or PendingRequest(RequestKind.SCALE_STREAM, "none")
    undo_request(world.store, "s", stream, pending).write()


def _accept_scale(world: StreamWorld) -> Any:
    world.create()
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
    (message,) = world.bare_queue.receive()
    return message


def test_a_scale_that_never_started_is_undone(world: StreamWorld):
    world.create()
    before, tail = set(world.everything()), world.tail_ids()
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
    (message,) = world.bare_queue.receive()
    _roll_back(world)
    after = world.everything()
    assert after["stream/s/t", "leftovers"][1] == {"format": 1, "segments": [1 << 32 | 2, 1 << 32 | 3]}
    assert {sort.split("/")[0] for _, sort in set(after) - before} == {"leftovers", "epoch", "history"}
    assert (world.tail_ids(), world.streams.get_stream("s", "t").state) == (tail, StreamState.ACTIVE)
    world.processor.process(message.body)
    assert world.everything() == after
    world.bare_queue.acknowledge(message.receipt)
    world.seal()
    assert world.streams.get_stream("s", "t").state is StreamState.SEALED


def test_the_next_scale_removes_what_the_undone_one_created(world: StreamWorld):
    message = _accept_scale(world)
    steps = world.processor.work(message.body)
    assert next(steps) == "create segments"
    _roll_back(world)
    world.bare_queue.acknowledge(message.receipt)
    world.scale([0], [0.0, 0.1, 0.5])
    assert world.tail_ids() == [2 << 32 | 2, 2 << 32 | 3, 1]
    assert len(world.bare_segment_stores.names()) == 4


def test_a_late_processor_cannot_revive_an_undone_scale(world: StreamWorld):
    message = _accept_scale(world)

    with world.calls.overtaken("transaction", lambda: _roll_back(world)):
        world.processor.process(message.body)
    assert world.streams.get_stream("s", "t").state is StreamState.ACTIVE
    assert world.tail_ids() == [0, 1]


def test_a_scale_on_record_must_complete(world: StreamWorld):
    message = _accept_scale(world)
    steps = world.processor.work(message.body)
    while next(steps) != "record the epoch":
        continue
    before = world.everything()
    with pytest.raises(IllegalStateError):
        _roll_back(world)
    assert world.everything() == before
    world.processor.process(message.body)
    assert world.streams.get_stream("s", "t").epoch == 1


def test_a_seal_is_not_rolled_back(world: StreamWorld):
    with pytest.raises(NotFoundError):
        _roll_back(world)
    world.create()
    with pytest.raises(IllegalStateError):
        _roll_back(world)
    world.streams.seal_stream("s", "t")
    with pytest.raises(IllegalStateError):
        _roll_back(world)


def test_the_dead_letter_of_one_scale_does_not_end_the_next(world: StreamWorld):
    message = _accept_scale(world)
    _, _, dead = parse_request_message(message.body)
    _roll_back(world)
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.1, 0.5))
    before = world.everything()
    with pytest.raises(IllegalStateError):
        undo_request(world.store, "s", "t", dead)
    assert world.everything() == before


def test_a_workflow_that_is_faster_wins(world: StreamWorld):
    message = _accept_scale(world)

    overtaken = world.calls.overtaken("transaction", lambda: world.processor.process(message.body))
    with overtaken, pytest.raises(WriteConflictError):
        _roll_back(world)
    assert world.streams.get_stream("s", "t").epoch == 1


def test_an_unavailable_store_leaves_the_scale_as_it_was(world: StreamWorld):
    _accept_scale(world)
    before = world.everything()
    world.calls.refuse("transaction", UnavailableError("the store does not answer"))
    with pytest.raises(UnavailableError):
        _roll_back(world)
    assert world.everything() == before
