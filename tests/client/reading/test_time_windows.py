"""Writers note their time, readers ask for their window: on a real segment store, over scales, drops and kills."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from itertools import islice

import pytest
from real_cluster import RealCluster

from functions import wiring
from headrace import topology
from headrace.client import (
    Headrace,
    InvalidRequestError,
    NotFoundError,
    ScalingPolicy,
    StreamCut,
    TimeWindow,
    WriterOptions,
)
from headrace.client.reading import time_windows
from headrace.model.backoff import bucket_of_stream
from headrace.wire import WireCommand

SMALL_BLOCKS = WriterOptions(block_bytes=1_000, buffer_bytes=100_000)
SILENT_MS = 3_600_000


@pytest.fixture
def headrace(headrace: Headrace) -> Headrace:
    """With the stream shop/orders of two segments."""
    headrace.admin.create_stream(
        "shop", "orders", scaling=ScalingPolicy.fixed(2), timestamp_aggregation_timeout_ms=SILENT_MS
    )
    return headrace


def _tick() -> None:
    for bucket in range(topology.BUCKET_COUNT):
        wiring.watermark_ticks().run(bucket)


def test_the_window_moves_with_the_reader(headrace: Headrace) -> None:
    ends: list[StreamCut] = []
    with headrace.reader("shop", "orders") as reader, headrace.writer("shop", "orders") as writer:
        assert reader.time_window() == TimeWindow(None, None)
        for time in (10, 20, 30):
            for number in range(50):
                writer.write(b"%d" % number, str(number))
            writer.note_time(time)
            _tick()
            ends.append(headrace.admin.stream_cut("shop", "orders"))
        assert reader.time_window() == TimeWindow(None, 10)
        assert len(list(islice(reader, 150))) == 150
        assert reader.time_window() == TimeWindow(30, None)
        writer.write(b"late", "late")
        writer.note_time(40)
        _tick()
        assert reader.time_window() == TimeWindow(30, 40)
    for index, cut in enumerate(ends):
        with headrace.reader("shop", "orders", start=cut) as reader:
            assert reader.time_window() == TimeWindow(10 * index + 10, 10 * index + 20)


@pytest.mark.parametrize("truncated", [False, True])
def test_a_reader_finds_its_watermark_among_many(
    real: RealCluster, headrace: Headrace, monkeypatch: pytest.MonkeyPatch, truncated: bool
) -> None:
    """By halving, not by reading them all, which would be 36 requests; also where the oldest were cut off."""
    monkeypatch.setattr(time_windows, "READ_BYTES", 200)
    monkeypatch.setattr(time_windows, "WATERMARK_BYTES_USUAL", 60)
    count = 64
    with headrace.writer("shop", "orders") as writer:
        for number in range(100):
            writer.write(b"twenty bytes of event", str(number))
    bucket = bucket_of_stream("shop/orders", topology.BUCKET_COUNT)
    for time in range(1, count + 1):
        headrace.admin.watermarks.note_position("shop", "orders", "w", time, {0: 10 * time, 1: 5 * time})
        wiring.watermark_ticks().run(bucket)
    newest = headrace.admin.watermarks.newest("shop", "orders")
    record_bytes = newest.offset // (count - 1)
    if truncated:
        real.segment_stores.truncate_segment(newest.mark_segment, 10 * record_bytes)
    asked: list[str] = []
    ask = time_windows.TimeWindows._ask

    async def counted(self: time_windows.TimeWindows, command: Callable[[int], WireCommand]) -> WireCommand:
        asked.append(type(command(0)).__name__)
        return await ask(self, command)

    monkeypatch.setattr(time_windows.TimeWindows, "_ask", counted)
    for time in (12, 13, 32, 50, 63):
        asked.clear()
        with headrace.reader(
            "shop", "orders", start=StreamCut.of("shop", "orders", {0: 10 * time, 1: 5 * time})
        ) as reader:
            assert reader.time_window() == TimeWindow(time, time + 1)
            assert len(asked) <= 30, asked
    with headrace.reader("shop", "orders", start=StreamCut.of("shop", "orders", {0: 9, 1: 0})) as reader:
        assert reader.time_window() == (TimeWindow(None, 11) if truncated else TimeWindow(None, 1))


@pytest.mark.parametrize("replaced", [[0], [0, 1]])
def test_reader_on_truncated_segments_has_no_window(headrace: Headrace, replaced: list[int]) -> None:
    beginning = headrace.admin.stream_cut("shop", "orders", at="earliest")
    with headrace.writer("shop", "orders") as writer:
        writer.note_time(5)
        _tick()
        ranges = [(0.0, 0.5), (0.5, 1.0)][: len(replaced)]
        headrace.admin.scale_stream("shop", "orders", seal=replaced, ranges=ranges)
        headrace.admin.truncate_stream("shop", "orders", headrace.admin.stream_cut("shop", "orders"))
        with headrace.reader("shop", "orders", start=beginning) as reader:
            assert reader.time_window() == TimeWindow(None, None)
        with headrace.reader("shop", "orders") as reader:
            assert reader.time_window() == TimeWindow(5, None)


def test_closed_writer_does_not_delay_watermarks(headrace: Headrace) -> None:
    with headrace.writer("shop", "orders") as first, headrace.writer("shop", "orders") as second:
        for writer in (first, second):
            writer.write(b"event")
            writer.note_time(1)
        _tick()
        first.note_time(2)
        _tick()
        newest = headrace.admin.watermarks.newest("shop", "orders").watermark
        assert newest is not None
        assert (newest.lower_time, newest.upper_time) == (1, 1)
        second.close()
        _tick()
        newest = headrace.admin.watermarks.newest("shop", "orders").watermark
        assert newest is not None
        assert (newest.lower_time, newest.upper_time) == (2, 2)


def test_named_writer_notes_time_without_events(headrace: Headrace) -> None:
    with headrace.writer("shop", "orders", WriterOptions(writer_id="w-1")) as writer:
        writer.note_time(5)
        _tick()
        with pytest.raises(InvalidRequestError) as back:
            writer.note_time(4)
        assert back.value.specific_code == "invalid_time"
        headrace.admin.watermarks.note_position("shop", "orders", "w-1", 6, {0: 0, 1: 0})
    newest = headrace.admin.watermarks.newest("shop", "orders").watermark
    assert newest is not None
    assert [(position.segment.segment_id, position.offset) for position in newest.cut] == [(0, 0), (1, 0)]
    headrace.admin.watermarks.remove_writer("shop", "orders", "w-1")
    with pytest.raises(NotFoundError):
        headrace.admin.watermarks.remove_writer("shop", "orders", "w-2")
    with pytest.raises(InvalidRequestError):
        WriterOptions(writer_id="a/b")


@pytest.mark.parametrize("seed", range(3))
def test_no_event_is_older_than_the_window_it_is_read_in(real: RealCluster, headrace: Headrace, seed: int) -> None:
    """Events carry the time of their writer. No event may be before the lower bound, also after troubles."""
    chance = random.Random(seed)
    writers = [headrace.writer("shop", "orders", SMALL_BLOCKS) for _ in range(2)]
    times = [0, 0]

    def write(index: int, count: int) -> None:
        for _ in range(count):
            times[index] += 1
            writers[index].write(b"%d" % times[index], str(chance.randrange(20)))

    troubles = [
        lambda: None,
        real.drop_connections,
        lambda: _scale(headrace, chance),
        lambda: (real.kill_store(), real.start_store()),
    ]
    for round_number in range(8):
        trouble = threading.Thread(target=troubles[round_number % 4])
        trouble.start()
        for index in chance.sample([0, 1], 2):
            write(index, chance.randrange(1, 60))
            writers[index].note_time(times[index])
            write(index, chance.randrange(0, 10))
        trouble.join()
        _tick()
    for writer in writers:
        writer.close()
    _check_windows(headrace, sum(times))


def _scale(headrace: Headrace, chance: random.Random) -> None:
    segment = chance.choice(headrace.admin.segments("shop", "orders"))
    low, high = segment.key_range.low, segment.key_range.high
    middle = (low + high) / 2
    headrace.admin.scale_stream(
        "shop", "orders", seal=[segment.segment_id], ranges=[(low, middle), (middle, high)], wait=False
    )


def _check_windows(headrace: Headrace, count: int) -> None:
    seen: list[int] = []
    bounds: list[int] = []
    with headrace.reader("shop", "orders") as reader:
        while len(seen) < count:
            window = reader.time_window()
            if window.lower is not None and window.upper is not None:
                assert window.lower < window.upper
            bounds += [window.lower] if window.lower is not None else []
            batch = reader.read_batch(10)
            assert batch is not None
            numbers = [int(event) for event in batch.events]
            if window.lower is not None:
                assert min(numbers) >= window.lower
            seen += numbers
    assert len(bounds) >= 2
    assert bounds == sorted(bounds)
