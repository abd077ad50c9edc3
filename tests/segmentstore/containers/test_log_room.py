"""A container that lags is slowed down alone, all are before the volume is full, and a full volume comes back."""

from __future__ import annotations

import asyncio
from operator import lt
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_world import World

from headrace import wire
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.model.names import container_of_segment
from headrace.model.store_volume import COPY_FROM_FILES, LogSpace, copying_pays, room_bytes
from headrace.segmentstore.containers import log_room
from headrace.segmentstore.tiering import storage_limits as throttle_module
from headrace.segmentstore.tiering.storage_limits import THROTTLE_DELAY_S_MAX, THROTTLE_FROM_FILL

WAIT_S = 300.0
"""A slow machine needs minutes for thousands of syncs."""

pytestmark = pytest.mark.anyio

FILE_BYTES = 64 << 10
WRITER = 5
DATA = b"x" * 4000
SEGMENTS = {container_of_segment(name, 2): name for name in (f"scope/stream/{number}.#epoch.0" for number in range(20))}

spaces = st.builds(
    LogSpace, st.integers(0, 1 << 40), st.just(0), st.integers(0, 1 << 40), st.sampled_from([1 << 20, 64 << 20])
)


@given(spaces, st.integers(1, 100))
def test_container_shares_sum_to_half_of_the_client_room(space, containers):
    assert 2 * containers * space.container_bytes_max(containers) <= space.client_bytes
    assert space.client_bytes + 3 * space.file_bytes <= max(space.room_bytes, 4 * space.file_bytes)


@given(spaces)
def test_clients_wait_before_they_are_refused(space):
    assert not space.is_exhausted or space.fill > 1


def test_a_volume_is_shared_by_its_logs():
    assert room_bytes(1000, 900, 100, 1) == 1000
    assert room_bytes(1000, 900, 100, 4) == 250
    assert room_bytes(1000, 0, 100, 4) == 100  # the others have taken the rest


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(1, 1000))
def test_copying_never_writes_more_than_it_frees(log_bytes, needed_bytes, files):
    if copying_pays(log_bytes, needed_bytes, files, COPY_FROM_FILES):
        assert needed_bytes <= log_bytes - needed_bytes
        assert files >= COPY_FROM_FILES


def test_room_has_its_greatest_size_until_the_volume_is_measured():
    """Containers are opened before the first look."""
    room = log_room.LogRoom(lambda: LogSpace(0, 0, 1 << 30, 1 << 10), list)
    assert (room.fill, room.greatest_fill, room.container_bytes_max) == (0.0, 0.0, log_room.HELD_LOG_BYTES_MAX)
    bounds = int(log_room.REFUSED_FROM_FILL * log_room.HELD_LOG_BYTES_MAX)
    for held_bytes in (bounds, bounds + 1):
        ledger: Any = SimpleNamespace(held_bytes=held_bytes, unacknowledged_fill=0.0, lag_fill=0.0)
        assert room.refuses(ledger) is (held_bytes > bounds)
        assert room.fill_of(ledger) == held_bytes / log_room.HELD_LOG_BYTES_MAX
    ledger.unacknowledged_fill = 2.0
    assert room.fill_of(ledger) == 2.0


@pytest.fixture
def small_world(make_world: type[World], monkeypatch):
    """A volume of 40 files, on which the throttle looks at once and never waits long."""
    monkeypatch.setattr(throttle_module, "THROTTLE_DELAY_S_MAX", 0.002)
    monkeypatch.setattr(log_room, "LOOKED_AT_EVERY_S", 0.0)
    return make_world(file_bytes=FILE_BYTES, disk=MemoryJournalDisk(capacity_bytes=40 * FILE_BYTES))


async def writer_of(running, container):
    client = await running.connect()
    await client.create(SEGMENTS[container])
    await client.set_up(SEGMENTS[container], WRITER)
    return client


class Appender:
    """Appends to one container, one block after the other, in a task of its own."""

    def __init__(self, client):
        self.acknowledged = -1
        self._client = client
        self._stopping = False
        self._task = asyncio.ensure_future(self._run())

    async def _run(self):
        number = 0
        while not self._stopping:
            self._client.send(wire.AppendBlockEnd(WRITER, len(DATA), DATA, 1, number, number))
            reply = await self._client.receive(wait_s=None)  # one that is slowed down waits as long as the test
            assert isinstance(reply, wire.DataAppended), reply
            self.acknowledged = number
            number += 1

    async def stop(self):
        """End with the append that is under way."""
        self._stopping = True
        await self._task

    @property
    def failed(self):
        return self._task.done()


async def test_a_container_that_lags_is_slowed_down_alone(small_world: World):
    async with small_world.running() as running:
        store, throttle = running.store, running.store.throttle
        lagging, busy = Appender(await writer_of(running, 0)), Appender(await writer_of(running, 1))
        await store.owned[0].writer.stop()
        mine, others = (lambda: [store.owned[0].container]), (lambda: [store.owned[1].container])
        await asyncio.wait_for(reached(running, lambda: throttle.log_is_full(mine)), WAIT_S)
        stopped_at, others_at = lagging.acknowledged, busy.acknowledged
        # Of 40 files three are not for clients. One more is not counted while the journal's other thread creates it.
        assert 2 * store.owned[0].container.log.ledger.held_bytes > FILE_BYTES * 36 / 2
        # The other one appends several times what the volume has, and is never slowed down.
        await asyncio.wait_for(reached(running, lambda: busy.acknowledged > others_at + 2000), WAIT_S)
        assert throttle.delay_s(store.clock.monotonic_s(), others) < THROTTLE_DELAY_S_MAX
        assert not throttle.log_is_full(others)
        assert lagging.acknowledged <= stopped_at + 2
        assert throttle.level >= 1.0
        assert not lagging.failed
        assert running.journal.failure is None
        store.owned[0].writer.start()
        await asyncio.wait_for(reached(running, lambda: lagging.acknowledged > stopped_at + 100), WAIT_S)
        await lagging.stop()
        await busy.stop()


async def reached(running, condition):
    """Tier 2 takes what it is given meanwhile."""
    while not condition():
        running.world.clock.advance(1e7)
        await asyncio.sleep(0.001)


async def test_appends_slow_down_and_stop_before_the_volume_is_full(small_world: World):
    """Something else has taken the room: no container holds its share."""

    async with small_world.running() as running:
        store, throttle, disk = running.store, running.store.throttle, small_world.disk
        appenders = [Appender(await writer_of(running, container)) for container in (0, 1)]
        for container in (0, 1):
            await store.owned[container].writer.stop()
        await reached(running, lambda: running.journal.space().log_bytes > 6 * FILE_BYTES)
        disk.capacity_bytes -= disk.space().free_bytes - 8 * FILE_BYTES
        delays = []

        def is_full():
            delays.append(throttle.delay_s(store.clock.monotonic_s(), list))
            return throttle.log_is_full(list)

        await asyncio.wait_for(reached(running, is_full), 20)
        assert any(0 < delay < throttle_module.THROTTLE_DELAY_S_MAX for delay in delays)
        assert delays == sorted(delays)
        assert disk.space().free_bytes >= FILE_BYTES
        assert running.journal.failure is None
        assert not any(each.failed for each in appenders)
        goals = [each.acknowledged + 50 for each in appenders]
        for container in (0, 1):
            store.owned[container].writer.start()
        goes_on = reached(running, lambda: all(map(lt, goals, [each.acknowledged for each in appenders])))
        await asyncio.wait_for(goes_on, 20)
        for each in appenders:
            await each.stop()


class HeldBackChunks(MemoryChunkStorage):
    """Tier 2 that takes snapshots, without which no container opens, but no data before it is opened."""

    def __init__(self):
        super().__init__()
        self.opened = asyncio.Event()

    async def put(self, name, parts):
        if not name.startswith("snapshots/"):
            await self.opened.wait()
        await super().put(name, parts)


async def test_a_full_volume_starts_recovers_tiers_and_frees(small_world: World):
    """As something else on the volume, or a version that did not account for it, may have left it."""

    disk = small_world.disk
    async with small_world.running(graceful=False) as running:
        client = await writer_of(running, 0)
        await running.store.owned[0].writer.stop()
        for number in range(60):
            await client.append(WRITER, number, DATA)
    for name in disk.names():
        if name.startswith("spare-"):
            disk.remove(name)
    disk.capacity_bytes -= disk.space().free_bytes
    before = len(disk.names())
    small_world.chunks = chunks = HeldBackChunks()
    async with small_world.running() as running:
        client = await running.connect()
        assert await client.read_all(SEGMENTS[0]) == DATA * 60
        reply = await client.call(wire.CreateSegment(7, "scope/other/0.#epoch.0", 0, 0))
        chunks.opened.set()
        assert not isinstance(reply, wire.SegmentCreated), "there is only room for what frees other files"
        await running.flush()
        await running.until(lambda: running.journal.space().log_bytes < 2 * FILE_BYTES)
        assert len([name for name in disk.names() if name.startswith("journal-")]) < before
        client = await running.connect()
        assert await client.set_up(SEGMENTS[0], WRITER) == 59
        await client.append(WRITER, 60, DATA)


class SmallRoom:
    """A log whose clients have 800 bytes, so that each of two containers has 200. Its containers hold `held`."""

    def __init__(self, *held: int) -> None:
        self.log_bytes = 0
        self.room_bytes = 1100
        self.measured = 0
        self.ledgers: list[Any] = [
            SimpleNamespace(held_bytes=each, unacknowledged_fill=0.0, lag_fill=0.0) for each in held
        ]
        self.room = log_room.LogRoom(self._space, lambda: self.ledgers)

    def _space(self) -> LogSpace:
        self.measured += 1
        return LogSpace(self.log_bytes, 0, self.room_bytes, 100)


def test_volume_is_measured_once_in_a_while():
    made = SmallRoom(0)
    for now_s, measured in [(5.0, 1), (5.09, 1), (5.1, 2), (5.15, 2), (9.0, 3)]:
        made.room.look(now_s)
        assert made.measured == measured


def test_share_is_refused_from_a_quarter_beyond_it():
    made = SmallRoom(250, 251)
    made.room.look(0.0)
    assert made.room.container_bytes_max == 200
    assert [made.room.refuses(each) for each in made.ledgers] == [False, True]
    assert made.room.refusal(made.ledgers[0]) is None
    assert made.room.refusal(made.ledgers[1]) == "it holds 251 bytes of log that are not in tier 2"
    made.ledgers[1].held_bytes = 250  # counts at once: a refused container gets its room back without a measurement
    assert not made.room.refuses(made.ledgers[1])


def test_share_of_a_large_volume_is_bounded():
    made = SmallRoom(log_room.HELD_LOG_BYTES_MAX * 5 // 4 + 1)
    made.room_bytes = 1 << 50
    for _ in range(2):  # before the first measurement, too
        assert made.room.container_bytes_max == log_room.HELD_LOG_BYTES_MAX
        assert made.room.refuses(made.ledgers[0])
        made.room.look(0.0)


def test_refusal_measures_the_volume_again():
    made = SmallRoom(0, 251)
    made.log_bytes = 900
    made.room.look(0.0)
    assert all(map(made.room.refuses, made.ledgers))
    assert {made.room.refusal(each) for each in made.ledgers} == {"the volume has no room for its log"}
    made.log_bytes = 899
    assert made.room.refuses(made.ledgers[0]), "not measured yet"
    assert made.room.refusal(made.ledgers[0]) is None
    assert not made.room.refuses(made.ledgers[0])
    assert made.room.fill == 899 / 800


@pytest.mark.parametrize(
    ("held_bytes", "waiting", "lag", "fill"), [(150, 0.5, 0.25, 0.75), (50, 0.5, 0.25, 0.5), (50, 0.125, 0.5, 0.5)]
)
def test_fill_of_a_container_is_the_greatest_of_three(held_bytes: int, waiting: float, lag: float, fill: float):
    made = SmallRoom(held_bytes, 0)
    made.ledgers[0].unacknowledged_fill, made.ledgers[0].lag_fill = waiting, lag
    made.room.look(0.0)
    assert [made.room.fill_of(each) for each in made.ledgers] == [fill, 0.0]
    assert made.room.greatest_fill == fill
    made.log_bytes = 720
    made.room.look(1.0)
    assert made.room.greatest_fill == 0.9


def test_log_without_containers_has_the_fill_of_its_volume():
    made = SmallRoom()
    made.log_bytes = 400
    made.room.look(0.0)
    assert (made.room.fill, made.room.greatest_fill) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("waiting", "counted"),
    [
        ((0.75, 0.25), [1.0, 1.0]),  # half of an even share
        ((0.75, 0.125), [0.875, 0.0]),
        ((0.5, 0.125, 0.0, 0.0), [0.625, 0.0, 0.0, 0.0]),  # a log that waits for nothing has no share
        ((0.5,), [0.5]),
    ],
)
def test_what_waits_counts_for_logs_with_half_a_share(waiting: tuple[float, ...], counted: list[float]):
    made = SmallRoom(*[0] * len(waiting))
    for ledger, fill in zip(made.ledgers, waiting, strict=True):
        ledger.unacknowledged_fill = fill
    made.room.look(0.0)
    assert [made.room.fill_of(each) for each in made.ledgers] == counted
    made.ledgers[0].unacknowledged_fill = 2.0  # since the measurement
    assert made.room.fill_of(made.ledgers[0]) == 2.0


def test_the_bounds_are_in_order():
    assert THROTTLE_FROM_FILL < 1.0 < log_room.REFUSED_FROM_FILL
