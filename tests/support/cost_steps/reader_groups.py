"""Steps of scenarios of costs: reader groups."""

from __future__ import annotations

from typing import Any

from cost_world import CostWorld

from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, RetentionMode

GROUP_ID = "5f1d3a6e-8a3b-4c1e-9d6f-0123456789ab"


def _group(**more: Any) -> ReaderGroupConfiguration:
    return ReaderGroupConfiguration((GroupStream("s", "t"),), retention=RetentionMode.MANUAL, **more)


def create(world: CostWorld) -> object:
    return world.reader_groups.create_reader_group("s", "g", GROUP_ID, _group())


def created(world: CostWorld) -> None:
    create(world)
    world.drain()


def update(world: CostWorld) -> object:
    return world.reader_groups.update_reader_group("s", "g", GROUP_ID, 0, _group(group_refresh_ms=5))


def delete(world: CostWorld) -> object:
    return world.reader_groups.delete_reader_group("s", "g", GROUP_ID)
