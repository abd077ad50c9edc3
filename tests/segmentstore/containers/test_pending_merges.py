"""Where the bytes of pending merges are flushed, found and moved, whatever part of them tier 2 has."""

from __future__ import annotations

import pytest

from headrace.codec.container_snapshots import DirectoryPlace, MergedRange
from headrace.model.names import transient_segment_name
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.pending_merges import (
    PendingMerge,
    due_move,
    end_of_large_event,
    flush_place,
    places_of,
)
from headrace.segmentstore.containers.segment import AcceptedState, DurableState, Segment, TieredState

OBJECT_BYTES = 100
POOL = BlockPool(1 << 20, 64 << 10)


def make_segment(name: str, length: int, tiered: int = 0, *merges: tuple[int, Segment], durable: int = -1) -> Segment:
    """A segment of so many bytes; the merges into it are given with their offsets."""
    accepted = AcceptedState({}, 0)
    accepted.length = length
    durable_length = length if durable < 0 else durable
    segment = Segment(1, name, POOL, accepted, DurableState(0, durable_length), TieredState(tiered))
    for offset, source in merges:
        segment.add_merge(PendingMerge(offset, source.accepted.length, source, ordering=10, ledger_entry=20))
    return segment


def nested(own_tiered: int, inner_tiered: int) -> Segment:
    """10 bytes, then a merge of 50 bytes, of which the 30 from 20 on came by an earlier merge."""
    inner = make_segment("inner", 30, inner_tiered)
    return make_segment("target", 80, 10, (10, make_segment("source", 50, own_tiered, (20, inner))))


@pytest.mark.parametrize(
    ("segment", "place"),
    [
        (make_segment("a", 50), ("a", 0, 50)),
        (make_segment("a", 50, durable=40), ("a", 0, 40)),
        (make_segment("a", 150, 0, (20, make_segment("b", OBJECT_BYTES))), ("a", 0, 150)),
        (make_segment("a", 150, 0, (20, make_segment("b", OBJECT_BYTES + 1))), ("a", 0, 20)),
        (make_segment("a", 150, 20, (20, make_segment("b", OBJECT_BYTES + 1))), ("b", 20, 121)),
        (make_segment("a", 150, 20, (20, make_segment("b", OBJECT_BYTES + 1)), durable=120), ("a", 0, 20)),
        (make_segment("a", 150, 20, (20, make_segment("b", OBJECT_BYTES + 1)), durable=121), ("b", 20, 121)),
        (make_segment("a", 150, 0, (20, make_segment("b", OBJECT_BYTES + 1)), durable=10), ("a", 0, 10)),
        (make_segment("a", 90, 20, (20, make_segment("b", 30, 1))), ("b", 20, 50)),
        (make_segment("a", 90, 19, (20, make_segment("b", 30, 1))), ("a", 0, 20)),
        (make_segment("a", 90, 0, (20, make_segment("b", 10)), (30, make_segment("c", 10, 1))), ("a", 0, 30)),
        (nested(own_tiered=0, inner_tiered=1), ("source", 10, 30)),
        (nested(own_tiered=20, inner_tiered=1), ("inner", 30, 60)),
        (nested(own_tiered=20, inner_tiered=0), ("source", 10, 60)),
        (nested(own_tiered=0, inner_tiered=0), ("target", 0, 80)),
    ],
)
def test_flush_continues_under_one_name(segment: Segment, place: tuple[str, int, int]):
    found = flush_place(segment, OBJECT_BYTES)
    assert (found.segment.name, found.shift, found.end) == place


@pytest.mark.parametrize(("waiting", "end"), [("b", 20), ("c", 30), ("d", 90)])
def test_flush_ends_before_a_merge_that_waits(waiting: str, end: int):
    segment = make_segment("a", 90, 5, (20, make_segment("b", 10)), (30, make_segment("c", 10)))
    place = flush_place(segment, OBJECT_BYTES, lambda merge: merge.source.name == waiting)
    assert (place.segment.name, place.shift, place.end) == ("a", 0, end)


def test_large_merge_enters_directly_if_its_source_name_is_free():
    """A new segment of that name must not find these bytes."""
    source = make_segment("b", OBJECT_BYTES + 1)
    source.name_is_free = True
    segment = make_segment("a", 150, 20, (20, source))
    assert flush_place(segment, OBJECT_BYTES) == (segment, 0, 150)


@pytest.mark.parametrize(
    ("segment", "moved"),
    [
        (make_segment("a", 50), None),
        (make_segment("a", 90, 20, (20, make_segment("b", 30, 30))), ("a", "b")),
        (make_segment("a", 90, 20, (20, make_segment("b", 30, 30)), durable=50), ("a", "b")),
        (make_segment("a", 90, 20, (20, make_segment("b", 30, 30)), durable=49), None),
        (make_segment("a", 90, 20, (20, make_segment("b", 30, 29))), None),
        (make_segment("a", 90, 19, (20, make_segment("b", 30, 30))), None),
        (make_segment("a", 90, 20, (20, make_segment("b", 30))), None),
        (nested(own_tiered=20, inner_tiered=30), ("source", "inner")),
        (nested(own_tiered=20, inner_tiered=29), None),
        (nested(own_tiered=19, inner_tiered=30), None),
    ],
)
def test_merge_is_moved_once_tier_2_has_its_source(segment: Segment, moved: tuple[str, str] | None):
    due = due_move(segment, OBJECT_BYTES)
    assert (due and (due.target.name, due.merge.source.name)) == moved


@pytest.mark.parametrize(
    ("offset", "length", "places"),
    [
        (5, 100, [("target", 5, 100)]),
        (10, 5, [("source", 0, 5), ("target", 10, 5)]),
        (10, 100, [("source", 0, 50), ("target", 10, 50)]),
        (29, 100, [("source", 19, 31), ("target", 29, 31)]),
        (30, 100, [("inner", 0, 30), ("source", 20, 30), ("target", 30, 30)]),
        (59, 100, [("inner", 29, 1), ("source", 49, 1), ("target", 59, 1)]),
        (60, 7, [("target", 60, 7)]),
    ],
)
def test_merged_bytes_are_sought_under_each_name(offset: int, length: int, places: list[tuple[str, int, int]]):
    found = places_of(nested(0, 0), offset, length)
    assert [(place.name, at, count) for place, at, count in found] == places


def test_large_event_has_no_boundary_inside():
    """Also when it came with a transaction, which is no large event itself."""
    event = make_segment(transient_segment_name("scope/stream/0.#epoch.0", 5, 1), 30)
    transaction = make_segment("transaction", 50, 0, (15, event))
    target = make_segment("target", 200, 0, (100, transaction))
    ends = {offset: end_of_large_event(target.merges, offset) for offset in range(200)}
    assert {offset for offset, end in ends.items() if end is not None} == set(range(116, 145))
    assert {end for end in ends.values() if end is not None} == {145}


def test_log_keeps_the_oldest_entry_of_nested_merges():
    inner = PendingMerge(20, 30, make_segment("inner", 30), ordering=1, ledger_entry=7)
    source = make_segment("source", 50)
    source.add_merge(inner)
    merge = PendingMerge(10, 50, source, ordering=2, ledger_entry=9)
    assert (inner.oldest_entry(), merge.oldest_entry()) == (7, 7)
    assert [each.name for each in merge.sources()] == ["source", "inner"]
    assert merge.merged_range() == MergedRange(
        10, 50, DirectoryPlace("source", 0), 2, (MergedRange(20, 30, DirectoryPlace("inner", 0), 1),)
    )
    late = PendingMerge(0, 50, source, ordering=3, ledger_entry=3)
    assert late.oldest_entry() == 3


@pytest.mark.parametrize(
    ("own_tiered", "inner_tiered", "in_memory", "complete"),
    [(0, 0, True, False), (20, 0, False, False), (0, 1, False, False), (20, 29, False, False), (20, 30, False, True)],
)
def test_merge_is_complete_with_all_of_its_sources(own_tiered, inner_tiered, in_memory, complete):
    merge = nested(own_tiered, inner_tiered).merges[0]
    assert (merge.is_in_memory, merge.is_complete) == (in_memory, complete)
