"""A tick of watermarks that dies at any of its calls, or sleeps there while others do what they like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from interruptions import (
    Work,
    after_each_crash,
    after_each_sleep,
    assert_crashes_lose_and_double_nothing,
    undisturbed,
)
from watermark_world import MARK_SEGMENT, WatermarkWorld, fresh_marks

from headrace.metadata.due_index import BUCKET_LEASES_PARTITION


def _noted() -> WatermarkWorld:
    marks = fresh_marks()
    marks.note("a", 5, {0: 10})
    return marks


def _live_on(marks: WatermarkWorld) -> None:
    """A second life of the stream, with a watermark of its own."""
    marks.world.seal()
    marks.world.delete()
    marks.world.create()
    marks.note("a", 1, {marks.world.tail_ids()[0]: 3})


def test_a_late_tick_leaves_a_recreated_stream_unchanged():
    """It wakes up at any of its calls; whatever it has put into the mark segment is cut off by the next watermark."""
    slept = 0
    for position, marks, _ in after_each_sleep(Work(_noted, WatermarkWorld.tick, _outcome), _live_on):
        slept += 1
        marks.tick_after_a_crash()
        marks.note("a", 2, {marks.world.tail_ids()[0]: 4})
        marks.tick()
        marks.note("a", 3, {marks.world.tail_ids()[0]: 5})
        marks.tick()
        assert marks.bounds()[-1] == (3, 3), f"woken up at call {position}"
        first_number = marks.world.records.get("s", "t").stream.first_segment_number
        assert all(position.segment.number >= first_number for found in marks.written() for position in found.cut)
    assert slept >= 6


def _accept_first(marks: WatermarkWorld) -> None:
    marks.note("a", 1, {0: 1})
    marks.note("b", 2, {1: 5})


def _accept_next(marks: WatermarkWorld) -> None:
    _accept_first(marks)
    marks.tick()
    marks.note("a", 3, {0: 2})
    marks.note("b", 4, {1: 6})


def _accept_leave(marks: WatermarkWorld) -> None:
    for writer in "ab":
        marks.note(writer, 1, {0: 1})
    marks.tick()
    for writer in "ab":
        marks.service.remove_writer("s", "t", writer)


ACCEPT: dict[str, Callable[[WatermarkWorld], None]] = {
    "the first watermark": _accept_first,
    "the next watermark": _accept_next,
    "leaving the schedule": _accept_leave,
}


def _outcome(marks: WatermarkWorld) -> Any:
    """All but leases and since when writers are silent: a tick more than without the crash may have looked."""
    records = {
        key: dict(body) for key, (_, body) in marks.world.everything().items() if key[0] != BUCKET_LEASES_PARTITION
    }
    for body in records.values():
        body.pop("silent_since", None)
    mark = marks.revision_mark() if MARK_SEGMENT in marks.world.bare_segment_stores.names() else None
    return records, marks.written(), mark


def _work(accept: Callable[[WatermarkWorld], None]) -> Work[WatermarkWorld]:
    def accepted() -> WatermarkWorld:
        marks = fresh_marks()
        accept(marks)
        return marks

    return Work(accepted, WatermarkWorld.tick, _outcome, recover=WatermarkWorld.tick_after_a_crash)


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("kind", ACCEPT)
def test_a_crash_anywhere_loses_and_doubles_nothing(kind: str, done: bool):
    assert assert_crashes_lose_and_double_nothing(_work(ACCEPT[kind]), done=done) >= 5


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
def test_after_a_crash_writers_go_on_and_so_do_watermarks(done: bool):
    crashes = 0
    for _, marks in after_each_crash(_work(_accept_next), done=done):
        crashes += 1
        marks.note("a", 5, {0: 3})
        marks.note("b", 6, {1: 7})
        marks.tick_after_a_crash()
        marks.note("a", 7, {0: 4})
        marks.note("b", 8, {1: 8})
        marks.tick()
        assert marks.bounds() in ([(1, 2), (3, 4), (7, 8)], [(1, 2), (5, 6), (7, 8)], [(1, 2), (3, 4), (5, 6), (7, 8)])
        assert marks.revision_mark() == marks.service.newest_watermark("s", "t").offset
    assert crashes >= 5


@pytest.mark.parametrize("kind", ACCEPT)
def test_two_ticks_at_once_are_as_good_as_one(kind: str):
    """The lease of the first has run out while it slept, at any of its calls, and another does the work."""
    work = _work(ACCEPT[kind])
    wanted = undisturbed(work).outcome[1]
    slept = 0
    for position, marks, _ in after_each_sleep(work, lambda marks: WatermarkWorld(marks.world).tick_after_a_crash()):
        slept += 1
        assert marks.written() == wanted, f"asleep at call {position}"
        marks.tick_after_a_crash()
        assert marks.written() == wanted
    assert slept >= 5
