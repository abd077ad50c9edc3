"""What readers see of an operation, and when: only what is durable, and never less than before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.model.errors import UnavailableError
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.segment import AcceptedState, Segment
from headrace.segmentstore.containers.settlements import (
    PendingAppend,
    Settle,
    in_turn,
    of_merge,
    of_removal,
    of_seal,
    of_truncation,
)

BLOCK_BYTES = 64


def segment_with(*appends: bytes) -> Segment:
    """A segment with durable appends in memory; tier 2 has nothing."""
    pool = BlockPool(64 * BLOCK_BYTES, BLOCK_BYTES)
    segment = Segment(1, "a", pool, AcceptedState({}, 0))
    for entry, data in enumerate(appends):
        reservation = pool.reserve(len(data))
        assert reservation is not None
        reservation.fill([memoryview(data)])
        segment.index.add(segment.accepted.length, reservation, entry)
        segment.accepted.length += len(data)
        segment.durable.length += len(data)
    return segment


def visible(segment: Segment) -> tuple[int, int, bool]:
    return segment.durable.start_offset, segment.durable.length, segment.durable.sealed


@pytest.mark.parametrize(
    ("error", "end", "length"), [(None, 7, 7), (None, 6, 6), (None, 5, 6), (UnavailableError("the log failed"), 9, 6)]
)
def test_append_is_readable_once_it_is_durable(error: UnavailableError | None, end: int, length: int):
    segment = segment_with(b"abc", b"def")
    told: list[object] = []
    segment.durable.add_waiter(lambda: told.append(("woken", segment.durable.length)))
    PendingAppend(segment, end, told.append)(error)
    assert visible(segment) == (0, length, False)
    assert told == [error, ("woken", length)], "the writer's acknowledgement is first"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (of_seal, (0, 6, True)),
        (lambda segment: of_truncation(segment, 4), (4, 6, False)),
        (lambda segment: of_merge(segment, segment_with(b"source"), 12), (0, 12, False)),
        (lambda segment: of_merge(segment, segment_with(b"source"), 3), (0, 6, False)),
        (of_removal, (0, 6, False)),
        (lambda segment: in_turn([of_truncation(segment, 2), of_seal(segment)]), (2, 6, True)),
    ],
    ids=["seal", "truncation", "merge", "merge that is known", "removal", "several"],
)
def test_readers_that_wait_see_the_change(make: Callable[[Segment], Settle], expected: tuple[int, int, bool]):
    segment = segment_with(b"abc", b"def")
    seen: list[tuple[int, int, bool]] = []
    segment.durable.add_waiter(lambda: seen.append(visible(segment)))
    settle = make(segment)
    assert visible(segment) == (0, 6, False), "not before it is durable"
    settle()
    assert visible(segment) == expected
    assert len(seen) == 1


def test_merge_wakes_readers_of_its_source_and_frees_its_memory():
    target, source = segment_with(b"abc"), segment_with(b"source")
    woken: list[str] = []
    source.durable.add_waiter(lambda: woken.append("source"))
    of_merge(target, source, 9)()
    assert woken == ["source"]
    assert source.index.first_offset is None


def test_truncation_never_goes_back():
    segment = segment_with(b"abc", b"def")
    of_truncation(segment, 5)()
    of_truncation(segment, 2)()
    assert segment.durable.start_offset == 5


@pytest.mark.parametrize(("tiered", "first_in_memory"), [(0, 0), (3, 3), (6, 3)])
def test_truncated_bytes_stay_until_tier_2_has_them(tiered: int, first_in_memory: int):
    """Without them, runs could overlap after a crash."""
    segment = segment_with(b"abc", b"def")
    segment.advance_tiered(tiered)
    segment.accepted.start_offset = 4
    of_truncation(segment, 4)()
    assert segment.index.first_offset == first_in_memory


def test_waiter_that_left_is_not_called():
    segment = segment_with(b"abc")
    woken: list[int] = []
    callbacks = [lambda number=number: woken.append(number) for number in range(3)]
    for callback in callbacks:
        segment.durable.add_waiter(callback)
    segment.durable.remove_waiter(callbacks[1])
    of_seal(segment)()
    of_seal(segment)()
    segment.durable.remove_waiter(callbacks[0])
    assert woken == [0, 2], "each is called once"
