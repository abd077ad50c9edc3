"""Batches against a plain model of a stream: every byte once, order per key, budget, and the ranges of two cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_histories import random_histories

from headrace.model.cut_planning import BatchRules, PlannedBatch, SegmentEnd, plan_batch
from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.model.segments import KeyRange, StreamSegment, covers_key_space_once, segment_id
from headrace.model.stream_cut_ranges import epochs_between, segments_between
from headrace.model.stream_cuts import StreamCut
from headrace.model.truncation import very_beginning

EVENT_BYTES = 7
Positions = Mapping[int, int]


@dataclass
class StreamModel:
    """A stream of events of EVENT_BYTES: the lineage up to a cut, by default the tail."""

    epochs_by_number: list[Epoch]
    events: dict[int, int]
    end: Positions = field(default_factory=dict)
    located: list[list[tuple[int, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.segments = {segment.segment_id: segment for epoch in self.epochs_by_number for segment in epoch.segments}
        self.replaced_in = {
            segment.segment_id: epoch.number for epoch in self.epochs_by_number for segment in epoch.replaced
        }
        self.end = self.end or self.tail()

    def length(self, identifier: int) -> int:
        return self.events.get(identifier, 0) * EVENT_BYTES

    def head(self) -> dict[int, int]:
        return very_beginning("s", "t", self.epochs_by_number[0]).offsets

    def tail(self) -> dict[int, int]:
        return {segment.segment_id: self.length(segment.segment_id) for segment in self.epochs_by_number[-1].segments}

    def ends(self, segments: Sequence[StreamSegment]) -> Mapping[int, SegmentEnd]:
        return {
            segment.segment_id: SegmentEnd(self.end[segment.segment_id], None)
            if segment.segment_id in self.end
            else SegmentEnd(self.length(segment.segment_id), self.replaced_in[segment.segment_id])
            for segment in segments
        }

    def epochs(self, numbers: Sequence[int]) -> Mapping[int, Epoch]:
        return {number: self.epochs_by_number[number] for number in numbers}

    def boundaries(self, targets: Sequence[tuple[int, int]]) -> Sequence[int]:
        self.located.append(list(targets))
        return [-(-target // EVENT_BYTES) * EVENT_BYTES for _, target in targets]

    def plan(self, current: Positions, rules: BatchRules) -> PlannedBatch:
        return plan_batch([self.segments[identifier] for identifier in current], current, self, rules)

    def between(self, lower: Positions, upper: Positions) -> list[tuple[object, ...]]:
        from_cut, to_cut = StreamCut.of("s", "t", lower), StreamCut.of("s", "t", upper)
        walked = [self.epochs_by_number[number] for number in epochs_between(from_cut, to_cut)]
        sizes = {identifier: self.length(identifier) for identifier in self.segments}
        return [
            (
                segment_range.segment,
                segment_range.start_offset,
                segment_range.end_offset,
                segment_range.predecessors,
                segment_range.successors,
            )
            for segment_range in segments_between(
                from_cut, to_cut, walked, lambda ids: {each: sizes[each] for each in ids}
            )
        ]

    def batches(self, rules: BatchRules, start: Positions | None = None) -> list[PlannedBatch]:
        """All batches from the start, or the head, to the end. Every one but the last moves on, so this ends."""
        current: Positions = start or self.head()
        batches: list[PlannedBatch] = []
        while True:
            batch = self.plan(current, rules)
            batches.append(batch)
            if batch.reached_end:
                return batches
            assert batch.positions != current
            current = batch.positions


@st.composite
def streams(draw: st.DrawFn) -> StreamModel:
    """Streams that were split, merged and rolled; some segments have no events."""
    epochs = draw(random_histories(scales_max=6))
    segments = sorted({segment.segment_id for epoch in epochs for segment in epoch.segments})
    return StreamModel(epochs, {identifier: draw(st.integers(0, 5)) for identifier in segments})


budgets = st.one_of(st.none(), st.integers(1, 40 * EVENT_BYTES))
rules_of_batches = st.builds(
    BatchRules,
    budget_bytes=budgets,
    strict_key_order=st.booleans(),
    opened_max=st.one_of(st.none(), st.integers(1, 4)),
)


@given(streams(), rules_of_batches)
def test_every_byte_is_in_exactly_one_batch_in_order(stream: StreamModel, rules: BatchRules) -> None:
    reached = dict.fromkeys(stream.segments, 0)
    batches = stream.batches(rules)
    for batch in batches:
        assert batch.length_bytes == sum(
            segment_range.end_offset - segment_range.start_offset for segment_range in batch.ranges
        )
        for segment_range in batch.ranges:
            assert segment_range.start_offset == reached[segment_range.segment.segment_id]
            assert segment_range.end_offset % EVENT_BYTES == 0
            reached[segment_range.segment.segment_id] = segment_range.end_offset
    assert batches[-1].positions == stream.tail()
    assert reached == {identifier: stream.length(identifier) for identifier in stream.segments}


@given(streams(), rules_of_batches)
def test_ranges_of_a_batch_are_those_between_its_cuts(stream: StreamModel, rules: BatchRules) -> None:
    current: Positions = stream.head()
    for batch in stream.batches(rules):
        ranges = [
            (
                segment_range.segment,
                segment_range.start_offset,
                segment_range.end_offset,
                segment_range.predecessors,
                segment_range.successors,
            )
            for segment_range in batch.ranges
        ]
        assert ranges == stream.between(current, batch.positions)
        current = batch.positions


@given(streams(), rules_of_batches)
def test_each_cut_covers_the_key_space_exactly_once(stream: StreamModel, rules: BatchRules) -> None:
    for batch in stream.batches(rules):
        assert covers_key_space_once([segment.key_range for segment in batch.segments])
        assert {segment.segment_id for segment in batch.segments} == batch.positions.keys()


@given(streams(), rules_of_batches)
def test_successors_come_after_all_their_predecessors(stream: StreamModel, rules: BatchRules) -> None:
    last_batch_of = dict.fromkeys(stream.segments, -1)
    first_batch_of: dict[int, int] = {}
    for number, batch in enumerate(stream.batches(rules)):
        for segment_range in batch.ranges:
            if segment_range.end_offset > segment_range.start_offset:
                last_batch_of[segment_range.segment.segment_id] = number
                first_batch_of.setdefault(segment_range.segment.segment_id, number)
    for identifier, first in first_batch_of.items():
        for before in _ancestors(stream, identifier):
            assert last_batch_of[before] < first if rules.strict_key_order else last_batch_of[before] <= first


def _ancestors(stream: StreamModel, identifier: int) -> set[int]:
    found: set[int] = set()
    waiting = [stream.segments[identifier]]
    while waiting:
        segment = waiting.pop()
        before = stream.epochs_by_number[segment.epoch].predecessors_of(segment)
        waiting += [predecessor for predecessor in before if predecessor.segment_id not in found]
        found |= {predecessor.segment_id for predecessor in before}
    return found


@given(streams(), st.integers(1, 40 * EVENT_BYTES), st.booleans())
def test_the_budget_is_exceeded_by_one_event_per_open_segment(stream: StreamModel, budget: int, strict: bool) -> None:
    for batch in stream.batches(BatchRules(budget, strict)):
        read = [
            segment_range for segment_range in batch.ranges if segment_range.end_offset > segment_range.start_offset
        ]
        assert batch.length_bytes <= budget + EVENT_BYTES * len(read)


@given(streams(), st.integers(1, 40 * EVENT_BYTES))
def test_open_segments_share_the_budget_and_none_is_skipped(stream: StreamModel, budget: int) -> None:
    current = stream.head()
    batch = stream.plan(current, BatchRules(budget))
    read = {
        segment_range.segment.segment_id: segment_range.end_offset - segment_range.start_offset
        for segment_range in batch.ranges
    }
    assert all(read[identifier] for identifier in current if stream.length(identifier))
    unfinished = [
        identifier
        for identifier in current
        if batch.positions.get(identifier, stream.length(identifier)) < stream.length(identifier)
    ]
    shares = [read[identifier] for identifier in unfinished]
    assert not shares or max(shares) - min(shares) < EVENT_BYTES


@given(streams(), rules_of_batches, st.data())
def test_a_batch_ends_at_the_last_cut(stream: StreamModel, rules: BatchRules, data: st.DataObject) -> None:
    """The walk goes up to any cut of the stream, not only to its tail."""
    cut = data.draw(st.sampled_from(stream.batches(BatchRules(EVENT_BYTES)))).positions
    bounded = StreamModel(stream.epochs_by_number, stream.events, cut)
    assert bounded.batches(rules)[-1].positions == cut


@given(streams(), st.integers(1, 40 * EVENT_BYTES))
def test_all_boundaries_of_a_batch_are_located_at_once(stream: StreamModel, budget: int) -> None:
    batches = stream.batches(BatchRules(budget))
    assert len(stream.located) <= len(batches)


@given(streams(), st.integers(1, 4))
def test_a_batch_opens_no_more_segments_than_it_may(stream: StreamModel, opened_max: int) -> None:
    current: Positions = stream.head()
    largest_scale = max(len(epoch.created) for epoch in stream.epochs_by_number)
    for batch in stream.batches(BatchRules(opened_max=opened_max)):
        opened = [segment_range for segment_range in batch.ranges if segment_range.segment.segment_id not in current]
        assert len(opened) < opened_max + largest_scale
        current = batch.positions


@given(streams(), st.integers(1, 6), st.integers(1, 40 * EVENT_BYTES))
def test_no_segment_of_a_later_epoch_is_opened(stream: StreamModel, last_epoch: int, budget: int) -> None:
    batch = stream.plan(stream.head(), BatchRules(budget, last_epoch=last_epoch))
    assert all(segment_range.segment.epoch <= last_epoch for segment_range in batch.ranges)


def split_stream(*events: int) -> StreamModel:
    """Two segments that were merged; the events of all three."""
    first = Epoch.first(2, 0, 0)
    epochs = [first, scaled_epoch(first, [0, 1], [KeyRange(0.0, 1.0)], 1)]
    return StreamModel(epochs, dict(zip((0, 1, MERGED), events, strict=True)))


MERGED = segment_id(1, 2)


def test_a_merge_waits_for_all_that_it_merges() -> None:
    stream = split_stream(1, 10, 1)
    batch = stream.plan(stream.head(), BatchRules(4 * EVENT_BYTES))
    assert batch.positions == {0: EVENT_BYTES, 1: 3 * EVENT_BYTES}


def scaled_stream(*groups: Sequence[int], events: Mapping[int, int]) -> StreamModel:
    """Three segments, all of which one scale replaced: each of these groups by one segment, numbered from 3 on."""
    first = Epoch.first(3, 0, 0)
    keys = [
        KeyRange(first.segments[group[0]].key_range.low, first.segments[group[-1]].key_range.high) for group in groups
    ]
    return StreamModel([first, scaled_epoch(first, [0, 1, 2], keys, 1)], dict(events))


ALL_OPEN = BatchRules(strict_key_order=True)
"""With it, only what is at its end when the batch begins is replaced."""


@pytest.mark.parametrize("groups", [([0], [1], [2]), ([0, 1], [2]), ([0], [1, 2])])
def test_all_that_a_scale_replaced_changes_hands_at_once(groups: Sequence[Sequence[int]]) -> None:
    stream = scaled_stream(*groups, events={})
    batch = stream.plan(stream.head(), ALL_OPEN)
    assert batch.positions == stream.tail()
    assert batch.reached_end


def test_a_merge_that_waits_holds_no_other_segment_back() -> None:
    stream = scaled_stream([0, 1], [2], events={1: 1})
    batch = stream.plan(stream.head(), ALL_OPEN)
    assert batch.positions == {0: 0, 1: EVENT_BYTES, segment_id(1, 4): 0}


def test_a_full_batch_opens_no_other_group_of_a_scale() -> None:
    stream = scaled_stream([0], [1], [2], events={})
    batch = stream.plan(stream.head(), BatchRules(opened_max=1))
    assert batch.positions == {1: 0, 2: 0, segment_id(1, 3): 0}
    assert not batch.reached_end


def test_a_batch_ends_where_its_budget_is_reached() -> None:
    stream = split_stream(1, 1, 5)
    batch = stream.plan(stream.head(), BatchRules(2 * EVENT_BYTES))
    assert (batch.positions, batch.length_bytes) == ({MERGED: 0}, 2 * EVENT_BYTES)
    assert stream.located == [], "no boundary of a segment is looked up that ends within its share"


def test_strict_order_ends_a_batch_at_a_scale() -> None:
    stream = split_stream(1, 1, 1)
    read = [
        [
            len(
                [
                    segment_range
                    for segment_range in batch.ranges
                    if segment_range.end_offset > segment_range.start_offset
                ]
            )
            for batch in stream.batches(rules)
        ]
        for rules in (BatchRules(), BatchRules(strict_key_order=True))
    ]
    assert read == [[3], [2, 1]]


def test_a_store_without_an_index_may_answer_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = split_stream(3, 3, 0)
    monkeypatch.setattr(stream, "boundaries", lambda targets: [10_000 for _ in targets])
    assert stream.plan(stream.head(), BatchRules(2)).reached_end


def test_a_boundary_before_its_target_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = split_stream(3, 3, 0)
    monkeypatch.setattr(stream, "boundaries", lambda targets: [target - 1 for _, target in targets])
    with pytest.raises(CorruptError, match="at or after"):
        stream.plan(stream.head(), BatchRules(2))


def test_a_budget_must_be_positive() -> None:
    stream = split_stream(1, 1, 1)
    with pytest.raises(ValueError, match="positive"):
        stream.plan(stream.head(), BatchRules(0))


def test_a_cut_beyond_the_end_of_a_segment_is_refused() -> None:
    stream = split_stream(1, 1, 1)
    with pytest.raises(InvalidRequestError, match="'from' is at 8 of segment 0, which ends at 7") as refused:
        stream.plan({0: EVENT_BYTES + 1, 1: 0}, BatchRules())
    assert refused.value.specific_code == "invalid_stream_cut"


@pytest.mark.parametrize("lower", [{0: 0, segment_id(2, 4): 0}, {segment_id(2, 3): 0, 1: 0}])
def test_cuts_on_both_sides_of_a_segment_come_to_no_end(lower: Positions) -> None:
    first = Epoch.first(2, 0, 0)
    merged = scaled_epoch(first, [0, 1], [KeyRange(0.0, 1.0)], 1)
    split = scaled_epoch(merged, [MERGED], [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)], 2)
    stream = StreamModel([first, merged, split], dict.fromkeys((0, 1, MERGED, segment_id(2, 3), segment_id(2, 4)), 1))
    with pytest.raises(InvalidRequestError, match="no read that starts at it") as refused:
        stream.batches(BatchRules(), lower)
    assert refused.value.specific_code == "invalid_stream_cut"
