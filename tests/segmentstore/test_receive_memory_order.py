"""Thousands of connections may wait for receive memory: who is served first, and how much work that is."""

from __future__ import annotations

import pytest
from session_channels import feed, open_session
from store_world import World

from headrace import wire
from headrace.segmentstore.connections.connection_limits import HELD_READS_MAX
from headrace.segmentstore.connections.receive_memory import (
    LARGE_PIECE_BYTES,
    SMALL_PIECE_BYTES,
    STRANGERS,
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


def test_the_lane_goes_to_those_that_wait_for_it():
    """A later small command took the room in the lane for which others waited."""
    memory, served = memory_of(8), list[str]()
    small = [account_of(memory, "10.2.0.1", served) for _ in range(100)]
    in_lane = [each for each in small if memory.charge(each, SMALL_PIECE_BYTES) and each.lane_bytes]
    crowd(memory, 30, addresses=3)
    waiting, newcomer = (account_of(memory, f"10.3.0.{number}", served) for number in range(2))
    assert not memory.charge(waiting, SMALL_PIECE_BYTES)
    before = memory.waiting
    for each in in_lane:
        memory.give_back(each, SMALL_PIECE_BYTES)
        if waiting.lane_bytes:
            break
        assert not memory.charge(newcomer, SMALL_PIECE_BYTES) or waiting.held_bytes
    assert waiting.lane_bytes == SMALL_PIECE_BYTES
    assert memory.waiting < before


def test_a_lane_that_none_waits_for_keeps_its_connections():
    """A peer behind a slow network has sent a little, and pauses for a round trip. None waits for what it holds."""
    memory, closed = memory_of(8), list[str]()

    def account(address: str) -> ReceiveAccount:
        return ReceiveAccount(memory, address, lambda: None, lambda: closed.append(address), lambda: False)

    far = account("10.0.0.1")
    assert memory.charge(far, SMALL_PIECE_BYTES)
    others = [account(f"10.1.0.{number}") for number in range(40)]
    for other in others:
        memory.charge(other, LARGE_PIECE_BYTES)
    assert memory.waiting > 0
    for _ in range(10):
        for other in others:
            other.arrived(LARGE_PIECE_BYTES)
        memory.close_slowest()
    assert (far.lane_bytes, closed) == (SMALL_PIECE_BYTES, [])


def test_connection_that_gets_the_reserve_has_time_to_send():
    """The store has just let it send again. Its bytes are on their way when the period of all others ends."""
    memory, closed = memory_of(2), list[str]()

    def account(number: int) -> ReceiveAccount:
        address = f"10.0.0.{number}"
        return ReceiveAccount(memory, address, lambda: None, lambda: closed.append(address), lambda: False)

    writers = [account(number) for number in range(20)]
    for size_bytes in (SMALL_PIECE_BYTES, LARGE_PIECE_BYTES):
        for writer in writers:
            memory.charge(writer, size_bytes)
    assert memory.waiting > 1
    first = memory._finisher
    assert first is not None
    memory.give_back(first, first.held_bytes)
    next_one = memory._finisher
    assert next_one is not None
    assert next_one is not first

    def end_period() -> None:
        for writer in writers:
            writer.arrived(0 if writer is next_one else LARGE_PIECE_BYTES)
        memory.close_slowest()

    end_period()
    assert closed == []
    end_period()
    assert closed == [next_one.address]


def test_a_connection_that_moves_is_counted_once():
    memory, served = memory_of(8), list[str]()
    moved = account_of(memory, STRANGERS, served)
    assert memory.charge(moved, SMALL_PIECE_BYTES)
    memory.move(moved, "10.0.0.1")
    assert memory._by_address == {"10.0.0.1": SMALL_PIECE_BYTES}
    memory.give_back(moved, SMALL_PIECE_BYTES)
    assert (memory._by_address, memory.used_bytes) == ({}, 0)


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
