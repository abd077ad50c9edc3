"""A container goes from one running store to another, and back; a lease holds acknowledgements back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from held_disk import HeldDisk
from store_world import World

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec.log_record_header import RECORD_HEADER_BYTES
from headrace.metadata.cluster_records import decode_snapshot_pointer, snapshot_sort
from headrace.model.containers import CLUSTER_PARTITION
from headrace.model.errors import CorruptError, FencedError, UnavailableError
from headrace.ports.metadata_store import Key
from headrace.segmentstore.lease_gate import LeaseGate
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
ABSENT = "scope/stream/9.#epoch.0"
WRITER = 5


@pytest.fixture
def world(make_world: type[World]):
    return make_world(container_count=1)


def another_store(world: World):
    """A store on a disk of its own, and the same metadata, objects and time."""
    return replace(world, disk=MemoryJournalDisk())


async def move(world: World, giver, taker) -> None:
    assert await giver.store.hand_over(0, 60)
    await taker.store.open_container(0, world.claim(0))


async def test_a_container_goes_over_and_back_with_everything_in_it(world: World):
    async with world.running() as first:
        client = await first.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 1, b"one")
        assert await first.store.hand_over(0, 60)
        async with another_store(world).running() as second:  # opens what it claims
            assert await client.call(wire.AppendBlockEnd(WRITER, 3, b"two", 1, 2, 9)) == wire.WrongHost(9, SEGMENT)
            other = await second.connect()
            assert await other.set_up(SEGMENT, WRITER) == 1
            await other.append(WRITER, 2, b"two")
            await move(world, second, first)
            again = await first.connect()
            assert await again.set_up(SEGMENT, WRITER) == 2
            await again.append(WRITER, 3, b"three")
            assert await again.read_all(SEGMENT) == b"onetwothree"
            await move(world, first, second)
            other = await second.connect()
            assert await other.read_all(SEGMENT) == b"onetwothree"
            assert second.store.logs_at_rest == first.store.logs_at_rest == []


async def test_returned_container_is_recovered_from_its_own_log(world: World):
    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 1, b"one")
        await move(world, running, running)
        client = await running.connect()
        assert await client.set_up(SEGMENT, WRITER) == 1
        await client.append(WRITER, 2, b"two")
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(SEGMENT) == b"onetwo"
        assert await client.set_up(SEGMENT, WRITER) == 2


async def test_crash_after_a_hand_over_leaves_nothing_to_recover(world: World):
    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENT)
        assert await running.store.hand_over(0, 60)
    pointer = decode_snapshot_pointer(world.metadata.get(Key(CLUSTER_PARTITION, snapshot_sort(0))).body)
    assert (pointer.clean, pointer.epoch) == (True, 0)
    async with world.running() as running:
        assert (await (await running.connect()).set_up(SEGMENT, WRITER)) == wire.NO_ATTRIBUTE_VALUE


async def test_hand_over_answers_tail_readers_and_frees_the_cache(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 1, bytes(300_000))
        client.send(wire.ReadSegment(SEGMENT, 300_000, 100, "", 4))
        await client.drain_to_server()
        await running.until(lambda: running.listener.held_reads == 1)
        assert running.store.pool.used_bytes > 300_000
        assert await running.store.hand_over(0, 60)
        assert await client.receive() == wire.WrongHost(4, SEGMENT)
        assert await client.call(wire.ReadSegment(SEGMENT, 0, 100, "", 5)) == wire.WrongHost(5, SEGMENT)
        assert await client.call(wire.SetupAppend(6, WRITER, SEGMENT)) == wire.WrongHost(6, SEGMENT)
        assert running.store.pool.used_bytes <= world.block_bytes
        assert await running.store.hand_over(0, 60), "once is enough"


async def test_a_hand_over_is_no_failure_of_the_container(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        assert await running.store.hand_over(0, 60)
        assert world.failures == []


async def test_an_append_that_is_being_synced_is_handed_over_as_well(world: World):
    """It is the only one that tier 2 lacks, and becomes durable while the container is drained."""

    async def prepared() -> None:
        """Before the append."""

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        owned = running.store.owned[0]
        owned.writer.prepare_drain = prepared
        disk = HeldDisk(world.disk)
        client.send(wire.AppendBlockEnd(WRITER, 3, b"one", 1, 1, 9))
        await running.until(lambda: owned.container.metadata.segments[SEGMENT].accepted.length == 3)
        handed_over = asyncio.ensure_future(running.store.hand_over(0, 60))
        for _ in range(200):  # as far as it goes without the log
            owned.writer.wake()
            await asyncio.sleep(0)
        disk.release()
        assert await handed_over, "the process needs no restart for it"
        async with another_store(world).running() as second:
            assert await (await second.connect()).read_all(SEGMENT) == b"one"


async def test_while_the_lease_may_have_ended_nothing_is_acknowledged(world: World):
    async with world.running() as running:
        gate, clock = running.store.gate, world.clock
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        gate.extend(clock.monotonic_s() + 9)
        await client.append(WRITER, 1, b"in time")
        clock.advance(9)
        client.send(wire.AppendBlockEnd(WRITER, 4, b"late", 1, 2, 9))
        await running.until(lambda: gate.held > 0)
        assert running.store.owned[0].container.metadata.segments[SEGMENT].durable.length == len(b"in time")
        gate.extend(clock.monotonic_s() + 9)
        reply = await client.receive()
        assert isinstance(reply, wire.DataAppended)
        assert reply.event_number == 2
        assert gate.held == 0


async def test_held_acknowledgement_is_dropped_after_a_hand_over(world: World):
    async with world.running() as running:
        gate, clock = running.store.gate, world.clock
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        gate.extend(clock.monotonic_s())
        client.send(wire.AppendBlockEnd(WRITER, 4, b"late", 1, 1, 9))
        await running.until(lambda: gate.held > 0)
        running.store.owned[0].container.log.fail(FencedError("given away"))
        gate.extend(clock.monotonic_s() + 9)
        assert await client.closed()


@pytest.mark.parametrize("segment", [SEGMENT, ABSENT])
async def test_set_up_while_the_lease_is_lost_is_answered(world: World, segment: str):
    """An append of another writer keeps the log from being durable, and then fails with it."""
    async with world.running() as running:
        gate, clock = running.store.gate, world.clock
        other, client = await running.connect(), await running.connect()
        await other.create(SEGMENT)
        await other.set_up(SEGMENT, WRITER)
        gate.extend(clock.monotonic_s())
        other.send(wire.AppendBlockEnd(WRITER, 4, b"late", 1, 1, 9))
        await running.until(lambda: gate.held > 0)
        client.send(wire.SetupAppend(7, WRITER + 1, segment), wire.KeepAlive())
        assert await client.receive() == wire.KeepAlive()
        running.store.owned[0].container.log.fail(FencedError("taken over"))
        gate.extend(clock.monotonic_s() + 9)
        assert await client.receive() == wire.WrongHost(7, segment)


async def test_read_of_an_absent_segment_ends_with_the_log(world: World):
    """The reader repeats its read on another connection, and does not wait for ever."""
    async with world.running() as running:
        gate, clock = running.store.gate, world.clock
        other, client = await running.connect(), await running.connect()
        await other.create(SEGMENT)
        await other.set_up(SEGMENT, WRITER)
        gate.extend(clock.monotonic_s())
        other.send(wire.AppendBlockEnd(WRITER, 4, b"late", 1, 1, 9))
        await running.until(lambda: gate.held > 0)
        client.send(wire.ReadSegment(ABSENT, 0, 10, "", 7), wire.KeepAlive())
        assert await client.receive() == wire.KeepAlive()
        running.store.owned[0].container.log.fail(FencedError("taken over"))
        gate.extend(clock.monotonic_s() + 9)
        assert await client.closed()


def test_a_gate_keeps_the_order_and_opens_with_its_lease_only():
    class Clock:
        now_s = 5.0

        def now_ms(self) -> int:
            return 0

        def monotonic_s(self) -> float:
            return self.now_s

    clock, told = Clock(), []
    gate = LeaseGate(clock)
    assert gate.is_open
    gate.extend(6.0)
    clock.now_s = 6.0
    assert not gate.is_open
    for number in range(3):
        gate.hold(lambda number=number: told.append(number))
    gate.extend(5.5)
    assert told == []
    gate.extend(6.5)
    assert told == [0, 1, 2]
    gate.close()
    assert not gate.is_open


async def test_a_forgotten_log_frees_its_file_and_begins_anew(world: World):
    """Also after a restart, whether the mark that it was forgotten is still there or not."""

    loop = asyncio.get_running_loop()

    def start() -> tuple[Journal, OneCopyLedgers]:
        journal = Journal(
            world.disk, lambda: world.random.getrandbits(64), loop.call_soon_threadsafe, file_bytes=64 << 10
        )
        journal.start()
        return journal, OneCopyLedgers(journal)

    async def append(ledger, payload: bytes) -> None:
        done: asyncio.Future[None] = loop.create_future()
        ledger.append([payload], lambda error: done.set_result(None) if error is None else done.set_exception(error))
        await done

    journal, ledgers = start()
    forgotten, other = ledgers.open(0, 1), ledgers.open(1, 1)
    await append(forgotten, b"old")
    ledgers.forget(0)
    ledgers.forget(7)
    with pytest.raises(FencedError):
        forgotten.append([b"late"], lambda _error: None)
    again = ledgers.open(0, 2)
    assert (again.found_epoch, list(again.recover())) == (None, [])
    await append(again, b"new")
    journal.close()

    journal, ledgers = start()
    assert ledgers.epochs() == {0: 2}
    again, other = ledgers.open(0, 3), ledgers.open(1, 3)
    assert [bytes(entry.payload) for entry in again.recover()] == [b"new"]
    ledgers.forget(0)
    for _ in range(40):  # several files
        await append(other, bytes(8 << 10))
        other.truncate(other.next_entry)
    assert 0 not in journal.oldest_needed_bytes
    journal.close()

    journal, ledgers = start()
    assert 0 not in ledgers.epochs()
    await append(ledgers.open(0, 4), b"from the beginning")
    journal.close()
    journal, ledgers = start()
    assert [bytes(entry.payload) for entry in ledgers.open(0, 5).recover()] == [b"from the beginning"]
    journal.close()


async def test_a_released_log_is_read_from_its_files(world: World):
    """Also what was added after a truncation, over several files; and what another container has is not in it."""

    loop = asyncio.get_running_loop()
    journal = Journal(world.disk, lambda: world.random.getrandbits(64), loop.call_soon_threadsafe, file_bytes=64 << 10)
    journal.start()
    ledgers = OneCopyLedgers(journal)
    ledger, other = ledgers.open(0, 1), ledgers.open(1, 1)
    entries = [bytes([number]) * (8 << 10) for number in range(40)]
    for entry in entries:
        ledger.append([entry], lambda _error: None)
        other.append([b"other"], lambda _error: None)
    ledger.truncate(15)
    await asyncio.to_thread(ledgers.release, 0)
    await asyncio.to_thread(ledgers.release, 7)
    with pytest.raises(FencedError):
        ledger.append([b"late"], lambda _error: None)
    assert ledgers.epochs() == {0: 1, 1: 1}
    for epoch in (2, 3):
        again = ledgers.open(0, epoch)
        assert [bytes(found.payload) for found in again.recover()] == entries[15:]
        await asyncio.to_thread(ledgers.release, 0)
    again = ledgers.open(0, 4)
    again.append([b"more"], lambda _error: None)
    await asyncio.to_thread(ledgers.release, 0)
    await asyncio.to_thread(journal.close)
    journal = Journal(world.disk, lambda: world.random.getrandbits(64), loop.call_soon_threadsafe, file_bytes=64 << 10)
    journal.start()
    assert [bytes(found.payload) for found in OneCopyLedgers(journal).open(0, 5).recover()] == [
        *entries[15:],
        b"more",
    ]
    await asyncio.to_thread(journal.close)


async def test_damaged_released_log_does_not_count_as_empty(world: World):
    loop = asyncio.get_running_loop()
    journal = Journal(world.disk, lambda: world.random.getrandbits(64), loop.call_soon_threadsafe, file_bytes=64 << 10)
    journal.start()
    ledgers = OneCopyLedgers(journal)
    ledgers.open(0, 1).append([b"kept"], lambda _error: None)
    await asyncio.to_thread(ledgers.release, 0)
    world.disk.damage("journal-0000000000000001", FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 2)
    for epoch in (2, 3):
        ledger = ledgers.open(0, epoch)
        assert ledger.next_entry == 1
        with pytest.raises(CorruptError, match="damaged at"):
            list(ledger.recover())
        await asyncio.to_thread(ledgers.release, 0)
    await asyncio.to_thread(journal.close)


async def test_logs_that_cannot_be_ended_are_named(world: World, caplog, monkeypatch):
    """A shutdown goes on: the next owner recovers a log that it does not need."""

    async def refuse(container: int) -> None:
        raise UnavailableError(f"no answer about container {container}")

    async with world.running() as running:  # its logs have copies
        monkeypatch.setattr(running.store.ledgers, "needs_lease", lambda _container: False)
        monkeypatch.setattr(running.store.ledgers, "forget", refuse)
    for container in range(world.container_count):
        assert f"event=log_not_ended container={container} error=" in caplog.text
