"""A subscriber that registers while retention truncates: nothing behind the position it was given goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from retention_world import BY_SIZE, PERIOD_MS, Retention
from stream_world import StreamWorld

from headrace import topology
from headrace.controller.ticks.apply_retention import PUT_OFF_MS, RetentionTicks
from headrace.controller.write_dead_letter import handle_dead_letter
from headrace.metadata.scope import scope_guard_key
from headrace.metadata.subscriber import Subscriptions
from headrace.model.dead_letters import Cause, Delivery
from headrace.model.errors import IllegalStateError
from headrace.model.reader_groups import GroupStream
from headrace.model.stream_cuts import CutOrder, compare_cuts
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import ANY_VERSION, Check

EXISTS = Check(scope_guard_key("s"), ANY_VERSION)


def _by_service(world: StreamWorld, retention: Retention, generation: int) -> None:
    retention.subscribers.register("s", "t", "s/g", generation, {0: 0, 1: 0} if generation else None)


def _by_workflow(world: StreamWorld, retention: Retention, generation: int) -> None:
    Subscriptions(world.store, world.clock).subscribe(GroupStream("s", "t"), "s/g", generation, EXISTS)


WAYS = pytest.mark.parametrize("register", [_by_service, _by_workflow], ids=["service", "workflow"])
Register = Callable[[Any, Retention, int], None]


@pytest.fixture
def due(world: StreamWorld, retention: Retention) -> Retention:
    """Stream `t` has cuts at 80 and 160 bytes; the next tick is to truncate at one of them."""
    world.create(segments=2, retention=BY_SIZE)
    for _ in range(2):
        world.append(0, 40)
        retention.write(40, segment=1)
    world.append(0, 40)
    world.append(1, 40)
    world.clock.advance(PERIOD_MS)
    return retention


def _tick(retention: Retention, before_truncation: Callable[[], None] = lambda: None) -> None:
    """A tick of all buckets, which leaves the messages of what it asked for in their queue."""
    world = retention.world

    def truncate(*arguments: Any) -> object:
        before_truncation()
        return world.accept_truncation(*arguments)

    ticks = RetentionTicks(world.store, world.segment_stores, world.clock, truncate, PERIOD_MS)
    for bucket in range(topology.BUCKET_COUNT):
        ticks.run(bucket)


def _check_nothing_is_lost(world: StreamWorld, retention: Retention) -> None:
    position = retention.subscribers.get_subscriber("s", "t", "s/g").position
    truncation: Truncation | None = world.records.get_with_truncation("s", "t")[1]
    assert truncation is None or compare_cuts(position, truncation.head) is CutOrder.EQUAL_OR_AFTER


@WAYS
def test_one_that_registers_after_the_plan_is_waited_for(world: StreamWorld, due: Retention, register: Register):
    _tick(due, before_truncation=lambda: register(world, due, 0))
    world.drain()
    assert due.head() == {0: 0, 1: 0}
    _check_nothing_is_lost(world, due)
    due.subscribers.update_stream_cut("s", "t", "s/g", 0, {0: 50, 1: 30})
    world.clock.advance(PUT_OFF_MS)
    due.tick()
    assert due.head() == {0: 50, 1: 30}, "the tick goes on with the subscriber"


@WAYS
def test_one_that_goes_back_after_the_plan_is_waited_for(world: StreamWorld, due: Retention, register: Register):
    register(world, due, 0)
    due.subscribers.update_stream_cut("s", "t", "s/g", 0, {0: 70, 1: 70})
    _tick(due, before_truncation=lambda: register(world, due, 1))
    world.drain()
    assert due.head() == {0: 0, 1: 0}
    _check_nothing_is_lost(world, due)


@WAYS
def test_one_that_registers_during_a_truncation_begins_behind_it(
    world: StreamWorld, due: Retention, register: Register
):
    _tick(due)
    register(world, due, 0)
    assert due.subscribers.get_subscriber("s", "t", "s/g").position.cut.offsets == {0: 40, 1: 40}
    world.drain()
    assert due.head() == {0: 40, 1: 40}
    _check_nothing_is_lost(world, due)


def test_an_explicit_start_is_moved_behind_a_running_truncation(world: StreamWorld, due: Retention):
    _tick(due)
    assert due.subscribers.register("s", "t", "s/g", 0, {0: 10, 1: 60}).position.cut.offsets == {0: 40, 1: 60}
    world.drain()
    _check_nothing_is_lost(world, due)


def test_a_replay_spares_what_a_later_subscriber_has_not_read(world: StreamWorld, due: Retention):
    """A truncation by retention was rolled back. A subscriber registers before an operator replays the dead letter."""
    _tick(due)
    (message,) = world.bare_queue.receive()
    world.bare_queue.acknowledge(message.receipt)
    delivery = Delivery(topology.REQUESTS_QUEUE.name, "s/t", json.dumps(message.body), world.clock.now_ms(), 10)
    letter = handle_dead_letter(world.bare_store, delivery, Cause("unavailable", "no answer"), world.clock.now_ms())
    assert letter is not None
    due.subscribers.register("s", "t", "s/g", 0)
    with pytest.raises(IllegalStateError, match="by itself"):
        world.dead_letters.replay_letter(letter.letter_id)
    world.drain()
    _check_nothing_is_lost(world, due)
    due.subscribers.update_stream_cut("s", "t", "s/g", 0, {0: 30, 1: 30})
    world.clock.advance(PUT_OFF_MS)
    due.tick()
    assert due.head() == {0: 30, 1: 30}, "retention goes on without the letter"
