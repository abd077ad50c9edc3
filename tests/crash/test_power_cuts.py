"""Power cuts anywhere in the life of a whole store, and a checker that finds what is not as it was acknowledged."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from fuzz.checker import WrongStateError
from fuzz.histories import ContentError, History
from fuzz.lanes import Lane
from fuzz.power_cuts import Replay, Survivor, World, check_survivor, live, torture

CUTS = 12
GENERATIONS = 3


@pytest.mark.parametrize("seed", [1, 6, 41])
def test_what_was_acknowledged_survives_power_cuts(seed):
    assert asyncio.run(torture(seed, generations=GENERATIONS, cuts=CUTS)) == GENERATIONS * CUTS


def test_a_store_that_lost_or_made_up_something_is_found_out():
    async def scenario():
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
            ):  # lacks what was told since; has what nobody asked for
                with pytest.raises((WrongStateError, ContentError)):
                    await check_survivor(survivor, history, moment, random, 0)

    asyncio.run(scenario())
