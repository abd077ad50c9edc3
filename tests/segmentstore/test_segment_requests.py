"""Life cycle, attributes, merging and questions over the wire, each with the error replies it may get."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from store_world import RunningStore, WireClient, World

from headrace import wire

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
MISSING = "scope/stream/0.#epoch.77"
TRANSACTION = SEGMENT + "#transaction." + "0" * 31 + "1"
WRITER = 77


@pytest.fixture
async def running(world: World) -> AsyncIterator[RunningStore]:
    async with world.running() as running:
        yield running


@pytest.fixture
async def client(running: RunningStore) -> WireClient:
    """A client that has set up its writer on a new segment."""
    client = await running.connect()
    await client.create(SEGMENT)
    await client.set_up(SEGMENT, WRITER)
    return client


@pytest.mark.parametrize(
    "command",
    [
        wire.SealSegment(3, MISSING),
        wire.DeleteSegment(3, MISSING),
        wire.TruncateSegment(3, MISSING, 5),
        wire.GetStreamSegmentInfo(3, MISSING),
        wire.UpdateSegmentPolicy(3, MISSING, 1, 1),
        wire.GetSegmentAttribute(3, MISSING, 5),
        wire.UpdateSegmentAttribute(3, MISSING, 5, 1, 1),
        wire.LocateOffset(3, MISSING, 5),
        wire.MergeSegments(3, MISSING, SEGMENT),
        wire.MergeSegments(3, SEGMENT, MISSING),
        wire.MergeSegmentsBatch(3, MISSING, (SEGMENT,)),
    ],
)
async def test_what_is_missing_is_named(client, command):
    assert await client.call(command) == wire.NoSuchSegment(3, MISSING)


async def test_a_read_of_what_is_missing_names_segment_and_offset(client):
    reply = await client.call(wire.ReadSegment(MISSING, 17, 100, "", 3))
    assert reply == wire.NoSuchSegment(3, MISSING, "", 17)


async def test_containers_that_are_elsewhere(running, client):
    running.store._owned.clear()
    for command in (
        wire.SetupAppend(3, WRITER, SEGMENT),
        wire.ReadSegment(SEGMENT, 0, 10, "", 3),
        wire.GetStreamSegmentInfo(3, SEGMENT),
        wire.CreateSegment(3, SEGMENT, 0, 0),
    ):
        assert await client.call(command) == wire.WrongHost(3, SEGMENT)


async def test_a_segment_exists_once(client):
    assert await client.call(wire.CreateSegment(3, SEGMENT, 0, 0)) == wire.SegmentAlreadyExists(3, SEGMENT)
    reply = await client.call(wire.CreateSegment(3, "x" * 3000, 0, 0))
    assert isinstance(reply, wire.ErrorMessage)
    reply = await client.call(wire.CreateSegment(3, "scope/stream/5.#epoch.0", 0, 9))
    assert isinstance(reply, wire.ErrorMessage)


async def test_info_tells_length_start_and_seal(running, client):
    await client.append(WRITER, 1, b"0123456789")
    running.world.clock.advance(5)
    assert await client.call(wire.TruncateSegment(3, SEGMENT, 4)) == wire.SegmentTruncated(3, SEGMENT)
    info = await client.call(wire.GetStreamSegmentInfo(4, SEGMENT))
    ms = running.world.clock.ms
    assert info == wire.StreamSegmentInfo(4, SEGMENT, True, False, False, ms, 10, 4, ms * 1000 + 1)
    assert await client.call(wire.SealSegment(5, SEGMENT)) == wire.SegmentSealed(5, SEGMENT)
    assert await client.call(wire.SealSegment(6, SEGMENT)) == wire.SegmentIsSealed(6, SEGMENT)
    assert (await client.call(wire.GetStreamSegmentInfo(7, SEGMENT))).is_sealed


async def test_truncation(running, client):
    await client.append(WRITER, 1, b"0123456789")
    await client.append(WRITER, 2, b"abcdefghij")
    behind = await client.call(wire.TruncateSegment(3, SEGMENT, 21))
    assert behind == wire.SegmentIsTruncated(3, SEGMENT, 21, "", 21)
    await client.call(wire.TruncateSegment(3, SEGMENT, 15))
    assert await client.call(wire.TruncateSegment(4, SEGMENT, 7)) == wire.SegmentTruncated(4, SEGMENT)
    gone = await client.call(wire.ReadSegment(SEGMENT, 14, 100, "", 5))
    assert gone == wire.SegmentIsTruncated(5, SEGMENT, 15, "", 14)
    assert await client.read_all(SEGMENT, start=15) == b"fghij"
    await running.flush()
    assert await client.read_all(SEGMENT, start=15) == b"fghij"
    await client.call(wire.TruncateSegment(6, SEGMENT, 20))
    await running.flush()
    assert len(running.world.metadata.query(f"chunks/{SEGMENT}", limit=9).records) == 0


async def test_a_removed_segment_can_be_made_anew_and_starts_empty(running, client):
    await client.append(WRITER, 1, b"old bytes")
    await running.flush()
    assert len(running.world.metadata.query(f"chunks/{SEGMENT}", limit=9).records) == 1
    assert await client.call(wire.DeleteSegment(3, SEGMENT)) == wire.SegmentDeleted(3, SEGMENT)
    await client.create(SEGMENT)
    assert len(running.world.metadata.query(f"chunks/{SEGMENT}", limit=9).records) == 0
    assert await client.set_up(SEGMENT, WRITER) == wire.NO_EVENT_NUMBER
    await client.append(WRITER, 1, b"new")
    await running.flush()
    assert await client.read_all(SEGMENT) == b"new"


async def test_attributes(client):
    unset = wire.NO_ATTRIBUTE_VALUE
    assert await client.call(wire.GetSegmentAttribute(3, SEGMENT, 9)) == wire.SegmentAttribute(3, unset)
    assert await client.call(wire.UpdateSegmentAttribute(4, SEGMENT, 9, 5, 4)) == wire.SegmentAttributeUpdated(4, False)
    assert await client.call(wire.UpdateSegmentAttribute(5, SEGMENT, 9, 5, unset)) == wire.SegmentAttributeUpdated(
        5, True
    )
    assert await client.call(wire.GetSegmentAttribute(6, SEGMENT, 9)) == wire.SegmentAttribute(6, 5)
    assert await client.call(wire.UpdateSegmentPolicy(7, SEGMENT, 100, 2)) == wire.SegmentPolicyUpdated(7, SEGMENT)
    assert await client.call(wire.GetSegmentAttribute(8, SEGMENT, 1 << 127 | 3)) == wire.SegmentAttribute(8, 100)


async def test_merging_appends_all_of_the_source_and_removes_it(running, client):
    await client.append(WRITER, 1, b"target,")
    await client.create(TRANSACTION)
    other = await running.connect()
    await other.set_up(TRANSACTION, 5)
    await other.append(5, 1, b"part one,")
    await other.append(5, 2, b"part two,")
    merged = await client.call(wire.MergeSegments(3, SEGMENT, TRANSACTION))
    assert merged == wire.SegmentsMerged(3, SEGMENT, TRANSACTION, 25)
    assert await client.read_all(SEGMENT) == b"target,part one,part two,"
    assert await client.call(wire.GetStreamSegmentInfo(4, TRANSACTION)) == wire.NoSuchSegment(4, TRANSACTION)
    batch = await client.call(wire.MergeSegmentsBatch(5, SEGMENT, (TRANSACTION,)))
    assert batch == wire.SegmentsBatchMerged(5, SEGMENT, (wire.MergedSource(TRANSACTION, 25),))
    await client.append(WRITER, 2, b"after")
    assert await client.read_all(SEGMENT) == b"target,part one,part two,after"


async def test_a_batch_merges_in_its_order_all_or_none(client):
    names = [f"{SEGMENT}#transaction.{number:032x}" for number in range(4)]

    for number, name in enumerate(names[:3]):
        await client.create(name)
        await client.set_up(name, 5)
        await client.append(5, 1, b"%d" % number * (number + 1))
    await client.append(WRITER, 1, b"target,")

    order = (names[2], names[3], names[0], names[2], names[1])  # one was never there, one is named twice
    batch = await client.call(wire.MergeSegmentsBatch(3, SEGMENT, order))
    lengths = [10, 10, 11, 11, 13]
    assert batch == wire.SegmentsBatchMerged(3, SEGMENT, tuple(map(wire.MergedSource, order, lengths)))
    assert await client.read_all(SEGMENT) == b"target,222011"
    assert await client.call(wire.GetSegmentAttribute(4, SEGMENT, 1 << 127 | 1)) == wire.SegmentAttribute(4, 4)
    again = await client.call(wire.MergeSegmentsBatch(5, SEGMENT, order))
    assert again == wire.SegmentsBatchMerged(5, SEGMENT, tuple(wire.MergedSource(name, 13) for name in order))

    for name in names[:2]:
        await client.create(name)
    await client.set_up(names[1], 5)
    await client.append(5, 1, b"cut")
    await client.call(wire.TruncateSegment(6, names[1], 1))
    refused = await client.call(wire.MergeSegmentsBatch(7, SEGMENT, (names[0], names[1])))
    assert isinstance(refused, wire.ErrorMessage)
    assert (await client.call(wire.GetStreamSegmentInfo(8, names[0]))).exists
    assert await client.read_all(SEGMENT) == b"target,222011"
    missing = "scope/other/0.#epoch.0"
    assert await client.call(wire.MergeSegmentsBatch(9, missing, ())) == wire.NoSuchSegment(9, missing)


async def test_merging_with_a_condition_on_an_attribute(client):
    await client.create(TRANSACTION)
    update = wire.AttributeUpdate(9, 4, 1, 0)
    refused = await client.call(wire.MergeSegments(3, SEGMENT, TRANSACTION, "", (update,)))
    assert refused == wire.SegmentAttributeUpdated(3, False)
    update = wire.AttributeUpdate(9, 4, 1, wire.NO_ATTRIBUTE_VALUE)
    merged = await client.call(wire.MergeSegments(4, SEGMENT, TRANSACTION, "", (update,)))
    assert merged == wire.SegmentsMerged(4, SEGMENT, TRANSACTION, 0)
    assert await client.call(wire.GetSegmentAttribute(5, SEGMENT, 9)) == wire.SegmentAttribute(5, 1)


async def test_merging_into_a_sealed_segment_is_refused(client):
    await client.create(TRANSACTION)
    await client.call(wire.SealSegment(3, SEGMENT))
    assert await client.call(wire.MergeSegments(4, SEGMENT, TRANSACTION)) == wire.SegmentIsSealed(4, SEGMENT)
    assert (await client.call(wire.GetStreamSegmentInfo(5, TRANSACTION))).exists


async def test_transient_segments_live_as_long_as_their_connection(running, client):
    other = await running.connect()
    made = await other.call(wire.CreateTransientSegment(3, 5, SEGMENT))
    assert made.segment.startswith(SEGMENT + "#transient." + f"{5:032x}.")
    await other.set_up(made.segment, 5)
    await other.call(wire.ConditionalBlockEnd(5, 0, 0, b"large ", 4))
    await other.call(wire.ConditionalBlockEnd(5, 1, 6, b"event", 5))
    kept = await other.call(wire.CreateTransientSegment(6, 5, SEGMENT))
    merged = await other.call(wire.MergeSegments(7, SEGMENT, made.segment))
    assert merged == wire.SegmentsMerged(7, SEGMENT, made.segment, 11)
    other.close()
    owned = running.store.owner_of(SEGMENT)
    await running.until(lambda: kept.segment not in owned.container.metadata.segments)
    assert await client.read_all(SEGMENT) == b"large event"


# Reads


async def test_a_read_at_the_tail_waits_for_data(running, client):
    other = await running.connect()
    other.send(wire.ReadSegment(SEGMENT, 0, 100, "", 3), wire.KeepAlive())
    assert await other.receive() == wire.KeepAlive()  # the read is held by now
    await client.append(WRITER, 1, b"news")
    reply = await other.receive()
    assert reply == wire.SegmentRead(SEGMENT, 0, True, False, b"news", 3, reply.ordering_number)


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (wire.SealSegment(9, SEGMENT), wire.SegmentRead(SEGMENT, 4, True, True, b"", 3)),
        (wire.DeleteSegment(9, SEGMENT), wire.NoSuchSegment(3, SEGMENT, "", 4)),
    ],
)
async def test_a_held_read_ends_with_its_segment(running, client, command, reply):
    await client.append(WRITER, 1, b"data")
    other = await running.connect()
    other.send(wire.ReadSegment(SEGMENT, 4, 100, "", 3), wire.KeepAlive())
    assert await other.receive() == wire.KeepAlive()
    client.send(command)
    received = await other.receive()
    if isinstance(received, wire.SegmentRead):
        received = replace(received, ordering_number=0)
    assert received == reply


async def test_a_held_read_is_answered_empty_in_the_end(running, client, monkeypatch):
    monkeypatch.setattr("headrace.segmentstore.connections.read_processor.TAIL_HOLD_S", 0.01)

    reply = await client.call(wire.ReadSegment(SEGMENT, 0, 100, "", 3))
    assert reply == wire.SegmentRead(SEGMENT, 0, True, False, b"", 3, reply.ordering_number)
    owned = running.store.owner_of(SEGMENT)
    assert not owned.container.metadata.segments[SEGMENT].durable.waiters


async def test_a_reader_that_leaves_is_forgotten(running, client):
    other = await running.connect()
    other.send(wire.ReadSegment(SEGMENT, 0, 100, "", 3), wire.KeepAlive())
    await other.receive()
    segment = running.store.owner_of(SEGMENT).container.metadata.segments[SEGMENT]
    assert len(segment.durable.waiters) == 1
    other.close()
    await running.until(lambda: not segment.durable.waiters)


async def test_behind_the_end_of_a_sealed_segment(client):
    await client.call(wire.SealSegment(9, SEGMENT))
    reply = await client.call(wire.ReadSegment(SEGMENT, 1, 100, "", 3))
    assert isinstance(reply, wire.ErrorMessage)
    assert reply.error_code == wire.ERROR_CODE_ILLEGAL_ARGUMENT


async def test_locating_offsets_at_append_boundaries(client):
    for number, size in enumerate([10, 20, 30]):
        await client.append(WRITER, number, bytes(size))
    for target, found in [(0, 0), (1, 10), (10, 10), (11, 30), (31, 60), (60, 60), (99, 60)]:
        reply = await client.call(wire.LocateOffset(3, SEGMENT, target))
        assert reply == wire.OffsetLocated(3, SEGMENT, found)
