"""A store with containers whose logs are in S3: exactly once over kills, and bounds while S3 does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from store_world import RunningStore, WireClient, World
from unreliable_chunks import Fate, UnreliableChunks

from headrace import wire
from headrace.model.errors import FencedError
from headrace.model.log_classes import NUMBER_BLOCK
from headrace.model.names import segment_name
from headrace.model.segments import segment_id
from headrace.segmentstore.log.objects.log_object_writer import ObjectLogLimits

pytestmark = pytest.mark.anyio

IN_S3 = segment_name("s", "t", segment_id(0, NUMBER_BLOCK))
ON_DISK = segment_name("s", "t", 0)
WRITER = 99
DIGITS = 8


class S3World:
    """Chunk storage for logs whose PUTs have the fates of `fates`, and then `fate`."""

    def __init__(self, limits: ObjectLogLimits | None = None) -> None:
        self.fates: list[Fate] = []
        self.fate = Fate.DONE
        self.chunks = UnreliableChunks(lambda _name: self.fates.pop(0) if self.fates else self.fate)
        self.world = World(s3_containers=2, log_chunks=self.chunks)
        if limits is not None:
            self.world.object_limits = limits


def send_events(client: WireClient, numbers: Sequence[int], size: int = DIGITS) -> None:
    """Append one event of `size` bytes for each number."""
    for number in numbers:
        data = b"%0*d" % (DIGITS, number) + bytes(size - DIGITS)
        client.send(wire.AppendBlockEnd(WRITER, len(data), data, 1, number, 1000 + number))


async def acknowledged(client: WireClient, last: int) -> None:
    """Wait until the event with this number, and so each one before it, is acknowledged."""
    while True:
        reply = await client.receive()
        assert isinstance(reply, wire.DataAppended), reply
        if reply.event_number >= last:
            return


def events(data: bytes, size: int = DIGITS) -> list[int]:
    return [int(data[position : position + DIGITS]) for position in range(0, len(data), size)]


async def put_begun(running: RunningStore, world: S3World, count: int) -> None:
    await running.until(lambda: len(world.chunks.puts) >= count)


@pytest.mark.parametrize("fate", [Fate.LATE, Fate.ANSWER_LOST, Fate.UNAVAILABLE, Fate.CONFLICT, Fate.HELD])
@pytest.mark.parametrize("arrives", ["before the takeover", "after the takeover"])
async def test_each_event_is_stored_once_over_a_kill(fate: Fate, arrives: str):
    """The writer repeats what was not acknowledged, behind the number that the next owner knows."""
    made = S3World()
    async with made.world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(IN_S3)
        await client.set_up(IN_S3, WRITER)
        send_events(client, range(50))
        await acknowledged(client, 49)
        made.fate = fate
        seen = len(made.chunks.puts)
        send_events(client, range(50, 80))
        await put_begun(running, made, seen + 1)
    made.fate = Fate.DONE
    if arrives == "before the takeover":
        await _let_everything_arrive(made)
    async with made.world.running() as running:
        await _let_everything_arrive(made)
        client = await running.connect()
        last = await client.set_up(IN_S3, WRITER)
        assert 49 <= last <= 79
        send_events(client, range(last + 1, 100))
        await acknowledged(client, 99)
        assert events(await client.read_all(IN_S3)) == list(range(100))
    assert {type(error) for _, error in made.world.failures} <= {FencedError}


async def _let_everything_arrive(made: S3World) -> None:
    while made.chunks.late:
        await made.chunks.deliver()
    while made.chunks.held:
        made.chunks.let_arrive()
    for _ in range(50):
        await asyncio.sleep(0)


async def test_both_classes_recover_from_their_own_logs():
    made = S3World()
    for round_ in range(3):
        async with made.world.running(graceful=False) as running:
            for segment in (IN_S3, ON_DISK):
                client = await running.connect()
                if not round_:
                    await client.create(segment)
                first = 1 + await client.set_up(segment, WRITER) if round_ else 0
                if not round_:
                    await client.set_up(segment, WRITER)
                assert first == 20 * round_
                send_events(client, range(first, first + 20))
                await acknowledged(client, first + 19)
                assert events(await client.read_all(segment)) == list(range(first + 20))


async def test_graceful_shutdown_leaves_no_object_but_tombstones():
    made = S3World()
    async with made.world.running() as running:
        client = await running.connect()
        await client.create(IN_S3)
        await client.set_up(IN_S3, WRITER)
        send_events(client, range(20))
        await acknowledged(client, 19)
        assert any((await made.chunks.names("logs/")).values())
    assert not any((await made.chunks.names("logs/")).values())
    async with made.world.running() as running:
        client = await running.connect()
        assert await client.set_up(IN_S3, WRITER) == 19
        assert events(await client.read_all(IN_S3)) == list(range(20))


async def test_expired_lease_holds_no_acknowledgement_back():
    """A log on one disk needs the lease; S3 fences a former owner by itself."""
    made = S3World()
    async with made.world.running() as running:
        running.store.gate.close()
        client = await running.connect()
        await client.create(IN_S3)
        await client.set_up(IN_S3, WRITER)
        send_events(client, range(5))
        await acknowledged(client, 4)
        running.store.gate.extend(1e12)


async def test_slow_s3_bounds_requests_and_memory():
    """Writers wait when so much is not acknowledged; a segment of the other class goes on."""
    size, limit = 16 << 10, 1 << 20
    made = S3World(ObjectLogLimits(gather_s=0.0, object_bytes=128 << 10, waiting_bytes_max=limit))
    async with made.world.running() as running:
        client, other = await running.connect(), await running.connect()
        for segment_client, segment in ((client, IN_S3), (other, ON_DISK)):
            await segment_client.create(segment)
            await segment_client.set_up(segment, WRITER)
        made.fate = Fate.HELD
        count = 400  # more than six times the limit
        send_events(client, range(count), size)
        ledger = running.store.owner_of(IN_S3).container.log.ledger
        fills: list[float] = []

        def is_full() -> bool:
            made.world.clock.advance(0.2)
            fills.append(ledger.unacknowledged_fill)
            return fills[-1] >= 1.0 and len(fills) > 500

        await running.until(is_full)
        send_events(other, range(20))
        await acknowledged(other, 19)
        # A connection has received some more when the bound is noticed.
        assert ledger.unacknowledged_fill < 2.0
        assert len(made.chunks.held) == made.world.object_limits.puts_in_flight
        made.fate = Fate.DONE

        def arrive() -> bool:
            while made.chunks.held:
                made.chunks.let_arrive()
            made.world.clock.advance(1)
            return running.store.owner_of(IN_S3).container.log.is_durable

        await running.until(arrive)
        await acknowledged(client, count - 1)
        assert events(await client.read_all(IN_S3), size) == list(range(count))
