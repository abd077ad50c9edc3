"""Ranges between stream cuts, compared with a reader that walks the stream and with a model of single slots."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_histories import Histories

from headrace.model import stream_cut_ranges
from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.errors import InvalidRequestError
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_cut_ranges import SegmentRange, check_checkpoint, epochs_between, segments_between
from headrace.model.stream_cuts import StreamCut
from headrace.model.truncation import very_beginning

Cut = dict[int, int]


def _between(epochs: list[Epoch], sizes: dict[int, int], lower: Cut, upper: Cut) -> list[SegmentRange]:
    from_cut, to_cut = StreamCut.of("s", "t", lower), StreamCut.of("s", "t", upper)
    walked = [epochs[number] for number in epochs_between(from_cut, to_cut)]
    sealed = {segment.segment_id for epoch in walked[1:] for segment in epoch.replaced}

    def sealed_sizes(identifiers: Any) -> dict[int, int]:
        assert set(identifiers) <= sealed, "sizes are asked for sealed segments only"
        return {identifier: sizes[identifier] for identifier in identifiers}

    return segments_between(from_cut, to_cut, iter(walked), sealed_sizes)


@dataclass
class Lineage:
    """A history as a graph, made without the code under test."""

    epochs: list[Epoch]
    slots: int

    def __post_init__(self) -> None:
        self.segments: dict[int, StreamSegment] = {
            segment.segment_id: segment for e in self.epochs for segment in e.segments
        }
        self.chains = [
            [identifier for identifier in sorted(self.segments) if slot in self.slots_of(identifier)]
            for slot in range(self.slots)
        ]
        self.follows: dict[int, set[int]] = {identifier: set() for identifier in self.segments}
        for chain in self.chains:
            for before, after in itertools.pairwise(chain):
                self.follows[after].add(before)

    def slots_of(self, identifier: int) -> range:
        key_range = self.segments[identifier].key_range
        return range(round(key_range.low * self.slots), round(key_range.high * self.slots))

    def ancestors(self, identifier: int) -> set[int]:
        found: set[int] = set()
        waiting = set(self.follows[identifier])
        while waiting:
            ancestor = waiting.pop()
            found.add(ancestor)
            waiting |= self.follows[ancestor] - found
        return found

    def is_sealed(self, identifier: int) -> bool:
        return all(segment.segment_id != identifier for segment in self.epochs[-1].segments)

    def is_valid(self, cut: Cut) -> bool:
        covered = sorted(slot for identifier in cut for slot in self.slots_of(identifier))
        no_kin = all(not self.ancestors(identifier) & set(cut) for identifier in cut)
        return covered == list(range(self.slots)) and no_kin


class Reader:
    """Reads a stream as a client does: a successor is begun when all it follows is read to the end."""

    def __init__(self, lineage: Lineage, sizes: dict[int, int]) -> None:
        self._lineage, self._sizes = lineage, sizes
        self.cut: Cut = {segment.segment_id: 0 for segment in lineage.epochs[0].segments}
        self.read: dict[int, tuple[int, int]] = {}
        self.mark()

    def mark(self) -> None:
        """From here on, `read` says what was read of which segment."""
        self.read = {identifier: (offset, offset) for identifier, offset in self.cut.items()}

    def step(self, data: st.DataObject) -> None:
        identifier = data.draw(st.sampled_from(sorted(self.cut)))
        offset = data.draw(st.integers(self.cut[identifier], self._sizes[identifier]))
        if data.draw(st.booleans()):
            offset = self._sizes[identifier]
        self.cut[identifier] = offset
        self.read[identifier] = (self.read[identifier][0], offset)
        if self._lineage.is_sealed(identifier) and offset == self._sizes[identifier] and data.draw(st.booleans()):
            self._go_on(identifier)

    def _go_on(self, identifier: int) -> None:
        """To all successors at once, if everything that they follow is at its end too."""
        successors, ends = set[int](), {identifier}
        while True:
            more = {follower for follower, before in self._lineage.follows.items() if before & ends} - successors
            successors |= more
            before = {former for successor in successors for former in self._lineage.follows[successor]}
            if before == ends:
                break
            ends = before
        if all(self.cut.get(ended) == self._sizes[ended] for ended in ends):
            for ended in ends:
                del self.cut[ended]
            for successor in successors:
                self.cut[successor] = 0
                self.read[successor] = (0, 0)


def _sizes(data: st.DataObject, lineage: Lineage) -> dict[int, int]:
    return {identifier: data.draw(st.integers(0, 3)) for identifier in lineage.segments}


@given(data=st.data())
@settings(max_examples=150)
def test_ranges_between_positions_of_a_reader_are_what_it_read(
    histories: Histories, slot_count: int, data: st.DataObject
):
    lineage = Lineage(data.draw(histories(scales_max=4)), slot_count)
    sizes = _sizes(data, lineage)
    reader = Reader(lineage, sizes)
    for _ in range(data.draw(st.integers(0, 12))):
        reader.step(data)
    lower = dict(reader.cut)
    reader.mark()
    for _ in range(data.draw(st.integers(0, 12))):
        reader.step(data)
    ranges = _between(lineage.epochs, sizes, lower, dict(reader.cut))
    found = {
        segment_range.segment.segment_id: (segment_range.start_offset, segment_range.end_offset)
        for segment_range in ranges
    }
    assert found == reader.read
    _check_neighbours(lineage, ranges)


def _check_neighbours(lineage: Lineage, ranges: list[SegmentRange]) -> None:
    inside = [segment_range.segment.segment_id for segment_range in ranges]
    for position, segment_range in enumerate(ranges):
        identifier = segment_range.segment.segment_id
        assert set(segment_range.predecessors) == lineage.follows[identifier] & set(inside)
        assert set(segment_range.predecessors) <= set(inside[:position]), "predecessors come first"
        assert set(segment_range.successors) == {other for other in inside if identifier in lineage.follows[other]}


def _any_cut(data: st.DataObject, lineage: Lineage, sizes: dict[int, int]) -> Cut:
    """Segments of any epochs that cover as much as they can without overlapping; most are nonsense."""
    cut: Cut = {}
    taken: set[int] = set()
    for slot in data.draw(st.permutations(range(lineage.slots))):
        fitting = [identifier for identifier in lineage.chains[slot] if not taken & set(lineage.slots_of(identifier))]
        if slot not in taken and fitting:
            chosen = data.draw(st.sampled_from(fitting))
            cut[chosen] = data.draw(st.integers(0, sizes[chosen]))
            taken |= set(lineage.slots_of(chosen))
    return cut


def _model(lineage: Lineage, sizes: dict[int, int], lower: Cut, upper: Cut) -> dict[int, tuple[int, int]] | None:
    """The bytes between the cuts, slot by slot; None if the cuts are invalid."""
    if not lineage.is_valid(lower) or not lineage.is_valid(upper):
        return None
    found: dict[int, tuple[int, int]] = {}
    for slot, chain in enumerate(lineage.chains):
        (start,) = (chain.index(identifier) for identifier in lower if slot in lineage.slots_of(identifier))
        (stop,) = (chain.index(identifier) for identifier in upper if slot in lineage.slots_of(identifier))
        if stop < start:
            return None
        for identifier in chain[start : stop + 1]:
            found[identifier] = (lower.get(identifier, 0), upper.get(identifier, sizes[identifier]))
    return found if all(start <= stop for start, stop in found.values()) else None


@given(data=st.data())
@settings(max_examples=200)
def test_any_two_cuts_are_answered_or_refused_as_the_model_says(
    histories: Histories, slot_count: int, data: st.DataObject
):
    lineage = Lineage(data.draw(histories(scales_max=3)), slot_count)
    sizes = _sizes(data, lineage)
    lower, upper = _any_cut(data, lineage, sizes), _any_cut(data, lineage, sizes)
    expected = _model(lineage, sizes, lower, upper)
    if expected is None:
        with pytest.raises(InvalidRequestError) as refused:
            _between(lineage.epochs, sizes, lower, upper)
        assert refused.value.specific_code == "invalid_stream_cut"
        return
    ranges = _between(lineage.epochs, sizes, lower, upper)
    assert {
        segment_range.segment.segment_id: (segment_range.start_offset, segment_range.end_offset)
        for segment_range in ranges
    } == expected


class JavaGroup:
    """Reads as a group of Java readers: a segment that is read to its end is given up without its neighbours."""

    def __init__(self, lineage: Lineage, sizes: dict[int, int]) -> None:
        self._lineage, self._sizes = lineage, sizes
        self.checkpoint: Cut = {segment.segment_id: 0 for segment in lineage.epochs[0].segments}
        self.done: set[int] = set()

    def step(self, data: st.DataObject) -> None:
        identifier = data.draw(st.sampled_from(sorted(self.checkpoint)))
        self.checkpoint[identifier] = data.draw(st.integers(self.checkpoint[identifier], self._sizes[identifier]))
        if len(self.checkpoint) > 1 and data.draw(st.booleans()):
            del self.checkpoint[identifier]
            self.done.add(identifier)
            for follower, before in self._lineage.follows.items():
                if identifier in before and before <= self.done:
                    self.checkpoint[follower] = 0


@given(data=st.data())
@settings(max_examples=150)
def test_ranges_after_a_checkpoint_are_what_is_not_done(histories: Histories, slot_count: int, data: st.DataObject):
    """A checkpoint leaves out segments that are done, also where the segments that follow them wait for others."""
    lineage = Lineage(data.draw(histories(scales_max=4)), slot_count)
    sizes = _sizes(data, lineage)
    group = JavaGroup(lineage, sizes)
    for _ in range(data.draw(st.integers(0, 12))):
        group.step(data)
    lower = StreamCut.of("s", "t", group.checkpoint)
    following = lineage.epochs[lower.first_epoch :]
    if any(before & group.done and not before <= group.done for before in lineage.follows.values()):
        with pytest.raises(InvalidRequestError, match="readers would wait"):
            check_checkpoint(lower, None, following)
    else:
        check_checkpoint(lower, None, following)
    active = {segment.segment_id for segment in lineage.epochs[-1].segments}
    upper = StreamCut.of("s", "t", {identifier: sizes[identifier] for identifier in active})
    walked = [lineage.epochs[number] for number in epochs_between(lower, upper)]
    finished: list[int] = []

    def check_finished(identifiers: Sequence[int]) -> None:
        assert identifiers, "it is called if there are any"
        finished.extend(identifiers)

    ranges = segments_between(
        lower, upper, walked, lambda ids: {identifier: sizes[identifier] for identifier in ids}, check_finished
    )
    assert {
        segment_range.segment.segment_id: (segment_range.start_offset, segment_range.end_offset)
        for segment_range in ranges
    } == {
        identifier: (group.checkpoint.get(identifier, 0), sizes[identifier])
        for identifier in lineage.segments.keys() - group.done
    }
    assert set(finished) == group.done & active


def test_a_checkpoint_names_no_segment_after_another():
    epochs = _two_epochs()
    for cut, message in (({0: 0, S2: 0}, "'start' names segment"), ({0: 0, 7: 0}, "'start' names segment 7")):
        with pytest.raises(InvalidRequestError, match=message):
            check_checkpoint(StreamCut.of("s", "t", cut), None, epochs)
    check_checkpoint(StreamCut.of("s", "t", {1: 0}), None, epochs[:1])


def test_a_group_cannot_start_where_a_merge_would_be_waited_for():
    start, epochs = StreamCut.of("s", "t", {1: 0}), _two_epochs()
    for end in (None, StreamCut.of("s", "t", {S2: 0})):
        with pytest.raises(InvalidRequestError, match=f"predecessor of segment {S2}, for which readers would wait"):
            check_checkpoint(start, end, epochs)
    check_checkpoint(start, StreamCut.of("s", "t", {0: 3, 1: 3}), epochs)
    with pytest.raises(InvalidRequestError, match="segments of 'end' do not cover"):
        check_checkpoint(StreamCut.of("s", "t", {0: 0, 1: 0}), StreamCut.of("s", "t", {0: 3}), epochs[:1])


def _two_epochs() -> list[Epoch]:
    """Epoch 0: 0 and 1. Epoch 1: both merged into 2 (id 1 << 32 | 2)."""
    first = Epoch.first(2, 0, 0)
    return [first, scaled_epoch(first, [0, 1], [KeyRange(0.0, 1.0)], 1)]


S2 = 1 << 32 | 2


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [
        ({0: 0}, {0: 0, 1: 0}, "'from' do not cover"),
        ({0: 0, 1: 0}, {0: 0}, "'to' do not cover"),
        ({0: 0, S2: 0}, {S2: 0}, "'from' names segment"),
        ({0: 5, 1: 0}, {0: 4, 1: 0}, "'to' is before 'from' at 4, which is at 5 of segment 0"),
        ({S2: 0}, {0: 0, 1: 0}, "'to' is before 'from'"),
        ({S2: 5}, {S2: 4}, f"'to' is before 'from' at 4, which is at 5 of segment {S2}"),
        ({0: 11, 1: 0}, {S2: 0}, "ends at 10"),
        ({0: 0, 1: 0}, {S2: 0, 3: 0}, "'to' names segment 3"),
        ({0: 0, 1: 0, 7: 0}, {S2: 0}, "'from' names segment 7"),
    ],
)
def test_each_invalid_cut_has_its_message(lower: Cut, upper: Cut, message: str):
    with pytest.raises(InvalidRequestError, match=message):
        _between(_two_epochs(), {0: 10, 1: 10}, lower, upper)


def test_an_end_before_a_segment_of_the_start_is_refused():
    """0 is replaced by 2, then 1 by 3: the start has passed 0, and the end has not."""
    first = Epoch.first(2, 0, 0)
    second = scaled_epoch(first, [0], [KeyRange(0.0, 0.5)], 1)
    epochs = [first, second, scaled_epoch(second, [1], [KeyRange(0.5, 1.0)], 2)]
    with pytest.raises(InvalidRequestError, match=f"'to' is before 'from', which is at 4 of segment {S2}"):
        _between(epochs, {0: 10, 1: 10}, {S2: 4, 1: 0}, {0: 0, 2 << 32 | 3: 0})


def test_without_parts_that_are_left_out_nothing_is_checked():
    cut = StreamCut.of("s", "t", {0: 0, 1: 0})

    def refuse(_identifiers: Sequence[int]) -> None:
        raise AssertionError("no part is left out")

    assert len(segments_between(cut, cut, _two_epochs()[:1], lambda _: {}, refuse)) == 2


@pytest.mark.parametrize(
    "cut", [{0: 0, 2 << 32 | 4: 0}, {1: 0, 2 << 32 | 3: 0}], ids=["left-old-right-new", "left-new-right-old"]
)
def test_a_cut_on_both_sides_of_a_segment_is_refused(cut: Cut):
    """0 and 1 merge into 2, which splits into 3 and 4 at the same bound: a reader in 4 has read all of 0."""
    epochs = _two_epochs()
    epochs.append(scaled_epoch(epochs[1], [S2], [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)], 2))
    sizes = {0: 10, 1: 10, S2: 10}
    whole = {2 << 32 | 3: 0, 2 << 32 | 4: 0}
    with pytest.raises(InvalidRequestError, match="'from' is both before and after"):
        _between(epochs, sizes, cut, whole)
    with pytest.raises(InvalidRequestError, match="'to' is both before and after"):
        _between(epochs, sizes, {0: 0, 1: 0}, cut)
    assert len(_between(epochs, sizes, {0: 0, 1: 0}, whole)) == 5


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream_cut_ranges, "SEGMENTS_BETWEEN_MAX", 2)
    with pytest.raises(InvalidRequestError, match="more than 2 segments"):
        _between(_two_epochs(), {0: 10, 1: 10}, {0: 0, 1: 0}, {S2: 0})
    monkeypatch.setattr(stream_cut_ranges, "SEGMENTS_BETWEEN_MAX", 3)
    assert len(_between(_two_epochs(), {0: 10, 1: 10}, {0: 0, 1: 0}, {S2: 0})) == 3


@pytest.mark.parametrize(
    "positions", [(), ((0, -2),), ((-1, 0),), ((0, 1), (0, 2)), tuple((i, 0) for i in range(1001))]
)
def test_cuts_that_cannot_be(positions: tuple[tuple[int, int], ...]):
    with pytest.raises(InvalidRequestError) as refused:
        StreamCut("s", "t", positions)
    assert refused.value.specific_code == "invalid_stream_cut"


def test_a_cut_is_a_position_in_one_stream():
    cut = StreamCut.of("s", "t", {0: 5})
    cut.check_belongs_to("s", "t")
    for scope, stream in (("s", "u"), ("r", "t"), ("t", "s")):
        with pytest.raises(InvalidRequestError, match="belongs to s/t") as refused:
            cut.check_belongs_to(scope, stream)
        assert refused.value.specific_code == "invalid_stream_cut"


@pytest.mark.parametrize("offset", range(-1, 10))
def test_no_event_begins_inside_the_header_of_the_first(offset: int):
    cut = StreamCut.of("s", "t", {0: 0, 1: offset})
    if offset in range(1, 8):
        with pytest.raises(InvalidRequestError, match="inside the first event") as refused:
            cut.check_between_events()
        assert refused.value.specific_code == "invalid_stream_cut"
    else:
        cut.check_between_events()


def test_a_walk_may_begin_at_a_newer_epoch():
    """1 was never scaled. The walk need not begin at its epoch if another segment of the cut is of a newer one."""
    lower, upper = StreamCut.of("s", "t", {1: 0, 5 << 32 | 7: 0}), StreamCut.of("s", "t", {1: 9, 8 << 32 | 9: 0})
    assert epochs_between(lower, upper) == range(9)
    assert epochs_between(lower, upper, 5) == range(5, 9)
    assert epochs_between(lower, upper, 0) == range(9)
    with pytest.raises(InvalidRequestError, match="before 'from'"):
        epochs_between(upper, lower)


def test_a_cut_is_a_set_of_positions():
    assert StreamCut.of("s", "t", {S2: 1, 0: 2}) == StreamCut("s", "t", ((0, 2), (S2, 1)))
    assert (StreamCut.of("s", "t", {S2: 1, 0: 2}).first_epoch, StreamCut.of("s", "t", {S2: 1, 0: 2}).last_epoch) == (
        0,
        1,
    )


def test_the_very_beginning_is_the_start_of_the_first_epoch():
    assert very_beginning("s", "t", _two_epochs()[0]) == StreamCut.of("s", "t", {0: 0, 1: 0})
