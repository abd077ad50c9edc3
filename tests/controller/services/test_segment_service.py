"""What the segment service answers about streams that grow, split, merge, end and are truncated."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import StreamWorld, ranges, segment

from headrace.api.segments import SegmentEndpoint
from headrace.metadata.cluster_records import claim_body, claim_sort
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.errors import InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.names import container_of_segment
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_cuts import StreamCut
from headrace.ports.metadata_store import Create, Key, Replace

CONTAINER_COUNT = 8


@pytest.fixture
def scaled(world: StreamWorld) -> StreamWorld:
    """Epoch 0: 0, 1. Epoch 1: 0 splits into 2, 3. Epoch 2: 3 and 1 merge into 4."""
    world.create()
    world.append(0, 100)
    world.append(1, 10)
    world.clock.advance(1_000)
    world.scale([0], [0.0, 0.25, 0.5])
    world.append(segment(2, 1), 20)
    world.append(segment(3, 1), 30)
    world.clock.advance(1_000)
    world.scale([1, segment(3, 1)], [0.25, 1.0])
    world.append(segment(4, 2), 40)
    return world


S2, S3, S4 = 1 << 32 | 2, 1 << 32 | 3, 2 << 32 | 4


def _ids(segments: Any) -> list[int]:
    return [segment.segment_id for segment in segments]


def test_head_tail_and_epochs(scaled: StreamWorld):
    head = scaled.segments.segments_at_head("s", "t")
    assert (_ids(head.segments), head.epoch, head.sealed) == ([0, 1], 0, False)
    assert [segment.start_offset for segment in head.segments] == [0, 0]
    tail = scaled.segments.segments_at_tail("s", "t")
    assert (_ids(tail.segments), tail.epoch, tail.sealed) == ([S2, S4], 2, False)
    assert [segment.name for segment in tail.segments] == ["s/t/2.#epoch.1", "s/t/4.#epoch.2"]
    assert {segment.start_offset for segment in tail.segments} == {None}
    assert [_ids(scaled.segments.segments_of_epoch("s", "t", number).segments) for number in range(3)] == [
        [0, 1],
        [S2, S3, 1],
        [S2, S4],
    ]
    for number in (-1, 3, 1 << 40):
        with pytest.raises(NotFoundError):
            scaled.segments.segments_of_epoch("s", "t", number)


def test_segments_at_a_time(scaled: StreamWorld):
    now_ms = scaled.clock.now_ms()
    at = {
        0: 0,
        now_ms - 2_001: 0,
        now_ms - 2_000: 0,
        now_ms - 1_001: 0,
        now_ms - 1_000: 1,
        now_ms - 1: 1,
        now_ms: 2,
        now_ms + 10**18: 2,
    }
    assert {time: scaled.segments.segments_at_time("s", "t", time).epoch for time in at} == at
    with pytest.raises(InvalidRequestError):
        scaled.segments.segments_at_time("s", "t", -1)


def test_epochs_of_one_moment_still_have_an_order(world: StreamWorld):
    world.create()
    for left in (0, 1 << 32 | 2, 2 << 32 | 3):
        world.scale([left], [0.0, 0.5])
    times = [world.segments.segments_at_time("s", "t", world.clock.now_ms() + ms).epoch for ms in range(5)]
    assert times == [0, 1, 2, 3, 3]


def test_successors_and_predecessors_agree(scaled: StreamWorld):
    successors = {
        identifier: [
            (segment.segment_id, segment.predecessors)
            for segment in scaled.segments.successors("s", "t", identifier).segments
        ]
        for identifier in (0, 1, S2, S3, S4)
    }
    assert successors == {
        0: [(S2, (0,)), (S3, (0,))],
        1: [(S4, (S3, 1))],
        S2: [],
        S3: [(S4, (S3, 1))],
        S4: [],
    }
    predecessors = {
        identifier: _ids(scaled.segments.predecessors("s", "t", identifier)) for identifier in (0, 1, S2, S3, S4)
    }
    assert predecessors == {0: [], 1: [], S2: [0], S3: [0], S4: [S3, 1]}


@pytest.mark.parametrize("identifier", [2, 5, 1 << 32 | 4, 3 << 32 | 5, -1, 1 << 62])
def test_segments_that_never_were_are_not_found(scaled: StreamWorld, identifier: int):
    with pytest.raises(NotFoundError):
        scaled.segments.successors("s", "t", identifier)
    with pytest.raises(NotFoundError):
        scaled.segments.predecessors("s", "t", identifier)


def test_a_sealed_stream_ends(scaled: StreamWorld):
    scaled.seal()
    tail = scaled.segments.segments_at_tail("s", "t")
    assert (tail.segments, tail.epoch, tail.sealed) == ((), 2, True)
    for identifier in (S2, S4):
        end = scaled.segments.successors("s", "t", identifier)
        assert (end.segments, end.sealed) == ((), True)
    assert not scaled.segments.successors("s", "t", 0).sealed
    assert scaled.segments.stream_cut("s", "t", "tail").offsets == {S2: 20, S4: 40}
    assert scaled.segments.segments_at_head("s", "t").sealed
    assert _ids(scaled.segments.segments_of_epoch("s", "t", 2).segments) == [S2, S4]


def test_successors_are_known_before_a_segment_is_sealed(world: StreamWorld):
    """A writer asks at the moment it finds its segment sealed: at each seal the answer must be there."""
    world.create()
    world.streams.scale_stream("s", "t", [0], [world.segments.segments_at_tail("s", "t").segments[0].key_range])
    answers = []

    def ask() -> None:
        service = world.segments
        answers.append(
            (service.successors("s", "t", 0), service.predecessors("s", "t", S2), service.successors("s", "t", S2))
        )
        world.bare_segment_stores.segment_info("s/t/2.#epoch.1")

    with world.calls.overtaken("segment store seal_segments", ask):
        world.drain()
    ((successors, predecessors, of_new),) = answers
    assert [(segment.segment_id, segment.predecessors) for segment in successors.segments] == [(S2, (0,))]
    assert _ids(predecessors) == [0]
    assert of_new.segments == ()


def test_successors_stay_hidden_until_they_exist(world: StreamWorld):
    """Before the new segments are created nobody may be sent to them."""
    world.create()
    world.streams.scale_stream("s", "t", [0], [world.segments.segments_at_tail("s", "t").segments[0].key_range])
    assert world.segments.successors("s", "t", 0).segments == ()
    with pytest.raises(NotFoundError):
        world.segments.successors("s", "t", S2)


def test_a_stream_that_is_being_created_shows_no_segments(world: StreamWorld):
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2)))
    for ask in (
        lambda: world.segments.segments_at_tail("s", "t"),
        lambda: world.segments.segments_at_head("s", "t"),
        lambda: world.segments.stream_cut("s", "t", "tail"),
        lambda: world.segments.successors("s", "t", 0),
    ):
        with pytest.raises(UnavailableError) as refused:
            ask()
        assert refused.value.specific_code == "stream_not_ready"


def test_the_endpoint_is_the_owner_of_the_segments_container(world: StreamWorld):
    container = container_of_segment("s/t/2.#epoch.1", CONTAINER_COUNT)
    with pytest.raises(UnavailableError):
        world.segments.endpoint("s", "t", S2)
    key = Key(CLUSTER_PARTITION, claim_sort(container))
    world.store.write(Create(key, claim_body(ContainerClaim("store-0", "10.0.0.1", 12345, "use1-az1"))))
    assert world.segments.endpoint("s", "t", S2) == SegmentEndpoint("10.0.0.1", 12345, "use1-az1", container, 0)
    world.store.write(Replace(key, claim_body(ContainerClaim("store-1", "10.0.0.2", 1, "use1-az2")), 0))
    assert world.segments.endpoint("s", "t", S2) == SegmentEndpoint("10.0.0.2", 1, "use1-az2", container, 1)


def test_a_known_endpoint_is_one_of_a_segment_that_exists(scaled: StreamWorld):
    """The segments of the stream, former ones too, and the one segment of its watermarks."""
    for container in range(CONTAINER_COUNT):
        claim = ContainerClaim("store-0", "10.0.0.1", 12345, "use1-az1")
        scaled.store.write(Create(Key(CLUSTER_PARTITION, claim_sort(container)), claim_body(claim)))
    for stream, known in (("t", (0, 1, S2, S3, S4)), ("_MARKt", (0,))):
        for identifier in known:
            found = scaled.segments.endpoint_of_known("s", stream, identifier)
            assert found == scaled.segments.endpoint("s", stream, identifier)
    for stream, identifier in (("t", 2), ("t", 3 << 32), ("_MARKt", 1), ("_MARKt", S2), ("u", 0), ("_MARKu", 0)):
        with pytest.raises(NotFoundError):
            scaled.segments.endpoint_of_known("s", stream, identifier)


@pytest.mark.parametrize("identifier", [-1, 1 << 63, 0xFFFFFFFF])
def test_an_endpoint_needs_a_possible_segment_id(world: StreamWorld, identifier: int):
    with pytest.raises(InvalidRequestError):
        world.segments.endpoint("s", "t", identifier)


def test_stream_cuts(scaled: StreamWorld):
    assert scaled.segments.stream_cut("s", "t", "head") == StreamCut.of("s", "t", {0: 0, 1: 0})
    assert scaled.segments.stream_cut("s", "t", "tail") == StreamCut.of("s", "t", {S2: 20, S4: 40})


def test_everything_between_head_and_tail(scaled: StreamWorld):
    between = scaled.segments.between("s", "t", None, None)
    assert between.start.offsets == {0: 0, 1: 0}
    assert between.end.offsets == {S2: 20, S4: 40}
    assert [
        (
            segment_range.name,
            segment_range.start_offset,
            segment_range.end_offset,
            segment_range.predecessors,
            segment_range.successors,
        )
        for segment_range in between.ranges
    ] == [
        ("s/t/0.#epoch.0", 0, 100, (), (S2, S3)),
        ("s/t/1.#epoch.0", 0, 10, (), (S4,)),
        ("s/t/2.#epoch.1", 0, 20, (0,), ()),
        ("s/t/3.#epoch.1", 0, 30, (0,), (S4,)),
        ("s/t/4.#epoch.2", 0, 40, (S3, 1), ()),
    ]


def test_between_explicit_cuts_never_changes(scaled: StreamWorld):
    lower, upper = {S2: 5, S3: 7, 1: 3}, {S2: 20, S4: 15}
    first = scaled.segments.between("s", "t", lower, upper)
    assert [
        (segment_range.segment_id, segment_range.start_offset, segment_range.end_offset)
        for segment_range in first.ranges
    ] == [
        (1, 3, 10),
        (S2, 5, 20),
        (S3, 7, 30),
        (S4, 0, 15),
    ]
    scaled.append(S4, 1_000)
    scaled.scale([S2], [0.0, 0.25])
    scaled.seal()
    assert scaled.segments.between("s", "t", lower, upper) == first


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        ({0: 0}, None),
        ({0: 0, 1: 0, S2: 0}, None),
        ({S2: 0, S4: 0}, {0: 0, 1: 0}),
        ({0: 50, 1: 0}, {0: 40, 1: 0}),
        ({0: 101, 1: 0}, None),
        ({0: 0, S4: 0}, None),
        ({0: 0, 77: 0}, None),
        ({0: 0, 1: 0}, {S2: 0, 9 << 32 | 7: 0}),
        ({0: -2, 1: 0}, None),
        ({S2: -1, S3: 0, 1: 0}, None),
        ({0: -1, S2: 0, 1: 0}, None),
        ({0: 0, -1: -1}, None),
        ({}, None),
        ({0: 0, 1: 0}, {S2: 0}),
        ({0: 0, 1: 0}, {0: 0, 1: 0, 1 << 62: 0}),
    ],
)
def test_cuts_that_make_no_sense_are_refused(scaled: StreamWorld, lower: dict[int, int], upper: dict[int, int] | None):
    with pytest.raises(InvalidRequestError) as refused:
        scaled.segments.between("s", "t", lower, upper)
    assert refused.value.specific_code == "invalid_stream_cut"


def test_minus_one_is_the_end_of_a_sealed_segment(scaled: StreamWorld):
    between = scaled.segments.between
    assert between("s", "t", {0: -1, 1: 3}, None) == between("s", "t", {0: 100, 1: 3}, None)
    assert between("s", "t", None, {S2: 5, S3: -1, 1: -1}) == between("s", "t", None, {S2: 5, S3: 30, 1: 10})
    assert between("s", "t", {0: -1, S2: -1, 1: -1}, None).start.offsets == {0: 100, 1: 10}
    scaled.seal()
    assert between("s", "t", {S2: -1, S4: -1}, {S2: -1, S4: -1}) == between("s", "t", {S2: 20, S4: 40}, None)


def test_the_end_of_a_segment_is_known_while_it_is_replaced(world: StreamWorld):
    """Readers meet the end of a segment before its length is recorded."""
    world.create()
    world.append(0, 100)
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
    with pytest.raises(InvalidRequestError, match="not sealed"):
        world.segments.between("s", "t", {0: -1, 1: 0}, None)
    (message,) = world.bare_queue.receive()
    steps = world.processor.work(message.body)
    while next(steps) != "record the epoch":
        pass
    with pytest.raises(UnavailableError, match="being sealed"):
        world.segments.between("s", "t", {0: -1, 1: 0}, None)
    world.segment_stores.seal_segments(["s/t/0.#epoch.0"])
    between = world.segments.between("s", "t", {0: -1, 1: 0}, None)
    assert between.start.offsets == {0: 100, 1: 0}
    with pytest.raises(UnavailableError, match="being sealed"):
        world.cuts.check_reached("s", "t", {0: -1, 1: 0})


def test_a_cut_beyond_the_end_of_a_sealed_segment_is_refused(scaled: StreamWorld):
    """A reader that is sent there waits for bytes that never come."""
    scaled.segments.between("s", "t", {0: 0, 1: 0}, {0: 100, 1: 10})
    for upper in ({0: 101, 1: 10}, {S2: 0, S3: 31, 1: 0}):
        with pytest.raises(InvalidRequestError, match="ends at") as refused:
            scaled.segments.between("s", "t", {0: 0, 1: 0}, upper)
        assert refused.value.specific_code == "invalid_stream_cut"
    scaled.seal()
    with pytest.raises(InvalidRequestError, match="ends at"):
        scaled.segments.between("s", "t", None, {S2: 20, S4: 41})


def test_a_cut_beyond_the_tail_of_a_coming_epoch_is_refused(world: StreamWorld):
    """A new segment takes events before its epoch is active; a reader sent beyond them would skip later ones."""
    world.create()
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.5))
    (message,) = world.bare_queue.receive()
    steps = world.processor.work(message.body)
    while next(steps) != "record the epoch":
        continue
    world.bare_segment_stores.seal_segment("s/t/0.#epoch.0")
    world.append(S2, 7)
    at_tail, beyond = {S2: 7, 1: 0}, {S2: 8, 1: 0}
    assert world.cuts.is_valid("s", "t", at_tail)
    world.cuts.check_reached("s", "t", at_tail)
    assert world.segments.between("s", "t", None, at_tail).end.offsets == at_tail
    assert isinstance(world.cuts.problem("s", "t", beyond), InvalidRequestError)
    with pytest.raises(InvalidRequestError, match="has 7 bytes"):
        world.cuts.check_reached("s", "t", beyond)
    with pytest.raises(InvalidRequestError, match="has 7 bytes"):
        world.segments.between("s", "t", None, beyond)


def test_between_works_while_a_scale_is_sealing(world: StreamWorld):
    """The tail may lie in an epoch that is on record but not active, with sizes that only the stores know yet."""
    world.create()
    world.append(0, 100)
    world.streams.scale_stream("s", "t", [0], [world.segments.segments_at_tail("s", "t").segments[0].key_range])
    seen: list[tuple[int, int | None]] = []

    def ask() -> None:
        between = world.segments.between("s", "t", {0: 40, 1: 0}, {S2: 0, 1: 0})
        seen.extend((segment_range.start_offset, segment_range.end_offset) for segment_range in between.ranges)

    with world.calls.overtaken("segment store segment_infos", ask):
        world.drain()
    assert seen == [(40, 100), (0, 0), (0, 0)]


def test_an_epoch_is_known_as_soon_as_it_is_recorded(world: StreamWorld):
    """Readers may have reached its segments before it is active."""
    world.create()
    world.streams.scale_stream("s", "t", [0], [world.segments.segments_at_tail("s", "t").segments[0].key_range])
    (message,) = world.bare_queue.receive()
    steps = world.processor.work(message.body)
    while next(steps) != "record the epoch":
        with pytest.raises(NotFoundError):
            world.segments.segments_of_epoch("s", "t", 1)
    assert world.segments.segments_at_tail("s", "t").epoch == 0
    assert _ids(world.segments.segments_of_epoch("s", "t", 1).segments) == [S2, 1]


def test_the_tail_includes_events_in_segments_of_a_running_scale(world: StreamWorld):
    """A writer may be acknowledged by a new segment long before its epoch is active: its predecessor is sealed."""
    world.create(segments=3)
    world.append(0, 100)
    thirds = [segment.key_range for segment in world.segments.segments_at_tail("s", "t").segments]
    world.streams.scale_stream("s", "t", [0, 1], thirds[:2])
    in_place_of_0, in_place_of_1 = 1 << 32 | 3, 1 << 32 | 4
    (message,) = world.bare_queue.receive()
    steps = world.processor.work(message.body)
    while next(steps) != "record the epoch":
        continue
    assert dict(world.segments.stream_cut("s", "t", "tail").positions) == {0: 100, 1: 0, 2: 0}
    world.bare_segment_stores.seal_segment("s/t/0.#epoch.0")
    world.append(in_place_of_0, 7)
    assert dict(world.segments.stream_cut("s", "t", "tail").positions) == {in_place_of_0: 7, 1: 0, 2: 0}
    everything = world.segments.between("s", "t", None, None).ranges
    assert [(segment_range.segment_id, segment_range.end_offset) for segment_range in everything] == [
        (0, 100), (1, 0), (2, 0), (in_place_of_0, 7),
    ]  # fmt: skip
    world.bare_segment_stores.seal_segment("s/t/1.#epoch.0")
    cut = world.segments.stream_cut("s", "t", "tail")
    assert dict(cut.positions) == {2: 0, in_place_of_0: 7, in_place_of_1: 0}
    world.processor.process(message.body)
    assert world.segments.stream_cut("s", "t", "tail") == cut


def test_a_checkpoint_during_a_merge_omits_sealed_segments(world: StreamWorld):
    """Readers meet the end of a segment, and give it up, before its length is recorded."""
    world.create()
    world.append(0, 100)
    world.append(1, 50)
    world.update(segments=1)
    world.streams.scale_stream("s", "t", [0, 1], ranges(0.0, 1.0))
    (message,) = world.bare_queue.receive()
    steps = world.processor.work(message.body)
    while next(steps) != "record the epoch":
        continue

    def after(checkpoint: dict[int, int]) -> list[tuple[int, int, int]]:
        found = world.segments.between("s", "t", checkpoint, None, from_checkpoint=True).ranges
        return [
            (segment_range.segment_id, segment_range.start_offset, segment_range.end_offset) for segment_range in found
        ]

    with pytest.raises(InvalidRequestError, match="leaves out segment 0, which is not sealed"):
        after({1: 20})
    world.bare_segment_stores.seal_segment("s/t/0.#epoch.0")
    assert after({1: 20}) == [(1, 20, 50)]
    world.bare_segment_stores.seal_segment("s/t/1.#epoch.0")
    assert after({1: 20}) == [(1, 20, 50), (S2, 0, 0)]
    with pytest.raises(InvalidRequestError, match="both before and after"):
        world.segments.between("s", "t", {1: 20}, None)


def test_a_truncated_stream_starts_at_its_truncation(scaled: StreamWorld):
    cut = StreamCut.of("s", "t", {S2: 12, S3: 7, 1: 3})
    scaled.streams.truncate_stream("s", "t", cut.offsets)
    scaled.drain()
    head = scaled.segments.segments_at_head("s", "t")
    assert [(segment.segment_id, segment.start_offset) for segment in head.segments] == [(S2, 12), (S3, 7), (1, 3)]
    assert scaled.segments.stream_cut("s", "t", "head") == cut
    between = scaled.segments.between("s", "t", None, None)
    assert [(segment_range.segment_id, segment_range.start_offset) for segment_range in between.ranges] == [
        (1, 3),
        (S2, 12),
        (S3, 7),
        (S4, 0),
    ]
