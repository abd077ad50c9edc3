"""Retention by policy: which cuts are taken, and what goes, stays, or waits for subscribers."""

from __future__ import annotations

import pytest
from retention_world import BY_SIZE, PERIOD_MS, Retention, sizes
from stream_world import StreamWorld

from headrace.metadata.retention_records import decode_retention
from headrace.model.stream_configuration import RetentionPolicy

STATE = ("stream/s/t", "retention/")


def test_by_size_the_least_that_is_enough_stays(world: StreamWorld, retention: Retention):
    world.create(segments=1, retention=BY_SIZE)
    for _ in range(6):
        retention.write(40)
    assert retention.head() == {0: 120}
    retention.after_a_period()
    assert sizes(retention.state()) == [160, 200, 240], "older cuts are gone"
    cuts = [sort for _, sort in world.everything() if sort.startswith("retention-cut/")]
    assert len(cuts) == 3


def test_by_size_what_readers_let_go_counts_when_they_have_left(world: StreamWorld, retention: Retention):
    """They were done with segment 1 and not with segment 0: a cut before that would take both, and leave too little."""
    world.create(segments=2, retention=RetentionPolicy.by_size(127))
    retention.write(135)
    retention.subscribers.register("s", "t", "group", 0)
    world.append(0, 121)
    world.append(1, 51)
    retention.subscribers.update_stream_cut("s", "t", "group", 0, {0: 0, 1: 51})
    retention.after_a_period()
    assert retention.head() == {0: 0, 1: 51}
    retention.subscribers.unregister("s", "t", "group", 0)
    retention.after_a_period()
    assert retention.head() == {0: 0, 1: 51}, "at the cut of 135 bytes, 121 of 307 would stay"
    retention.write(6)
    assert retention.head() == {0: 135, 1: 51}


def test_a_position_after_the_end_of_a_segment(world: StreamWorld, retention: Retention):
    """A reader tells such a position when a volume was lost with bytes that it had read."""
    world.create(segments=1, retention=RetentionPolicy.by_time(PERIOD_MS, 3 * PERIOD_MS))
    retention.subscribers.register("s", "t", "group", 0)
    retention.subscribers.update_stream_cut("s", "t", "group", 0, {0: 1_000})
    world.scale([0], [0.0, 0.5, 1.0])
    heads = []
    for _ in range(6):
        retention.write(10, 1 << 32 | 1)
        heads.append(retention.head().get(1 << 32 | 1, 0))
    assert heads == [0, 0, 0, 0, 20, 20]


def test_by_time_what_is_old_enough_goes(world: StreamWorld, retention: Retention):
    world.create(segments=1, retention=RetentionPolicy.by_time(3 * PERIOD_MS))
    heads = []
    for _ in range(8):
        retention.write(10)
        heads.append(retention.head()[0])
    assert heads == [0, 0, 0, 10, 20, 30, 40, 50]


def test_a_quiet_stream_gets_no_cuts_and_ages_all_the_same(world: StreamWorld, retention: Retention):
    world.create(segments=1, retention=RetentionPolicy.by_time(3 * PERIOD_MS))
    retention.write(10)
    for _ in range(2):
        retention.after_a_period()
    assert (len(retention.state().cuts), retention.head()) == (1, {0: 0})
    retention.after_a_period()
    assert retention.head() == {0: 10}
    retention.after_a_period()
    assert retention.state().cuts == ()


def test_sizes_are_counted_over_scales(world: StreamWorld, retention: Retention):
    world.create(segments=2, retention=RetentionPolicy.by_size(10_000))
    world.append(0, 100)
    retention.write(11, segment=1)
    world.scale([0], [0.0, 0.2, 0.5])
    world.append(1 << 32 | 2, 7)
    world.append(1 << 32 | 3, 30)
    retention.write(5, segment=1)
    world.update(segments=1, retention=RetentionPolicy.by_size(10_000))
    world.scale([1 << 32 | 2, 1 << 32 | 3, 1], [0.0, 1.0])
    retention.write(1_000, segment=2 << 32 | 4)
    assert sizes(retention.state()) == [111, 153, 1_153]


def test_a_late_policy_counts_sizes_from_the_head(world: StreamWorld, retention: Retention):
    world.create(segments=1)
    world.append(0, 500)
    world.scale([0], [0.0, 1.0])
    world.append(1 << 32 | 1, 50)
    world.truncate({0: 450})
    world.update(segments=1, retention=RetentionPolicy.by_size(40))
    retention.tick()
    assert sizes(retention.state()) == [550]
    retention.write(60, segment=1 << 32 | 1)
    assert retention.head() == {1 << 32 | 1: 50}


def test_a_truncation_by_hand_makes_cuts_useless(world: StreamWorld, retention: Retention):
    world.create(segments=1, retention=RetentionPolicy.by_size(10_000))
    for _ in range(4):
        retention.write(10)
    passed = retention.state().cuts[1]
    world.truncate({0: 25})
    retention.after_a_period()
    assert sizes(retention.state()) == [30, 40]
    assert retention.state().head_time_ms == passed.time_ms


def test_the_set_is_bounded(world: StreamWorld, retention: Retention, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.controller.ticks.apply_retention.CUTS_DELETED_PER_WRITE", 2)
    world.create(segments=1, retention=RetentionPolicy.by_size(1_000_000))
    for _ in range(140):
        retention.write(10)
    assert len(retention.state().cuts) == 128
    assert len([sort for _, sort in world.everything() if sort.startswith("retention-cut/")]) == 128
    world.truncate({0: 1_399})
    for _ in range(64):
        retention.after_a_period()
    assert sizes(retention.state()) == [1_400]
    assert len([sort for _, sort in world.everything() if sort.startswith("retention-cut/")]) == 1


def test_subscribers_are_waited_for(world: StreamWorld, retention: Retention):
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


def test_maximum_size_holds_beside_a_stuck_key_range(world: StreamWorld, retention: Retention):
    """The group has read segment 0 to its end and nothing of segment 1, which holds less than the minimum."""
    world.create(segments=2, retention=RetentionPolicy.by_size(50, 100))
    retention.subscribers.register("s", "t", "group", 0)
    world.append(1, 10)
    for written in range(20, 2_400, 20):
        retention.write(20, segment=0)
        retention.subscribers.update_stream_cut("s", "t", "group", 0, {0: written, 1: 0})
    retention.after_a_period()
    assert retention.head() == {0: 2_340, 1: 0}, "10 unread bytes and 40 more are the minimum"


def test_maximum_age_holds_beside_a_stuck_key_range(world: StreamWorld, retention: Retention):
    world.create(segments=2, retention=RetentionPolicy.by_time(2 * PERIOD_MS, 5 * PERIOD_MS))
    retention.subscribers.register("s", "t", "group", 0)
    for written in range(10, 250, 10):
        world.append(1, 10)
        retention.write(10, segment=0)
        retention.subscribers.update_stream_cut("s", "t", "group", 0, {0: written, 1: 0})
    retention.after_a_period()
    assert retention.head() == {0: 220, 1: 200}, "unread events go beyond the maximum, those read beyond the minimum"


def test_above_the_maximum_the_maximum_stays_without_subscribers(world: StreamWorld, retention: Retention):
    world.create(segments=1, retention=RetentionPolicy.by_size(1_000_000))
    for _ in range(6):
        retention.write(40)
    world.update(segments=1, retention=RetentionPolicy.by_size(50, 130))
    retention.tick()
    assert retention.head() == {0: 120}
    retention.after_a_period()
    assert retention.head() == {0: 160}, "within the maximum, all but the minimum goes"


def test_a_policy_that_goes_keeps_its_cuts_and_comes_back(world: StreamWorld, retention: Retention):
    world.create(segments=1, retention=BY_SIZE)
    for _ in range(3):
        retention.write(30)
    world.update(segments=1)
    assert retention.due() == []
    for _ in range(3):
        retention.write(40)
    assert (sizes(retention.state()), retention.head()) == ([30, 60, 90], {0: 0})
    world.update(segments=1, retention=BY_SIZE)
    retention.tick()
    assert retention.head() == {0: 90}


def test_a_new_policy_is_applied_at_once(world: StreamWorld, retention: Retention):
    world.create(segments=1, retention=RetentionPolicy.by_size(1_000_000))
    for _ in range(5):
        retention.write(30)
    world.update(segments=1, retention=RetentionPolicy.by_size(60))
    retention.tick()
    assert retention.head() == {0: 90}


def test_a_sealed_stream_is_never_looked_at_again(world: StreamWorld, retention: Retention):
    world.create(segments=1, retention=RetentionPolicy.by_size(10))
    retention.write(100)
    world.append(0, 100)
    world.seal()
    retention.after_a_period()
    assert retention.due() == []
    assert retention.head() == {0: 0}


@pytest.mark.parametrize("ticked", [False, True])
def test_a_stream_that_is_deleted_leaves_nothing(world: StreamWorld, retention: Retention, ticked: bool):
    before = world.everything()
    world.create(segments=1, retention=BY_SIZE)
    if ticked:
        retention.write(10)
        retention.subscribers.register("s", "t", "group", 0)
    world.seal()
    world.delete()
    left = {key for key in world.everything() if key not in before and not key[0].startswith("bucket-leases")}
    notes = {key for key in left if key[0].startswith("creations/")}
    assert len(notes) == 1, "the note of the created segments stays for an hour"
    assert left - notes == {("stream/s/t", "current")}
    world.create(segments=1, retention=BY_SIZE)
    assert [stream for stream, _ in retention.due()] == ["t"]


def test_what_is_stored_decodes(world: StreamWorld, retention: Retention):
    world.create(segments=1, retention=BY_SIZE)
    retention.write(10)
    (body,) = [body for (where, sort), (_, body) in world.everything().items() if (where, sort[:10]) == STATE]
    assert decode_retention(body) == retention.state()
