"""The tick of retention: what it costs, whom it puts off, and what one stream can do to the others."""

from __future__ import annotations

from typing import Any

import pytest
from retention_world import BY_SIZE, PERIOD_MS, Retention, sizes
from stream_world import StreamWorld

from fuzz.watched_ports import Crash
from headrace import topology
from headrace.controller.ticks import apply_retention
from headrace.controller.ticks.apply_retention import LOOK_S_MAX, PUT_OFF_MS, RetentionTicks
from headrace.controller.ticks.due_work import LEASE_MS, WORK_S_MAX
from headrace.metadata import retention_plans
from headrace.metadata.retention_plans import RetentionPlanner
from headrace.metadata.retention_records import DueStream, create_due_stream
from headrace.model.backoff import backoff_ms, bucket_of_stream
from headrace.model.errors import ConflictError, UnavailableError
from headrace.model.retention import Cuts, RetentionCut, with_cut
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy, StreamConfiguration
from headrace.model.streams import Stream


def test_a_stream_without_a_policy_costs_nothing(world: StreamWorld, retention: Retention):
    world.create()
    world.append(0, 10_000)
    world.calls.counts.clear()
    retention.after_a_period()
    assert dict(world.calls.counts) == {"query": topology.BUCKET_COUNT}
    assert retention.due() == []


def test_a_stream_in_creation_is_put_off(world: StreamWorld, retention: Retention):
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1), BY_SIZE))
    for bucket in range(topology.BUCKET_COUNT):
        retention.ticks.run(bucket)
    assert retention.due() == [("t", world.clock.now_ms() + PUT_OFF_MS)]
    world.drain()
    world.clock.advance(PUT_OFF_MS)
    retention.tick()
    assert retention.due() == [("t", world.clock.now_ms() + PERIOD_MS)]


def test_a_busy_stream_is_asked_again_soon(world: StreamWorld, retention: Retention):
    world.create(segments=1, retention=BY_SIZE)
    retention.write(150)
    refused = []

    def busy(*_: Any) -> None:
        refused.append(1)
        raise ConflictError("the stream is SCALING")

    slow = RetentionTicks(world.store, world.segment_stores, world.clock, busy, PUT_OFF_MS * 30)
    world.append(0, 150)
    world.clock.advance(PUT_OFF_MS * 30)
    now_ms = world.clock.now_ms()
    for bucket in range(topology.BUCKET_COUNT):
        slow.run(bucket)
    assert (len(refused), retention.due()) == (1, [("t", now_ms + PUT_OFF_MS)])
    assert sizes(retention.state()) == [150, 300], "the cut is taken all the same"


def test_by_time_a_stall_before_the_tail_is_read(world: StreamWorld, retention: Retention):
    """What is written during the stall is before the new cut, and is kept for the minimum after it was written."""
    world.create(segments=1, retention=RetentionPolicy.by_time(10 * PERIOD_MS))

    def stall() -> None:
        world.clock.advance(6 * PERIOD_MS)
        world.append(0, 100)

    with retention.calls.overtaken("segment store segment_infos", by=stall):
        retention.tick()
    heads = []
    for _ in range(11):
        retention.after_a_period()
        heads.append(retention.head()[0])
    assert heads == [*[0] * 9, 100, 100]


def test_one_that_fails_does_not_stop_the_others(world: StreamWorld, retention: Retention):
    for name in ("a", "b", "c"):
        world.create(name, segments=1, retention=BY_SIZE)
        world.append(0, 100, name)
    tail = world.segment_stores.segment_infos
    asked = []

    def away(names: list[str]) -> Any:
        asked.append(names)
        if names[0].startswith("s/b/"):
            raise UnavailableError("a store restarts")
        return tail(names)

    world.segment_stores.segment_infos = away
    retention.tick()
    now_ms = world.clock.now_ms()
    later_ms = now_ms + PERIOD_MS
    assert sorted(retention.due()) == [("a", later_ms), ("b", now_ms + backoff_ms(1)), ("c", later_ms)]
    world.clock.advance(backoff_ms(1))
    retention.tick()
    assert ("b", world.clock.now_ms() + backoff_ms(2)) in retention.due()
    del world.segment_stores.segment_infos
    world.clock.advance(backoff_ms(2))
    retention.tick()
    assert sizes(retention.state("b")) == [100]


def _due_in_one_bucket(world: StreamWorld, count: int) -> int:
    """So many streams in one bucket; which."""
    made = 0
    for index in range(10_000):
        if bucket_of_stream(f"s/n{index}", topology.BUCKET_COUNT) == 0:
            world.create(f"n{index}", segments=1, retention=BY_SIZE)
            made += 1
            if made == count:
                return 0
    raise AssertionError("no bucket holds so many")


def test_a_tick_does_all_that_is_due(world: StreamWorld, retention: Retention, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(apply_retention, "_STREAMS_PER_READ", 2)
    bucket = _due_in_one_bucket(world, 5)
    assert retention.ticks.run(bucket) is False
    assert [due for _, due in retention.due() if due <= world.clock.now_ms()] == []


def test_slow_streams_take_no_more_than_their_time(world: StreamWorld, retention: Retention):
    """Each stream takes as long as a tick may work: then a tick does one, and the next one begins with another."""
    bucket = _due_in_one_bucket(world, 4)
    begun: list[str] = []

    class Slow:
        def segment_infos(self, names: list[str]) -> Any:
            begun.append(names[0])
            world.clock.advance(int(WORK_S_MAX * 1_000) + 1)
            return world.segment_stores.segment_infos(names)

    ticks = RetentionTicks(world.store, Slow(), world.clock, world.accept_truncation, PERIOD_MS)  # type: ignore[arg-type]
    assert [ticks.run(bucket) for _ in range(4)] == [True] * 4
    assert len(set(begun)) == len(begun) == 4


def test_a_stream_that_kills_its_process_stops_no_other(world: StreamWorld, retention: Retention):
    bucket = _due_in_one_bucket(world, 4)
    begun: list[str] = []

    class Deadly:
        def segment_infos(self, names: list[str]) -> Any:
            begun.append(names[0])
            raise Crash

    ticks = RetentionTicks(world.store, Deadly(), world.clock, world.accept_truncation, PERIOD_MS)  # type: ignore[arg-type]
    for _ in range(4):
        with pytest.raises(Crash):
            ticks.run(bucket)
        world.clock.advance(LEASE_MS)
    assert len(set(begun)) == 4


def test_a_long_count_goes_on_where_it_stopped(
    world: StreamWorld, retention: Retention, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retention_plans, "_EPOCHS_PER_PIECE", 2)
    world.create(segments=1, retention=BY_SIZE)
    for _ in range(9):
        world.append(world.tail_ids()[0], 10)
        world.scale(world.tail_ids(), [0.0, 1.0])
    world.append(world.tail_ids()[0], 10)
    counted: list[range] = []
    count = RetentionPlanner.count_piece

    def slow(planner: Any, stream: Stream, counting: Any, before: Any) -> Any:
        after = count(planner, stream, counting, before)
        counted.append(range(counting.next_epoch, after.next_epoch))
        world.clock.advance(int(LOOK_S_MAX * 1_000))
        return after

    monkeypatch.setattr(RetentionPlanner, "count_piece", slow)
    for _ in range(20):
        retention.tick()
        if retention.state().cuts:
            break
        world.clock.advance(PUT_OFF_MS)
        world.append(world.tail_ids()[0], 10)
    assert [epoch for piece in counted for epoch in piece] == [*range(1, 10)]
    assert sizes(retention.state()) == [100]
    assert retention.state().counting is None


def test_a_count_begins_again_behind_a_new_head(
    world: StreamWorld, retention: Retention, monkeypatch: pytest.MonkeyPatch
):
    """A count that goes on would lack what was truncated meanwhile, and later cuts would pass for smaller ones."""
    monkeypatch.setattr(retention_plans, "_EPOCHS_PER_PIECE", 2)
    world.create(segments=1, retention=RetentionPolicy.by_size(10_000))
    for _ in range(9):
        world.append(world.tail_ids()[0], 10)
        world.scale(world.tail_ids(), [0.0, 1.0])
    world.append(world.tail_ids()[0], 10)
    with monkeypatch.context() as patched:
        patched.setattr(apply_retention, "is_time_short", lambda: True)
        patched.setattr(apply_retention, "require_time_for_piece", _stop)
        retention.tick()
    assert retention.state().counting is not None
    world.truncate({3 << 32 | 3: 5})
    world.clock.advance(PUT_OFF_MS)
    retention.tick()
    assert sizes(retention.state()) == [100]


def _stop(what: str) -> None:
    raise UnavailableError(what)


def test_stale_entries_of_the_index_are_removed(world: StreamWorld, retention: Retention):
    """One of a stream that is gone, and one that another tick has replaced. They would cost something in each tick."""
    world.create(segments=1, retention=BY_SIZE)
    retention.write(150)
    state = retention.state()
    for name in ("gone", "t"):
        world.bare_store.write(create_due_stream(DueStream(1, "s", name, 0)))
    world.append(0, 150)
    retention.tick()
    assert retention.due() == [("t", state.due_ms)]
    assert retention.state() == state


def test_an_overlapping_tick_is_a_no_op(world: StreamWorld, retention: Retention):
    world.create(segments=1, retention=BY_SIZE)
    world.append(0, 10)
    inner = []

    class Overlapped:
        def segment_infos(self, names: list[str]) -> Any:
            world.calls.counts.clear()
            retention.tick()
            inner.append(dict(world.calls.counts))
            return world.segment_stores.segment_infos(names)

    ticks = RetentionTicks(world.store, Overlapped(), world.clock, world.accept_truncation, PERIOD_MS)  # type: ignore[arg-type]
    for bucket in range(topology.BUCKET_COUNT):
        ticks.run(bucket)
    assert inner == [{"query": topology.BUCKET_COUNT, "read": 1}]
    assert len(retention.state().cuts) == 1


def test_a_repeated_tick_within_a_period_adds_no_cut(world: StreamWorld, retention: Retention):
    """A busy stream is asked every minute. Its set would fill with cuts that are close to each other."""
    world.create(segments=1, retention=BY_SIZE)

    def busy(*_: Any) -> None:
        raise ConflictError("the stream is SCALING")

    slow = RetentionTicks(world.store, world.segment_stores, world.clock, busy, PUT_OFF_MS * 3)
    found = []
    for _ in range(5):
        world.append(0, 150)
        for bucket in range(topology.BUCKET_COUNT):
            slow.run(bucket)
        found.append(sizes(retention.state()))
        world.clock.advance(PUT_OFF_MS)
    assert found == [[150], [150], [150], [150, 600], [150, 600]]


@pytest.mark.parametrize(
    ("policy", "by_time"), [(RetentionPolicy.by_time(PERIOD_MS), True), (BY_SIZE, False)], ids=["time", "size"]
)
def test_a_set_is_thinned_by_what_its_policy_measures(
    world: StreamWorld, retention: Retention, monkeypatch: pytest.MonkeyPatch, policy: RetentionPolicy, by_time: bool
):
    asked: list[bool] = []

    def watched(cuts: Cuts, new: RetentionCut, *, by_time: bool) -> tuple[Cuts, Cuts]:
        asked.append(by_time)
        return with_cut(cuts, new, by_time=by_time)

    monkeypatch.setattr(apply_retention, "with_cut", watched)
    world.create(segments=1, retention=policy)
    world.append(0, 150)
    retention.after_a_period()
    assert asked == [by_time]
