"""Streams whose watermarks one tick advances: none stops another, and the tick ends in time."""

from __future__ import annotations

from typing import Any

import pytest
from watermark_world import SILENT_MS, WatermarkWorld

from headrace.model.errors import UnavailableError
from headrace.workflows import advance_watermarks


def test_a_stream_that_cannot_be_helped_stops_no_other(marks: WatermarkWorld):
    for stream in ("u", "v", "w"):
        marks.world.create(stream, timestamp_aggregation_timeout_ms=SILENT_MS)
    streams = ("t", "u", "v", "w")
    for stream in streams:
        marks.note("a", 1, {0: 1}, stream=stream)

    def broken(name: str, data: bytes, offset: int, append: Any = marks.world.bare_segment_stores.append) -> int:
        if "_MARKu" in name:
            raise UnavailableError("its segment store is away")
        return append(name, data, offset)

    marks.world.bare_segment_stores.append = broken
    for stream in streams:
        marks.tick(stream)
    assert [stream for stream in streams if marks.written(stream)] == ["t", "v", "w"]
    del marks.world.bare_segment_stores.append
    marks.tick("u")
    assert marks.bounds("u") == [(1, 1)]


def test_every_stream_has_its_turn(marks: WatermarkWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(advance_watermarks, "STREAMS_PER_TICK_MAX", 1)
    monkeypatch.setattr("headrace.topology.BUCKET_COUNT", 1)
    streams = [f"u{number}" for number in range(5)]
    for stream in streams:
        marks.world.create(stream, timestamp_aggregation_timeout_ms=10_000_000)
        marks.note("a", 1, {0: 1}, stream=stream)
    for _ in streams:
        marks.tick()
    assert [len(marks.written(stream)) for stream in streams] == [1] * 5


def test_a_tick_ends_in_time(marks: WatermarkWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.topology.BUCKET_COUNT", 1)
    streams = [f"u{number}" for number in range(3)]
    for stream in streams:
        marks.world.create(stream)
        marks.note("a", 1, {0: 1}, stream=stream)
    marks.world.calls.after = lambda kind: (
        marks.world.clock.advance(advance_watermarks.WORK_MS_MAX) if kind == "segment store append" else None
    )
    marks.tick()
    assert sum(len(marks.written(stream)) for stream in streams) == 1
