"""Which segments leave memory, which stay, and what is recorded of those that go."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from idle_segments import (
    FIRST,
    IDLE_S,
    SEGMENTS,
    evict,
    names_in_memory,
    rest,
    running_store,
    segment_is,
    with_evicted,
)
from segment_writes import WRITER, write
from store_world import World

from headrace import wire
from headrace.codec.container_snapshots import SegmentSnapshot, WritersGone
from headrace.metadata.evicted_segment import (
    SegmentRecord,
    decode_segment_record,
    evicted_segment_key,
    segment_record_body,
)
from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import BODY_BYTES_MAX, TRANSACTION_BYTES_MAX, WriteConflictError
from headrace.segmentstore.tiering import segment_records
from headrace.segmentstore.tiering.segment_records import (
    ATTRIBUTES_PER_BATCH_MAX,
    EVICTABLE_ATTRIBUTES_MAX,
    RECORDS_PER_WRITE_MAX,
)

pytestmark = pytest.mark.anyio


async def test_what_is_in_use_stays(world: World):
    async with running_store(world) as running:
        client, tail = await running.connect(), await running.connect()
        for name in SEGMENTS[:4]:
            await client.create(name)
        reply = await client.call(wire.CreateTransientSegment(1, 9, SEGMENTS[3]))
        transient = reply.segment
        await rest(running)
        await write(client, SEGMENTS[0], [b"not stored"])
        tail.send(wire.ReadSegment(SEGMENTS[1], 0, 100, "", 1))
        await client.call(wire.UpdateSegmentAttribute(1, SEGMENTS[2], 77, 1, wire.NO_ATTRIBUTE_VALUE))
        metadata = running.store.owned[0].container.metadata
        await running.until(lambda: bool(metadata.segments[SEGMENTS[1]].durable.waiters))
        assert await running.store.owned[0].evictor.sweep() == 1
        assert names_in_memory(running) == {*SEGMENTS[:3], transient}
        world.clock.advance(2 * IDLE_S)
        many = metadata.segments[SEGMENTS[2]].accepted.attributes
        many.update((1 << 80 | number, 1) for number in range(EVICTABLE_ATTRIBUTES_MAX))
        assert await running.store.owned[0].evictor.sweep() == 0


async def test_as_many_stay_as_shall(world: World, calls):
    world.limits = replace(world.limits, idle_segments_kept=2)

    async with running_store(world) as running:
        client = await running.connect()
        for name in SEGMENTS[:2]:
            await client.create(name)
        assert await evict(running) == 0
        calls.clear()
        assert isinstance(await client.call(wire.SetupAppend(1, WRITER, "scope/none/0")), wire.NoSuchSegment)
        await client.create(SEGMENTS[2])
        assert calls["reads"] == 0  # nothing has ever left
        assert await evict(running) == 1
        assert len(names_in_memory(running)) == 2


async def test_what_is_in_use_counts_for_those_that_stay(world: World):
    """Else a container would keep as many more as are in use."""
    world.limits = replace(world.limits, idle_segments_kept=1)

    async with running_store(world) as running:
        client = await running.connect()
        for name in SEGMENTS[:3]:
            await client.create(name)
        await rest(running)
        await write(client, SEGMENTS[0], [b"not stored"])
        assert await running.store.owned[0].evictor.sweep() == 2
        assert names_in_memory(running) == {SEGMENTS[0]}


async def test_a_sweep_takes_all_batches_and_counts_them(
    world: World, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(segment_records, "RECORDS_PER_WRITE_MAX", 2)

    async with running_store(world) as running:
        metrics = running.store.owned[0].container.metrics
        client = await running.connect()
        for count, names in ((5, SEGMENTS[:5]), (6, SEGMENTS[5:])):
            calls.clear()
            for name in names:
                await client.create(name)
            assert await evict(running) == len(names)
            assert calls["writes"] == -(-len(names) // 2)
            assert metrics.evicted_segments == count
        assert await evict(running) == 0
        assert metrics.evicted_segments == 6


async def test_a_sweep_gives_way_to_others(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(segment_records, "LOOKED_AT_PER_TURN", 2)

    async with running_store(world) as running:
        client = await running.connect()
        for name in SEGMENTS[:5]:
            await client.create(name)
        looking, turns = running.store.owned[0].evictor._idle(6), 0
        with suppress(StopIteration):
            while looking.send(None) is None:
                turns += 1
        assert turns == 2


async def test_a_segment_that_was_only_read_is_not_recorded_again(world: World, calls):
    async with with_evicted(world, *SEGMENTS) as (running, client):
        for name in SEGMENTS:
            assert await client.read_all(name) == name.encode()
        await rest(running)
        calls.clear()
        assert await running.store.owned[0].evictor.sweep() == len(SEGMENTS)
        assert calls["writes"] == 0
        await client.call(wire.SealSegment(1, FIRST))
        await rest(running)
        calls.clear()
        assert await running.store.owned[0].evictor.sweep() == 1
        assert calls["writes"] == 1
        await segment_is(FIRST, sealed=True)(client)


async def test_what_changes_while_its_record_is_written_stays(world: World):
    held, reached = threading.Event(), threading.Event()

    async with running_store(world) as running:
        client = await running.connect()
        for name in SEGMENTS[:3]:
            await client.create(name)
            await write(client, name, [b"0"])
        await rest(running)
        honest = world.metadata.write

        def slow(*writes):
            honest(*writes)
            reached.set()
            held.wait(20)

        world.metadata.write = slow
        sweep = asyncio.ensure_future(running.store.owned[0].evictor.sweep())
        await asyncio.to_thread(reached.wait, 20)
        await client.append(WRITER, 1, b"")  # nothing but a number
        client.send(wire.DeleteSegment(1, SEGMENTS[1]))
        await asyncio.sleep(0.01)
        assert SEGMENTS[1] in names_in_memory(running)  # its removal waits for the record
        world.metadata.write = honest
        held.set()
        assert isinstance(await client.receive(), wire.SegmentDeleted)
        await sweep
        assert names_in_memory(running) == {SEGMENTS[2]}
        assert await client.set_up(SEGMENTS[2], WRITER) == 1
        await running.until(lambda: not running.store.owned[0].container.metadata.deletions)
        assert world.metadata.get(evicted_segment_key(SEGMENTS[1])) is None
        assert isinstance(await client.call(wire.SetupAppend(1, WRITER, SEGMENTS[1])), wire.NoSuchSegment)
        await client.create(SEGMENTS[1])
        await segment_is(SEGMENTS[1], end=0)(client)


def test_the_largest_segment_that_may_leave_fits_into_its_record():
    attributes = {(1 << 128) - 1 - number: -(1 << 63) for number in range(EVICTABLE_ATTRIBUTES_MAX)}
    gone = WritersGone(1 << 40, (99_999,) * len(attributes))  # five years of half hours
    name = "\uffff" * (2032 // 3)
    state = SegmentSnapshot(0, name, 1 << 62, 1 << 62, False, 1 << 62, attributes, writers_gone=gone)
    body = segment_record_body(SegmentRecord(state, 1 << 40))
    assert len(json.dumps(body, separators=(",", ":"))) < BODY_BYTES_MAX
    assert 66 * ATTRIBUTES_PER_BATCH_MAX + RECORDS_PER_WRITE_MAX * 6 * 2032 < TRANSACTION_BYTES_MAX


async def test_segments_leave_while_unused_objects_cannot_be_found(world: World):
    """A store that may not list objects would keep all its segments in memory."""

    async def no_list(*_: object, **__: object) -> None:
        raise UnavailableError("not allowed")

    world.limits = replace(world.limits, sweep_every_s=1.0)
    async with running_store(world) as running:
        client = await running.connect()
        await client.create(FIRST)
        await write(client, FIRST, [b"data"])
        await rest(running)
        world.chunks.list = no_list  # type: ignore[method-assign]
        with pytest.raises(UnavailableError):
            await running.store.owned[0].maintenance.run_pass()
        assert not names_in_memory(running)


async def test_a_segment_removed_meanwhile_gets_no_record(world: World, monkeypatch: pytest.MonkeyPatch):
    """Its record may be removed already, and a new segment of its name would find the removed one."""
    async with running_store(world) as running:
        client = await running.connect()
        await client.create(FIRST)
        await write(client, FIRST, [b"former"])
        await rest(running)
        owned = running.store.owned[0]
        log, removed, waits = owned.container.log, asyncio.Event(), asyncio.Event()
        durable = log.durable

        async def durable_later() -> None:
            await durable()
            waits.set()
            await removed.wait()

        with monkeypatch.context() as patch:
            patch.setattr(log, "durable", durable_later)
            sweeping = asyncio.ensure_future(owned.evictor.sweep())
            await waits.wait()
        assert isinstance(await client.call(wire.DeleteSegment(1, FIRST)), wire.SegmentDeleted)
        await running.until(lambda: not owned.container.metadata.deletions)
        removed.set()
        assert await sweeping == 0
        assert world.metadata.get(evicted_segment_key(FIRST)) is None
        await client.create(FIRST)
        assert await client.read_all(FIRST) == b""


async def test_a_record_written_again_has_no_later_number(world: World):
    """Else a store without this log tells the writer that events are there which it lacks."""
    held, reached = threading.Event(), threading.Event()
    honest = world.metadata.write

    def unheard(*writes):
        honest(*writes)
        raise UnavailableError("no answer")

    def conflicting(*writes):
        try:
            honest(*writes)
        except WriteConflictError:  # with the record of which the store has not heard
            reached.set()
            held.wait(20)
            raise

    async with running_store(world) as running:
        client = await running.connect()
        await client.create(FIRST)
        await write(client, FIRST, [b"0"])
        await rest(running)
        world.metadata.write = unheard
        evictor = running.store.owned[0].evictor
        with pytest.raises(UnavailableError):
            await evictor.sweep()
        world.metadata.write = conflicting
        sweep = asyncio.ensure_future(evictor.sweep())
        await asyncio.to_thread(reached.wait, 20)
        await client.append(WRITER, 1, b"1")
        held.set()
        assert await sweep == 0
        record = world.metadata.get(evicted_segment_key(FIRST))
        assert record is not None
        state = decode_segment_record(record.body).state
        assert (state.length, state.attributes[WRITER]) == (1, 0)
