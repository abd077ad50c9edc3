"""What notes of writers, questions for watermarks and the tick cost in requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stream_world import StreamWorld
from watermark_world import WatermarkWorld

READ, QUERY, WRITE, TRANSACTION = "read", "query", "write", "transaction"
APPEND, CREATE = "segment store append", "segment store create_segment"
CLAIM, SET = "segment store compare_and_set_attribute", "segment store set_attribute_up_to"
S2, S3 = 1 << 32 | 2, 1 << 32 | 3


@pytest.fixture
def marks(world: StreamWorld) -> WatermarkWorld:
    """A stream in epoch 1 on which `a` has noted its time."""
    world.create()
    world.scale([0], [0.0, 0.25, 0.5])
    made = WatermarkWorld(world)
    made.note("a", 1, {S2: 1})
    world.calls.counts.clear()
    return made


COSTS: dict[str, tuple[Callable[[WatermarkWorld], object], dict[str, int]]] = {
    "the first note of a writer": (lambda m: m.note("b", 1, {S2: 1}), {READ: 2, TRANSACTION: 1}),
    "a note": (lambda m: m.note("a", 2, {S2: 2, 1: 5}), {READ: 1, WRITE: 1}),
    "a note of an older segment": (lambda m: m.note("a", 2, {0: 2, S2: 2}), {READ: 2, WRITE: 1}),
    "remove a writer": (lambda m: m.service.remove_writer("s", "t", "a"), {READ: 1, WRITE: 1}),
    "the newest watermark": (lambda m: m.service.newest_watermark("s", "t"), {READ: 1}),
}


@pytest.mark.parametrize("name", COSTS)
def test_cost_of_a_call(marks: WatermarkWorld, name: str):
    call, cost = COSTS[name]
    call(marks)
    assert dict(marks.world.calls.counts) == cost


def test_a_warm_process_reads_an_old_epoch_no_more(marks: WatermarkWorld):
    marks.note("a", 2, {0: 2, S2: 2})
    marks.world.calls.counts.clear()
    marks.note("a", 3, {0: 2, S2: 2})
    assert dict(marks.world.calls.counts) == {READ: 1, WRITE: 1}


def _counted(marks: WatermarkWorld) -> dict[str, int]:
    marks.world.calls.counts.clear()
    marks.tick()
    return dict(marks.world.calls.counts)


def test_cost_of_ticks(marks: WatermarkWorld):
    """Of all of these one read and two writes are the lease, where there is something scheduled."""
    # The mark segment is created when it is found missing; then it is asked whether the stream is still there.
    assert _counted(marks) == {QUERY: 2, READ: 3, WRITE: 2, TRANSACTION: 1, APPEND: 1, CREATE: 1, CLAIM: 1, SET: 1}
    marks.note("a", 2, {S2: 2})
    assert _counted(marks) == {QUERY: 2, READ: 2, WRITE: 3, APPEND: 1, SET: 1}
    # Nothing new, and nobody to wait for: the writer's mark and the entry in the schedule go.
    assert _counted(marks) == {QUERY: 2, READ: 2, WRITE: 2, TRANSACTION: 1}
    assert _counted(marks) == {QUERY: 1}
