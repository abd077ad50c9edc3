"""The life of a stream through the stream service, with the workflows run by hand."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import StreamWorld, ranges, segment

from headrace.api.streams import ScaleStatus, StreamSummary
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
)
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import RetentionPolicy, RetentionType, ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState

FIXED_2 = StreamConfiguration(ScalingPolicy.fixed(2))
HALVES = [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)]


def test_a_created_stream_is_creating_until_its_segments_exist(world: StreamWorld):
    configuration = StreamConfiguration(
        ScalingPolicy.by_event_rate(100, 2, 3), RetentionPolicy(RetentionType.LIMITED_DAYS, 7), tags=("b", "a")
    )
    accepted = world.streams.create_stream("s", "t", configuration)
    assert accepted.state is StreamState.CREATING
    assert world.streams.get_stream("s", "t") == accepted
    assert world.bare_segment_stores.names() == []
    world.drain()
    view = world.streams.get_stream("s", "t")
    assert (view.state, view.epoch, view.segments) == (StreamState.ACTIVE, 0, 3)
    assert view.configuration == configuration
    assert view.configuration.tags == ("a", "b")
    assert view.creation_time_ms == world.clock.now_ms()
    assert world.bare_segment_stores.names() == [f"s/t/{number}.#epoch.0" for number in range(3)]
    rate, rollover = world.bare_segment_stores.creation_settings("s/t/0.#epoch.0")
    assert (rate.scale_type, rate.target_rate, rollover) == (2, 100, 0)


def test_a_stream_is_created_once(world: StreamWorld):
    world.streams.create_stream("s", "t", FIXED_2)
    for _ in range(2):
        with pytest.raises(AlreadyExistsError):
            world.streams.create_stream("s", "t", FIXED_2)
        world.drain()


def test_a_stream_needs_its_scope(world: StreamWorld):
    before = world.everything()
    with pytest.raises(NotFoundError, match="scope nowhere"):
        world.streams.create_stream("nowhere", "t", FIXED_2)
    assert world.everything() == before


@pytest.mark.parametrize(("scope", "stream"), [("s", "_t"), ("_s", "t"), ("s", "a/b"), ("s", ""), ("s", "x" * 251)])
def test_names_outside_the_rules_are_refused(world: StreamWorld, scope: str, stream: str):
    with pytest.raises(InvalidRequestError) as refused:
        world.streams.create_stream(scope, stream, FIXED_2)
    assert refused.value.specific_code == "invalid_name"


@pytest.mark.parametrize("name", ["", "a/b", "x" * 256, "a\n", "ä", "__a"])
def test_questions_about_names_that_cannot_exist_are_refused(world: StreamWorld, name: str):
    for ask in (
        lambda: world.streams.get_stream("s", name),
        lambda: world.streams.seal_stream(name, "t"),
        lambda: world.streams.list_streams(name, 10),
        lambda: world.scopes.get_scope(name),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            ask()
        assert refused.value.specific_code == "invalid_name"


@pytest.mark.parametrize("name", ["", "a/b", "a\n", "ä", "a#b"])
def test_an_endpoint_request_with_an_impossible_name_is_refused(world: StreamWorld, name: str):
    for scope, stream in (("s", name), (name, "t")):
        with pytest.raises(InvalidRequestError) as refused:
            world.segments.endpoint(scope, stream, 0)
        assert refused.value.specific_code == "invalid_name"


def test_what_is_not_there_is_not_found(world: StreamWorld):
    for ask in (
        lambda: world.streams.get_stream("s", "none"),
        lambda: world.streams.seal_stream("s", "none"),
        lambda: world.streams.delete_stream("s", "none"),
        lambda: world.streams.scale_stream("s", "none", [0], HALVES),
        lambda: world.streams.scale_status("s", "none", 1),
        lambda: world.streams.list_streams("none", 10),
        lambda: world.streams.list_streams("none", 10, tag="a"),
    ):
        with pytest.raises(NotFoundError):
            ask()


def test_scaling_replaces_segments_and_reports_its_progress(world: StreamWorld):
    world.create()
    quarters = ranges(0.0, 0.25, 0.5)
    accepted = world.streams.scale_stream("s", "t", [0], quarters)
    new = [segment(2, 1), segment(3, 1)]
    assert (accepted.epoch, accepted.status) == (1, ScaleStatus.IN_PROGRESS)
    assert [(segment.segment_id, segment.key_range) for segment in accepted.segments] == list(
        zip(new, quarters, strict=True)
    )
    assert world.streams.scale_stream("s", "t", [0], quarters[::-1]) == accepted
    assert world.streams.scale_status("s", "t", 1) is ScaleStatus.IN_PROGRESS
    assert world.streams.scale_status("s", "t", 2) is ScaleStatus.INVALID
    assert world.tail_ids() == [0, 1]
    world.drain()
    assert world.streams.scale_status("s", "t", 1) is ScaleStatus.SUCCESS
    assert world.streams.scale_status("s", "t", 2) is ScaleStatus.INVALID
    assert world.streams.scale_status("s", "t", -1) is ScaleStatus.INVALID
    assert world.tail_ids() == [*new, 1]
    view = world.streams.get_stream("s", "t")
    assert (view.state, view.epoch, view.segments) == (StreamState.ACTIVE, 1, 3)
    assert world.bare_segment_stores.segment_info("s/t/0.#epoch.0").is_sealed
    assert not world.bare_segment_stores.segment_info("s/t/1.#epoch.0").is_sealed


@pytest.mark.parametrize(
    ("sealed", "bounds", "code"),
    [
        ([0], [(0.0, 0.25), (0.25, 0.4)], "invalid_key_ranges"),
        ([0], [(0.0, 0.3), (0.2, 0.5)], "invalid_key_ranges"),
        ([0], [(0.0, 0.2), (0.3, 0.5)], "invalid_key_ranges"),
        ([0], [(0.0, 0.6)], "invalid_key_ranges"),
        ([0, 1], [(0.0, 0.5)], "invalid_key_ranges"),
        ([], [(0.0, 0.5)], "invalid_key_ranges"),
        ([0], [], "invalid_key_ranges"),
        ([7], [(0.0, 0.5)], "segment_not_active"),
        ([-1], [(0.0, 0.5)], "segment_not_active"),
        ([1 << 32], [(0.0, 0.5)], "segment_not_active"),
        ([0], [(i / 1000 / 2, (i + 1) / 1000 / 2) for i in range(1000)], "too_many_segments"),
        ([0, 1], [(0.0, 1.0)], "too_few_segments"),
    ],
)
def test_scales_that_do_not_fit_change_nothing(
    world: StreamWorld, sealed: list[int], bounds: list[tuple[float, float]], code: str
):
    world.create()
    before = world.everything()
    with pytest.raises((InvalidRequestError, IllegalStateError)) as refused:
        world.streams.scale_stream("s", "t", sealed, [KeyRange(low, high) for low, high in bounds])
    assert refused.value.specific_code == code
    assert world.everything() == before
    assert len(world.bare_queue) == 0


def test_one_operation_at_a_time(world: StreamWorld):
    world.create()
    quarters = ranges(0.0, 0.25, 0.5)
    world.streams.scale_stream("s", "t", [0], quarters)
    with pytest.raises(ConflictError):
        world.streams.scale_stream("s", "t", [1], ranges(0.5, 0.75, 1.0))
    with pytest.raises(ConflictError):
        world.streams.seal_stream("s", "t")
    with pytest.raises(IllegalStateError) as refused:
        world.streams.delete_stream("s", "t")
    assert refused.value.specific_code == "stream_not_sealed"
    world.drain()
    assert world.streams.seal_stream("s", "t").state is StreamState.SEALING
    assert world.streams.seal_stream("s", "t").state is StreamState.SEALING
    with pytest.raises(ConflictError):
        world.streams.scale_stream("s", "t", [1], ranges(0.5, 0.75, 1.0))
    assert world.drain() == 1


def test_a_stream_that_is_being_created_takes_no_operation(world: StreamWorld):
    world.streams.create_stream("s", "t", FIXED_2)
    with pytest.raises(ConflictError):
        world.streams.seal_stream("s", "t")
    with pytest.raises(ConflictError):
        world.streams.scale_stream("s", "t", [0], [KeyRange(0.0, 0.5)])
    with pytest.raises(IllegalStateError):
        world.streams.delete_stream("s", "t")


def test_sealing_a_sealed_stream_is_an_error_of_its_own(world: StreamWorld):
    world.create()
    world.seal()
    view = world.streams.get_stream("s", "t")
    assert (view.state, view.segments) == (StreamState.SEALED, 0)
    for refused in (
        lambda: world.streams.seal_stream("s", "t"),
        lambda: world.streams.scale_stream("s", "t", [0], [KeyRange(0.0, 0.5)]),
    ):
        with pytest.raises(SealedError) as error:
            refused()
        assert error.value.specific_code == "sealed"


def test_a_deleted_stream_leaves_nothing_but_a_tombstone(world: StreamWorld):
    before = world.everything()
    world.create(segments=3, tags=("a", "b"))
    world.scale([0, 1], [0.0, 0.5, 2 / 3])
    world.seal()
    accepted = world.streams.delete_stream("s", "t")
    assert (accepted.state, accepted.is_deleting) == (StreamState.SEALED, True)
    assert world.streams.delete_stream("s", "t") == accepted
    assert world.drain() == 1
    with pytest.raises(NotFoundError):
        world.streams.get_stream("s", "t")
    assert world.bare_segment_stores.names() == []
    left = {key: value for key, value in world.everything().items() if key not in before}
    notes = {key for key in left if key[0].startswith("creations/")}
    assert len(notes) == 2, "what was created is looked at an hour later"
    tombstone = {("stream/s/t", "current"): (8, {"format": 1, "next_number": 5})}
    assert {key: value for key, value in left.items() if key not in notes} == tombstone


def test_a_stream_of_the_same_name_continues_the_numbers(world: StreamWorld):
    for life in range(3):
        world.create(segments=2)
        first = life * 4
        assert world.tail_ids() == [first, first + 1]
        world.scale([first], [0.0, 0.25, 0.5])
        new = [segment(first + 2, 1), segment(first + 3, 1)]
        assert world.tail_ids() == [*new, first + 1]
        followers = world.segments.successors("s", "t", first).segments
        assert [follower.segment_id for follower in followers] == new
        world.seal()
        world.delete()


def test_streams_are_listed_by_page_and_by_tag(world: StreamWorld):
    for index in range(7):
        world.create(f"t{index}", tags=("all", "even") if index % 2 == 0 else ("all",))
    first = world.streams.list_streams("s", 3)
    assert [summary.stream for summary in first.items] == ["t0", "t1", "t2"]
    rest = world.streams.list_streams("s", 10, first.next_after)
    assert [summary.stream for summary in rest.items] == ["t3", "t4", "t5", "t6"]
    assert rest.next_after is None
    assert rest.items[0] == StreamSummary("s", "t3", ("all",))
    even = world.streams.list_streams("s", 3, tag="even")
    assert [(summary.stream, summary.tags) for summary in even.items] == [(f"t{i}", ("all", "even")) for i in (0, 2, 4)]
    assert [summary.stream for summary in world.streams.list_streams("s", 3, even.next_after, "even").items] == ["t6"]
    assert world.streams.list_streams("s", 3, tag="odd").items == ()
    world.seal("t2")
    world.delete("t2")
    assert [summary.stream for summary in world.streams.list_streams("s", 10, tag="even").items] == ["t0", "t4", "t6"]


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_pages_are_bounded(world: StreamWorld, limit: int):
    with pytest.raises(InvalidRequestError):
        world.streams.list_streams("s", limit)
    with pytest.raises(InvalidRequestError):
        world.scopes.list_scopes(limit)


def test_as_many_tags_as_allowed_are_indexed(world: StreamWorld):
    tags = tuple(f"tag-{index:03d}" for index in range(128))
    world.create(tags=tags)
    for tag in tags:
        assert [summary.tags for summary in world.streams.list_streams("s", 5, tag=tag).items] == [tags]
    world.seal()
    world.delete()
    assert world.streams.list_streams("s", 5, tag=tags[127]).items == ()


def test_an_operation_is_accepted_though_the_queue_is_down(world: StreamWorld):
    world.queue.is_down = True
    assert world.streams.create_stream("s", "t", FIXED_2).state is StreamState.CREATING
    assert len(world.bare_queue) == 0
    assert any(partition.startswith("requests/") for partition, _ in world.everything())


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
    return [event.epoch for event in world.scaling_events.scaling_events("s", "t", first, last, 10).events]


def test_every_scale_is_told(scaled: StreamWorld):
    started = scaled.streams.get_stream("s", "t").creation_time_ms
    found = scaled.scaling_events.scaling_events("s", "t", *ALWAYS, 10)
    assert found.next_time_ms is None
    split, merge = found.events
    assert (split.time_ms, split.epoch, split.sealed_segments) == (started + 1_000, 1, (0,))
    assert [segment.segment_id for segment in split.new_segments] == [S2, S3]
    assert (split.splits, split.merges) == (1, 0)
    assert (merge.time_ms, merge.epoch, merge.sealed_segments) == (started + 2_000, 2, (S3, 1))
    assert ([segment.segment_id for segment in merge.new_segments], merge.splits, merge.merges) == ([S4], 0, 1)


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
        epochs += [event.epoch for event in page.events]
        pages += 1
        if page.next_time_ms is None:
            break
        times = (page.next_time_ms, times[1])
    assert (epochs, pages) == ([1, 2], 3)


def test_a_scale_on_its_way_is_not_told(scaled: StreamWorld):
    scaled.streams.scale_stream("s", "t", [S4], [segment.key_range for segment in _tail(scaled)[1:]])
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
    named = {segment.name for segment in world.segments.segments_at_tail("s", "t").segments}
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


def test_epochs_are_told_newest_first_with_lengths(scaled: StreamWorld):
    started = scaled.streams.get_stream("s", "t").creation_time_ms
    page = scaled.scaling_events.epoch_history("s", "t", 1 << 31, 2)
    merge, split = page.epochs
    assert [(event.epoch, event.time_ms - started) for event in (merge, split)] == [(2, 2_000), (1, 1_000)]
    assert [(segment.segment_id, segment.length) for segment in merge.replaced] == [(S3, 0), (1, 0)]
    assert [(segment.segment_id, segment.low, segment.high) for segment in merge.created] == [(S4, 0.25, 1.0)]
    assert [segment.segment_id for segment in page.segments] == [S2, S4]
    assert page.next_before == 1
    last = scaled.scaling_events.epoch_history("s", "t", 1, 2)
    assert ([epoch.epoch for epoch in last.epochs], last.epochs[0].replaced, last.next_before) == ([0], (), None)


@pytest.mark.parametrize(("before", "limit"), [(0, 1), (-1, 1), (1, 0), (1, 1_001)])
def test_a_page_of_epochs_is_bounded(scaled: StreamWorld, before: int, limit: int):
    with pytest.raises(InvalidRequestError):
        scaled.scaling_events.epoch_history("s", "t", before, limit)
