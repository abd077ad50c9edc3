"""Watermarks live and die with their stream, and nothing of a life reaches the next one."""

from __future__ import annotations

from typing import Any

import pytest
from watermark_world import MARK_SEGMENT, WatermarkWorld

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


def test_nothing_is_noted_on_a_stream_that_is_being_created(world: Any):
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    with pytest.raises(UnavailableError):
        WatermarkWorld(world).note("a", 1, {0: 1})
