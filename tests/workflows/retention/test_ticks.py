"""The tick of retention: what it costs, whom it puts off, and what one stream can do to the others."""

from __future__ import annotations

from typing import Any

import pytest
from retention_world import BY_SIZE, PERIOD_MS, Retention, sizes

from headrace import topology
from headrace.model.buckets import bucket_of_stream
from headrace.model.errors import ConflictError, UnavailableError
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.workflows.apply_retention import PUT_OFF_MS, STREAMS_PER_TICK_MAX, WORK_S_MAX, RetentionTicks
from headrace.workflows.bucket_lease import LEASE_MS


def test_a_stream_without_a_policy_costs_nothing(world: Any, retention: Retention):
    world.create()
    world.append(0, 10_000)
    world.calls.counts.clear()
    retention.after_a_period()
    assert dict(world.calls.counts) == {"query": topology.BUCKET_COUNT}
    assert retention.due() == []


def test_a_stream_in_creation_is_put_off(world: Any, retention: Retention):
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1), BY_SIZE))
    for bucket in range(topology.BUCKET_COUNT):
        retention.ticks.run(bucket)
    assert retention.due() == [("t", world.clock.now_ms() + PUT_OFF_MS)]
    world.drain()
    world.clock.advance(PUT_OFF_MS)
    retention.tick()
    assert retention.due() == [("t", world.clock.now_ms() + PERIOD_MS)]


def test_a_busy_stream_is_asked_again_soon(world: Any, retention: Retention):
    world.create(segments=1, retention=BY_SIZE)
    retention.write(150)
    refused = []

    def busy(*_: Any) -> None:
        refused.append(1)
        raise ConflictError("the stream is SCALING")

    slow = RetentionTicks(world.store, world.segment_stores, world.clock, busy, PUT_OFF_MS * 30)
    world.append(0, 150)
    world.clock.advance(PUT_OFF_MS * 30)
    now_ms = world.clock.now_ms()
    for bucket in range(topology.BUCKET_COUNT):
        slow.run(bucket)
    assert (len(refused), retention.due()) == (1, [("t", now_ms + PUT_OFF_MS)])
    assert sizes(retention.state()) == [150, 300], "the cut is taken all the same"


def test_one_that_fails_does_not_stop_the_others(world: Any, retention: Retention):
    for name in ("a", "b", "c"):
        world.create(name, segments=1, retention=BY_SIZE)
        world.append(0, 100, name)
    tail = world.segment_stores.segment_infos
    asked = []

    def away(names: list[str]) -> Any:
        asked.append(names)
        if names[0].startswith("s/b/"):
            raise UnavailableError("a store restarts")
        return tail(names)

    world.segment_stores.segment_infos = away
    retention.tick()
    now_ms = world.clock.now_ms()
    assert retention.due() == [("a", now_ms + PERIOD_MS), ("b", now_ms + PUT_OFF_MS), ("c", now_ms + PERIOD_MS)]
    del world.segment_stores.segment_infos
    world.clock.advance(PUT_OFF_MS)
    retention.tick()
    assert sizes(retention.state("b")) == [100]


def _due_in_one_bucket(world: Any, count: int) -> int:
    """So many streams in one bucket; which."""
    made = 0
    for index in range(10_000):
        if bucket_of_stream(f"s/n{index}", topology.BUCKET_COUNT) == 0:
            world.create(f"n{index}", segments=1, retention=BY_SIZE)
            made += 1
            if made == count:
                return 0
    raise AssertionError("no bucket holds so many")


def test_a_tick_is_bounded_and_says_that_more_is_due(world: Any, retention: Retention):
    bucket = _due_in_one_bucket(world, STREAMS_PER_TICK_MAX + 1)
    assert retention.ticks.run(bucket) is True
    assert len([due for _, due in retention.due() if due <= world.clock.now_ms()]) == 1
    assert retention.ticks.run(bucket) is False
    assert [due for _, due in retention.due() if due <= world.clock.now_ms()] == []


def test_slow_streams_take_no_more_than_their_time_and_ticks_take_turns(world: Any, retention: Retention):
    """Each stream takes as long as a tick may work: then a tick does one, and does not begin with the same again."""
    bucket = _due_in_one_bucket(world, 4)
    begun: list[str] = []

    class Slow:
        def segment_infos(self, names: list[str]) -> Any:
            begun.append(names[0])
            world.clock.advance(int(WORK_S_MAX * 1_000) + 1)
            raise RuntimeError("the function runs out of time")

    ticks = RetentionTicks(world.store, Slow(), world.clock, world.streams.truncate_stream, PERIOD_MS)  # type: ignore[arg-type]
    for _ in range(12):
        with pytest.raises(RuntimeError):
            ticks.run(bucket)
        world.clock.advance(LEASE_MS + 10_000)
    assert len(set(begun)) == 4


def test_an_overlapping_tick_is_a_no_op(world: Any, retention: Retention):
    world.create(segments=1, retention=BY_SIZE)
    world.append(0, 10)
    inner = []

    class Overlapped:
        def segment_infos(self, names: list[str]) -> Any:
            world.calls.counts.clear()
            retention.tick()
            inner.append(dict(world.calls.counts))
            return world.segment_stores.segment_infos(names)

    ticks = RetentionTicks(world.store, Overlapped(), world.clock, world.streams.truncate_stream, PERIOD_MS)  # type: ignore[arg-type]
    for bucket in range(topology.BUCKET_COUNT):
        ticks.run(bucket)
    assert inner == [{"query": topology.BUCKET_COUNT, "read": 1}]
    assert len(retention.state().cuts) == 1
