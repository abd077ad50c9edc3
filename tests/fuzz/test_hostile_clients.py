"""All attacks of `python -m fuzz hostile-clients` at once on a store in this process, in a few rounds.

Nothing is timed here: the writer's appends are acknowledged, and the bounds of the store hold meanwhile.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from store_world import World
from token_clients import KEYS, admin, token_of

from fuzz import hostile_clients
from fuzz.hostile_clients import ATTACKS, Target, attack_until, create, write_well
from headrace.model.access import Access, scope_resource
from headrace.segmentstore.connections import read_processor

pytestmark = pytest.mark.anyio

APPENDS = 9
HELD_READS = 2_500


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile_clients, "TRICKLES", 3)
    monkeypatch.setattr(read_processor, "HELD_READS_PER_PROCESS_MAX", HELD_READS)
    monkeypatch.setattr(hostile_clients, "READING_CONNECTIONS", 4)


@pytest.mark.parametrize("tokens", ["off", "none", "valid"])
async def test_a12_a_writer_is_served_under_all_attacks(tokens: str):
    world = World(container_count=1, token_keys=None if tokens == "off" else KEYS, cache_bytes=64 << 20)
    token = token_of(world, {scope_resource("shop"): Access.READ_UPDATE}) if tokens == "valid" else ""
    async with world.running() as running:
        target = Target("127.0.0.1", running.port, Random(1), token, "" if tokens == "off" else admin(world))
        await create(target)
        stopped, memory, most = asyncio.Event(), running.listener.receive_memory, 0

        def look() -> None:
            nonlocal most
            most = max(most, memory.used_bytes)
            assert memory.used_bytes <= memory.total_bytes
            assert running.listener.held_reads <= HELD_READS

        async def watch() -> None:
            while not stopped.is_set():
                look()
                await asyncio.sleep(0)

        attacking: asyncio.Task[Any] = asyncio.create_task(attack_until(target, list(ATTACKS), stopped))
        watching = asyncio.create_task(watch())
        writers = 0
        while len(target.rounds) < len(ATTACKS):
            writers += 1
            assert len(await write_well(target, writers, APPENDS)) == APPENDS
        stopped.set()
        await asyncio.gather(attacking, watching)
        assert most <= memory.total_bytes // 8 or tokens != "none"
        assert not world.failures
        assert all(owned.container.failure is None for owned in running.store.owned.values())
        await running.until(lambda: memory.used_bytes == memory.waiting == running.listener.held_reads == 0)
        await write_well(target, writers + 1, 1)
        await running.flush()
