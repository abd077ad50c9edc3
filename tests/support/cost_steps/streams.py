"""Steps of scenarios of costs: what is asked of streams and scopes, and done to them."""

from __future__ import annotations

from typing import Any

from cost_world import BUCKET, CostWorld, Step, configuration, tail

from headrace import topology
from headrace.controller.services.auto_scaling import AutoScalingService
from headrace.controller.steps.stream_segments import CREATION_LOOKED_AT_AFTER_MS
from headrace.controller.ticks.remove_orphans import creation_ticks
from headrace.metadata.cluster_records import claim_body, claim_sort
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.names import container_of_segment, segment_name
from headrace.model.rates import ScalingReport
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.ports.metadata_store import Create, Key


def claim(world: CostWorld) -> None:
    name = segment_name("s", "t", world.tails[0])
    container = container_of_segment(name, topology.CONTAINER_COUNT)
    body = claim_body(ContainerClaim("store-0", "127.0.0.1", 1, "local"))
    world.bare_store.write(Create(Key(CLUSTER_PARTITION, claim_sort(container)), body))


def create(world: CostWorld) -> object:
    return world.streams.create_stream("s", "new", configuration(2))


def scale(world: CostWorld) -> object:
    return world.streams.scale_stream("s", "t", world.tails[2:], [KeyRange(0.5, 0.75), KeyRange(0.75, 1.0)])


def update(world: CostWorld, **more: Any) -> object:
    return world.streams.update_stream("s", "t", configuration(2, **more))


def raise_minimum(world: CostWorld) -> object:
    return world.streams.update_stream("s", "t", configuration(5))


def truncate(world: CostWorld) -> object:
    return world.streams.truncate_stream("s", "t", tail(world))


def seal(world: CostWorld) -> object:
    return world.streams.seal_stream("s", "t")


def delete(world: CostWorld) -> object:
    return world.streams.delete_stream("s", "t")


def delete_scope(world: CostWorld) -> None:
    world.scope_deletions.delete_scope_recursively("s")


def freeze(world: CostWorld) -> object:
    return world.streams.freeze_stream("s", "t")


def frozen(world: CostWorld) -> None:
    freeze(world)
    world.drain()


def unfreeze(world: CostWorld) -> object:
    return world.streams.unfreeze_stream("s", "t")


def sealed(world: CostWorld) -> None:
    world.seal()


def truncated(world: CostWorld) -> None:
    world.truncate(tail(world))


def scaled(world: CostWorld) -> None:
    world.scale(world.tails[1:2], [0.25, 0.375, 0.5])


def rate() -> StreamConfiguration:
    return StreamConfiguration(ScalingPolicy.by_event_rate(50, 2, 2), tags=("a",))


def report(number: int, kind: str, **more: Any) -> Step:
    """Of an active segment; -1: of the one that was replaced."""

    def handle(world: CostWorld) -> object:
        service = AutoScalingService(world.store, world.streams.acceptance, world.clock)
        name = segment_name("s", "t", world.tails[number] if number >= 0 else world.before[0])
        return service.handle(ScalingReport(name, kind, world.clock.now_ms(), **more))  # type: ignore[arg-type]

    return handle


def resend(world: CostWorld) -> object:
    return world.resend_intents(BUCKET)


def look_at_creations(world: CostWorld) -> object:
    return creation_ticks(world.tools()).run(BUCKET)


def hour_over(world: CostWorld) -> None:
    """Since the segments of the stream were created, in two operations."""
    world.clock.advance(CREATION_LOOKED_AT_AFTER_MS)


def lost(world: CostWorld) -> None:
    """A message that never arrived, of a request that was accepted a while ago."""
    world.queue.is_down = True
    scale(world)
    world.queue.is_down = False
    world.clock.advance(60_000)
