"""What catching up may take of a process."""

from __future__ import annotations

import pytest
from replicated_world import append, opened, payloads, replicated_world

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.replication.bounds import CATCH_UP_BYTES_PER_S, CATCH_UPS_MAX
from headrace.segmentstore.log.catch_ups import CatchUps

pytestmark = pytest.mark.anyio


async def test_takeover_does_not_wait_for_bulk_copies():
    """They hold their slots for as long as the rate of all of them says."""
    async with replicated_world() as world:
        disk = world.nodes["c"].disk
        await world.stop(world.nodes["c"])
        await append(await opened(world, "a"), b"one")
        await world.start("c", disk)
        world.network.cut(world.nodes["a"].replica, world.nodes["c"].replica)
        bulk = world.nodes["b"].ledgers._parts.catch_ups
        for _ in range(CATCH_UPS_MAX):
            await bulk.slots.acquire()
        await world.destroy(world.nodes["a"])
        assert payloads(await opened(world, "b")) == [b"one"]


async def test_all_members_share_one_rate():
    clock = ManualClock()
    catch_ups = CatchUps(clock)
    assert [catch_ups.delay_s(CATCH_UP_BYTES_PER_S // 2) for _ in range(3)] == [0.5, 1.0, 1.5]
    clock.advance(10_000)
    assert catch_ups.delay_s(CATCH_UP_BYTES_PER_S // 4) == 0.25, "what was not used is no credit"
