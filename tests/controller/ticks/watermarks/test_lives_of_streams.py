"""Watermarks live and die with their stream, and nothing of a life reaches the next one."""

from __future__ import annotations

from contextlib import suppress

import pytest
from interruptions import Work, after_each_sleep
from stream_world import StreamWorld
from watermark_world import MARK_SEGMENT, WatermarkWorld, fresh_marks

from headrace.controller.services.watermark_service import MarkStreamService
from headrace.model.errors import NotFoundError, UnavailableError
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration


def test_the_watermarks_go_with_the_stream(marks: WatermarkWorld):
    marks.note("a", 5, {0: 10})
    marks.tick()
    marks.world.seal()
    marks.world.delete()
    assert MARK_SEGMENT not in marks.world.bare_segment_stores.names()
    assert not marks.is_scheduled()
    marks.tick()
    marks.world.create()
    assert marks.service.newest_watermark("s", "t").watermark is None
    first = marks.world.tail_ids()[0]
    marks.note("a", 1, {first: 0})
    marks.tick()
    assert marks.bounds() == [(1, 1)]


def test_nothing_is_noted_on_a_stream_that_is_being_deleted(marks: WatermarkWorld):
    marks.note("a", 5, {0: 10})
    marks.world.seal()
    marks.note("a", 6, {0: 10})
    marks.world.streams.delete_stream("s", "t")
    with pytest.raises(NotFoundError):
        marks.note("a", 7, {0: 10})
    marks.tick()
    assert not marks.is_scheduled()
    assert marks.written() == []


def test_nothing_is_noted_on_a_stream_that_is_being_created(world: StreamWorld):
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    with pytest.raises(UnavailableError):
        WatermarkWorld(world).note("a", 1, {0: 1})


def _deletion_in_hand() -> WatermarkWorld:
    marks = fresh_marks()
    marks.note("a", 5, {0: 10})
    marks.tick()
    marks.world.seal()
    marks.world.streams.delete_stream("s", "t")
    marks.world.receive()
    return marks


def _begin_next_incarnation(marks: WatermarkWorld) -> None:
    """Another processor ends the deletion, and the stream that is made next has a watermark."""
    marks.world.process()
    marks.world.bare_queue.acknowledge(marks.world.in_hand.receipt)  # else the queue keeps the next message back
    _create_again(marks)


def _create_again(marks: WatermarkWorld) -> None:
    marks.world.create()
    marks.note("a", 1, {marks.world.tail_ids()[0]: 3})
    marks.tick()


def _assert_goes_on(marks: WatermarkWorld) -> None:
    """The next incarnation has its first watermark, and gets its second."""
    assert marks.bounds() == [(1, 1)]
    marks.note("a", 2, {marks.world.tail_ids()[0]: 4})
    marks.tick()
    assert marks.bounds() == [(1, 1), (2, 2)]
    assert marks.revision_mark() == marks.service.newest_watermark("s", "t").offset


def test_a_late_deletion_spares_the_next_mark_segment():
    slept = 0
    work = Work(_deletion_in_hand, lambda marks: marks.world.process(), WatermarkWorld.bounds)
    for _, marks, _ in after_each_sleep(work, _begin_next_incarnation):
        slept += 1
        _assert_goes_on(marks)
    assert slept >= 8


def _ask_for_marks(marks: WatermarkWorld) -> None:
    """As a client of the bridge does, which makes the mark segment if there is none."""
    with suppress(NotFoundError):
        MarkStreamService(marks.world.store, marks.world.segment_stores).segments("s", "t")


def _delete(marks: WatermarkWorld) -> None:
    marks.world.seal()
    marks.world.delete()


@pytest.mark.parametrize("until_recreated", range(3))
def test_a_late_maker_spares_the_next_mark_segment(until_recreated: int):
    """It sleeps twice: while its stream is deleted, and some calls later while the stream is made again."""
    times = 0
    for until_deleted in range(4):
        marks = fresh_marks()
        calls = marks.calls
        recreated: list[list[object]] = []

        def delete(marks: WatermarkWorld = marks, recreated: list[list[object]] = recreated) -> None:
            _delete(marks)
            recreated.append(marks.calls.interrupt_at(until_recreated, lambda: _create_again(marks)))

        calls.interrupt_at(until_deleted, delete)
        _ask_for_marks(marks)
        calls.calm()
        times += recreated == [[None]]
        if recreated != [[None]]:
            _create_again(marks)
        _assert_goes_on(marks)
    assert times >= 1


def test_a_late_maker_leaves_no_mark_segment():
    slept = 0
    for _, marks, _ in after_each_sleep(Work(fresh_marks, _ask_for_marks, WatermarkWorld.bounds), _delete):
        slept += 1
        assert marks.world.bare_segment_stores.names() == []
    assert slept >= 4
