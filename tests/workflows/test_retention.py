"""Retention by ticks: cuts are taken, streams are truncated, none is forgotten, and a crash changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from interruptions import Work, after_each_crash, after_each_sleep, assert_two_at_once_do_it_once, undisturbed
from stream_world import Calls, StreamWorld

from headrace import topology
from headrace.codec.records.retention_record import retention_due_of_body, retention_of_body
from headrace.controller.subscribers import SubscriberService
from headrace.metadata.retention_records import RetentionRecords
from headrace.model.buckets import bucket_of_stream
from headrace.model.errors import ConflictError, UnavailableError
from headrace.model.retention import RetentionState
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy, StreamConfiguration
from headrace.workflows.apply_retention import PUT_OFF_MS, STREAMS_PER_TICK_MAX, WORK_S_MAX, RetentionTicks
from headrace.workflows.bucket_lease import LEASE_MS
from headrace.workflows.resend_intents import resend_intents

PERIOD_MS = 1_000
BY_SIZE = RetentionPolicy.by_size(100)
CALLS_MAX = 60
STATE = ("stream/s/t", "retention/")


class Retention:
    """Ticks over a world whose streams get a cut a second."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.calls: Calls = world.calls
        self.ticks = RetentionTicks(
            world.store, world.segment_stores, world.clock, world.streams.truncate_stream, PERIOD_MS
        )
        self.subscribers = SubscriberService(world.store, world.clock)

    def tick(self) -> bool:
        """All buckets once, and the truncations that they asked for; whether any left work undone."""
        more = [self.ticks.run(bucket) for bucket in range(topology.BUCKET_COUNT)]
        self.world.drain()
        return any(more)

    def after_a_period(self) -> bool:
        self.world.clock.advance(PERIOD_MS)
        return self.tick()

    def write(self, length: int, segment: int = 0, stream: str = "t") -> None:
        """Bytes, and then a cut behind them."""
        self.world.append(segment, length, stream)
        self.after_a_period()

    def head(self, stream: str = "t") -> dict[int, int]:
        return self.world.segments.stream_cut("s", stream, "head").offsets

    def state(self, stream: str = "t") -> RetentionState:
        found = self.world.records.get("s", stream).stream
        retained = RetentionRecords(self.world.bare_store).load("s", stream, found.first_segment_number)
        return retained.retention.state

    def due(self) -> list[tuple[str, int]]:
        """Stream and time of all that is in the index."""
        records = self.world.everything().items()
        found = [retention_due_of_body(body) for (partition, _), (_, body) in records if "retention-due" in partition]
        return sorted((one.stream, one.due_ms) for one in found)


@pytest.fixture
def retention(world: Any) -> Retention:
    return Retention(world)


def _sizes(state: RetentionState) -> list[int]:
    return [cut.size_bytes for cut in state.cuts]


def test_a_stream_without_a_policy_costs_nothing(world: Any, retention: Retention):
    world.create()
    world.append(0, 10_000)
    world.calls.counts.clear()
    retention.after_a_period()
    assert dict(world.calls.counts) == {"query": topology.BUCKET_COUNT}
    assert retention.due() == []


def test_by_size_the_least_that_is_enough_stays(world: Any, retention: Retention):
    world.create(segments=1, retention=BY_SIZE)
    for _ in range(6):
        retention.write(40)
    assert retention.head() == {0: 120}
    retention.after_a_period()
    assert _sizes(retention.state()) == [160, 200, 240], "older cuts are gone"
    cuts = [sort for _, sort in world.everything() if sort.startswith("retention-cut/")]
    assert len(cuts) == 3


def test_by_time_what_is_old_enough_goes(world: Any, retention: Retention):
    world.create(segments=1, retention=RetentionPolicy.by_time(3 * PERIOD_MS))
    heads = []
    for _ in range(8):
        retention.write(10)
        heads.append(retention.head()[0])
    assert heads == [0, 0, 0, 10, 20, 30, 40, 50]


def test_a_quiet_stream_gets_no_cuts_and_ages_all_the_same(world: Any, retention: Retention):
    world.create(segments=1, retention=RetentionPolicy.by_time(3 * PERIOD_MS))
    retention.write(10)
    for _ in range(2):
        retention.after_a_period()
    assert (len(retention.state().cuts), retention.head()) == (1, {0: 0})
    retention.after_a_period()
    assert retention.head() == {0: 10}
    retention.after_a_period()
    assert retention.state().cuts == ()


def test_sizes_are_counted_over_scales(world: Any, retention: Retention):
    world.create(segments=2, retention=RetentionPolicy.by_size(10_000))
    world.append(0, 100)
    retention.write(11, segment=1)
    world.scale([0], [0.0, 0.2, 0.5])
    world.append(1 << 32 | 2, 7)
    world.append(1 << 32 | 3, 30)
    retention.write(5, segment=1)
    world.scale([1 << 32 | 2, 1 << 32 | 3, 1], [0.0, 1.0])
    retention.write(1_000, segment=2 << 32 | 4)
    assert _sizes(retention.state()) == [111, 153, 1_153]


def test_sizes_are_counted_from_the_head_when_a_policy_comes_late(world: Any, retention: Retention):
    world.create(segments=1)
    world.append(0, 500)
    world.scale([0], [0.0, 1.0])
    world.append(1 << 32 | 1, 50)
    world.truncate({0: 450})
    world.update(segments=1, retention=RetentionPolicy.by_size(40))
    retention.tick()
    assert _sizes(retention.state()) == [550]
    retention.write(60, segment=1 << 32 | 1)
    assert retention.head() == {1 << 32 | 1: 50}


def test_a_truncation_by_hand_makes_cuts_useless(world: Any, retention: Retention):
    world.create(segments=1, retention=RetentionPolicy.by_size(10_000))
    for _ in range(4):
        retention.write(10)
    world.truncate({0: 25})
    retention.after_a_period()
    assert _sizes(retention.state()) == [30, 40]
    assert retention.state().head_time_ms < retention.state().cuts[0].time_ms


def test_the_set_is_bounded(world: Any, retention: Retention, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.workflows.apply_retention.CUTS_DELETED_PER_WRITE", 2)
    world.create(segments=1, retention=RetentionPolicy.by_size(1_000_000))
    for _ in range(140):
        retention.write(10)
    assert len(retention.state().cuts) == 128
    assert len([sort for _, sort in world.everything() if sort.startswith("retention-cut/")]) == 128
    world.truncate({0: 1_399})
    for _ in range(64):
        retention.after_a_period()
    assert _sizes(retention.state()) == [1_400]
    assert len([sort for _, sort in world.everything() if sort.startswith("retention-cut/")]) == 1


def test_subscribers_are_waited_for(world: Any, retention: Retention):
    world.create(segments=2, retention=RetentionPolicy.by_size(50, 400))
    retention.subscribers.register("s", "t", "group", 0)
    for _ in range(10):
        world.append(0, 10)
        retention.write(10, segment=1)
    assert retention.head() == {0: 0, 1: 0}
    retention.subscribers.update_stream_cut("s", "t", "group", 0, {0: 55, 1: 32})
    retention.after_a_period()
    assert retention.head() == {0: 55, 1: 32}
    retention.subscribers.update_stream_cut("s", "t", "group", 0, {0: 100, 1: 100})
    retention.after_a_period()
    assert retention.head() == {0: 70, 1: 70}, "the minimum stays"
    for _ in range(25):
        world.append(0, 10)
        retention.write(10, segment=1)
    assert retention.head() == {0: 150, 1: 150}, "the maximum goes before the subscriber"
    retention.subscribers.unregister("s", "t", "group", 0)
    retention.after_a_period()
    assert retention.head() == {0: 320, 1: 320}


def test_a_policy_that_goes_keeps_its_cuts_and_comes_back(world: Any, retention: Retention):
    world.create(segments=1, retention=BY_SIZE)
    for _ in range(3):
        retention.write(30)
    world.update(segments=1)
    assert retention.due() == []
    for _ in range(3):
        retention.write(40)
    assert (_sizes(retention.state()), retention.head()) == ([30, 60, 90], {0: 0})
    world.update(segments=1, retention=BY_SIZE)
    retention.tick()
    assert retention.head() == {0: 90}


def test_a_new_policy_is_applied_at_once(world: Any, retention: Retention):
    world.create(segments=1, retention=RetentionPolicy.by_size(1_000_000))
    for _ in range(5):
        retention.write(30)
    world.update(segments=1, retention=RetentionPolicy.by_size(60))
    retention.tick()
    assert retention.head() == {0: 90}


def test_a_sealed_stream_is_never_looked_at_again(world: Any, retention: Retention):
    world.create(segments=1, retention=RetentionPolicy.by_size(10))
    retention.write(100)
    world.append(0, 100)
    world.seal()
    retention.after_a_period()
    assert retention.due() == []
    assert retention.head() == {0: 0}


@pytest.mark.parametrize("ticked", [False, True])
def test_a_stream_that_is_deleted_leaves_nothing(world: Any, retention: Retention, ticked: bool):
    before = world.everything()
    world.create(segments=1, retention=BY_SIZE)
    if ticked:
        retention.write(10)
        retention.subscribers.register("s", "t", "group", 0)
    world.seal()
    world.delete()
    left = {key for key in world.everything() if key not in before and not key[0].startswith("bucket-leases")}
    assert left == {("stream/s/t", "current")}
    world.create(segments=1, retention=BY_SIZE)
    assert [stream for stream, _ in retention.due()] == ["t"]


def test_a_stream_in_creation_is_put_off(world: Any, retention: Retention):
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1), BY_SIZE))
    for bucket in range(topology.BUCKET_COUNT):
        retention.ticks.run(bucket)
    assert retention.due() == [("t", world.clock.now_ms() + PUT_OFF_MS)]
    world.drain()
    world.clock.advance(PUT_OFF_MS)
    retention.tick()
    assert retention.due() == [("t", world.clock.now_ms() + PERIOD_MS)]


def test_a_busy_stream_is_asked_again_soon(world: Any, retention: Retention):
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
    assert _sizes(retention.state()) == [150, 300], "the cut is taken all the same"


def test_one_that_fails_does_not_stop_the_others(world: Any, retention: Retention):
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
    assert retention.due() == [("a", now_ms + PERIOD_MS), ("b", now_ms + PUT_OFF_MS), ("c", now_ms + PERIOD_MS)]
    del world.segment_stores.segment_infos
    world.clock.advance(PUT_OFF_MS)
    retention.tick()
    assert _sizes(retention.state("b")) == [100]


def _due_in_one_bucket(world: Any, count: int) -> int:
    """So many streams in one bucket; which."""
    made = 0
    for index in range(10_000):
        if bucket_of_stream(f"s/n{index}", topology.BUCKET_COUNT) == 0:
            world.create(f"n{index}", segments=1, retention=BY_SIZE)
            made += 1
            if made == count:
                return 0
    raise AssertionError("no bucket holds so many")


def test_a_tick_is_bounded_and_says_that_more_is_due(world: Any, retention: Retention):
    bucket = _due_in_one_bucket(world, STREAMS_PER_TICK_MAX + 1)
    assert retention.ticks.run(bucket) is True
    assert len([due for _, due in retention.due() if due <= world.clock.now_ms()]) == 1
    assert retention.ticks.run(bucket) is False
    assert [due for _, due in retention.due() if due <= world.clock.now_ms()] == []


def test_slow_streams_take_no_more_than_their_time_and_ticks_take_turns(world: Any, retention: Retention):
    """Each stream takes as long as a tick may work: then a tick does one, and does not begin with the same again."""
    bucket = _due_in_one_bucket(world, 4)
    begun: list[str] = []

    class Slow:
        def segment_infos(self, names: list[str]) -> Any:
            begun.append(names[0])
            world.clock.advance(int(WORK_S_MAX * 1_000) + 1)
            raise RuntimeError("the function runs out of time")

    ticks = RetentionTicks(world.store, Slow(), world.clock, world.streams.truncate_stream, PERIOD_MS)  # type: ignore[arg-type]
    for _ in range(12):
        with pytest.raises(RuntimeError):
            ticks.run(bucket)
        world.clock.advance(LEASE_MS + 10_000)
    assert len(set(begun)) == 4


def test_an_overlapping_tick_is_a_no_op(world: Any, retention: Retention):
    world.create(segments=1, retention=BY_SIZE)
    world.append(0, 10)
    inner = []

    class Overlapped:
        def segment_infos(self, names: list[str]) -> Any:
            world.calls.counts.clear()
            retention.tick()
            inner.append(dict(world.calls.counts))
            return world.segment_stores.segment_infos(names)

    ticks = RetentionTicks(world.store, Overlapped(), world.clock, world.streams.truncate_stream, PERIOD_MS)  # type: ignore[arg-type]
    for bucket in range(topology.BUCKET_COUNT):
        ticks.run(bucket)
    assert inner == [{"query": topology.BUCKET_COUNT, "read": 1}]
    assert len(retention.state().cuts) == 1


def _prepared() -> Retention:
    """A stream over two epochs, with a subscriber, that is about to be truncated by a tick."""
    retention = Retention(StreamWorld())
    world = retention.world
    world.create(segments=2, retention=RetentionPolicy.by_size(100, 1_000))
    for _ in range(3):
        retention.write(40)
    retention.subscribers.register("s", "t", "group", 0)
    world.scale([0], [0.0, 0.2, 0.5])
    for _ in range(4):
        retention.write(40, segment=1)
    retention.subscribers.update_stream_cut("s", "t", "group", 0, {1 << 32 | 2: 0, 1 << 32 | 3: 0, 1: 50})
    world.append(1, 40)
    world.clock.advance(PERIOD_MS)
    return retention


def _sweep(world: Any) -> None:
    """What was accepted is done, also if its message was never sent."""
    for bucket in range(topology.BUCKET_COUNT):
        resend_intents(world.store, world.queues, world.clock, bucket, older_than_ms=0)
    world.drain()


def _settled(retention: Retention) -> tuple[Any, ...]:
    """What the ticks after it leave behind: head, segments, retention set, what is due."""
    world = retention.world
    world.clock.advance(LEASE_MS)
    _sweep(world)
    retention.tick()
    infos = [world.bare_segment_stores.segment_info(name) for name in world.bare_segment_stores.names()]
    segments = [(info.name, info.start_offset, info.length) for info in infos]
    cuts = [sort for _, sort in world.everything() if sort.startswith("retention-cut/")]
    state = retention.state()
    assert len(cuts) == len(state.cuts)
    assert [(stream, due) for stream, due in retention.due()] == [("t", state.due_ms)]
    return retention.head(), segments, _sizes(state)


def _ticks(retention: Retention) -> None:
    """One process looks at all buckets."""
    for bucket in range(topology.BUCKET_COUNT):
        retention.ticks.run(bucket)


def _tick_after_the_lease(retention: Retention) -> None:
    retention.world.clock.advance(LEASE_MS)
    retention.tick()


TICK = Work(_prepared, _ticks, _settled, recover=_tick_after_the_lease)


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
def test_a_crash_at_any_call_changes_nothing(done: bool):
    expected = undisturbed(TICK).outcome
    assert expected[0] == {1 << 32 | 2: 0, 1 << 32 | 3: 0, 1: 50}
    crashes = 0
    for position, retention in after_each_crash(TICK, done=done):
        crashes += 1
        TICK.go_on(retention)
        assert _settled(retention) == expected, f"after a crash at call {position}"
    assert 10 <= crashes < CALLS_MAX


def test_two_ticks_at_once_are_safe():
    """The lease of the first is over when the second begins, at each of its calls."""
    assert 10 <= assert_two_at_once_do_it_once(TICK, _tick_after_the_lease) < CALLS_MAX


def _next_life(retention: Retention) -> None:
    world = retention.world
    world.clock.advance(1)
    _sweep(world)
    world.seal()
    world.delete()
    world.create(segments=2, retention=RetentionPolicy.by_size(100, 1_000))


def test_who_slept_through_a_life_of_the_stream_leaves_the_next_one_alone():
    slept = 0
    for position, retention, _ in after_each_sleep(TICK, _next_life):
        slept += 1
        retention.world.drain()
        state = retention.state()
        assert state.cuts == (), f"woken up at call {position}"
        assert retention.due() == [("t", state.due_ms)]
        assert retention.head() == {4: 0, 5: 0}
        assert [sort for _, sort in retention.world.everything() if sort.startswith("retention-cut/")] == []
    assert 10 <= slept < CALLS_MAX


def test_what_is_stored_decodes(world: Any, retention: Retention):
    world.create(segments=1, retention=BY_SIZE)
    retention.write(10)
    (body,) = [body for (where, sort), (_, body) in world.everything().items() if (where, sort[:10]) == STATE]
    assert retention_of_body(body) == retention.state()
