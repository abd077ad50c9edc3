"""Ranges between two stream cuts in programs with an event loop: read at once, cancelled, and closed amid a request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from real_cluster import RealCluster, transport_to

from headrace.api.plans import Chunk
from headrace.client import (
    AsyncHeadrace,
    AsyncRangeReader,
    CorruptError,
    IllegalStateError,
    ScalingPolicy,
    SegmentRange,
    TruncatedError,
)
from headrace.client.ranges import range_bytes, range_reader
from headrace.client.ranges.range_bytes import GATHERED_BYTES_MIN, StreamRanges
from headrace.client.reading import object_reads

T = TypeVar("T")

LARGE = [bytes([number]) * GATHERED_BYTES_MIN for number in range(3)]
"""Each is a batch of its own."""


@pytest.fixture
def run(real: RealCluster) -> Callable[[Callable[[AsyncHeadrace], Coroutine[Any, Any, T]]], T]:
    """Runs a coroutine on a loop of its own, with a client."""

    def run(program: Callable[[AsyncHeadrace], Coroutine[Any, Any, T]]) -> T:
        async def main() -> T:
            async with AsyncHeadrace("http://controller", transport=transport_to(real)) as headrace:
                await headrace.admin.create_scope("shop")
                await headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2))
                return await program(headrace)

        return asyncio.run(main())

    return run


Run = Callable[[Callable[[AsyncHeadrace], Coroutine[Any, Any, None]]], None]


async def write(headrace: AsyncHeadrace, events: list[bytes], key: str | None = None) -> None:
    async with await headrace.writer("shop", "orders") as writer:
        for number, event in enumerate(events):
            await writer.write(event, key or str(number % 7))
            if number % 10 == 9:
                await writer.flush()


async def read(headrace: AsyncHeadrace, part: SegmentRange) -> list[bytes]:
    async with headrace.range_reader(part) as reader:
        events = [event.event async for event in reader]
        assert reader.unread.length_bytes == 0
        assert await reader.read_batch() is None
    return events


def test_ranges_are_read_at_once(run: Run) -> None:
    events = [b"event %d" % number for number in range(500)]

    async def program(headrace: AsyncHeadrace) -> None:
        await write(headrace, events[:250])
        middle = await headrace.admin.stream_cut("shop", "orders", at="latest")
        old = [segment.segment_id for segment in await headrace.admin.segments("shop", "orders")]
        await headrace.admin.scale_stream("shop", "orders", seal=old, ranges=[(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)])
        await write(headrace, events[250:])
        ranges = await headrace.segment_ranges("shop", "orders", bytes_max=500)
        assert len(ranges) > 10
        results = await asyncio.gather(*(read(headrace, part) for part in ranges))
        assert sorted(event for part in results for event in part) == sorted(events)
        rest = await headrace.segment_ranges("shop", "orders", middle)
        assert sorted([event for part in rest for event in await read(headrace, part)]) == sorted(events[250:])

    run(program)


def test_forms_of_events(run: Run) -> None:
    pa = pytest.importorskip("pyarrow")

    async def program(headrace: AsyncHeadrace) -> None:
        await write(headrace, LARGE, "key")
        (part,) = await headrace.segment_ranges("shop", "orders")
        batches, unread = [], part
        async with headrace.range_reader(part) as reader:
            while (batch := await reader.read_batch()) is not None:
                batches += batch.events
                unread = replace(part, start=batch.end_offset)
                assert reader.unread == unread
            with pytest.raises(IllegalStateError, match="either Arrow batches or events"):
                await reader.read_arrow_batch()
        assert batches == LARGE
        async with headrace.range_reader(part) as reader:
            table = pa.Table.from_batches([batch async for batch in reader.arrow_batches()])
        assert table["event"].to_pylist() == LARGE

    run(program)


def test_iteration_that_stops_inside_a_batch_loses_nothing(run: Run) -> None:
    events = [b"event %d" % number for number in range(20)]

    async def program(headrace: AsyncHeadrace) -> None:
        await write(headrace, events, "key")
        (part,) = await headrace.segment_ranges("shop", "orders")
        found: list[bytes] = []
        async with headrace.range_reader(part) as reader:
            while len(found) < 5:
                async for event in reader:
                    found.append(event.event)
                    break
            found += [read.event async for read in reader]
        assert found == events

    run(program)


class Gate(StreamRanges):
    """Before each window, waits until the test lets it pass."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        self.asked, self.passes, self.closed = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    def read(self, segment_id: int, start: int, stop: int) -> Iterator[memoryview]:
        for window in super().read(segment_id, start, stop):
            self.asked.release()
            self.passes.acquire()
            yield window

    def close(self) -> None:
        super().close()
        self.closed.set()


@asynccontextmanager
async def behind_gate(
    headrace: AsyncHeadrace, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[AsyncRangeReader, Gate]]:
    gates: list[Gate] = []

    def make(*place: Any, **options: float) -> Gate:
        gates.append(Gate(*place))
        return gates[-1]

    monkeypatch.setattr(range_bytes, "StreamRanges", make)
    await write(headrace, LARGE, "key")
    (part,) = await headrace.segment_ranges("shop", "orders")
    reader = headrace.range_reader(part, read_history_from="segment_store")
    try:
        yield reader, gates[0]
    finally:
        gates[0].passes.release(100)
        await reader.close()


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_call_loses_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(headrace: AsyncHeadrace) -> None:
        async with behind_gate(headrace, monkeypatch) as (reader, gate):
            events: list[bytes] = []
            is_over = False
            while not is_over:
                waiting = asyncio.create_task(reader.read_batch())
                await asyncio.sleep(0)
                before = reader.unread
                await cancelled(waiting)
                assert reader.unread == before
                again = asyncio.create_task(reader.read_batch())
                gate.passes.release()
                batch = await again
                is_over = batch is None
                events += batch.events if batch is not None else []
            assert events == LARGE

    run(program)


def test_a_call_cancelled_when_its_answer_is_there_loses_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(headrace: AsyncHeadrace) -> None:
        async with behind_gate(headrace, monkeypatch) as (reader, gate):
            waiting = asyncio.create_task(reader.read_batch())
            await asyncio.sleep(0)
            gate.passes.release(100)
            while (reading := reader._reading) is None or not reading._coming.done():
                await asyncio.sleep(0)
            await cancelled(waiting)
            assert [event.event async for event in reader] == LARGE

    run(program)


def test_several_tasks_share_the_batches(run: Run) -> None:
    async def program(headrace: AsyncHeadrace) -> None:
        await write(headrace, LARGE * 2, "key")
        (part,) = await headrace.segment_ranges("shop", "orders")
        events: list[bytes] = []
        async with headrace.range_reader(part) as reader:

            async def take() -> None:
                while (batch := await reader.read_batch()) is not None:
                    events.extend(batch.events)

            await asyncio.gather(take(), take(), take())
        assert events == LARGE * 2

    run(program)


def test_closing_ends_the_attempts_to_reach_s3(run: Run, real: RealCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    chunks = StreamRanges.chunks

    def counted(source: StreamRanges, segment_id: int, start: int, stop: int, limit: int) -> Sequence[Chunk]:
        asked.append(start)
        return chunks(source, segment_id, start, stop, limit)

    def refuse(*_: object) -> None:
        failed.set()
        raise OSError("no S3")

    failed = threading.Event()
    monkeypatch.setattr(StreamRanges, "chunks", counted)
    monkeypatch.setattr(object_reads, "_connect", refuse)
    monkeypatch.setattr(range_bytes, "FIRST_WAIT_S", 60.0)
    monkeypatch.setattr(range_bytes, "LONGEST_WAIT_S", 60.0)

    async def program(headrace: AsyncHeadrace) -> None:
        await write(headrace, LARGE, "key")
        await asyncio.to_thread(real.stop_store)
        await asyncio.to_thread(real.start_store)
        (part,) = await headrace.segment_ranges("shop", "orders")
        reader = headrace.range_reader(part)
        waiting = asyncio.create_task(reader.read_batch())
        await asyncio.to_thread(failed.wait)
        await reader.close()
        with pytest.raises(IllegalStateError):
            await waiting
        assert asked == [0]

    run(program)


def test_closing_leaves_a_request_that_hangs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the request uses is closed after it, by its thread. A call that waits for it is told at once."""
    monkeypatch.setattr(range_reader, "CLOSE_TIMEOUT_S", 0.01)

    async def program(headrace: AsyncHeadrace) -> None:
        async with behind_gate(headrace, monkeypatch) as (reader, gate):
            waiting = asyncio.create_task(reader.read_batch())
            await asyncio.to_thread(gate.asked.acquire)
            await reader.close()
            assert reader.closed
            with pytest.raises(IllegalStateError) as told:
                await waiting
            assert told.value.specific_code == "reader_closed"
            assert not gate.closed.is_set()
            gate.passes.release(100)
            await asyncio.to_thread(gate.closed.wait)
            with pytest.raises(IllegalStateError):
                await reader.read_batch()

    run(program)


def test_a_loop_that_ends_amid_a_request_leaves_no_thread(run: Run) -> None:
    """A program that forgets to close a reader ends."""

    async def program(headrace: AsyncHeadrace) -> None:
        await write(headrace, LARGE, "key")
        (part,) = await headrace.segment_ranges("shop", "orders")
        reader = headrace.range_reader(part)
        waiting = asyncio.create_task(reader.read_batch())
        await asyncio.sleep(0)
        threads.append(reader._thread)
        waiting.cancel()

    threads: list[Any] = []
    run(program)
    threads[0].shutdown(wait=True)


def test_what_cannot_be_read(run: Run) -> None:
    async def program(headrace: AsyncHeadrace) -> None:
        await write(headrace, [b"event"] * 10, "key")
        (part,) = await headrace.segment_ranges("shop", "orders")
        for wrong in (replace(part, start=4), replace(part, end=part.end - 1)):
            async with headrace.range_reader(wrong) as reader:
                for _ in range(2):
                    with pytest.raises(CorruptError):
                        _ = [event async for event in reader]
        await headrace.admin.truncate_stream(
            "shop", "orders", await headrace.admin.stream_cut("shop", "orders", at="latest")
        )
        async with headrace.range_reader(part) as reader:
            with pytest.raises(TruncatedError):
                await reader.read_batch()

    run(program)
