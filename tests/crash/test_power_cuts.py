"""Power cuts anywhere in the life of a whole store, and a checker that finds what is not as it was acknowledged."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from fuzz.checker import WrongStateError
from fuzz.histories import ContentError, History
from fuzz.lanes import Lane
from fuzz.power_cuts import Replay, Survivor, World, check_survivor, live, torture

pytestmark = pytest.mark.anyio

CUTS = 12
GENERATIONS = 3


@pytest.fixture(autouse=True)
async def log_failures_of_dead_stores() -> None:
    """Only log failures that no task awaits, as asyncio does: the tasks of a store without power fail like that."""
    asyncio.get_running_loop().set_exception_handler(None)


@pytest.mark.parametrize("seed", [1, *(pytest.param(number, marks=pytest.mark.nightly) for number in (6, 41))])
@pytest.mark.nightly
async def test_what_was_acknowledged_survives_power_cuts(seed):
    assert await torture(seed, generations=GENERATIONS, cuts=CUTS) == GENERATIONS * CUTS


async def test_a_store_that_lost_or_made_up_something_is_found_out():
    random, history = Random(5), History()
    world = World(Survivor(), random)
    lanes = [Lane(f"scope/stream/{number}", Random(number)) for number in range(3)]
    async with world.running() as running:
        await live(running, lanes, history, 400, world.trace)
    replay, end = Replay(world.trace), world.trace.position
    for position in (end // 5, end * 2 // 5, end * 3 // 5):
        replay.advance(position)
        survivor = replay.cut(0)
        await check_survivor(survivor, history, position, random, 0)
        for moment in (
            end,
            position // 2,
        ):  # it lacks an acknowledged operation, or has one that was never requested
            with pytest.raises((WrongStateError, ContentError)):
                await check_survivor(survivor, history, moment, random, 0)
