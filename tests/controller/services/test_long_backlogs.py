"""A reader that is thousands of epochs behind catches up, and a batch costs what it passes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from long_streams import BYTES, long_stream
from stream_world import StreamWorld

from headrace.api.segments import RangesBetween
from headrace.controller.services.reader_plans import NextCutService
from headrace.model.limits import EPOCHS_BETWEEN_MAX, SEGMENTS_BETWEEN_MAX, SEGMENTS_PER_CUT_MAX

CALLS_PER_BATCH_MAX = 110
"""To the metadata store for 4,000 epochs: a hundred epochs with one call, and the ends of their segments with another.
The first calls of a walk take fewer."""


@pytest.mark.parametrize(("epochs", "segments"), [pytest.param(12_000, 1, marks=pytest.mark.nightly), (2_600, 10)])
def test_a_long_backlog_is_read_in_bounded_batches(epochs: int, segments: int) -> None:
    assert epochs > EPOCHS_BETWEEN_MAX or epochs * segments > SEGMENTS_BETWEEN_MAX
    world = StreamWorld()
    long_stream(world, epochs, segments)
    plans = NextCutService(world.store, world.segment_stores)
    start: Mapping[int, int] | None = None
    read, batches = 0, 0
    while True:
        world.calls.counts.clear()
        next_cut = plans.next_cut("s", "t", start)
        assert world.calls.counts["read"] <= CALLS_PER_BATCH_MAX
        assert len(next_cut.ranges) <= SEGMENTS_PER_CUT_MAX + 2 * segments
        assert next_cut.part(RangesBetween) == world.segments.between("s", "t", start, next_cut.end.offsets)
        start, read, batches = next_cut.end.offsets, read + next_cut.length_bytes, batches + 1
        if next_cut.reached_end:
            break
    assert read == epochs * segments * BYTES
    assert batches == -(-epochs * segments // SEGMENTS_PER_CUT_MAX)


def test_a_small_batch_costs_the_same_far_behind() -> None:
    costs = []
    for epochs in (100, 2_000):
        world = StreamWorld()
        long_stream(world, epochs, 2)
        NextCutService(world.store, world.segment_stores).next_cut("s", "t", None, None, 5 * BYTES)
        costs.append(dict(world.calls.counts))
    assert costs[0] == costs[1]
    assert costs[0]["read"] <= 8


def test_one_old_segment_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cuts of a query stay so close that the ranges between two of them can be listed."""
    monkeypatch.setattr("headrace.controller.services.reader_plans.EPOCHS_BETWEEN_MAX", 20)
    monkeypatch.setattr("headrace.controller.services.segment_service.EPOCHS_BETWEEN_MAX", 20)
    world = StreamWorld()
    world.create()
    for _ in range(50):
        world.append(0, BYTES)
    newest = 1
    world.scale([0], [0.0, 0.5])
    for _ in range(40):
        world.append(newest, 1)
        world.scale([newest], [0.5, 1.0])
        newest = max(world.tail_ids())
    plans = NextCutService(world.store, world.segment_stores)
    start: Mapping[int, int] | None = None
    for _ in range(50):
        next_cut = plans.next_cut("s", "t", start, None, 4 * BYTES)
        assert next_cut.part(RangesBetween) == world.segments.between("s", "t", start, next_cut.end.offsets)
        start = next_cut.end.offsets
        if next_cut.reached_end:
            break
    assert next_cut.reached_end
