"""Steps of scenarios of costs: writers that note their time, and the tick of watermarks."""

from __future__ import annotations

from typing import Any

from watermark_world import WatermarkWorld


def marks(world: Any) -> None:
    world.marks = WatermarkWorld(world)


def noted(world: Any) -> None:
    world.marks.note("a", 1, {world.tails[0]: 1})


def noted_again(world: Any) -> None:
    world.marks.note("a", 2, {world.tails[0]: 2})


def tick(world: Any) -> None:
    world.marks.tick()
