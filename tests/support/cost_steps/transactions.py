"""Steps of scenarios of costs: transactions and their tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cost_world import BUCKET

from headrace.controller.ticks.expire_transactions import expire_transactions


def begin(world: Any) -> int:
    return world.begin()


def opened(world: Any) -> None:
    world.transaction = world.begin()


def several(world: Any) -> None:
    world.several = [world.begin() for _ in range(10)]


def of(call: str, *more: Any) -> Callable[[Any], object]:
    return lambda world: getattr(world.transactions, call)("s", "t", world.transaction, *more)


def commit_several(world: Any) -> None:
    for one in world.several:
        world.transactions.commit_transaction("s", "t", one)


def expire(world: Any) -> object:
    return expire_transactions(world.store, world.transaction_queues, world.clock, BUCKET)


def lease_over(world: Any) -> None:
    world.clock.advance(3_600_000)


def committed(world: Any) -> None:
    world.commit(world.transaction)


def day_over(world: Any) -> None:
    world.clock.advance(2 * 24 * 3_600_000)
