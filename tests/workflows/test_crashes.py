"""A processor dies before or after each single call it makes; the message comes again; the outcome is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.model.errors import UnavailableError
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState
from headrace.workflows.stream_requests import WORKFLOWS

CALLS_PER_WORKFLOW_MAX = 200


def _accept_create(world: Any, ranges: Callable[..., Any]) -> None:
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(3), tags=("a", "b")))


def _accept_scale(world: Any, ranges: Callable[..., Any]) -> None:
    world.create(segments=2, tags=("a",))
    world.append(0, 17)
    world.streams.scale_stream("s", "t", [0, 1], ranges(0.0, 0.2, 0.7, 1.0))


def _accept_update(world: Any, ranges: Callable[..., Any]) -> None:
    world.create(segments=2, tags=("a", "b"))
    world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.by_event_rate(7, 2, 2), tags=("b", "c")))


def _accept_truncate(world: Any, ranges: Callable[..., Any]) -> None:
    """Behind a head that is there already: into one segment, over the end of two others."""
    world.create(segments=2)
    world.append(0, 10)
    world.append(1, 20)
    world.truncate({0: 4, 1: 0})
    world.scale([0], [0.0, 0.2, 0.5])
    world.append(1 << 32 | 2, 5)
    world.scale([1 << 32 | 2], [0.0, 0.1, 0.2])
    world.streams.truncate_stream("s", "t", {2 << 32 | 4: 0, 2 << 32 | 5: 0, 1 << 32 | 3: 0, 1: 6})


def _accept_seal(world: Any, ranges: Callable[..., Any]) -> None:
    world.create(segments=2)
    world.scale([0], [0.0, 0.2, 0.5])
    world.append(1, 5)
    world.streams.seal_stream("s", "t")


def _accept_delete(world: Any, ranges: Callable[..., Any]) -> None:
    world.create(segments=2, tags=("a", "b"))
    world.scale([0], [0.0, 0.2, 0.5])
    world.scale([1], [0.5, 1.0])
    world.seal()
    world.streams.delete_stream("s", "t")


ACCEPT = {
    "create_stream": _accept_create,
    "update_stream": _accept_update,
    "truncate_stream": _accept_truncate,
    "scale_stream": _accept_scale,
    "seal_stream": _accept_seal,
    "delete_stream": _accept_delete,
}


def test_every_workflow_is_tried():
    assert set(ACCEPT) == {str(kind) for kind in WORKFLOWS}


def _outcome(world: Any) -> tuple[Any, Any]:
    infos = [world.bare_segment_stores.segment_info(name) for name in world.bare_segment_stores.names()]
    return world.everything(), infos


@pytest.fixture
def expected(stream_world: Any) -> Callable[[str], tuple[Any, Any]]:
    """What a run without trouble leaves behind."""

    def run(kind: str) -> tuple[Any, Any]:
        world = stream_world.StreamWorld()
        ACCEPT[kind](world, stream_world.ranges)
        assert world.drain() == 1
        return _outcome(world)

    return run


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("kind", ACCEPT)
def test_a_crash_anywhere_loses_and_doubles_nothing(stream_world: Any, expected: Any, kind: str, done: bool):
    wanted = expected(kind)
    crashes = 0
    for position in range(CALLS_PER_WORKFLOW_MAX):
        world = stream_world.StreamWorld()
        ACCEPT[kind](world, stream_world.ranges)
        (message,) = world.bare_queue.receive()
        world.calls.crash_at(position, done=done)
        try:
            world.processor.process(message.body)
        except stream_world.Crash:
            crashes += 1
        else:
            break
        finally:
            world.calls.calm()
        world.processor.process(message.body)
        assert _outcome(world) == wanted, f"after a crash at call {position}"
        world.processor.process(message.body)
        assert _outcome(world) == wanted, "a message after the work is done changes nothing"
    assert crashes >= 5
    assert position < CALLS_PER_WORKFLOW_MAX - 1


@pytest.mark.parametrize("kind", ACCEPT)
def test_a_crash_at_every_call_in_turn_still_ends(stream_world: Any, expected: Any, kind: str):
    """Each delivery dies one call later than the one before."""
    world = stream_world.StreamWorld()
    ACCEPT[kind](world, stream_world.ranges)
    (message,) = world.bare_queue.receive()
    for position in range(CALLS_PER_WORKFLOW_MAX):
        world.calls.crash_at(position, done=True)
        try:
            world.processor.process(message.body)
            break
        except stream_world.Crash:
            world.calls.calm()
    world.calls.calm()
    assert _outcome(world) == expected(kind)


@pytest.mark.parametrize("kind", ACCEPT)
def test_a_segment_store_that_is_away_delays_only(stream_world: Any, expected: Any, kind: str):
    world = stream_world.StreamWorld()
    ACCEPT[kind](world, stream_world.ranges)
    (message,) = world.bare_queue.receive()

    def away(call: str) -> None:
        if call.startswith("segment store"):
            raise UnavailableError("the segment store restarts")

    world.calls.before = away
    with pytest.raises(UnavailableError) as error:
        world.processor.process(message.body)
    assert error.value.retry != "never"
    world.calls.calm()
    world.processor.process(message.body)
    assert _outcome(world) == expected(kind)


def test_a_late_message_of_a_former_life_does_nothing(world: Any, stream_world: Any):
    bodies = []
    send = world.bare_queue.send

    def keep(*, group: str, body: Any, deduplication_id: str) -> None:
        bodies.append(dict(body))
        send(group=group, body=body, deduplication_id=deduplication_id)

    world.bare_queue.send = keep
    world.create()
    world.scale([0], [0.0, 0.1, 0.5])
    world.seal()
    world.delete()
    world.create()
    assert [body["kind"] for body in bodies] == [
        "create_stream",
        "scale_stream",
        "seal_stream",
        "delete_stream",
        "create_stream",
    ]
    before = _outcome(world)
    for body in bodies + bodies[::-1]:
        world.processor.process(body)
    assert _outcome(world) == before
    assert world.streams.get_stream("s", "t").state is StreamState.ACTIVE


def _rest_of_the_life(world: Any, ranges: Callable[..., Any]) -> None:
    """The stream is finished, deleted and created again, and goes through the same operations."""
    world.bare_queue.acknowledge(world.in_flight)
    if world.streams.get_stream("s", "t").state is not StreamState.SEALED:
        world.seal()
    world.delete()
    world.create(segments=2, tags=("a", "b"))
    world.scale([world.tail_ids()[0]], [0.0, 0.2, 0.5])
    world.seal()
    world.streams.delete_stream("s", "t")


def _sleep_through_a_life(world: Any, ranges: Callable[..., Any], body: Any, position: int) -> list[Any]:
    """Process `body` with a pause at the call with this number; what the store held at the end of the pause."""
    made = 0
    present: list[Any] = []

    def sleep(_kind: str) -> None:
        nonlocal made
        made += 1
        if made == position + 1:
            world.calls.calm()
            world.processor.process(body)
            _rest_of_the_life(world, ranges)
            present.append(world.everything())

    world.calls.before = sleep
    world.processor.process(body)
    world.calls.calm()
    return present


@pytest.mark.parametrize("kind", ["create_stream", "update_stream", "truncate_stream", "scale_stream", "seal_stream"])
def test_a_processor_that_slept_through_a_life_of_the_stream_changes_no_record(stream_world: Any, kind: str):
    """It wakes up at any of its calls, with what it read in the former life, and must leave the present one alone."""
    slept = 0
    for position in range(CALLS_PER_WORKFLOW_MAX):
        world = stream_world.StreamWorld()
        ACCEPT[kind](world, stream_world.ranges)
        (message,) = world.bare_queue.receive()
        world.in_flight = message.receipt
        present = _sleep_through_a_life(world, stream_world.ranges, message.body, position)
        if not present:
            break
        slept += 1
        assert world.everything() == present[0], f"woken up at call {position}"
    assert slept >= 5
