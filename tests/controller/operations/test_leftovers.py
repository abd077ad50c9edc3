"""Segments of scales that were given up do not stay for ever."""

from __future__ import annotations

from typing import Any

import pytest
from interruptions import assert_crashes_lose_and_double_nothing, work_on_request
from stream_world import StreamWorld, ranges

from headrace.controller.operations.registry import undo_request
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration


def _give_up(world: StreamWorld, *bounds: float, created: bool = True) -> None:
    """A scale of segment 0 into those ranges, given up after its segments were made, or before."""
    world.streams.scale_stream("s", "t", [0], ranges(*bounds))
    (message,) = world.bare_queue.receive()
    if created:
        assert next(world.processor.work(message.body)) == "create segments"
    pending = world.records.get("s", "t").stream.pending
    assert pending is not None
    undo_request(world.store, "s", "t", pending).write()
    world.bare_queue.acknowledge(message.receipt)


def _names(world: StreamWorld) -> list[str]:
    return [name.removeprefix("s/t/") for name in world.bare_segment_stores.names()]


def _noted(world: StreamWorld) -> bool:
    return ("stream/s/t", "leftovers") in world.everything()


def test_the_next_scale_removes_them(world: StreamWorld):
    world.create()
    _give_up(world, 0.0, 0.1, 0.2, 0.3, 0.5)
    assert len(_names(world)) == 6
    world.scale([0], [0.0, 0.25, 0.5])
    assert _names(world) == ["0.#epoch.0", "1.#epoch.0", "2.#epoch.2", "3.#epoch.2"]
    assert not _noted(world)


def test_several_scales_given_up_are_noted_together(world: StreamWorld):
    world.create()
    _give_up(world, 0.0, 0.25, 0.5)
    _give_up(world, 0.0, 0.1, 0.2, 0.3, 0.5)
    _give_up(world, 0.0, 0.3, 0.5, created=False)
    world.scale([1], [0.5, 1.0])
    assert _names(world) == ["0.#epoch.0", "1.#epoch.0", "2.#epoch.4"]


def test_a_stream_that_grows_removes_them_too(world: StreamWorld):
    world.create()
    _give_up(world, 0.0, 0.1, 0.2, 0.3, 0.5)
    world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(3)))
    world.drain()
    assert _names(world) == ["0.#epoch.0", "1.#epoch.0", "2.#epoch.2", "3.#epoch.2"]
    assert not _noted(world)


def test_a_stream_takes_them_along_when_it_is_deleted(world: StreamWorld):
    world.create()
    _give_up(world, 0.0, 0.1, 0.2, 0.3, 0.5)
    world.seal()
    world.delete()
    assert _names(world) == []


def _scale_over_leftovers(world: StreamWorld) -> None:
    _leave_five_ranges(world)
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))


def _delete_with_leftovers(world: StreamWorld) -> None:
    _leave_five_ranges(world)
    world.seal()
    world.streams.delete_stream("s", "t")


def _leave_five_ranges(world: StreamWorld) -> None:
    world.create()
    _give_up(world, 0.0, 0.1, 0.2, 0.3, 0.5)


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("accept", [_scale_over_leftovers, _delete_with_leftovers], ids=["scale", "delete"])
def test_a_crash_anywhere_leaves_none(accept: Any, done: bool):
    work = work_on_request(accept, lambda world: (world.everything(), _names(world)))
    assert assert_crashes_lose_and_double_nothing(work, done=done) > 8
