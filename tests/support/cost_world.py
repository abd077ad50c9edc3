"""The world in which scenarios of costs play, and what makes a scenario of a call and the steps before it.

The stream `s/t` scales by rate, has three segments in its second epoch, one tag, and 20 bytes in each first segment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stream_world import StreamWorld
from watermark_world import WatermarkWorld

from headrace import topology
from headrace.adapters.memory.chunk_storage import MemoryChunkLinks, MemoryChunkStorage
from headrace.api.plans import RangeToPlan
from headrace.controller.services.reader_plans import NextCutService, RangePlanService
from headrace.controller.services.retention_service import RetentionService, SubscriberService
from headrace.controller.ticks.apply_retention import RetentionTicks
from headrace.model.backoff import bucket_of_stream
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.ports.workers import InTurn

RETENTION_PERIOD_MS = 60_000
BUCKET = bucket_of_stream("s/t", topology.BUCKET_COUNT)


Work = Callable[[], object]


class CostWorld(StreamWorld):
    """A world with what the steps of scenarios work with, and what they remember for each other."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.before: list[int] = []
        self.tails: list[int] = []
        self.transaction = 0
        self.several: list[int] = []
        self.wanted_segments: list[int] = []
        self.subscribers = SubscriberService(self.store, self.clock)
        self.retained = RetentionService(self.store, self.segment_stores, self.clock)
        self.retention = RetentionTicks(
            self.store, self.segment_stores, self.clock, self.accept_truncation, RETENTION_PERIOD_MS
        )
        self.marks = WatermarkWorld(self)
        self.next_cuts = NextCutService(self.store, self.segment_stores)
        links = MemoryChunkLinks(MemoryChunkStorage(), 60, self.clock)
        self.range_plans = RangePlanService(self.store, self.segment_stores, links, InTurn(), topology.CONTAINER_COUNT)


Step = Callable[[CostWorld], object]


@dataclass(frozen=True)
class Scenario:
    """`prepare` makes the world ready and answers the work to measure; a question is measured twice."""

    name: str
    prepare: Callable[[CostWorld], Work]
    is_question: bool = False


def configuration(minimum: int = 1, **more: Any) -> StreamConfiguration:
    return StreamConfiguration(ScalingPolicy.by_event_rate(100, 2, minimum), **{"tags": ("a",), **more})


def create_stream(world: CostWorld) -> None:
    """The first epoch of the stream."""
    world.streams.create_stream("s", "t", configuration(2))
    world.drain()


def bring_into_last_epoch(world: CostWorld) -> None:
    """From the epoch in which it is, of two segments. `before`, `tails`: ids of both epochs in order of the ranges."""
    world.before = _active(world)
    for identifier in world.before:
        world.append(identifier, 20)
    world.clock.advance(5_000)
    world.scale(world.before[:1], [0.0, 0.25, 0.5])
    world.clock.advance(5_000)
    world.tails = _active(world)


def _active(world: CostWorld) -> list[int]:
    return [segment.segment_id for segment in world.records.get("s", "t").stream.epoch.segments]


def tail(world: CostWorld) -> dict[int, int]:
    """A stream cut in the last epoch."""
    first, second, kept = world.tails
    return {first: 0, second: 0, kept: 5}


def both_first_segments(world: CostWorld) -> list[RangeToPlan]:
    """The ranges of the two segments of the first epoch, in two pieces each."""
    return [RangeToPlan(identifier, 0, 20, 10) for identifier in world.before]


def beginning(world: CostWorld) -> dict[int, int]:
    """The stream cut where the epoch before began."""
    return dict.fromkeys(world.before, 0)


def epoch(world: CostWorld) -> int:
    return world.tails[0] >> 32


def question(name: str, ask: Step, *steps: Step) -> Scenario:
    return Scenario(name, _prepared(ask, *steps), is_question=True)


def change(name: str, act: Step, *steps: Step) -> Scenario:
    """A call, after the stream was made and `steps` were done."""
    return Scenario(name, _prepared(act, *steps))


def workflow(name: str, accept: Step, *steps: Step) -> Scenario:
    """The work that follows a call which was accepted."""
    return Scenario(name, _prepared(_drain, *steps, accept))


def _prepared(act: Step, *steps: Step) -> Callable[[CostWorld], Work]:
    def prepare(world: CostWorld) -> Work:
        if not world.tails:
            create_stream(world)
            bring_into_last_epoch(world)
        for step in steps:
            step(world)
        return lambda: act(world)

    return prepare


def _drain(world: CostWorld) -> None:
    world.drain()
    world.drain_transactions()
