"""Steps of scenarios of costs: writers that note their time, and the tick of watermarks."""

from __future__ import annotations

from cost_world import CostWorld


def noted(world: CostWorld) -> None:
    world.marks.note("a", 1, {world.tails[0]: 1})


def noted_again(world: CostWorld) -> None:
    world.marks.note("a", 2, {world.tails[0]: 2})


def tick(world: CostWorld) -> None:
    world.marks.tick()
