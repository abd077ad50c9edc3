"""Steps of scenarios of costs: key-value tables."""

from __future__ import annotations

from cost_world import CostWorld

from headrace.model.key_value_tables import TableConfiguration


def create(world: CostWorld) -> object:
    return world.tables.create_table("s", "k", TableConfiguration(4, 8))


def created(world: CostWorld) -> None:
    create(world)
    world.drain()


def delete(world: CostWorld) -> object:
    return world.tables.delete_table("s", "k")
