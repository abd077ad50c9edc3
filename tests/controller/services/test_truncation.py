"""Truncating a stream at a cut: what is refused, what goes, and how every question sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.controller.operations import truncate_stream
from headrace.controller.services.retention_service import SubscriberService
from headrace.controller.services.stream_service import StreamService
from headrace.model.errors import (
    ConflictError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    TruncatedError,
)
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState

S2, S3, S4 = 1 << 32 | 2, 1 << 32 | 3, 2 << 32 | 4


@pytest.fixture
def scaled(world: StreamWorld) -> StreamWorld:
    """Epoch 0: 0 (100 bytes), 1 (10). Epoch 1: 0 splits into 2 (20), 3 (30). Epoch 2: 3 and 1 merge into 4 (40)."""
    world.create(tags=("a",))
    world.append(0, 100)
    world.append(1, 10)
    world.clock.advance(1_000)
    world.scale([0], [0.0, 0.25, 0.5])
    world.append(S2, 20)
    world.append(S3, 30)
    world.clock.advance(1_000)
    world.scale([1, S3], [0.25, 1.0])
    world.append(S4, 40)
    world.clock.advance(1_000)
    return world


def _starts(found: Any) -> dict[int, int]:
    return {segment.segment_id: segment.start_offset for segment in found.segments}


def _left(world: StreamWorld) -> dict[str, int]:
    """Segments that exist, by the bytes truncated from them."""
    return {
        name: world.bare_segment_stores.segment_info(name).start_offset for name in world.bare_segment_stores.names()
    }


def _truncation(world: StreamWorld) -> Any:
    return world.records.get_with_truncation("s", "t")[1]


def test_truncation_deletes_segments_before_the_cut(scaled: StreamWorld):
    view = scaled.streams.truncate_stream("s", "t", {S2: 5, S3: 30, 1: 4})
    assert view.state is StreamState.TRUNCATING
    scaled.drain()
    assert scaled.streams.get_stream("s", "t").state is StreamState.ACTIVE
    assert _left(scaled) == {"s/t/1.#epoch.0": 4, "s/t/2.#epoch.1": 5, "s/t/3.#epoch.1": 30, "s/t/4.#epoch.2": 0}
    assert _truncation(scaled).size_bytes == 100 + 5 + 30 + 4
    assert _starts(scaled.segments.segments_at_head("s", "t")) == {S2: 5, S3: 30, 1: 4}
    assert scaled.segments.stream_cut("s", "t", "head").offsets == {S2: 5, S3: 30, 1: 4}


def test_a_second_truncation_goes_on_from_the_first(scaled: StreamWorld):
    scaled.truncate({S2: 5, S3: 30, 1: 4})
    scaled.truncate({S2: 6, S4: 1})
    assert _left(scaled) == {"s/t/2.#epoch.1": 6, "s/t/4.#epoch.2": 1}
    assert _truncation(scaled).size_bytes == 100 + 6 + 30 + 10 + 1
    assert scaled.cuts.distance_bytes("s", "t", None, None) == 14 + 39


def test_a_cut_at_the_head_changes_nothing(scaled: StreamWorld):
    scaled.truncate({0: 0, 1: 0})
    assert _truncation(scaled) is None
    scaled.truncate({S2: 5, S4: 0})
    before = scaled.everything()
    assert scaled.streams.truncate_stream("s", "t", {S2: 5, S4: 0}).state is StreamState.ACTIVE
    assert scaled.drain() == 0
    assert scaled.everything() == before


@pytest.mark.parametrize("cut", [{0: 0, 1: 0}, {S2: 4, S4: 0}, {S2: 20, S3: 30, 1: 10}, {S2: 4, S4: 9}])
def test_a_cut_behind_the_head_is_refused(scaled: StreamWorld, cut: dict[int, int]):
    scaled.truncate({S2: 5, S4: 0})
    with pytest.raises(TruncatedError) as refused:
        scaled.streams.truncate_stream("s", "t", cut)
    assert refused.value.details == {"head": {str(S2): 5, str(S4): 0}}


@pytest.mark.parametrize(
    "cut",
    [
        {S2: 0},
        {0: 0, 1: 0, S2: 0},
        {0: 101, 1: 0},
        {S2: 0, 9: 0},
        {S2: 0, 3 << 32 | 5: 0},
        {S3: 0, S4: 0},
        {},
        {S2: -1, S4: 0},
    ],
)
def test_what_is_no_cut_of_the_stream_is_refused(scaled: StreamWorld, cut: dict[int, int]):
    before = scaled.everything()
    with pytest.raises(InvalidRequestError) as refused:
        scaled.streams.truncate_stream("s", "t", cut)
    assert refused.value.specific_code == "invalid_stream_cut"
    assert scaled.everything() == before


def test_a_cut_on_both_sides_of_a_segment_is_refused(world: StreamWorld):
    """0 and 1 merge into 2, which splits into 3 and 4 at the same bound: whoever is in 4 has read all of 0."""
    world.create()
    world.update(segments=1)
    world.scale([0, 1], [0.0, 1.0])
    world.scale([S2], [0.0, 0.5, 1.0])
    with pytest.raises(InvalidRequestError, match="both before and after"):
        world.streams.truncate_stream("s", "t", {0: 0, 2 << 32 | 4: 0})


def test_beyond_the_tail(scaled: StreamWorld):
    for cut in ({S2: 21, S4: 0}, {S2: 0, S4: 41}):
        with pytest.raises(InvalidRequestError, match="which has"):
            scaled.cuts.check_reached("s", "t", cut)
    scaled.cuts.check_reached("s", "t", {S2: 20, S4: 40})
    scaled.streams.truncate_stream("s", "t", {S2: 21, S4: 0})
    (message,) = scaled.bare_queue.receive()
    with pytest.raises(IllegalStateError) as refused:
        scaled.processor.process(message.body)
    assert refused.value.specific_code == "beyond_the_tail"
    assert _truncation(scaled) is None, "so that it can still be given up"
    assert set(_left(scaled).values()) == {0}


def test_a_running_truncation_is_accepted_again_another_is_not(scaled: StreamWorld):
    cut = {S2: 5, S4: 0}
    scaled.streams.truncate_stream("s", "t", cut)
    assert scaled.streams.truncate_stream("s", "t", cut).state is StreamState.TRUNCATING
    for other in (
        lambda: scaled.streams.truncate_stream("s", "t", {S2: 6, S4: 0}),
        lambda: scaled.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2))),
    ):
        with pytest.raises(ConflictError):
            other()
    assert scaled.drain() == 1


def test_sealed_and_absent_streams_are_not_truncated(scaled: StreamWorld):
    with pytest.raises(NotFoundError):
        scaled.streams.truncate_stream("s", "nothing", {0: 0})
    scaled.seal()
    with pytest.raises(SealedError):
        scaled.streams.truncate_stream("s", "t", {S2: 5, S4: 0})


def test_deleting_a_truncated_stream_deletes_the_rest_only(scaled: StreamWorld):
    scaled.truncate({S2: 5, S3: 30, 1: 4})
    scaled.seal()
    deleted: list[str] = []
    remove = scaled.bare_segment_stores.delete_segments

    def watch(names: Sequence[str]) -> None:
        deleted.extend(names)
        remove(names)

    scaled.bare_segment_stores.delete_segments = watch
    scaled.delete()
    assert sorted(name for name in deleted if name.startswith("s/t/")) == [
        "s/t/1.#epoch.0",
        "s/t/2.#epoch.1",
        "s/t/3.#epoch.1",
        "s/t/4.#epoch.2",
    ]
    assert scaled.bare_segment_stores.names() == []
    assert [key for key in scaled.everything() if key[0] == "stream/s/t"] == [("stream/s/t", "current")]
    scaled.create()
    assert _starts(scaled.segments.segments_at_head("s", "t")) == {5: 0, 6: 0}


def test_the_head_is_never_behind_what_is_deleted(scaled: StreamWorld):
    """At each call of the workflow every segment at the head is there, and the head is the old or the new one."""
    scaled.streams.truncate_stream("s", "t", {S2: 5, S3: 30, 1: 4})
    heads: list[dict[int, int]] = []

    def look(_kind: str) -> None:
        hook, scaled.calls.before = scaled.calls.before, lambda kind: None
        head = scaled.segments.segments_at_head("s", "t")
        assert {segment.name for segment in head.segments} <= set(scaled.bare_segment_stores.names())
        heads.append(_starts(head))
        scaled.calls.before = hook

    scaled.calls.before = look
    scaled.drain()
    assert heads[0] == {0: 0, 1: 0}
    assert heads[-1] == {S2: 5, S3: 30, 1: 4}
    assert [head for index, head in enumerate(heads) if index == 0 or head != heads[index - 1]] == [heads[0], heads[-1]]


def test_a_long_truncation_notes_how_far_it_is(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(truncate_stream, "EPOCHS_PER_PIECE", 2)
    monkeypatch.setattr(truncate_stream, "SEGMENTS_PER_CALL", 1)
    world.create(segments=1)
    for epoch in range(7):
        world.append(epoch << 32 | epoch, 10 + epoch)
        world.scale([epoch << 32 | epoch], [0.0, 1.0])
    world.streams.truncate_stream("s", "t", {7 << 32 | 7: 0})
    (message,) = world.bare_queue.receive()
    kinds: list[str] = []
    world.calls.after = kinds.append
    world.processor.process(message.body)
    assert kinds.count("transaction") == 3 + 1 + 3 + 1, "three notes while counting, the head, three notes, the close"
    assert kinds.count("segment store delete_segments") == 7
    assert _truncation(world).size_bytes == sum(range(10, 17))
    assert world.bare_segment_stores.names() == ["s/t/7.#epoch.7"]


# How questions see a truncation: at {S2: 5, S3: 0, 1: 4}, segment 0 is gone.


@pytest.fixture
def truncated(scaled: StreamWorld) -> StreamWorld:
    scaled.truncate({S2: 5, S3: 0, 1: 4})
    return scaled


def test_segments_of_an_epoch_and_at_a_time(truncated: StreamWorld):
    started = truncated.streams.get_stream("s", "t").creation_time_ms
    for found in (
        truncated.segments.segments_at_time("s", "t", started),
        truncated.segments.segments_of_epoch("s", "t", 0),
        truncated.segments.segments_of_epoch("s", "t", 1),
    ):
        assert _starts(found) == {S2: 5, S3: 0, 1: 4}
    assert _starts(truncated.segments.segments_of_epoch("s", "t", 2)) == {S2: 5, S4: None}
    recorded = truncated.segments.segments_of_epoch("s", "t", 0, as_recorded=True)
    assert _starts(recorded) == {0: None, 1: None}
    truncated.truncate({S2: 5, S4: 0})
    assert _starts(truncated.segments.segments_of_epoch("s", "t", 1)) == {S2: 5, S4: 0}
    with pytest.raises(TruncatedError):
        truncated.segments.segments_of_epoch("s", "t", 0)
    assert _starts(truncated.segments.segments_at_time("s", "t", started)) == {S2: 5, S4: 0}


def test_neighbours(truncated: StreamWorld):
    for ask in (truncated.segments.successors, truncated.segments.predecessors):
        with pytest.raises(TruncatedError):
            ask("s", "t", 0)
    followers = truncated.segments.successors("s", "t", 0, as_recorded=True).segments
    assert [follower.segment_id for follower in followers] == [S2, S3]
    assert truncated.segments.predecessors("s", "t", S2) == ()
    assert [segment.segment_id for segment in truncated.segments.predecessors("s", "t", S4)] == [S3, 1]
    assert [segment.segment_id for segment in truncated.segments.successors("s", "t", 1).segments] == [S4]


def test_between(truncated: StreamWorld):
    ranges = truncated.segments.between("s", "t", None, None).ranges
    assert {
        segment_range.segment_id: (segment_range.start_offset, segment_range.end_offset) for segment_range in ranges
    } == {
        1: (4, 10),
        S2: (5, 20),
        S3: (0, 30),
        S4: (0, 40),
    }
    for cut in ({0: 0, 1: 0}, {S2: 4, S3: 0, 1: 4}, {0: 100, 1: 10}, {S2: 20, S3: 30, 1: 3}):
        with pytest.raises(TruncatedError):
            truncated.segments.between("s", "t", cut, None)
    assert len(truncated.segments.between("s", "t", {S2: 5, S3: 0, 1: 4}, None).ranges) == 4
    assert len(truncated.segments.between("s", "t", {S2: 5, S4: 0}, None).ranges) == 2
    with pytest.raises(InvalidRequestError):
        truncated.segments.between("s", "t", None, {0: 0, 1: 0})


@pytest.mark.parametrize(
    ("cut", "valid"),
    [
        ({S2: 5, S3: 0, 1: 4}, True),
        ({S2: 20, S4: 40}, True),
        ({S2: 21, S4: 40}, False),
        ({S2: 20, S4: 41}, False),
        ({S2: 20, S3: 31, 1: 10}, False),
        ({S2: 4, S3: 0, 1: 4}, False),
        ({0: 1, 1: 4}, False),
        ({S2: 5}, False),
        ({S2: 5, S3: 0, 9: 4}, False),
    ],
)
def test_whether_a_cut_is_valid(truncated: StreamWorld, cut: dict[int, int], valid: bool):
    assert truncated.cuts.is_valid("s", "t", cut) is valid


def test_cuts_of_sealed_and_of_new_streams(truncated: StreamWorld):
    truncated.seal()
    assert truncated.cuts.is_valid("s", "t", {S2: 20, S4: 40})
    assert not truncated.cuts.is_valid("s", "t", {S2: 20, S4: 41})
    truncated.streams.create_stream("s", "new", StreamConfiguration(ScalingPolicy.fixed(1)))
    assert not truncated.cuts.is_valid("s", "new", {0: 0})
    with pytest.raises(NotFoundError):
        truncated.cuts.is_valid("s", "nothing", {0: 0})
    with pytest.raises(InvalidRequestError):
        truncated.cuts.is_valid("s", "t", {})


def test_distances(truncated: StreamWorld):
    assert truncated.cuts.distance_bytes("s", "t", None, {S2: 5, S4: 0}) == 36
    assert truncated.cuts.distance_bytes("s", "t", {S2: 5, S4: 0}, None) == 55
    assert truncated.cuts.distance_bytes("s", "t", {S2: 5, S4: 7}, {S2: 9, S4: 8}) == 5


@pytest.mark.parametrize("seed", range(4))
def test_a_head_that_moves_amid_the_read_never_goes_back(seed: int):
    """The batch read may see the head of before and the stream of after: the order of its reads is chance."""
    world = StreamWorld(seed)
    world.create(segments=1)
    world.append(0, 100)
    other = StreamService(world.bare_store, world.queue, world.clock)

    def truncate_further() -> None:
        other.truncate_stream("s", "t", {0: 60})
        world.drain()

    with world.calls.overtaken("between reads", by=truncate_further), pytest.raises(TruncatedError):
        world.streams.truncate_stream("s", "t", {0: 20})
    world.drain()
    assert world.streams.get_stream("s", "t").state is StreamState.ACTIVE
    assert _truncation(world).cut.offsets == {0: 60}


@pytest.mark.parametrize("seed", range(4))
def test_a_subscriber_never_begins_before_a_moving_head(seed: int):
    world = StreamWorld(seed)
    world.create(segments=1)
    world.append(0, 100)
    subscribers = SubscriberService(world.store, world.clock)
    with world.calls.overtaken("between reads", by=lambda: world.truncate({0: 60})):
        registered = subscribers.register("s", "t", "readers", 0)
    assert registered.position.cut.offsets == {0: 60}
