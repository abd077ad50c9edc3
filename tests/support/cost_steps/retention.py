"""Steps of scenarios of costs: streams with a policy, their subscribers, and the tick of retention."""

from __future__ import annotations

from typing import Any

from cost_steps import streams
from cost_world import BUCKET, tail

from headrace.controller.services.retention import RetentionService
from headrace.controller.services.subscribers import SubscriberService
from headrace.controller.ticks.apply_retention import RetentionTicks
from headrace.model.stream_configuration import RetentionPolicy


def retained(world: Any) -> None:
    """A policy, and a first cut."""
    streams.update(world, retention=RetentionPolicy.by_size(30))
    world.drain()
    ticks = RetentionTicks(world.store, world.segment_stores, world.clock, world.accept_truncation, 60_000)
    world.retain = lambda: ticks.run(BUCKET)
    world.retained = RetentionService(world.store, world.segment_stores, world.clock)
    world.subscribers = SubscriberService(world.store, world.clock)
    world.retain()


def a_period_later(world: Any) -> None:
    world.append(world.tails[0], 10)
    world.clock.advance(60_000)


def full(world: Any) -> None:
    world.append(world.tails[0], 100)
    a_period_later(world)


def subscribed(world: Any) -> None:
    world.subscribers.register("s", "t", "g", 0)


def publish(world: Any) -> object:
    return world.subscribers.update_stream_cut("s", "t", "g", 0, tail(world))


def tick(world: Any) -> None:
    world.retain()
