"""When links are used, and what happens when they fail. The bytes themselves: `test_readers_in_other_zones.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest
from object_server import ObjectServer, serving_object

from headrace.api.plans import Chunk, Chunks
from headrace.client.client_zone import ClientZone
from headrace.client.reading import chunk_reads, linked_history
from headrace.client.reading.linked_history import LinkedHistory
from headrace.model.errors import HeadraceError, TruncatedError, UnauthorizedError, UnavailableError

pytestmark = pytest.mark.anyio

DATA = bytes(index * 7 % 251 for index in range(60_000))
RUN = 5_000
EXPIRY_MS = 1_000_000


class Source:
    """A controller: DATA is in S3 in runs. `error` is its answer, if there is one. It counts listings."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.zone = ClientZone("use1-az2")
        self.run_bytes = RUN
        self.stored = len(DATA)
        self.error: HeadraceError | None = None
        self.first_offset = 0
        """What it adds to the offset of the first chunk."""
        self.expiries_ms = [EXPIRY_MS]
        """Of the first chunks; the others have the last one."""
        self.answers = asyncio.Event()
        self.answers.set()
        self.listings: list[tuple[int, int]] = []

    async def chunks(
        self, scope: str, stream: str, segment_id: int, *, from_offset: int, to_offset: int, limit: int
    ) -> Chunks:
        self.listings.append((from_offset, to_offset))
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        found: list[Chunk] = []
        end = min(to_offset, self.stored)
        for index, start in enumerate(range(from_offset, end, self.run_bytes)[:limit]):
            stop = min(start + self.run_bytes, end)
            header = {"Range": f"bytes={start}-{stop - 1}"}
            offset = start if index else start + self.first_offset
            expires_at_ms = self.expiries_ms[min(index, len(self.expiries_ms) - 1)]
            found.append(Chunk(offset, stop - start, self.url, header, expires_at_ms))
        return Chunks(tuple(found), end, None)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return int(self.now_s * 1000)


class World:
    """A history, the source behind it, and the clock that both go by."""

    def __init__(self, server: ObjectServer) -> None:
        self.server = server
        self.clock = Clock()
        self.source = Source(server.url)
        self.history = LinkedHistory(
            self.source, "shop", "t", monotonic_s=self.clock.monotonic_s, now_ms=self.clock.now_ms
        )

    async def read(self, start: int = 0, stop: int | None = None) -> bytes:
        async with aclosing(self.history.windows(7, start, stop)) as windows:
            return b"".join([bytes(window) async for window in windows])


@asynccontextmanager
async def serving(failures: Sequence[str] = ()) -> AsyncIterator[World]:
    with serving_object(DATA) as server:
        world = World(server.fail(failures))
        try:
            yield world
        finally:
            await world.history.close()


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked_history, "LINKED_BYTES_MIN", 10_000)
    monkeypatch.setattr(linked_history, "CHUNK_BYTES_MIN", 1_000)
    monkeypatch.setattr(linked_history, "LISTED_BYTES_MAX", 30_000)


async def test_the_bytes_of_one_listing_are_exact() -> None:
    async with serving() as world:
        assert await world.read(100) == DATA[100:30_100]
        assert await world.read(100, 12_345) == DATA[100:12_345]
        world.source.stored = 25_000
        assert await world.read(3_000) == DATA[3_000:25_000]


@pytest.mark.parametrize(("start", "stop", "stored"), [(0, 9_999, 60_000), (0, None, 9_999), (51_000, None, 60_000)])
async def test_few_bytes_are_left_to_the_store(start: int, stop: int | None, stored: int) -> None:
    async with serving() as world:
        world.source.stored = stored
        assert await world.read(start, stop) == b""
        assert world.server.requests == []


async def test_small_runs_are_left_to_the_store() -> None:
    async with serving() as world:
        world.source.run_bytes = 999
        assert await world.read() == b""
        world.source.run_bytes = 1_000
        assert await world.read() == DATA[:30_000]


@pytest.mark.parametrize("failure", ["gone", "server error", "cut off", "no connection", "range ignored"])
async def test_a_failure_of_s3_pauses_all_links(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving([failure]) as world:
        read = await world.read()
        assert DATA.startswith(read)
        assert len(read) < 30_000
        assert await world.read() == b""
        assert len(world.source.listings) == 1
        world.clock.now_s = linked_history.PAUSE_S - 0.1
        assert await world.read() == b""
        world.clock.now_s = linked_history.PAUSE_S
        assert await world.read() == DATA[:30_000]


async def test_expired_links_are_listed_again() -> None:
    async with serving(["expired"] * 6) as world:
        world.clock.now_s = EXPIRY_MS / 1000
        assert len(await world.read()) < 30_000
        world.server.fail()
        assert await world.read() == DATA[:30_000]


async def test_the_first_link_that_expires_counts() -> None:
    async with serving(["expired"] * 6) as world:
        world.source.expiries_ms = [EXPIRY_MS * 2, EXPIRY_MS, EXPIRY_MS * 3]
        world.clock.now_s = EXPIRY_MS / 1000
        assert len(await world.read()) < 30_000
        world.server.fail()
        assert await world.read() == DATA[:30_000]


async def test_a_listing_with_a_gap_is_not_read() -> None:
    async with serving() as world:
        world.source.first_offset = 1
        assert await world.read() == b""
        assert world.server.requests == []
        world.source.first_offset = 0
        assert await world.read() == b"", "such a controller is left alone for a while"


@pytest.mark.parametrize("error", [UnavailableError("away"), UnauthorizedError("not for you")])
async def test_a_controller_that_refuses_pauses_links(error: HeadraceError) -> None:
    async with serving() as world:
        world.source.error = error
        assert await world.read() == b""
        world.source.error = None
        assert await world.read() == b""
        assert len(world.source.listings) == 1


async def test_a_silent_controller_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked_history, "LISTING_S_MAX", 0.05)
    async with serving() as world:
        world.source.answers.clear()
        assert await world.read() == b""
        world.source.answers.set()
        assert await world.read() == b""
        assert len(world.source.listings) == 1


async def test_a_truncation_is_left_to_the_store_to_tell() -> None:
    async with serving() as world:
        world.source.error = TruncatedError("gone")
        assert await world.read() == b""
        world.source.error = None
        assert await world.read() == DATA[:30_000]


@pytest.mark.parametrize(("zone", "saves"), [("use1-az1", True), ("use1-az2", False), ("", False)])
async def test_links_save_only_between_zones(zone: str, *, saves: bool) -> None:
    async with serving() as world:
        assert await world.history.saves(zone) is saves


async def test_no_more_segments_than_turns_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked_history, "SEGMENTS_AT_ONCE", 2)
    async with serving() as world:
        world.source.answers.clear()
        reads = [asyncio.ensure_future(world.read()) for _ in range(5)]
        while len(world.source.listings) < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert len(world.source.listings) == 2
        reads[0].cancel()
        world.source.answers.set()
        assert await asyncio.gather(*reads[1:]) == [DATA[:30_000]] * 4


async def test_a_reading_that_is_left_closes_its_connection() -> None:
    async with serving() as world:
        async with aclosing(world.history.windows(7, 0, None)) as windows:
            first = await anext(windows)
        assert DATA.startswith(first)
        assert await world.read() == DATA[:30_000]


async def test_a_trickle_of_s3_is_left_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never silent, so that it would keep a reader for hours."""
    monkeypatch.setattr(linked_history, "WINDOW_S_MAX", 0.1)
    async with serving(["trickle"] * 6) as world:
        world.server.keeps_connections = False
        assert await world.read() == b""
        assert await world.read() == b""
        assert len(world.source.listings) == 1
        while world.history._objects._busy:
            await asyncio.sleep(0.001)
        world.server.fail()
        world.clock.now_s = linked_history.PAUSE_S
        monkeypatch.setattr(linked_history, "WINDOW_S_MAX", 60)
        assert await world.read() == DATA[:30_000]


async def _stored(world: World, start: int) -> bytes:
    async with aclosing(world.history.stored(7, start, None)) as windows:
        return b"".join([bytes(window) async for window in windows])


async def test_stored_bytes_fail_in_time_at_a_silent_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no store to go to, so that it needs an error that says so, and no turn stays taken."""
    monkeypatch.setattr(linked_history, "SEGMENTS_AT_ONCE", 1)
    monkeypatch.setattr(linked_history, "LISTING_S_MAX", 0.05)
    async with serving() as world:
        world.source.answers.clear()
        for _ in range(2):
            with pytest.raises(UnavailableError, match="no bytes of segment 7 came from S3 in time") as silent:
                await _stored(world, 0)
            assert silent.value.retry != "never"
        monkeypatch.setattr(linked_history, "LISTING_S_MAX", 60)
        world.source.answers.set()
        assert await _stored(world, 100) == DATA[100:30_100]


async def test_stored_bytes_fail_in_time_at_a_trickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that trickles is aborted: bytes of it never come behind those of the next attempt."""
    monkeypatch.setattr(linked_history, "SEGMENTS_AT_ONCE", 1)
    monkeypatch.setattr(linked_history, "WINDOW_S_MAX", 0.1)
    async with serving(["trickle"] * 6) as world:
        world.server.keeps_connections = False
        with pytest.raises(UnavailableError, match="no bytes of segment 7 came from S3 in time"):
            await _stored(world, 0)
        while world.history._objects._busy:
            await asyncio.sleep(0.001)
        world.server.fail()
        monkeypatch.setattr(linked_history, "WINDOW_S_MAX", 60)
        assert await _stored(world, 0) == DATA[:30_000]


@pytest.mark.parametrize("run_bytes", [5_000, 30_000])
async def test_a_close_ends_the_reads_that_run(run_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_reads, "SMALL_CHUNK_BYTES", 10_000)
    async with serving(["trickle"] * 6) as world:
        world.source.run_bytes = run_bytes
        reading = asyncio.ensure_future(world.read())
        while not world.server.requests:
            await asyncio.sleep(0.001)
        reading.cancel()
        await asyncio.wait([reading])
        await world.history.close()
        assert world.history._threads is not None
        assert world.history._reads is not None
        threads = [*world.history._threads._threads, *world.history._reads._pool._threads]
        assert threads
        for thread in threads:
            await asyncio.to_thread(thread.join, 60)
            assert not thread.is_alive()
        assert not world.history._objects._idle
