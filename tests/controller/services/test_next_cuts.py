"""Batches of streams that grow, split, merge, are truncated, end and are created again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_world import StreamWorld, segment

from headrace.api.plans import LostBytes, NextCutView
from headrace.api.segments import RangesBetween
from headrace.codec.stream_cut_text import parse_stream_cut_text
from headrace.controller.services import segment_lineage
from headrace.controller.services.reader_plans import NextCutService
from headrace.controller.services.stream_cut_service import StreamCutService
from headrace.model.errors import InvalidRequestError, NotFoundError, TruncatedError, UnavailableError
from headrace.model.names import segment_name
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration

S2, S3, S4 = segment(2, 1), segment(3, 1), segment(4, 2)
INFOS, LOCATE = "segment store segment_infos", "segment store locate_offsets"


def service_of(world: StreamWorld) -> NextCutService:
    return NextCutService(world.store, world.segment_stores)


def cuts_of(world: StreamWorld) -> StreamCutService:
    return StreamCutService(world.store, world.segment_stores, world.segments)


@pytest.fixture
def scaled(world: StreamWorld) -> StreamWorld:
    """Epoch 0: 0, 1. Epoch 1: 0 splits into 2, 3. Epoch 2: 3 and 1 merge into 4. Appends of ten bytes."""
    world.create()
    append(world, 0, 10)
    append(world, 1, 1)
    world.scale([0], [0.0, 0.25, 0.5])
    append(world, S2, 2)
    append(world, S3, 3)
    world.scale([1, S3], [0.25, 1.0])
    append(world, S4, 4)
    return world


def append(world: StreamWorld, identifier: int, count: int) -> None:
    for _ in range(count):
        world.append(identifier, 10)


def bounds(found: NextCutView) -> dict[int, tuple[int, int]]:
    return {
        segment_range.segment_id: (segment_range.start_offset, segment_range.end_offset)
        for segment_range in found.ranges
    }


def test_everything_from_head_to_tail(scaled: StreamWorld) -> None:
    next_cut = service_of(scaled).next_cut("s", "t", None)
    assert next_cut.start.offsets == {0: 0, 1: 0}
    assert next_cut.end == scaled.segments.stream_cut("s", "t", "tail")
    assert (next_cut.reached_end, next_cut.left_bytes, next_cut.length_bytes) == (True, 0, 200)
    assert next_cut.part(RangesBetween) == scaled.segments.between("s", "t", None, None)


def test_a_stream_that_is_being_deleted_is_said_to_be_gone(scaled: StreamWorld) -> None:
    """Its segments are deleted before its record."""
    scaled.segment_stores.delete_segments([segment_name("s", "t", S4)])
    with pytest.raises(NotFoundError, match=r"there is no stream s/t any more \(there is no segment s/t/4"):
        service_of(scaled).next_cut("s", "t", None)


def test_batches_of_a_budget_follow_each_other(scaled: StreamWorld) -> None:
    plans = service_of(scaled)
    first = plans.next_cut("s", "t", None, None, 45)
    assert bounds(first) == {0: (0, 40), 1: (0, 10)}
    assert (first.reached_end, first.left_bytes) == (False, None)
    second = plans.next_cut("s", "t", first.end.offsets, None, 90)
    assert bounds(second) == {0: (40, 100), 1: (10, 10), S2: (0, 20), S3: (0, 20)}
    third = plans.next_cut("s", "t", second.end.offsets, None, 25)
    assert bounds(third) == {1: (10, 10), S2: (20, 20), S3: (20, 30), S4: (0, 20)}
    assert (third.reached_end, third.left_bytes) == (False, 20)
    last = plans.next_cut("s", "t", third.end.offsets, None, 25)
    assert bounds(last) == {S2: (20, 20), S4: (20, 40)}
    assert (last.reached_end, last.left_bytes) == (True, 0)


def test_a_batch_ends_at_the_second_cut(scaled: StreamWorld) -> None:
    plans, end = service_of(scaled), {S2: 10, S3: 30, 1: 10}
    next_cut = plans.next_cut("s", "t", {0: 50, 1: 0}, end)
    assert bounds(next_cut) == {0: (50, 100), 1: (0, 10), S2: (0, 10), S3: (0, 30)}
    assert (next_cut.end.offsets, next_cut.reached_end) == (end, True)
    part = plans.next_cut("s", "t", {0: 100, 1: 10}, end, 20)
    assert (part.end.offsets, part.reached_end, part.left_bytes) == ({S2: 10, S3: 10, 1: 10}, False, 20)
    nothing = plans.next_cut("s", "t", end, end)
    assert (nothing.end.offsets, nothing.reached_end) == (end, True)


def test_strict_key_order_separates_segments_of_a_scale(scaled: StreamWorld) -> None:
    next_cut = service_of(scaled).next_cut("s", "t", None, strict_key_order=True)
    assert bounds(next_cut) == {0: (0, 100), 1: (0, 10)}
    assert not next_cut.reached_end


def test_the_end_of_a_segment_is_a_start(scaled: StreamWorld) -> None:
    next_cut = service_of(scaled).next_cut("s", "t", {0: -1, 1: -1}, {S2: 0, S3: -1, 1: 10})
    assert (next_cut.start.offsets, next_cut.end.offsets) == ({0: 100, 1: 10}, {S2: 0, S3: 30, 1: 10})


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({0: 0}, None),
        ({0: 0, 1: 0, 77: 0}, None),
        ({0: 101, 1: 0}, None),
        ({S2: 0, S4: 50}, None),
        ({S2: 0, S4: 0}, {0: 0, 1: 0}),
        ({0: 5, 1: 0}, {0: 4, 1: 0}),
        ({0: 0, S4: 0}, None),
        ({0: 0, 1: 0}, {0: 0, S4: 0}),
        ({S2: 0, S3: 0, 1: 0}, {S2: 99, S3: 0, 1: 99}),
    ],
)
def test_impossible_cuts_are_refused(scaled: StreamWorld, start: dict[int, int], end: dict[int, int] | None) -> None:
    plans = service_of(scaled)

    def read_all() -> None:
        current = start
        while not (next_cut := plans.next_cut("s", "t", current, end, 60)).reached_end:
            current = next_cut.end.offsets

    with pytest.raises(InvalidRequestError) as refused:
        read_all()
    assert refused.value.specific_code == "invalid_stream_cut"


def test_a_batch_has_at_least_one_byte(scaled: StreamWorld) -> None:
    with pytest.raises(InvalidRequestError, match="at least one byte"):
        service_of(scaled).next_cut("s", "t", None, None, 0)


def test_only_a_stream_that_exists_has_batches(world: StreamWorld) -> None:
    with pytest.raises(NotFoundError):
        service_of(world).next_cut("s", "t", None)
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    with pytest.raises(UnavailableError):
        service_of(world).next_cut("s", "t", None)


def test_a_cut_of_a_deleted_stream_says_so(world: StreamWorld) -> None:
    world.create()
    cut = world.segments.stream_cut("s", "t", "tail").offsets
    world.seal()
    world.delete()
    world.create()
    ask: tuple[Callable[[], object], ...] = (
        lambda: service_of(world).next_cut("s", "t", cut),
        lambda: service_of(world).next_cut("s", "t", None, cut),
        lambda: world.segments.between("s", "t", cut, None),
    )
    for call in ask:
        with pytest.raises(InvalidRequestError, match="was deleted and created again") as refused:
            call()
        assert refused.value.specific_code == "stream_recreated"
    assert not world.cuts.is_valid("s", "t", cut)


def test_an_unknown_segment_of_a_first_stream_is_no_former_one(world: StreamWorld) -> None:
    world.create(segments=1)
    with pytest.raises(InvalidRequestError) as refused:
        service_of(world).next_cut("s", "t", {7: 0})
    assert refused.value.specific_code == "invalid_stream_cut"


def test_a_sealed_stream_is_read_to_its_end(scaled: StreamWorld) -> None:
    scaled.seal()
    next_cut = service_of(scaled).next_cut("s", "t", {S2: 0, S3: 0, 1: 0})
    assert next_cut.end.offsets == {S2: 20, S4: 40}
    assert next_cut.reached_end


def test_a_truncated_start_says_what_is_lost(scaled: StreamWorld) -> None:
    head = {S2: 10, S3: 0, 1: 10}
    scaled.truncate(head)
    with pytest.raises(TruncatedError, match="120 bytes are lost, the first at 0 of segment 0") as failed:
        service_of(scaled).next_cut("s", "t", {0: 0, 1: 0})
    details = failed.value.details
    assert details["head"] == {str(identifier): offset for identifier, offset in head.items()}
    assert parse_stream_cut_text(details["headText"]).offsets == head
    assert details["lost"] == [
        {"segmentId": 0, "fromOffset": 0, "bytes": 100},
        {"segmentId": 1, "fromOffset": 0, "bytes": 10},
        {"segmentId": S2, "fromOffset": 0, "bytes": 10},
    ]
    assert details["lostBytes"] == 120


def test_skipping_starts_at_the_later_of_start_and_head(scaled: StreamWorld) -> None:
    scaled.truncate({S2: 10, S3: 0, 1: 0})
    plans = service_of(scaled)
    next_cut = plans.next_cut("s", "t", {0: 70, 1: 10}, on_truncation="skip")
    assert next_cut.start.offsets == {S2: 10, S3: 0, 1: 10}
    assert next_cut.lost == (LostBytes(0, 70, 30), LostBytes(S2, 0, 10))
    assert (next_cut.lost_bytes, next_cut.length_bytes) == (40, 10 + 30 + 40)
    after = plans.next_cut("s", "t", {S2: 15, S3: 5, 1: 10}, on_truncation="skip")
    assert (after.start.offsets, after.lost, after.lost_bytes) == ({S2: 15, S3: 5, 1: 10}, (), 0)


def test_skipping_leaves_what_is_left_between_two_cuts(scaled: StreamWorld) -> None:
    """A batch that was planned before the truncation is planned again: some of it is left, or nothing."""
    scaled.truncate({S2: 10, S3: 0, 1: 0})
    plans = service_of(scaled)
    some = plans.next_cut("s", "t", {0: 70, 1: 0}, {0: 100, 1: 10}, on_truncation="skip")
    assert (bounds(some), some.reached_end) == ({S2: (10, 10), S3: (0, 0), 1: (0, 10)}, True)
    assert some.lost == (LostBytes(0, 70, 30), LostBytes(S2, 0, 10))
    nothing = plans.next_cut("s", "t", {0: 20, 1: 0}, {0: 70, 1: 0}, on_truncation="skip")
    assert (nothing.length_bytes, nothing.reached_end) == (0, True)


def test_a_plan_costs_two_calls_to_the_stores(scaled: StreamWorld) -> None:
    plans = service_of(scaled)
    plans.next_cut("s", "t", None)
    for start, budget, expected in (
        ({0: 0, 1: 0}, 20, {"read": 1, LOCATE: 1}),
        ({0: 0, 1: 0}, None, {"read": 1, INFOS: 1}),
        ({S2: 0, S4: 0}, 20, {"read": 1, INFOS: 1, LOCATE: 1}),
        ({S2: 20, S4: 40}, 20, {"read": 1, INFOS: 1}),
    ):
        scaled.calls.counts.clear()
        plans.next_cut("s", "t", start, None, budget)
        assert dict(scaled.calls.counts) == expected


def test_a_segment_deleted_while_planning_is_asked_again(scaled: StreamWorld) -> None:
    plans = service_of(scaled)
    overtaken = scaled.calls.overtaken(LOCATE, lambda: scaled.truncate({S2: 0, S3: 0, 1: 0}))
    with overtaken, pytest.raises(UnavailableError, match="repeat soon"):
        plans.next_cut("s", "t", {0: 0, 1: 0}, None, 20)
    with pytest.raises(TruncatedError):
        plans.next_cut("s", "t", {0: 0, 1: 0}, None, 20)


def test_plans_during_every_step_of_a_scale(world: StreamWorld) -> None:
    """The tail is in segments that are being sealed, and in those that replace them."""
    world.create(segments=3)
    append(world, 0, 10)
    thirds = [segment.key_range for segment in world.segments.segments_at_tail("s", "t").segments]
    world.streams.scale_stream("s", "t", [0, 1], thirds[:2])
    (message,) = world.bare_queue.receive()
    plans = service_of(world)
    seen: set[tuple[int, ...]] = set()
    for step in world.processor.work(message.body):
        if step == "record the epoch":
            world.bare_segment_stores.seal_segment("s/t/0.#epoch.0")
            append(world, segment(3, 1), 1)
        whole = plans.next_cut("s", "t", None)
        assert whole.part(RangesBetween) == world.segments.between("s", "t", None, None)
        seen.add(tuple(whole.end.offsets))
        part = plans.next_cut("s", "t", None, None, 45)
        assert part.part(RangesBetween) == world.segments.between("s", "t", None, part.end.offsets)
        rest = plans.next_cut("s", "t", part.end.offsets)
        assert rest.length_bytes + part.length_bytes == whole.length_bytes
    assert len(seen) >= 3


class Reading:
    """A reader of the stream `t`, batch after batch: what it has read and what it has lost of each segment."""

    def __init__(self, world: StreamWorld) -> None:
        self._world = world
        self._plans = service_of(world)
        self.position: Mapping[int, int] = world.segments.stream_cut("s", "t", "head").offsets
        self.passed: Counter[int] = Counter()

    def read(self, budget: int | None, *, strict: bool) -> bool:
        """Whether the end is reached."""
        next_cut = self._plans.next_cut(
            "s", "t", self.position, None, budget, strict_key_order=strict, on_truncation="skip"
        )
        assert next_cut.part(RangesBetween) == self._world.segments.between(
            "s", "t", next_cut.start.offsets, next_cut.end.offsets
        )
        assert next_cut.lost_bytes == sum(lost_range.length for lost_range in next_cut.lost)
        if next_cut.lost:
            with pytest.raises(TruncatedError) as failed:
                self._plans.next_cut("s", "t", self.position, None, budget)
            assert failed.value.details["lost"] == [lost_range.to_json() for lost_range in next_cut.lost]
            with pytest.raises(TruncatedError):
                self._world.segments.between("s", "t", self.position, None)
        else:
            whole = self._plans.next_cut("s", "t", self.position)
            assert self._world.segments.between("s", "t", self.position, None) == whole.part(RangesBetween)
        passed = [
            (lost_range.segment_id, lost_range.offset, lost_range.offset + lost_range.length)
            for lost_range in next_cut.lost
        ]
        passed += [(identifier, *offsets) for identifier, offsets in bounds(next_cut).items()]
        for identifier, start, end in passed:
            assert start == self.passed[identifier], "no byte is left out, and none is read twice"
            self.passed[identifier] = end
        self.position = next_cut.end.offsets
        return next_cut.reached_end


@given(st.data())
@settings(max_examples=40)
def test_every_byte_is_read_or_lost_once(data: st.DataObject) -> None:
    world = StreamWorld()
    world.create(segments=data.draw(st.integers(1, 3)))
    world.update(segments=1)
    reading = Reading(world)
    written: Counter[int] = Counter()
    for _ in range(data.draw(st.integers(1, 14))):
        tail = world.segments.segments_at_tail("s", "t").segments
        match data.draw(st.sampled_from(["append", "append", "read", "read", "split", "merge", "truncate"])):
            case "append":
                length = data.draw(st.integers(1, 30))
                identifier = data.draw(st.sampled_from(tail)).segment_id
                world.append(identifier, length)
                written[identifier] += length
            case "read":
                reading.read(data.draw(st.one_of(st.none(), st.integers(1, 60))), strict=data.draw(st.booleans()))
            case "split":
                segment = data.draw(st.sampled_from(tail))
                low, high = segment.key_range.low, segment.key_range.high
                world.scale([segment.segment_id], [low, (low + high) / 2, high])
            case "merge" if len(tail) > 1:
                at = data.draw(st.integers(0, len(tail) - 2))
                pair = tail[at : at + 2]
                world.scale([segment.segment_id for segment in pair], [pair[0].key_range.low, pair[1].key_range.high])
            case "truncate":
                budget = data.draw(st.integers(1, 60))
                world.truncate(service_of(world).next_cut("s", "t", None, None, budget).end.offsets)
    while not reading.read(data.draw(st.integers(10, 60)), strict=data.draw(st.booleans())):
        pass
    assert +reading.passed == +written


HEAD = {S2: 0, S4: 0}


def test_a_start_at_truncated_ends_loses_nothing(scaled: StreamWorld) -> None:
    """As of a reader that was away during a scale and a truncation by time."""
    start = {S2: 0, S3: 30, 1: 10}
    scaled.truncate(HEAD)
    next_cut = service_of(scaled).next_cut("s", "t", start)
    assert (next_cut.start.offsets, next_cut.lost, next_cut.lost_bytes) == (HEAD, (), 0)
    assert next_cut.reached_end
    assert scaled.segments.between("s", "t", start, None) == next_cut.part(RangesBetween)
    assert cuts_of(scaled).is_valid("s", "t", start)


def test_a_start_at_an_end_with_lost_successors_is_refused(scaled: StreamWorld) -> None:
    scaled.truncate({S2: 10, S4: 0})
    for start in ({0: 100, 1: 10}, {S2: 0, S3: 30, 1: 10}):
        with pytest.raises(TruncatedError):
            service_of(scaled).next_cut("s", "t", start)
        with pytest.raises(TruncatedError):
            scaled.segments.between("s", "t", start, None)
        assert not cuts_of(scaled).is_valid("s", "t", start)


def test_each_byte_behind_a_start_counts(scaled: StreamWorld) -> None:
    scaled.truncate(HEAD)
    for start in ({S2: 0, S3: 20, 1: 10}, {S2: 0, S3: 30, 1: 0}, {0: 100, 1: 10}):
        with pytest.raises(TruncatedError):
            scaled.segments.between("s", "t", start, None)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({S2: 0, S3: 30, 1: 10}, {S2: 0, S3: 30, 1: 10}),
        ({S2: 0, S3: -1, 1: 10}, {S2: 0, S3: 30, 1: 10}),
        ({S2: 0, S3: 30, 1: 10}, {S2: 0, S3: 30, 1: -1}),
        ({S2: 0, S3: -1, 1: -1}, {S2: 0, S4: 0}),
        ({0: 100, 1: 10}, {S2: 0, S3: 0, 1: 10}),
        ({0: -1, 1: 10}, {0: 100, 1: 10}),
    ],
)
def test_nothing_is_between_cuts_that_were_truncated(
    world: StreamWorld, start: dict[int, int], end: dict[int, int]
) -> None:
    world.create()
    append(world, 0, 10)
    append(world, 1, 1)
    world.scale([0], [0.0, 0.25, 0.5])
    if start.get(S3):
        append(world, S3, 3)
    world.scale([1, S3], [0.25, 1.0])
    append(world, S4, 4)
    world.truncate(HEAD)
    next_cut = service_of(world).next_cut("s", "t", start, end)
    assert (next_cut.start.offsets, bounds(next_cut), next_cut.reached_end) == (HEAD, {S2: (0, 0), S4: (0, 0)}, True)
    assert world.segments.between("s", "t", start, end) == next_cut.part(RangesBetween)


def test_a_loss_that_is_too_long_to_count_is_one(scaled: StreamWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk to the head ends before it comes to the bytes that were truncated."""
    monkeypatch.setattr(segment_lineage, "SEGMENTS_PER_CUT_MAX", 1)
    scaled.truncate({S2: 20, S4: 10})
    start = {0: 100, 1: 10}
    with pytest.raises(TruncatedError):
        scaled.segments.between("s", "t", start, None)
    with pytest.raises(TruncatedError):
        service_of(scaled).next_cut("s", "t", start)
    assert not cuts_of(scaled).is_valid("s", "t", start)


def test_an_end_before_a_truncated_start_is_refused(scaled: StreamWorld) -> None:
    scaled.truncate(HEAD)
    for end in ({0: 100, 1: 10}, {S2: 0, S3: 20, 1: 10}):
        for between in (service_of(scaled).next_cut, scaled.segments.between):
            with pytest.raises(InvalidRequestError, match="'to' is before 'from'"):
                between("s", "t", {S2: 0, S3: 30, 1: 10}, end)
