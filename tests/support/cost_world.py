"""The world in which scenarios of costs play, and what makes a scenario of a call and the steps before it.

The stream `s/t` scales by rate, has three segments in its second epoch, one tag, and 20 bytes in each first segment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace import topology
from headrace.model.buckets import bucket_of_stream
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration

BUCKET = bucket_of_stream("s/t", topology.BUCKET_COUNT)


Work = Callable[[], object]


@dataclass(frozen=True)
class Scenario:
    """`prepare` makes the world ready and answers the work to measure; a question is measured twice."""

    name: str
    prepare: Callable[[Any], Work]
    is_question: bool = False


def configuration(minimum: int = 1, **more: Any) -> StreamConfiguration:
    return StreamConfiguration(ScalingPolicy.by_event_rate(100, 2, minimum), **{"tags": ("a",), **more})


def create_stream(world: Any) -> None:
    """The first epoch of the stream."""
    world.streams.create_stream("s", "t", configuration(2))
    world.drain()


def bring_into_last_epoch(world: Any) -> None:
    """From the epoch in which it is, of two segments. `before`, `tails`: ids of both epochs in order of the ranges."""
    world.before = _active(world)
    for identifier in world.before:
        world.append(identifier, 20)
    world.clock.advance(5_000)
    world.scale(world.before[:1], [0.0, 0.25, 0.5])
    world.clock.advance(5_000)
    world.tails = _active(world)


def _active(world: Any) -> list[int]:
    return [one.segment_id for one in world.records.get("s", "t").stream.epoch.segments]


def tail(world: Any) -> dict[int, int]:
    """A stream cut in the last epoch."""
    first, second, kept = world.tails
    return {first: 0, second: 0, kept: 5}


def beginning(world: Any) -> dict[int, int]:
    """The stream cut where the epoch before began."""
    return dict.fromkeys(world.before, 0)


def epoch(world: Any) -> int:
    return world.tails[0] >> 32


def question(name: str, ask: Callable[[Any], object], *steps: Callable[[Any], object]) -> Scenario:
    return Scenario(name, _prepared(ask, *steps), is_question=True)


def change(name: str, act: Callable[[Any], object], *steps: Callable[[Any], object]) -> Scenario:
    """A call, after the stream was made and `steps` were done."""
    return Scenario(name, _prepared(act, *steps))


def workflow(name: str, accept: Callable[[Any], object], *steps: Callable[[Any], object]) -> Scenario:
    """The work that follows a call which was accepted."""
    return Scenario(name, _prepared(_drain, *steps, accept))


def _prepared(act: Callable[[Any], object], *steps: Callable[[Any], object]) -> Callable[[Any], Work]:
    def prepare(world: Any) -> Work:
        if not hasattr(world, "tails"):
            create_stream(world)
            bring_into_last_epoch(world)
        for step in steps:
            step(world)
        return lambda: act(world)

    return prepare


def _drain(world: Any) -> None:
    world.drain()
    world.drain_transactions()
