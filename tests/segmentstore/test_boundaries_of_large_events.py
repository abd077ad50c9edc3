"""No boundary is inside a large event, which came in pieces: in memory, in tier 2, and after a restart."""

from __future__ import annotations

import pytest
from store_world import RunningStore, WireClient, World

from headrace import wire
from headrace.model.names import transient_segment_name

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
TRANSACTION = SEGMENT + "#transaction." + "0" * 31 + "1"
WRITER, PIECE_WRITER = 5, 6
SMALL_BYTES = 300
PIECES = (5_000, 5_000, 1_700)


async def append_small(client: WireClient, number: int, segment: str = SEGMENT) -> None:
    await client.set_up(segment, WRITER)
    await client.append(WRITER, number, b"s" * SMALL_BYTES)


async def append_large(
    running: RunningStore, client: WireClient, unique: int, *, flushed: bool, target: str = SEGMENT
) -> None:
    """An event in pieces; with `flushed` each piece is in a run of its own."""
    name = transient_segment_name(target, WRITER, unique)
    await client.create(name)
    await client.set_up(name, PIECE_WRITER)
    for number, length in enumerate(PIECES):
        await client.append(PIECE_WRITER, number, b"l" * length)
        if flushed:
            await running.flush()
    merged = await client.call(wire.MergeSegments(20, target, name))
    assert isinstance(merged, wire.SegmentsMerged), merged


async def boundaries(client: WireClient, length: int) -> set[int]:
    offsets = set()
    for offset in range(0, length, 100):
        reply = await client.call(wire.LocateOffset(21, SEGMENT, offset))
        assert isinstance(reply, wire.OffsetLocated), reply
        assert reply.offset >= offset
        offsets.add(reply.offset)
    return offsets


@pytest.mark.parametrize("flushed", [False, True])
async def test_no_boundary_is_inside_a_large_event(world: World, flushed: bool):
    large_bytes = sum(PIECES)
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        ends = [0]
        for number in range(3):
            await append_small(client, number)
            ends.append(ends[-1] + SMALL_BYTES)
            await append_large(running, client, number, flushed=flushed)
            ends.append(ends[-1] + large_bytes)
        await append_small(client, 9)
        ends.append(ends[-1] + SMALL_BYTES)
        assert await boundaries(client, ends[-1]) == set(ends)
        await running.flush()
        assert await boundaries(client, ends[-1]) <= set(ends)
    async with world.running() as running:
        client = await running.connect()
        found = await boundaries(client, ends[-1])
        assert found <= set(ends)
        assert len(found) > 1 or not flushed


async def test_a_large_event_of_a_transaction_has_no_boundary(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.create(TRANSACTION)
        await append_small(client, 1)
        await append_small(client, 1, TRANSACTION)
        await append_large(running, client, 1, flushed=False, target=TRANSACTION)
        await append_small(client, 2, TRANSACTION)
        merged = await client.call(wire.MergeSegments(20, SEGMENT, TRANSACTION))
        assert isinstance(merged, wire.SegmentsMerged), merged
        large = 2 * SMALL_BYTES
        end = large + sum(PIECES) + SMALL_BYTES
        allowed = {0, SMALL_BYTES, large, end - SMALL_BYTES, end}
        assert await boundaries(client, end) == allowed
        await running.flush()
        assert await boundaries(client, end) <= allowed
