"""Long steps stop when their time is short, and go on where they were: what was done is not asked for again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.controller.steps import stream_segments
from headrace.metadata.orphan_segments import leftovers_body, leftovers_key
from headrace.metadata.stream_records import StreamRecords
from headrace.model.segments import segment_id
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.ports.clock import PIECE_S, WorkLeftError, time_limit
from headrace.ports.metadata_store import Create
from headrace.ports.segment_stores import SegmentScaleRate

CALL_MS = 1_000
CALLS_PER_INVOCATION = 3


class SlowCalls:
    """Segment stores of which some calls take a second; they count what those are asked for."""

    def __init__(self, world: StreamWorld, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()
        self._clock = world.clock
        for name in names:
            monkeypatch.setattr(
                world.segment_stores, name, self._slow(name, getattr(world.segment_stores, name)), False
            )

    def _slow(self, name: str, call: Any) -> Any:
        def slow(target: str | Sequence[str], *others: Any) -> Any:
            self._clock.advance(CALL_MS)
            self.asked.update((name, segment) for segment in ([target] if isinstance(target, str) else target))
            return call(target, *others)

        return slow


def _invocations(world: StreamWorld) -> int:
    """How many invocations, each with the time for a few calls, a request takes."""
    (message,) = world.bare_queue.receive()
    for count in range(1, 100):
        try:
            with time_limit(world.clock, PIECE_S + CALLS_PER_INVOCATION * CALL_MS / 1000):
                world.processor.process(message.body)
        except WorkLeftError:
            continue
        return count
    raise AssertionError("no progress")


def test_truncating_many_segments_resumes_and_repeats_nothing(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    segments = 10
    world.create(segments=segments)
    cut = dict.fromkeys(range(segments), 5)
    for number in range(segments):
        world.bare_segment_stores.append(f"s/t/{number}.#epoch.0", b"0123456789", 0)
    world.streams.truncate_stream("s", "t", cut)
    calls = SlowCalls(world, monkeypatch, "truncate_segment")
    assert _invocations(world) > 3
    assert len(calls.asked) == segments
    assert set(calls.asked.values()) == {1}


def test_removing_leftovers_resumes_and_repeats_nothing(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream_segments, "SEGMENTS_PER_CALL", 2)
    world.create()
    gone = [segment_id(9, number) for number in range(50, 80)]
    names = [f"s/t/{identifier & 0xFFFFFFFF}.#epoch.{identifier >> 32}" for identifier in gone]
    world.bare_segment_stores.create_segments(names, SegmentScaleRate())
    world.bare_store.write(Create(leftovers_key("s", "t"), leftovers_body(gone)))
    world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(8)))
    calls = SlowCalls(world, monkeypatch, "delete_segments")
    assert _invocations(world) > 3
    (stored,) = [StreamRecords(world.store).get("s", "t")]
    assert len(stored.stream.epoch.segments) == 8
    assert ("stream/s/t", "leftovers") not in world.everything()
    of_leftovers = {place: times for place, times in calls.asked.items() if place[1] in names}
    assert set(of_leftovers) == {("delete_segments", name) for name in names}
    assert set(of_leftovers.values()) == {1}
