"""An update that raises the minimum splits segments before it is done, whatever dies on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interruptions import assert_crashes_lose_and_double_nothing, assert_two_at_once_do_it_once, work_on_request
from stream_world import StreamWorld, ranges

from headrace.model.errors import ConflictError
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState
from headrace.ports.segment_stores import SegmentScaleRate


def _configuration(minimum: int, **more: Any) -> StreamConfiguration:
    return StreamConfiguration(ScalingPolicy.by_event_rate(7, 2, minimum), **more)


def _create(world: StreamWorld, minimum: int = 2) -> None:
    world.streams.create_stream("s", "t", _configuration(minimum, tags=("a",)))
    world.drain()


def _update(world: StreamWorld, configuration: StreamConfiguration) -> None:
    world.streams.update_stream("s", "t", configuration)
    world.drain()


def _ranges(world: StreamWorld) -> list[tuple[float, float]]:
    segments = world.records.get("s", "t").stream.epoch.segments
    return [(segment.key_range.low, segment.key_range.high) for segment in segments]


def test_a_raised_minimum_splits_the_largest_segments(world: StreamWorld):
    _create(world)
    world.scale([0], [0.0, 0.125, 0.5])
    world.append(1, 40)
    _update(world, _configuration(5, tags=("b",)))
    assert _ranges(world) == [(0.0, 0.125), (0.125, 0.3125), (0.3125, 0.5), (0.5, 0.75), (0.75, 1.0)]
    stream = world.records.get("s", "t").stream
    assert (stream.state, stream.epoch.number, stream.pending) == (StreamState.ACTIVE, 2, None)
    assert [summary.stream for summary in world.streams.list_streams("s", 10, tag="b").items] == ["t"]
    assert world.segments.successors("s", "t", 1), "readers find the way from the segment that was split"
    assert world.bare_segment_stores.segment_info("s/t/1.#epoch.0").is_sealed
    assert not [key for key in world.everything() if key[1] in ("transition", "leftovers")]


def test_new_segments_have_the_new_policy(world: StreamWorld):
    _create(world, 1)
    _update(world, StreamConfiguration(ScalingPolicy.by_data_rate(9, 3, 2), rollover_size_bytes=5))
    for identifier in world.tail_ids():
        name = f"s/t/{identifier & 0xFFFFFFFF}.#epoch.1"
        assert world.bare_segment_stores.creation_settings(name) == (SegmentScaleRate(1, 9), 5)


@pytest.mark.parametrize("policy", [ScalingPolicy.fixed(4), ScalingPolicy.by_event_rate(7, 2, 4)])
def test_any_policy_grows(world: StreamWorld, policy: ScalingPolicy):
    _create(world, 3)
    _update(world, StreamConfiguration(policy))
    assert len(_ranges(world)) == 4


def test_what_raises_no_minimum_splits_nothing(world: StreamWorld):
    _create(world, 4)
    for configuration in (_configuration(4, tags=("z",)), _configuration(2), _configuration(1)):
        _update(world, configuration)
        assert len(_ranges(world)) == 4
    world.scale(world.tail_ids(), [0.0, 1.0])
    _update(world, _configuration(1, tags=("y",)))
    assert _ranges(world) == [(0.0, 1.0)]
    _update(world, _configuration(2))
    assert _ranges(world) == [(0.0, 0.5), (0.5, 1.0)]
    world.scale(world.tail_ids(), [0.0, 0.2, 0.4, 0.6, 1.0])
    _update(world, _configuration(3))
    assert len(_ranges(world)) == 4


def test_nothing_else_runs_while_a_stream_grows(world: StreamWorld):
    _create(world)
    world.streams.update_stream("s", "t", _configuration(3))
    (message,) = world.bare_queue.receive()
    done = []
    for step in world.processor.work(message.body):
        assert world.segments.stream_cut("s", "t", "tail").positions, "the tail can be asked for all the time"
        done.append(step)
        if step != "close":
            with pytest.raises(ConflictError):
                world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.2, 0.5))
    assert done[-1] == "close"
    assert len(_ranges(world)) == 3


def _grow(world: StreamWorld) -> None:
    _create(world)
    world.append(0, 17)
    world.streams.update_stream("s", "t", _configuration(5, tags=("b",)))


def _outcome(world: StreamWorld) -> Any:
    infos = [world.bare_segment_stores.segment_info(name) for name in world.bare_segment_stores.names()]
    return world.everything(), infos


GROWTH = work_on_request(_grow, _outcome)


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
def test_a_crash_anywhere_loses_and_doubles_nothing(done: bool):
    assert assert_crashes_lose_and_double_nothing(GROWTH, done=done) > 15


def test_two_processors_at_once_do_it_once():
    assert assert_two_at_once_do_it_once(GROWTH) > 15


@settings(max_examples=40)
@given(minima=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_updates_cover_the_key_space_and_meet_the_minimum(minima: list[int]):
    world = StreamWorld()
    _create(world, 1)
    largest = 1
    for number, minimum in enumerate(minima):
        _update(world, _configuration(minimum, rollover_size_bytes=number))
        largest = max(largest, minimum)
        ranges = _ranges(world)
        assert len(ranges) == largest
        assert [low for low, _ in ranges] == [0.0, *(high for _, high in ranges[:-1])]
