"""A processor dies before or after each single call it makes; the message comes again; the outcome is the same."""

from __future__ import annotations

from typing import Any

import pytest
from accepted_requests import ACCEPT_ON_STREAM
from interruptions import (
    Work,
    after_each_sleep,
    assert_an_absent_segment_store_only_delays,
    assert_crashes_lose_and_double_nothing,
    assert_dying_one_call_later_each_time_still_ends,
    undisturbed,
    work_on_request,
)
from stream_world import StreamWorld

from headrace.model.requests import RequestKind
from headrace.model.stream_state import StreamState


def _outcome(world: StreamWorld) -> tuple[Any, Any]:
    infos = [world.bare_segment_stores.segment_info(name) for name in world.bare_segment_stores.names()]
    return world.everything(), infos


def _work(kind: RequestKind) -> Work[StreamWorld]:
    return work_on_request(ACCEPT_ON_STREAM[kind], _outcome)


@pytest.mark.parametrize("kind", ACCEPT_ON_STREAM)
def test_without_trouble_one_message_is_enough(world: StreamWorld, kind: RequestKind):
    ACCEPT_ON_STREAM[kind](world)
    assert world.drain() == 1
    assert _outcome(world) == undisturbed(_work(kind)).outcome


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("kind", ACCEPT_ON_STREAM)
def test_a_crash_anywhere_loses_and_doubles_nothing(kind: RequestKind, done: bool):
    assert assert_crashes_lose_and_double_nothing(_work(kind), done=done) >= 5


@pytest.mark.parametrize("kind", ACCEPT_ON_STREAM)
def test_a_crash_at_every_call_in_turn_still_ends(kind: RequestKind):
    """Each delivery dies one call later than the one before."""
    assert assert_dying_one_call_later_each_time_still_ends(_work(kind)) >= 2


@pytest.mark.parametrize("kind", ACCEPT_ON_STREAM)
def test_a_segment_store_that_is_away_delays_only(kind: RequestKind):
    assert_an_absent_segment_store_only_delays(_work(kind))


def test_a_late_message_of_a_former_life_does_nothing(world: StreamWorld):
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


def _live_on(world: StreamWorld) -> Any:
    """The stream is finished, deleted and created again, and goes through the same operations; what there is then."""
    world.process()
    world.acknowledge()
    if world.streams.get_stream("s", "t").state is not StreamState.SEALED:
        world.seal()
    world.delete()
    world.create(segments=2, tags=("a", "b"))
    world.scale([world.tail_ids()[0]], [0.0, 0.2, 0.5])
    world.seal()
    world.streams.delete_stream("s", "t")
    return world.everything()


@pytest.mark.parametrize("kind", sorted(ACCEPT_ON_STREAM.keys() - {RequestKind.DELETE_STREAM}))
def test_a_late_processor_leaves_a_recreated_stream_unchanged(kind: RequestKind):
    """It wakes up at any of its calls, with what it read in the former life, and must leave the present one alone."""
    slept = 0
    for position, world, present in after_each_sleep(_work(kind), _live_on):
        assert world.everything() == present, f"woken up at call {position}"
        slept += 1
    assert slept >= 5
