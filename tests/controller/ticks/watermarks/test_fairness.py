"""Streams whose watermarks one tick advances: none stops another, and the tick ends in time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from watermark_world import SILENT_MS, WatermarkWorld

from fuzz.watched_ports import Crash
from headrace.controller.ticks import advance_watermarks
from headrace.controller.ticks.advance_watermarks import ScheduleEntry
from headrace.controller.ticks.due_work import WORK_S_MAX
from headrace.metadata.watermark_schedule import ScheduledStream, watermark_schedule_body, watermark_schedule_key
from headrace.model.backoff import BACKOFF_FIRST_MS, BACKOFF_MAX_MS
from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import Create


def test_a_stream_that_cannot_be_helped_stops_no_other(marks: WatermarkWorld):
    for stream in ("u", "v", "w"):
        marks.world.create(stream, timestamp_aggregation_timeout_ms=SILENT_MS)
    streams = ("t", "u", "v", "w")
    for stream in streams:
        marks.note("a", 1, {0: 1}, stream=stream)

    append = marks.world.bare_segment_stores.append

    def broken(name: str, data: bytes, expected_offset: int, incarnation: int = 0) -> int:
        if "_MARKu" in name:
            raise UnavailableError("its segment store is away")
        return append(name, data, expected_offset, incarnation)

    marks.world.bare_segment_stores.append = broken
    for stream in streams:
        marks.tick(stream)
    assert [stream for stream in streams if marks.written(stream)] == ["t", "v", "w"]
    del marks.world.bare_segment_stores.append
    marks.tick("u", after_ms=BACKOFF_FIRST_MS)
    assert marks.bounds("u") == [(1, 1)]


def test_a_stream_that_fails_is_put_off_for_longer_each_time(marks: WatermarkWorld):
    marks.note("a", 1, {0: 1})
    tried: list[int] = []

    def broken(name: str, data: bytes, expected_offset: int, incarnation: int = 0) -> int:
        tried.append(marks.world.clock.now_ms())
        raise UnavailableError("its segment store is away")

    marks.world.bare_segment_stores.append = broken
    for _ in range(30):
        marks.tick(after_ms=10_000)
    gaps = [after - before for before, after in pairwise(tried)]
    assert gaps[:3] == [BACKOFF_FIRST_MS, 2 * BACKOFF_FIRST_MS, 4 * BACKOFF_FIRST_MS]
    assert set(gaps[3:]) == {BACKOFF_MAX_MS}
    del marks.world.bare_segment_stores.append
    marks.tick(after_ms=BACKOFF_MAX_MS)
    assert marks.bounds() == [(1, 1)]


def test_a_tick_ends_in_time_and_the_next_one_goes_on(marks: WatermarkWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.topology.BUCKET_COUNT", 1)
    streams = [f"u{number}" for number in range(3)]
    for stream in streams:
        marks.world.create(stream, timestamp_aggregation_timeout_ms=10_000_000)
        marks.note("a", 1, {0: 1}, stream=stream)
    marks.world.calls.after = lambda kind: (
        marks.world.clock.advance(int(WORK_S_MAX * 1000)) if kind == "segment store append" else None
    )
    for count in range(1, 4):
        marks.tick()
        assert [len(marks.written(stream)) for stream in streams] == [1] * count + [0] * (3 - count)


def test_a_stream_that_kills_its_process_stops_no_other(marks: WatermarkWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.topology.BUCKET_COUNT", 1)
    streams = [f"u{number}" for number in range(3)]
    for stream in streams:
        marks.world.create(stream, timestamp_aggregation_timeout_ms=10_000_000)
        marks.note("a", 1, {0: 1}, stream=stream)

    append = marks.world.bare_segment_stores.append

    def deadly(name: str, data: bytes, expected_offset: int, incarnation: int = 0) -> int:
        if "_MARKu0" in name:
            raise Crash
        return append(name, data, expected_offset, incarnation)

    marks.world.bare_segment_stores.append = deadly
    for _ in range(2):
        with pytest.raises(Crash):
            marks.tick_after_a_crash()
    assert [len(marks.written(stream)) for stream in streams] == [0, 1, 1]


@pytest.mark.parametrize("killer", range(6))
def test_a_stream_that_kills_its_process_stops_no_later_page(
    marks: WatermarkWorld, monkeypatch: pytest.MonkeyPatch, killer: int
):
    """Nor those before and behind it, however often the tick has crashed."""
    monkeypatch.setattr("headrace.topology.BUCKET_COUNT", 1)
    monkeypatch.setattr(advance_watermarks, "_RECORDS_PER_READ", 2)
    streams = [f"u{number}" for number in range(6)]
    for stream in streams:
        marks.world.create(stream, timestamp_aggregation_timeout_ms=10_000_000)
        marks.note("a", 1, {0: 1}, stream=stream)

    append = marks.world.bare_segment_stores.append

    def deadly(name: str, data: bytes, expected_offset: int, incarnation: int = 0) -> int:
        if f"_MARKu{killer}" in name:
            raise Crash
        return append(name, data, expected_offset, incarnation)

    def crash_some_times(times: int) -> None:
        for _ in range(times):
            with pytest.raises(Crash):
                marks.tick_after_a_crash()

    marks.world.bare_segment_stores.append = deadly
    healthy = [stream for stream in streams if stream != f"u{killer}"]
    crash_some_times(len(streams) + 1)
    assert [len(marks.written(stream)) for stream in healthy] == [1] * 5
    for stream in healthy:
        marks.note("a", 2, {0: 2}, stream=stream)
    crash_some_times(2)
    assert [len(marks.written(stream)) for stream in healthy] == [2] * 5


def test_a_tick_begins_behind_the_one_before(marks: WatermarkWorld, monkeypatch: pytest.MonkeyPatch):
    """Entries stay where they are: without a place to go on from, the first ones would have all the turns."""
    monkeypatch.setattr("headrace.topology.BUCKET_COUNT", 1)
    world, turns = marks.world, list[str]()
    streams = [f"u{number}" for number in range(3)]
    for stream in streams:
        scheduled = ScheduledStream("s", stream, 0, 1)
        world.bare_store.write(Create(watermark_schedule_key("s", stream), watermark_schedule_body(scheduled)))

    def look(entry: ScheduleEntry) -> None:
        turns.append(entry.scheduled.stream)
        world.clock.advance(int(WORK_S_MAX * 1000))

    ticks = advance_watermarks.watermark_ticks(world.bare_store, world.clock, look)
    for _ in range(8):  # one more each time to find that all had their turn
        ticks.run(0)
    assert turns[:6] == streams * 2
