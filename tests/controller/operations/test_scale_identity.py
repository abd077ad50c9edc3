"""A scale is never taken for another one: neither when it was rolled back, nor when its request is repeated."""

from __future__ import annotations

import pytest
from soundness import assert_sound
from stream_world import StreamWorld
from stream_world import ranges as world_ranges

from headrace.api.streams import ScaleStatus
from headrace.controller.operations.registry import undo_request
from headrace.model.errors import IllegalStateError


def _roll_back(world: StreamWorld, identifier: int = 0, *bounds: float) -> int:
    """A scale of one segment that was accepted and rolled back; the number of its epoch."""
    accepted = world.streams.scale_stream("s", "t", [identifier], world_ranges(*(bounds or (0.0, 0.25, 0.5))))
    (message,) = world.bare_queue.receive()
    pending = world.records.get("s", "t").stream.pending
    assert pending is not None
    undo_request(world.store, "s", "t", pending).write()
    world.bare_queue.acknowledge(message.receipt)
    return accepted.epoch


def _status(world: StreamWorld, epoch: int) -> ScaleStatus:
    return world.streams.scale_status("s", "t", epoch)


def test_a_scale_that_was_rolled_back_never_succeeds(world: StreamWorld):
    world.create()
    gone = _roll_back(world)
    assert _status(world, gone) is ScaleStatus.INVALID
    done = world.scale([1], [0.5, 1.0])
    assert done > gone
    assert (_status(world, gone), _status(world, done)) == (ScaleStatus.INVALID, ScaleStatus.SUCCESS)
    assert_sound(world)


def test_what_a_rolled_back_scale_leaves_is_the_stream_of_before(world: StreamWorld):
    """Readers, writers and transactions find the segments that were there, and no scale among the events."""
    world.create()
    early = world.begin()
    world.write_in(early, 0.0, b"a")
    world.append(1, 7)
    gone = _roll_back(world)
    late = world.begin()
    world.write_in(late, 0.0, b"b")
    world.commit(early, late)
    assert world.tail_ids() == [0, 1]
    assert [segment.segment_id for segment in world.segments.segments_of_epoch("s", "t", gone).segments] == [0, 1]
    assert world.records.get("s", "t").stream.epoch.number == gone, "neither of the commits had to roll"
    assert world.scaling_events.scaling_events("s", "t", 0, 1 << 50, 10).events == ()
    world.scale([0], [0.0, 0.25, 0.5])
    world.truncate({2 << 32 | 2: 0, 2 << 32 | 3: 0, 1: 7})
    assert_sound(world)
    rolling = world.begin()
    _roll_back(world, 1, 0.5, 0.75, 1.0)
    world.commit(rolling)
    world.seal()
    assert_sound(world)
    world.delete()
    assert_sound(world)


@pytest.mark.parametrize("more", ["nothing", "another scale", "a roll", "another scale runs", "a seal"])
def test_a_repeated_scale_whose_answer_was_lost_succeeds(world: StreamWorld, more: str):
    world.create()
    late = world.begin()
    first = world.streams.scale_stream("s", "t", [0], world_ranges(0.0, 0.25, 0.5))
    world.drain()
    if more == "another scale":
        world.scale([1 << 32 | 2, 1 << 32 | 3], [0.0, 0.5])
    elif more == "a roll":
        world.commit(late)
    elif more == "another scale runs":
        world.streams.scale_stream("s", "t", [1], world_ranges(0.5, 0.75, 1.0))
    elif more == "a seal":
        world.seal()
    again = world.streams.scale_stream("s", "t", [0], world_ranges(0.0, 0.25, 0.5))
    assert (again.epoch, again.segments) == (first.epoch, first.segments)
    assert again.status is ScaleStatus.SUCCESS


def test_another_scale_of_segments_that_are_gone_is_refused(world: StreamWorld):
    world.create()
    world.scale([0], [0.0, 0.25, 0.5])
    for sealed, bounds in (([0], (0.0, 0.1, 0.5)), ([0, 1], (0.0, 1.0)), ([9], (0.0, 0.5))):
        with pytest.raises(IllegalStateError) as refused:
            world.streams.scale_stream("s", "t", sealed, world_ranges(*bounds))
        assert refused.value.specific_code == "segment_not_active"
