"""What a former incarnation of a stream writes too late changes no record of the watermarks of the next one.

Each record of the next incarnation has been written as often as that of the former one, which was read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from interruptions import Work, after_each_sleep
from watermark_world import SILENT_MS, WatermarkWorld, fresh_marks

from headrace.controller.ticks.advance_watermarks import WatermarkAdvancer, watermark_ticks
from headrace.metadata.watermark_records import (
    decode_watermark_state,
    decode_writer_mark,
    watermark_key,
    writer_mark_key,
)
from headrace.metadata.watermark_schedule import decode_watermark_schedule, watermark_schedule_key
from headrace.model.errors import HeadraceError


def _has_noted() -> WatermarkWorld:
    marks = fresh_marks()
    marks.note("a", 1, {0: 1, 1: 1})
    return marks


def _watermark_is_due() -> WatermarkWorld:
    marks = _has_noted()
    marks.tick()
    marks.note("a", 2, {0: 2, 1: 2})
    return marks


def _writer_is_silent() -> WatermarkWorld:
    marks = _has_noted()
    marks.tick()
    marks.tick()
    marks.world.clock.advance(SILENT_MS)
    return marks


def _deletion_is_in_hand() -> WatermarkWorld:
    marks = _has_noted()
    marks.world.seal()
    marks.world.streams.delete_stream("s", "t")
    marks.world.receive()
    return marks


def _tick_of_a_store_that_is_away(marks: WatermarkWorld) -> None:
    world = marks.world
    advancer = WatermarkAdvancer(world.store, world.segment_stores, world.clock, lambda _segment: True)
    watermark_ticks(world.store, world.clock, advancer.advance).run(marks.bucket())


def _note(marks: WatermarkWorld) -> None:
    with suppress(HeadraceError):  # the stream of this position is gone
        marks.note("a", 2, {0: 2, 1: 2})


def _begin_next_incarnation(marks: WatermarkWorld) -> None:
    """It has one note and one watermark."""
    world = marks.world
    if world.has_message_in_hand:
        world.process()
        world.acknowledge()
    else:
        world.seal()
        world.delete()
    world.create(timestamp_aggregation_timeout_ms=SILENT_MS)
    marks.note("a", 7, dict.fromkeys(world.tail_ids(), 10))
    marks.tick_after_a_crash()  # a tick that sleeps may hold the lease of the bucket


def _assert_goes_on(marks: WatermarkWorld) -> None:
    store = marks.world.bare_store
    stream = marks.world.records.get("s", "t").stream
    entry = store.get(watermark_schedule_key("s", "t"))
    assert entry is not None, "the stream is off the schedule"
    assert decode_watermark_schedule(entry.body).first_segment_number == stream.first_segment_number
    state = marks.world.record(watermark_key("s", "t"))
    assert decode_watermark_state(state.body).first_segment_number == stream.first_segment_number
    mark, first_segment_number = decode_writer_mark(marks.world.record(writer_mark_key("s", "t", "a")).body)
    assert (mark.time, first_segment_number) == (7, stream.first_segment_number)
    marks.note("a", 8, dict.fromkeys(marks.world.tail_ids(), 20))
    marks.tick_after_a_crash()
    assert marks.bounds() == [(7, 7), (8, 8)]


@pytest.mark.parametrize(
    ("accept", "run", "calls"),
    [
        pytest.param(_watermark_is_due, WatermarkWorld.tick, 6, id="state"),
        pytest.param(_writer_is_silent, WatermarkWorld.tick, 5, id="removal"),
        pytest.param(_deletion_is_in_hand, WatermarkWorld.tick, 4, id="stream-is-gone"),
        pytest.param(_has_noted, _tick_of_a_store_that_is_away, 3, id="put-off"),
        pytest.param(_has_noted, _note, 2, id="note"),
    ],
)
def test_late_work_changes_no_record_of_the_next_incarnation(
    accept: Callable[[], WatermarkWorld], run: Callable[[WatermarkWorld], None], calls: int
):
    slept = 0
    work = Work(accept, run, WatermarkWorld.bounds)
    for position, marks, _ in after_each_sleep(work, _begin_next_incarnation):
        slept += 1
        try:
            _assert_goes_on(marks)
        except AssertionError as error:
            raise AssertionError(f"asleep at call {position}: {error}") from error
    assert slept >= calls
