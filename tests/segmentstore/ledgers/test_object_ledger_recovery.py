"""What a takeover of an object ledger reads and deletes, and objects that are missing or damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from ledger_worlds import Reports, read_back
from object_worlds import CONTAINER, World, turns
from unreliable_chunks import UnreliableChunks

from headrace.codec.log_objects import log_object_name
from headrace.model.errors import CorruptError
from headrace.ports.chunk_storage import StoredObject
from headrace.segmentstore.log.objects.log_object_writer import ObjectLogLimits

pytestmark = pytest.mark.anyio


async def test_many_objects_ask_for_a_truncation():
    world, reports = World(ObjectLogLimits(gather_s=0.0, objects_held_max=3)), Reports()
    ledger = await world.open()
    for number in range(3):
        assert not ledger.wants_truncation
        reports.append(ledger, b"%d" % number)
        await reports.all()
    assert ledger.wants_truncation
    ledger.truncate(2)
    assert not ledger.wants_truncation


@pytest.mark.parametrize("sequence", [0, 2, 4])
async def test_missing_object_stops_the_recovery(sequence: int):
    world, reports = World(ObjectLogLimits(gather_s=0.0, puts_in_flight=2)), Reports()
    ledger = await world.open()
    for number in range(8):
        reports.append(ledger, b"%d" % number)
        await reports.all()
    await world.chunks.stored.delete([log_object_name(CONTAINER, 0, sequence)])
    with pytest.raises(CorruptError, match=f"{sequence} is missing"):
        await world.open()


async def test_damaged_object_stops_the_recovery():
    world, reports = World(), Reports()
    ledger = await world.open()
    reports.append(ledger, b"entry")
    await reports.all()
    name = log_object_name(CONTAINER, 0, 0)
    raw = bytearray(await world.chunks.stored.read(name, 0, ledger.held_bytes))
    raw[-6] ^= 1
    await world.chunks.stored.delete([name])
    await world.chunks.stored.put(name, [raw])
    with pytest.raises(CorruptError, match="checksum"):
        await read_back(await world.open())


class CountedChunks(UnreliableChunks):
    """Counts the requests of a recovery, and how many reads are under way at a time."""

    def __init__(self) -> None:
        super().__init__(turns=lambda: 3)
        self.counts: Counter[str] = Counter()
        self.reading = self.most = 0

    async def read(self, name: str, position: int, length: int) -> bytes:
        self.counts["read"] += 1
        self.reading += 1
        self.most = max(self.most, self.reading)
        try:
            return await super().read(name, position, length)
        finally:
            self.reading -= 1

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[StoredObject]:
        self.counts["list"] += 1
        return await super().list(prefix, after=after, limit=limit)


async def test_recovery_of_thousands_of_objects_is_bounded():
    """Two reads for an object, sixteen at a time, and four lists of a page for each thousand objects."""
    world, reports, count = World(), Reports(), 3_500
    ledger = await world.open()
    for number in range(count):
        reports.append(ledger, b"%d" % number)
        await reports.all()
    counted = CountedChunks()
    counted.stored, world.chunks = world.chunks.stored, counted
    taker = await world.open()
    assert await read_back(taker) == {number: b"%d" % number for number in range(count)}
    assert counted.counts == {"read": 2 * count + 2, "list": 4 * 4}
    assert counted.most <= 16
    assert counted.puts == [log_object_name(CONTAINER, 0, count)]


async def test_objects_that_were_not_deleted_go_at_the_next_takeover():
    world, reports = World(), Reports()
    ledger = await world.open()
    for number in range(4):
        reports.append(ledger, b"%d" % number)
        await reports.all()
    world.chunks.fails = lambda: True
    ledger.truncate(2)
    reports.append(ledger, b"4")
    await reports.all()
    await turns()
    world.chunks.fails = lambda: False
    assert await world.names() == ["0-0", "0-1", "0-2", "0-3", "0-4"]
    await world.open()
    assert await world.names() == ["0-2", "0-3", "0-4", "0-5x"]
