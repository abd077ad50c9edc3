"""A processor dies before or after each single call it makes; the message comes again; the outcome is the same."""

from __future__ import annotations

from typing import Any

import pytest
from interruptions import (
    Work,
    after_each_sleep,
    assert_an_absent_segment_store_only_delays,
    assert_crashes_lose_and_double_nothing,
    assert_dying_one_call_later_each_time_still_ends,
    undisturbed,
    work_on_request,
)
from stream_world import StreamWorld, ranges

from headrace.controller.stream_requests import WORKFLOWS
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState


def _accept_create(world: Any) -> None:
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(3), tags=("a", "b")))


def _accept_scale(world: Any) -> None:
    world.create(segments=2, tags=("a",))
    world.append(0, 17)
    world.streams.scale_stream("s", "t", [0, 1], ranges(0.0, 0.2, 0.7, 1.0))


def _accept_update(world: Any) -> None:
    world.create(segments=2, tags=("a", "b"))
    world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.by_event_rate(7, 2, 2), tags=("b", "c")))


def _accept_truncate(world: Any) -> None:
    """Behind a head that is there already: into one segment, over the end of two others."""
    world.create(segments=2)
    world.append(0, 10)
    world.append(1, 20)
    world.truncate({0: 4, 1: 0})
    world.scale([0], [0.0, 0.2, 0.5])
    world.append(1 << 32 | 2, 5)
    world.scale([1 << 32 | 2], [0.0, 0.1, 0.2])
    world.streams.truncate_stream("s", "t", {2 << 32 | 4: 0, 2 << 32 | 5: 0, 1 << 32 | 3: 0, 1: 6})


def _accept_seal(world: Any) -> None:
    world.create(segments=2)
    world.scale([0], [0.0, 0.2, 0.5])
    world.append(1, 5)
    world.streams.seal_stream("s", "t")


def _accept_delete(world: Any) -> None:
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


def _work(kind: str) -> Work[StreamWorld]:
    return work_on_request(ACCEPT[kind], _outcome)


@pytest.mark.parametrize("kind", ACCEPT)
def test_without_trouble_one_message_is_enough(world: Any, kind: str):
    ACCEPT[kind](world)
    assert world.drain() == 1
    assert _outcome(world) == undisturbed(_work(kind)).outcome


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("kind", ACCEPT)
def test_a_crash_anywhere_loses_and_doubles_nothing(kind: str, done: bool):
    assert assert_crashes_lose_and_double_nothing(_work(kind), done=done) >= 5


@pytest.mark.parametrize("kind", ACCEPT)
def test_a_crash_at_every_call_in_turn_still_ends(kind: str):
    """Each delivery dies one call later than the one before."""
    assert assert_dying_one_call_later_each_time_still_ends(_work(kind)) >= 2


@pytest.mark.parametrize("kind", ACCEPT)
def test_a_segment_store_that_is_away_delays_only(kind: str):
    assert_an_absent_segment_store_only_delays(_work(kind))


def test_a_late_message_of_a_former_life_does_nothing(world: Any):
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


def _live_on(world: Any) -> Any:
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


@pytest.mark.parametrize("kind", ["create_stream", "update_stream", "truncate_stream", "scale_stream", "seal_stream"])
def test_a_processor_that_slept_through_a_life_of_the_stream_changes_no_record(kind: str):
    """It wakes up at any of its calls, with what it read in the former life, and must leave the present one alone."""
    slept = 0
    for position, world, present in after_each_sleep(_work(kind), _live_on):
        assert world.everything() == present, f"woken up at call {position}"
        slept += 1
    assert slept >= 5
