"""Steps of scenarios of costs: transactions and their tick."""

from __future__ import annotations

from typing import Any

from cost_world import BUCKET, CostWorld, Step


def begin(world: CostWorld) -> int:
    return world.begin()


def opened(world: CostWorld) -> None:
    world.transaction = world.begin()


def several(world: CostWorld) -> None:
    world.several = [world.begin() for _ in range(10)]


def of(call: str, *more: Any) -> Step:
    return lambda world: getattr(world.transactions, call)("s", "t", world.transaction, *more)


def begin_on_demand(world: CostWorld) -> int:
    return world.transactions.create_transaction("s", "t", 60_000, on_demand=True).transaction_id


def on_demand(world: CostWorld) -> None:
    begun = world.transactions.create_transaction("s", "t", 60_000, on_demand=True)
    world.transaction, world.wanted_segments = begun.transaction_id, [begun.segments[0].segment_id]


def first_segments(world: CostWorld) -> object:
    return world.transactions.create_segments("s", "t", world.transaction, world.wanted_segments)


def commit_set(world: CostWorld) -> object:
    return world.commit_set(world.several)


def commit_several(world: CostWorld) -> None:
    for transaction in world.several:
        world.transactions.commit_transaction("s", "t", transaction)


def expire(world: CostWorld) -> object:
    return world.expire_transactions(BUCKET)


def lease_over(world: CostWorld) -> None:
    world.clock.advance(3_600_000)


def committed(world: CostWorld) -> None:
    world.commit(world.transaction)


def day_over(world: CostWorld) -> None:
    world.clock.advance(2 * 24 * 3_600_000)
