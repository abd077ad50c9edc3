"""What a former incarnation of a stream asks of the mark segment too late does not reach that of the next one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from interruptions import Work, after_each_sleep
from watermark_world import MARK_SEGMENT, WatermarkWorld, fresh_marks

WATERMARKS = 12


def _write_watermarks(marks: WatermarkWorld, count: int) -> None:
    segments = marks.world.tail_ids()
    for time in range(1, count + 1):
        for segment in segments:
            marks.world.append(segment, 10)
        marks.note("a", time, dict.fromkeys(segments, 10 * time))
        marks.tick_after_a_crash()  # a tick that sleeps may hold the lease of the bucket


def _begin_next_incarnation(marks: WatermarkWorld) -> None:
    marks.world.seal()
    marks.world.delete()
    marks.world.create()
    _write_watermarks(marks, WATERMARKS)


def _assert_is_whole(marks: WatermarkWorld, position: int) -> None:
    """All watermarks are there, the next one follows, and clients begin to read at the newest."""
    assert marks.bounds() == [(time, time) for time in range(1, WATERMARKS + 1)], f"asleep at call {position}"
    after = WATERMARKS + 1
    marks.note("a", after, dict.fromkeys(marks.world.tail_ids(), 10 * after))
    marks.tick_after_a_crash()
    assert marks.bounds() == [(time, time) for time in range(1, after + 1)], f"asleep at call {position}"
    newest = marks.service.newest_watermark("s", "t")
    assert newest.watermark is not None
    assert marks.revision_mark() == newest.offset, f"asleep at call {position}"


def _truncation_in_hand() -> WatermarkWorld:
    marks = fresh_marks()
    _write_watermarks(marks, 10)
    marks.world.streams.truncate_stream("s", "t", {0: 79, 1: 79})
    marks.world.receive()
    return marks


def _truncate_and_begin_next_incarnation(marks: WatermarkWorld) -> None:
    """Another processor ends the truncation."""
    marks.world.process()
    marks.world.bare_queue.acknowledge(marks.world.in_hand.receipt)  # else the queue keeps the next message back
    _begin_next_incarnation(marks)


def test_a_late_truncation_spares_the_next_watermarks():
    slept = 0
    work = Work(_truncation_in_hand, lambda marks: marks.world.process(), WatermarkWorld.bounds)
    for position, marks, _ in after_each_sleep(work, _truncate_and_begin_next_incarnation):
        slept += 1
        assert marks.world.bare_segment_stores.segment_info(MARK_SEGMENT).start_offset == 0
        _assert_is_whole(marks, position)
    assert slept >= 8


def _tick_is_due(before: int) -> WatermarkWorld:
    marks = fresh_marks()
    _write_watermarks(marks, before)
    marks.note("a", before + 1, dict.fromkeys((0, 1), 10 * (before + 1)))
    return marks


def _foreign_bytes_are_due() -> WatermarkWorld:
    """The tick finds bytes behind its watermarks that are none, and cuts them off."""
    marks = _tick_is_due(10)
    stores = marks.world.bare_segment_stores
    stores.append(MARK_SEGMENT, bytes(20), stores.segment_info(MARK_SEGMENT).length)
    return marks


@pytest.mark.parametrize(
    "accept",
    [
        pytest.param(lambda: _tick_is_due(0), id="first"),
        pytest.param(lambda: _tick_is_due(1), id="second"),
        pytest.param(lambda: _tick_is_due(WATERMARKS), id="fits-the-end"),
        pytest.param(lambda: _tick_is_due(WATERMARKS + 1), id="longer"),
        pytest.param(_foreign_bytes_are_due, id="cuts-off"),
    ],
)
def test_a_late_tick_spares_the_next_watermarks(accept: Callable[[], WatermarkWorld]):
    slept = 0
    work = Work(accept, WatermarkWorld.tick, WatermarkWorld.bounds)
    for position, marks, _ in after_each_sleep(work, _begin_next_incarnation):
        slept += 1
        _assert_is_whole(marks, position)
    assert slept >= 8
