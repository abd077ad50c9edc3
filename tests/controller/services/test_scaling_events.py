"""The scales of a stream between two times."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.model.errors import InvalidRequestError, NotFoundError

S2, S3, S4 = 1 << 32 | 2, 1 << 32 | 3, 2 << 32 | 4
ALWAYS = (0, (1 << 63) - 1)


@pytest.fixture
def scaled(world: StreamWorld) -> StreamWorld:
    """Scales at 1,000 ms (a split) and 2,000 ms (a merge) after the creation."""
    world.create()
    world.clock.advance(1_000)
    world.scale([0], [0.0, 0.25, 0.5])
    world.clock.advance(1_000)
    world.scale([1, S3], [0.25, 1.0])
    return world


def _epochs(world: StreamWorld, first: int, last: int) -> list[int]:
    return [one.epoch for one in world.scaling_events.scaling_events("s", "t", first, last, 10).events]


def test_every_scale_is_told(scaled: StreamWorld):
    started = scaled.streams.get_stream("s", "t").creation_time_ms
    found = scaled.scaling_events.scaling_events("s", "t", *ALWAYS, 10)
    assert found.next_time_ms is None
    split, merge = found.events
    assert (split.time_ms, split.epoch, split.sealed_segments) == (started + 1_000, 1, (0,))
    assert [one.segment_id for one in split.new_segments] == [S2, S3]
    assert (split.splits, split.merges) == (1, 0)
    assert (merge.time_ms, merge.epoch, merge.sealed_segments) == (started + 2_000, 2, (S3, 1))
    assert ([one.segment_id for one in merge.new_segments], merge.splits, merge.merges) == ([S4], 0, 1)


def test_the_times_bound_it(scaled: StreamWorld):
    started = scaled.streams.get_stream("s", "t").creation_time_ms
    assert _epochs(scaled, started, started + 999) == []
    assert _epochs(scaled, started + 1_000, started + 1_000) == [1]
    assert _epochs(scaled, started + 1_001, started + 9_000) == [2]
    assert _epochs(scaled, started + 2_001, started + 9_000) == []


def test_pages(scaled: StreamWorld):
    times = ALWAYS
    epochs: list[int] = []
    pages = 0
    while True:
        page = scaled.scaling_events.scaling_events("s", "t", *times, 1)
        epochs += [one.epoch for one in page.events]
        pages += 1
        if page.next_time_ms is None:
            break
        times = (page.next_time_ms, times[1])
    assert (epochs, pages) == ([1, 2], 3)


def test_a_scale_on_its_way_is_not_told(scaled: StreamWorld):
    scaled.streams.scale_stream("s", "t", [S4], [one.key_range for one in _tail(scaled)[1:]])
    (message,) = scaled.bare_queue.receive()
    for step in scaled.processor.work(message.body):
        assert _epochs(scaled, *ALWAYS) == ([1, 2, 3] if step == "activate the epoch" else [1, 2])


def test_epochs_of_a_commit_that_rolls_are_no_scales(world: StreamWorld):
    world.create()
    late = world.transactions.create_transaction("s", "t", 60_000).transaction_id
    world.write_in(late, 0.1, b"0123456789")
    world.scale([0], [0.0, 0.25, 0.5])
    world.commit(late)
    assert world.streams.get_stream("s", "t").epoch == 3
    assert _epochs(world, *ALWAYS) == [1]


def test_a_truncation_over_a_roll_counts_every_byte(world: StreamWorld):
    """Segments of the epochs that a commit passes through have the numbers of others, and ids of their own."""
    world.create()
    world.append(0, 100)
    late = world.transactions.create_transaction("s", "t", 60_000).transaction_id
    world.write_in(late, 0.1, b"0123456789")
    world.scale([0], [0.0, 0.25, 0.5])
    world.commit(late)
    whole = world.cuts.distance_bytes("s", "t", None, None)
    tail = world.segments.stream_cut("s", "t", "tail").offsets
    world.truncate(tail)
    truncation = world.records.get_with_truncation("s", "t")[1]
    assert truncation is not None
    assert truncation.size_bytes == whole >= 110
    named = {one.name for one in world.segments.segments_at_tail("s", "t").segments}
    assert {name for name in world.bare_segment_stores.names() if name.startswith("s/t/")} == named


def _tail(world: StreamWorld) -> Any:
    return world.segments.segments_at_tail("s", "t").segments


def test_what_cannot_be_asked(scaled: StreamWorld):
    for times in ((-1, 5), (6, 5), (0, 1 << 63)):
        with pytest.raises(InvalidRequestError):
            scaled.scaling_events.scaling_events("s", "t", *times, 10)
    with pytest.raises(InvalidRequestError):
        scaled.scaling_events.scaling_events("s", "t", 0, 1, 0)
    with pytest.raises(NotFoundError):
        scaled.scaling_events.scaling_events("s", "nothing", 0, 1, 10)
