"""When a storage writer flushes, and what it does before and after its container is handed over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from lost_volumes import gone, pointer
from segment_writes import created_segment, write
from store_world import WAIT_S, RunningStore, World

from headrace.model.chunks import ChunkRun
from headrace.model.errors import CorruptError, FencedError, UnavailableError
from headrace.ports.chunk_storage import CHUNK_STORAGE_REFUSED
from headrace.ports.metadata_store import ItemRefusedError
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.periodic_task import PeriodicTask
from headrace.segmentstore.tiering import storage_writer
from headrace.segmentstore.tiering.storage_limits import StorageLimits
from headrace.segmentstore.tiering.storage_writer import StorageWriter

pytestmark = pytest.mark.anyio

NAME = "scope/stream/0.#epoch.0"


@pytest.fixture
def world(make_world: type[World]) -> World:
    """A store that writes no snapshot by itself."""
    world = make_world(container_count=1, maintenance=False)
    world.limits = replace(world.limits, snapshot_every_s=1e9, snapshot_soon_s=1e9)
    return world


async def test_each_preparation_writes_a_snapshot(world: World):
    async with world.running() as running:
        client = await created_segment(running, NAME, b"one")
        writer = running.store.owned[0].writer
        for number in range(2):
            written = writer._snapshots.written
            await write(client, NAME, [b"two"], first=5 + number)
            await writer.prepare_drain()
            assert writer._snapshots.written > written
            assert not writer._hurried, "it works as before if nothing follows"


async def test_stopped_writer_has_nothing_to_prepare_or_drain(world: World):
    async with world.running(graceful=False) as running:
        writer = running.store.owned[0].writer
        await writer.stop()
        written = writer._snapshots.written
        await writer.prepare_drain()
        assert not await writer.drain()
        assert writer._snapshots.written == written


async def test_failed_container_is_not_served_again(world: World):
    async with world.running(graceful=False) as running:
        owned = running.store.owned[0]
        assert owned.writer.may_resume
        owned.container.log.fail(UnavailableError("the journal failed"))
        assert not owned.writer.may_resume
    world.failures.clear()


async def test_drain_leaves_nothing_in_the_log(world: World):
    """The next owner does not need this volume."""
    async with world.running(graceful=False) as running:
        await created_segment(running, NAME, b"data" * 1_000)
        owned = running.store.owned[0]
        held_bytes = owned.container.log.ledger.held_bytes
        assert await owned.writer.drain()
        assert not owned.container.dirty
        assert owned.container.log.ledger.held_bytes < held_bytes - 4_000, "only the checkpoint is left"
        assert pointer(world).clean
        assert not owned.writer.may_resume, "tier 2 says that another store may own it"


@pytest.mark.parametrize("stopped", [False, True])
async def test_writer_works_after_a_drain_that_was_cancelled(world: World, stopped: bool):
    async with world.running() as running:
        client = await created_segment(running, NAME, b"one")
        writer, write_record = running.store.owned[0].writer, world.metadata.write
        world.metadata.write = gone  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.05)
        assert writer.may_resume
        if stopped:
            await writer.stop()  # as a drain does before its last snapshot
        world.metadata.write = write_record  # type: ignore[method-assign]
        writer.resume()
        assert not writer._hurried
        await write(client, NAME, [b"two"], first=5)
        await running.flush()
        assert await client.read_all(NAME) == b"onetwo"


async def idle_writer(running: RunningStore, data: bytes) -> StorageWriter:
    """A storage writer that makes no pass by itself, of a container with a segment that tier 2 does not have."""
    await created_segment(running, NAME, data)
    owned = running.store.owned[0]
    await owned.writer.stop()
    assert owned.container.metadata.segments[NAME].untiered_bytes == len(data)
    return owned.writer


def never_due(limits: StorageLimits) -> StorageLimits:
    return replace(limits, flush_bytes=1 << 40, flush_age_s=1e9)


async def test_preparation_wakes_the_writer(world: World, monkeypatch: pytest.MonkeyPatch):
    """It does not wait for the next tick."""
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        monkeypatch.setattr(PeriodicTask, "is_running", property(lambda _task: True))
        writer._container.news.clear()
        preparing = asyncio.ensure_future(writer.prepare_drain())
        await asyncio.sleep(0)
        assert writer._container.news.is_set()
        preparing.cancel()
        await asyncio.wait([preparing])


async def test_bytes_of_a_whole_object_wake_the_writer(world: World):
    world.limits = replace(never_due(world.limits), object_bytes_max=100)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        client = await running.connect()
        for first in (5, 7):
            await writer._run()
            writer._container.news.clear()
            await write(client, NAME, [bytes(99)], first=first)
            assert not writer._container.news.is_set()
            await write(client, NAME, [b"x"], first=first + 1)
            assert writer._container.news.is_set()


async def test_fast_appends_are_flushed_without_a_tick(world: World):
    """Else they fill the cache meanwhile and are throttled, although tier 2 has nothing to do."""
    world.limits = replace(world.limits, tick_s=1e6, flush_bytes=500, object_bytes_max=1_000)
    async with world.running(graceful=False) as running:
        client = await created_segment(running, NAME)
        metrics = running.store.owned[0].container.metrics
        for number in range(3):
            await write(client, NAME, [bytes(500), bytes(500)], first=2 * number)
            async with asyncio.timeout(WAIT_S):
                while metrics.flushed_bytes < 1_000 * number + 500:  # the last append may not be durable in time
                    await asyncio.sleep(0.001)


def count_passes(writer: StorageWriter, monkeypatch: pytest.MonkeyPatch) -> list[bool | None]:
    """What each pass from now on has returned; None if it has failed or still runs."""
    passes: list[bool | None] = []
    run_pass = writer.run_pass

    async def counted() -> bool:
        passes.append(None)
        passes[-1] = more = await run_pass()
        return more

    monkeypatch.setattr(writer, "run_pass", counted)
    return passes


async def turns(count: int = 1_000) -> None:
    """Lets all that can go on without waiting go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_wake_up_without_progress_is_one_pass(world: World, monkeypatch: pytest.MonkeyPatch):
    """What is quarantined stays in the cache, which is under pressure for good."""
    world.limits = replace(world.limits, tick_s=1e6)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        writer._container.metadata.segments[NAME].quarantined = True
        monkeypatch.setattr(BlockPool, "under_pressure", True)
        passes = count_passes(writer, monkeypatch)
        writer.start()
        await turns()
        assert passes == [False] * len(passes)
        assert 1 <= len(passes) <= 2
        for _ in range(5):
            running.store._hurry()
        await turns()
        assert 2 <= len(passes) <= 3
        monkeypatch.undo()


async def test_wake_ups_do_not_hurry_a_storage_that_is_away(world: World, monkeypatch: pytest.MonkeyPatch):
    world.limits = replace(world.limits, tick_s=1e6, retry_first_s=1e6, retry_max_s=1e6)
    world.limits = replace(world.limits, flush_bytes=100, object_bytes_max=100)
    async with world.running(graceful=False) as running:
        client = await created_segment(running, NAME)
        writer = running.store.owned[0].writer
        monkeypatch.setattr(writer._directory, "add", gone)
        passes = count_passes(writer, monkeypatch)
        for number in range(2):  # the bytes that wake it may not be durable yet
            await write(client, NAME, [bytes(300)], first=number)
        async with asyncio.timeout(WAIT_S):
            while not writer.is_retrying:
                await asyncio.sleep(0.001)
        failed = len(passes)
        for number in range(2, 6):
            await write(client, NAME, [bytes(300)], first=number)
            running.store._hurry()
            await turns(100)
        assert len(passes) == failed


@pytest.mark.parametrize("during", [60, 99])
async def test_bytes_that_come_during_a_pass_wake_the_writer(
    world: World, monkeypatch: pytest.MonkeyPatch, during: int
):
    world.limits = replace(never_due(world.limits), tick_s=1e6, object_bytes_max=100)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        client = await running.connect()
        begins, may_end = asyncio.Event(), asyncio.Event()
        passes = 0

        async def slow() -> bool:
            nonlocal passes
            passes += 1
            begins.set()
            await may_end.wait()
            return False

        monkeypatch.setattr(writer, "run_pass", slow)
        writer._container.news.clear()
        writer.start()
        await begins.wait()
        await write(client, NAME, [bytes(during)], first=5)
        may_end.set()
        await turns()
        await write(client, NAME, [bytes(100 - during)], first=6)
        await turns()
        assert passes == 2


async def test_pressure_wakes_all_writers(make_world: type[World]):
    async with make_world(container_count=3, maintenance=False).running() as running:
        containers = [owned.container for owned in running.store.owned.values()]
        for container in containers:
            container.news.clear()
        running.store._hurry()
        assert [container.news.is_set() for container in containers] == [True] * 3


async def test_preparation_leaves_little_to_flush(world: World, monkeypatch: pytest.MonkeyPatch):
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        writer._snapshots_before = writer._snapshots.written - 1
        for bytes_max, is_prepared in ((3, False), (4, True)):
            monkeypatch.setattr(storage_writer, "PREPARED_BYTES_MAX", bytes_max)
            assert writer._is_prepared is is_prepared
        monkeypatch.setattr(storage_writer, "PREPARED_BYTES_MAX", 0)
        writer._container.metadata.segments[NAME].quarantined = True
        assert writer._is_prepared, "what is never flushed is not waited for"
        writer._snapshots_before += 1
        assert not writer._is_prepared, "the snapshot is not written yet"


async def test_flush_is_due_with_its_last_byte(world: World):
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        for flush_bytes, is_due in ((5, False), (4, True)):
            writer._limits = replace(world.limits, flush_bytes=flush_bytes)
            assert writer._flush_due() is is_due


async def test_flush_is_due_at_its_age(world: World):
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        writer._container.metadata.segments[NAME].untiered_since_s = world.clock.monotonic_s()
        writer._limits = replace(world.limits, flush_age_s=8.0)
        for passed_s, is_due in ((4.0, False), (4.0, True)):
            world.clock.advance(passed_s)
            assert writer._flush_due() is is_due


async def test_pass_waits_for_the_bytes_to_flush(world: World, monkeypatch: pytest.MonkeyPatch):
    """After a recovery the backfill brings them."""
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        writer._limits = replace(world.limits, flush_bytes=1)
        segment, is_loaded = writer._container.metadata.segments[NAME], asyncio.Event()
        monkeypatch.setattr(writer._backfill, "wait", is_loaded.wait)
        passing = asyncio.ensure_future(writer.run_pass())
        for _ in range(1000):
            await asyncio.sleep(0)
        assert segment.tiered.length == 0
        is_loaded.set()
        await passing
        assert segment.tiered.length == 4


async def writer_of_three(running: RunningStore) -> StorageWriter:
    writer = await idle_writer(running, b"data")
    client = await running.connect()
    for number in (1, 2):
        await client.create(f"{NAME}{number}")
        await write(client, f"{NAME}{number}", [b"more"])
    return writer


async def test_flush_is_due_by_all_segments_but_quarantined_ones(world: World):
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await writer_of_three(running)
        segments = writer._container.metadata.segments

        def due(flush_bytes: int) -> bool:
            writer._limits = replace(world.limits, flush_bytes=flush_bytes, flush_age_s=8.0)
            return writer._flush_due()

        for segment in segments.values():
            segment.untiered_since_s = world.clock.monotonic_s()
        assert [due(12), due(13)] == [True, False]
        segments[NAME].quarantined = True
        segments[NAME].untiered_since_s = world.clock.monotonic_s() - 8.0
        assert [due(8), due(9)] == [True, False]


async def test_segments_are_flushed_in_the_order_of_waiting(world: World):
    """Without a time a segment counts as the one that has waited longest."""
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await writer_of_three(running)
        segments = writer._container.metadata.segments
        times: dict[str, float | None] = {NAME: 7.0, f"{NAME}1": None, f"{NAME}2": 3.0}
        for name, since_s in times.items():
            segments[name].untiered_since_s = since_s
        assert [segment.name for segment in writer._untiered()] == [f"{NAME}1", f"{NAME}2", NAME]
        segments[NAME].is_urgent = True
        assert [segment.name for segment in writer._untiered()] == [NAME, f"{NAME}1", f"{NAME}2"]
        assert writer._flush_due()
        assert writer._unpacked_bytes() == 12
        segments[NAME].quarantined = True
        assert writer._unpacked_bytes() == 8


async def test_one_segment_of_several_wants_a_snapshot(world: World, monkeypatch: pytest.MonkeyPatch):
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await writer_of_three(running)
        monkeypatch.setattr(writer._upkeep, "wants_snapshot", lambda segment: segment.name == NAME)
        assert writer._waits_for_snapshot


async def test_runs_enter_in_transactions_that_they_fit(world: World, monkeypatch: pytest.MonkeyPatch):
    world.limits = never_due(world.limits)
    monkeypatch.setattr(storage_writer, "ENTERED_WRITES_MAX", 3)  # two runs, and the count of their object
    async with world.running(graceful=False) as running:
        writer = await writer_of_three(running)
        add, entered = writer._directory.add, []

        async def noted(runs: Sequence[tuple[str, ChunkRun]], lengths: Mapping[str, int]) -> dict[int, ChunkRun]:
            entered.append(len(runs))
            return await add(runs, lengths)

        monkeypatch.setattr(writer._directory, "add", noted)
        await writer._flush()
        assert entered == [2, 1]


async def test_run_of_an_earlier_attempt_leaves_the_others(world: World, monkeypatch: pytest.MonkeyPatch):
    """Nothing is written with it: the others, before and behind it, enter then."""
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await writer_of_three(running)
        writer._start_uploads()
        packed = writer._uploads._uploads[0].packed
        place, run = packed.runs[1]
        await writer._directory.add([(place.name, run)], {run.object_name: packed.length})
        add, entered = writer._directory.add, []

        async def noted(runs: Sequence[tuple[str, ChunkRun]], lengths: Mapping[str, int]) -> dict[int, ChunkRun]:
            entered.append(len(runs))
            return await add(runs, lengths)

        monkeypatch.setattr(writer._directory, "add", noted)
        await writer._flush()
        assert entered == [3, 2]
        assert [each.tiered.length for each, _ in packed.runs] == [4, 4, 4]


@pytest.mark.parametrize("is_found", [False, True])
async def test_age_of_what_is_left_counts_from_the_flush(world: World, is_found: bool):
    """Unless an earlier attempt entered the run: then bytes that are left may have waited since."""
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        segment = writer._container.metadata.segments[NAME]
        segment.untiered_since_s = since_s = world.clock.monotonic_s()
        world.clock.advance(3.0)
        writer._start_uploads()
        packed_s = world.clock.monotonic_s()
        await write(await running.connect(), NAME, [b"more"], first=5)
        world.clock.advance(1.0)
        if is_found:
            packed = writer._uploads._uploads[0].packed
            run = packed.runs[0][1]
            await writer._directory.add([(NAME, run)], {run.object_name: packed.length})
        await writer._flush()
        assert segment.untiered_bytes == 4
        assert segment.untiered_since_s == (since_s if is_found else packed_s)


async def test_refused_run_leaves_the_others_of_its_object(world: World, monkeypatch: pytest.MonkeyPatch):
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await writer_of_three(running)
        add = writer._directory.add

        async def refusing(runs: Sequence[tuple[str, ChunkRun]], lengths: Mapping[str, int]) -> dict[int, ChunkRun]:
            if NAME in dict(runs):
                raise ItemRefusedError("the key is not valid")
            return await add(runs, lengths)

        monkeypatch.setattr(writer._directory, "add", refusing)
        await writer._flush()
        segments = writer._container.metadata.segments
        assert segments[NAME].quarantined
        assert [segments[f"{NAME}{number}"].tiered.length for number in (1, 2)] == [4, 4]


@pytest.mark.parametrize(("left_bytes", "presses", "goes_on"), [(0, False, True), (1, False, False), (1, True, True)])
async def test_flush_goes_on_behind_a_full_object(
    world: World, monkeypatch: pytest.MonkeyPatch, left_bytes: int, presses: bool, goes_on: bool
):
    """Also while memory is short: the next bytes do not wait for the next tick."""
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, bytes(100))
        writer._limits = replace(world.limits, object_bytes_max=100 + left_bytes)
        monkeypatch.setattr(BlockPool, "under_pressure", property(lambda _pool: presses))
        assert await writer._flush() is goes_on


async def several_objects(running: RunningStore) -> StorageWriter:
    """A writer without passes of its own, with two objects under way that are not full, and six bytes for the next."""
    writer = await idle_writer(running, b"first-")
    await write(await running.connect(), NAME, [b"second", b"third-"], first=5)
    writer._limits = replace(writer._limits, object_bytes_max=10)
    writer._uploads._window = 3
    writer._start_uploads()
    assert [upload.packed.length for upload in writer._uploads._uploads] == [6, 6], "behind the first only whole ones"
    return writer


async def test_each_object_of_a_flush_is_counted_and_logged(world: World, caplog: pytest.LogCaptureFixture):
    world.limits = never_due(world.limits)
    caplog.set_level("INFO")
    async with world.running(graceful=False) as running:
        writer = await several_objects(running)
        await asyncio.wait([upload.put for upload in writer._uploads._uploads])
        metrics = writer._container.metrics
        before, before_bytes = metrics.flushes, metrics.flushed_bytes
        world.clock.advance(2.0)
        await writer._flush()
        assert (metrics.flushes - before, metrics.flushed_bytes - before_bytes) == (2, 12)
        flushes = [line for line in caplog.messages if "event=flush " in line]
        assert ["bytes=6 runs=1 seconds=2.000" in line for line in flushes] == [True, True]


async def test_flush_goes_on_for_an_object_under_way(world: World, monkeypatch: pytest.MonkeyPatch):
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        put, may_go_on, asked = world.chunks.put, asyncio.Event(), 0

        async def put_one(*arguments: Any, **keywords: Any) -> None:
            nonlocal asked
            asked += 1
            if asked > 1:
                await may_go_on.wait()
            await put(*arguments, **keywords)

        monkeypatch.setattr(world.chunks, "put", put_one)
        writer = await several_objects(running)
        assert await writer._flush() is True
        may_go_on.set()


@pytest.mark.parametrize("is_draining", [True, False])
async def test_flush_of_a_drain_goes_on_at_once(world: World, is_draining: bool):
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        writer._draining = is_draining
        assert await writer._flush() is is_draining
        assert await writer._flush() is False, "nothing is left"


async def test_bytes_behind_a_flush_are_not_packed_yet(world: World):
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        await writer._flush()
        assert writer._unpacked_bytes() == 0
        await write(await running.connect(), NAME, [b"longer"], first=5)
        assert writer._unpacked_bytes() == 6


@pytest.mark.parametrize("is_written", [True, False])
async def test_bytes_that_waited_follow_their_snapshot(world: World, monkeypatch: pytest.MonkeyPatch, is_written: bool):
    """Until it is written there is nothing to do, and the next pass comes with the next tick."""
    world.limits = never_due(world.limits)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        waits = True

        async def advance() -> None:
            nonlocal waits
            waits = not is_written

        monkeypatch.setattr(writer._snapshots, "advance", advance)
        monkeypatch.setattr(writer._upkeep, "must_wait", lambda _segment: waits)
        writer._limits = replace(world.limits, flush_bytes=1)
        assert await writer.run_pass() is is_written


async def test_pauses_of_an_outage_grow_up_to_their_bound(world: World, monkeypatch: pytest.MonkeyPatch):
    world.limits = replace(never_due(world.limits), retry_first_s=0.001, retry_max_s=0.003)
    async with world.running(graceful=False) as running:
        writer = await idle_writer(running, b"data")
        pauses = []

        def noted(_error: Exception, retry_s: float) -> bool:
            pauses.append(retry_s)
            return len(pauses) < 4

        monkeypatch.setattr(writer._periodic, "_on_failure", noted)
        monkeypatch.setattr(writer, "run_pass", gone)
        await writer._periodic.run()
        assert pauses == [0.001, 0.002, 0.003, 0.003]


async def test_outages_and_refusals_are_repeated_and_counted(world: World, caplog: pytest.LogCaptureFixture):
    async with world.running(graceful=False) as running:
        owned = running.store.owned[0]
        before = owned.container.metrics.storage_retries
        assert owned.writer._failed(UnavailableError("away"), 2.0) is True
        assert "event=storage_retry container=0 retry_s=2.0" in caplog.text
        assert "storage_refused" not in caplog.text
        caplog.clear()
        assert owned.writer._failed(UnavailableError("denied", code=CHUNK_STORAGE_REFUSED), 2.0) is True
        assert "event=storage_refused container=0" in caplog.text
        assert "storage_retry" not in caplog.text
        assert owned.container.metrics.storage_retries == before + 2


@pytest.mark.parametrize("error", [FencedError("another owner"), CorruptError("contradiction"), ValueError("a defect")])
async def test_other_errors_stop_the_container(world: World, error: Exception):
    async with world.running(graceful=False) as running:
        owned = running.store.owned[0]
        assert owned.writer._failed(error, 2.0) is False
        assert owned.container.failure is not None
        assert str(error) in str(owned.container.failure)
        assert owned.writer._failed(UnavailableError("away"), 2.0) is False, "nothing is left to repeat"
    world.failures.clear()
