"""A tick of retention that dies at any of its calls, or sleeps there while others do what they like."""

from __future__ import annotations

from typing import Any

import pytest
from interruptions import Work, after_each_crash, after_each_sleep, assert_two_at_once_do_it_once, undisturbed
from retention_world import PERIOD_MS, Retention, sizes
from stream_world import StreamWorld

from headrace import topology
from headrace.controller.ticks.due_work import LEASE_MS
from headrace.model.stream_configuration import RetentionPolicy

CALLS_MAX = 60


def _prepared() -> Retention:
    """A stream over two epochs, with a subscriber, that is about to be truncated by a tick."""
    retention = Retention(StreamWorld())
    world = retention.world
    world.create(segments=2, retention=RetentionPolicy.by_size(100, 1_000))
    for _ in range(3):
        retention.write(40)
    retention.subscribers.register("s", "t", "group", 0)
    world.scale([0], [0.0, 0.2, 0.5])
    for _ in range(4):
        retention.write(40, segment=1)
    retention.subscribers.update_stream_cut("s", "t", "group", 0, {1 << 32 | 2: 0, 1 << 32 | 3: 0, 1: 50})
    world.append(1, 40)
    world.clock.advance(PERIOD_MS)
    return retention


def _sweep(world: StreamWorld) -> None:
    """What was accepted is done, also if its message was never sent."""
    for bucket in range(topology.BUCKET_COUNT):
        world.resend_intents(bucket, 0)
    world.drain()


def _settled(retention: Retention) -> tuple[Any, ...]:
    """What the ticks after it leave behind: head, segments, retention set, what is due."""
    world = retention.world
    world.clock.advance(LEASE_MS)
    _sweep(world)
    retention.tick()
    infos = [world.bare_segment_stores.segment_info(name) for name in world.bare_segment_stores.names()]
    segments = [(info.name, info.start_offset, info.length) for info in infos]
    cuts = [sort for _, sort in world.everything() if sort.startswith("retention-cut/")]
    state = retention.state()
    assert len(cuts) == len(state.cuts)
    assert [(stream, due) for stream, due in retention.due()] == [("t", state.due_ms)]
    return retention.head(), segments, sizes(state)


def _ticks(retention: Retention) -> None:
    """One process looks at all buckets."""
    for bucket in range(topology.BUCKET_COUNT):
        retention.ticks.run(bucket)


def _tick_after_the_lease(retention: Retention) -> None:
    retention.world.clock.advance(LEASE_MS)
    retention.tick()


TICK = Work(_prepared, _ticks, _settled, recover=_tick_after_the_lease)


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
def test_a_crash_at_any_call_changes_nothing(done: bool):
    expected = undisturbed(TICK).outcome
    assert expected[0] == {1 << 32 | 2: 0, 1 << 32 | 3: 0, 1: 50}
    crashes = 0
    for position, retention in after_each_crash(TICK, done=done):
        crashes += 1
        TICK.go_on(retention)
        assert _settled(retention) == expected, f"after a crash at call {position}"
    assert 10 <= crashes < CALLS_MAX


def test_two_ticks_at_once_are_safe():
    """The lease of the first is over when the second begins, at each of its calls."""
    assert 10 <= assert_two_at_once_do_it_once(TICK, _tick_after_the_lease) < CALLS_MAX


def _next_life(retention: Retention) -> None:
    world = retention.world
    world.clock.advance(1)
    _sweep(world)
    world.seal()
    world.delete()
    world.create(segments=2, retention=RetentionPolicy.by_size(100, 1_000))


def test_a_late_tick_leaves_a_recreated_stream_unchanged():
    slept = 0
    for position, retention, _ in after_each_sleep(TICK, _next_life):
        slept += 1
        retention.world.drain()
        state = retention.state()
        assert state.cuts == (), f"woken up at call {position}"
        assert retention.due() == [("t", state.due_ms)]
        assert retention.head() == {4: 0, 5: 0}
        assert [sort for _, sort in retention.world.everything() if sort.startswith("retention-cut/")] == []
    assert 10 <= slept < CALLS_MAX
