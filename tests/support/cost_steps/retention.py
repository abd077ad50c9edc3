"""Steps of scenarios of costs: streams with a policy, their subscribers, and the tick of retention."""

from __future__ import annotations

from cost_steps import streams
from cost_world import BUCKET, RETENTION_PERIOD_MS, CostWorld, tail

from headrace.model.stream_configuration import RetentionPolicy


def retained(world: CostWorld) -> None:
    """A policy, and a first cut."""
    streams.update(world, retention=RetentionPolicy.by_size(30))
    world.drain()
    tick(world)


def a_period_later(world: CostWorld) -> None:
    world.append(world.tails[0], 10)
    world.clock.advance(RETENTION_PERIOD_MS)


def full(world: CostWorld) -> None:
    world.append(world.tails[0], 100)
    a_period_later(world)


def subscribed(world: CostWorld) -> None:
    world.subscribers.register("s", "t", "g", 0)


def publish(world: CostWorld) -> object:
    return world.subscribers.update_stream_cut("s", "t", "g", 0, tail(world))


def tick(world: CostWorld) -> None:
    world.retention.run(BUCKET)
