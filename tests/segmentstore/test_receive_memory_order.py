"""Thousands of connections may wait for receive memory: who is served first, and how much work that is."""

from __future__ import annotations

import pytest
from session_channels import feed, open_session
from store_world import World

from headrace import wire
from headrace.segmentstore.connections.limits import HELD_READS_MAX
from headrace.segmentstore.connections.receive_memory import (
    LARGE_PIECE_BYTES,
    SMALL_PIECE_BYTES,
    ReceiveAccount,
    ReceiveMemory,
    receive_bytes_min,
)

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = 7


def memory_of(megabytes: int) -> ReceiveMemory:
    """A memory of which so much is shared."""
    return ReceiveMemory(receive_bytes_min(100) + (megabytes << 20), 100)


def account_of(memory: ReceiveMemory, address: str, served: list[str]) -> ReceiveAccount:
    return ReceiveAccount(memory, address, lambda: served.append(address), lambda: None, lambda: True)


def crowd(memory: ReceiveMemory, count: int, addresses: int) -> tuple[list[ReceiveAccount], list[str]]:
    """Accounts that hold all memory, and the addresses of those that are served of so many that wait."""
    served: list[str] = []
    holders = [account_of(memory, f"10.1.0.{number}", served) for number in range(100)]
    while memory.charge(holders[0], LARGE_PIECE_BYTES) and holders[0].held_bytes < 15 << 20:
        pass  # it finishes the largest command
    share_bytes = holders[0].shared_bytes
    for holder in holders[1:]:
        while not memory.waiting and holder.held_bytes < share_bytes:
            memory.charge(holder, LARGE_PIECE_BYTES)
    while memory.waiting <= count:
        memory.charge(account_of(memory, f"10.0.0.{memory.waiting % addresses}", served), SMALL_PIECE_BYTES)
    return holders, served


@pytest.mark.parametrize("addresses", [1, 5, 1_000])
def test_serving_a_crowd_looks_at_each_a_few_times(monkeypatch: pytest.MonkeyPatch, addresses: int):
    """A connection that gave back 5 MB kept all others from a store for seconds, if 3,500 waited."""
    memory = memory_of(40)
    holders, served = crowd(memory, 1_000, addresses)
    looks = 0
    fits = ReceiveMemory._fits

    def counted(self: ReceiveMemory, account: ReceiveAccount, size_bytes: int) -> bool:
        nonlocal looks
        looks += 1
        return fits(self, account, size_bytes)

    monkeypatch.setattr(ReceiveMemory, "_fits", counted)
    largest = max(holders[1:], key=lambda each: each.held_bytes)
    memory.give_back(largest, largest.held_bytes)
    assert len(served) > 100
    assert looks < 5_000


def test_the_addresses_of_a_crowd_take_turns():
    memory = memory_of(40)
    holders, served = crowd(memory, 500, addresses=20)
    largest = max(holders[1:], key=lambda each: each.held_bytes)
    memory.give_back(largest, largest.held_bytes)
    shares = [memory._by_address[f"10.0.0.{number}"] for number in range(20)]
    assert len(served) > 100
    assert max(shares) - min(shares) == SMALL_PIECE_BYTES
    assert memory.used_bytes <= memory.total_bytes


async def test_own_reads_at_a_tail_excuse_no_held_block(make_world: type[World]):
    """A peer keeps a block without its end, and lets the store receive no more by many reads that it holds."""
    world = make_world(container_count=1, cache_bytes=64 << 20)
    async with world.running() as running:
        memory = memory_of(2)
        client = await running.connect()
        await client.create(SEGMENT)
        session, channel = open_session(running, memory=memory, peer="10.0.0.1:80")
        await feed(session, channel, wire.encode(wire.SetupAppend(1, WRITER, SEGMENT)))
        await running.until(lambda: bool(channel.sent))
        await feed(session, channel, wire.encode(wire.AppendBlock(WRITER, bytes(200_000))))
        reads = b"".join(wire.encode(wire.ReadSegment(SEGMENT, 0, 9, "", each)) for each in range(HELD_READS_MAX))
        await feed(session, channel, reads)
        assert (session.held_reads, channel.receiving) == (HELD_READS_MAX, False)
        crowd(memory, 1, addresses=1)
        for _ in range(10):
            memory.close_slowest()
        assert channel.closed
