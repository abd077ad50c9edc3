"""Merges of segments: what is refused, what is merged, and which writes of tier 2 a merge waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from list_ledger import turn
from made_container import SEGMENT, Made

from headrace.model.errors import ConflictError, HeadraceError, IllegalStateError, NotFoundError, SealedError
from headrace.model.segment_attributes import EVENT_COUNT
from headrace.segmentstore.containers.attribute_updates import AttributeUpdate, UpdateKind
from headrace.segmentstore.containers.merges import merge, merge_batch
from headrace.segmentstore.containers.segment import Segment

pytestmark = pytest.mark.anyio

ATTRIBUTE = 7
FIRST, SECOND, MISSING = (SEGMENT + "#transaction." + "0" * 31 + digit for digit in "123")
LENGTHS = {SEGMENT: 3, FIRST: 4, SECOND: 5}


@pytest.fixture
async def made() -> Made:
    """With a segment of 3 bytes, and two transactions of 4 and 5 bytes."""
    made = Made()
    for name, length in LENGTHS.items():
        await made.done(made.container.create(name, ()))
        made.append(bytes(length), name=name, count=length)
    await made.acknowledge()
    made.container.news.clear()
    return made


def segments_of(made: Made) -> list[Segment]:
    return [made.container.metadata.segments[name] for name in LENGTHS]


def lacks_bytes(_target: Segment, source: Segment) -> None:
    source.accepted.may_lack_bytes = True


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize(
    ("change", "error", "code", "details"),
    [
        (lambda target, _: setattr(target.accepted, "sealed", True), SealedError, None, SEGMENT),
        (lambda target, _: setattr(target, "quarantined", True), IllegalStateError, "segment_quarantined", SEGMENT),
        (lambda _, source: setattr(source, "quarantined", True), IllegalStateError, "segment_quarantined", FIRST),
        (lambda _, source: setattr(source.accepted, "start_offset", 1), IllegalStateError, None, None),
        (
            lambda _, source: setattr(source.accepted, "may_lack_bytes", True),
            IllegalStateError,
            "source_incomplete",
            FIRST,
        ),
    ],
    ids=["sealed", "quarantined", "quarantined source", "truncated source", "incomplete source"],
)
async def test_refusal_is_durable_and_changes_nothing(
    made: Made,
    change: Callable[[Any, Any], None],
    error: type[HeadraceError],
    code: str | None,
    details: str | None,
    *,
    in_batch: bool,
):
    target, source, _ = segments_of(made)
    change(target, source)
    if in_batch:
        refused = await made.is_held_until_durable(merge_batch(made.container, SEGMENT, [SECOND, FIRST]))
    else:
        refused = await made.is_held_until_durable(merge(made.container, SEGMENT, FIRST))
    refusal = refused.exception()
    assert isinstance(refusal, error)
    assert code in (None, refusal.specific_code)
    assert details in (None, refusal.details.get("segment"))
    assert [each.accepted.length for each in segments_of(made)] == [3, 4, 5]


async def test_segment_is_not_merged_into_itself(made: Made):
    refused = await made.is_held_until_durable(merge(made.container, SEGMENT, SEGMENT))
    assert isinstance(refused.exception(), IllegalStateError)
    assert SEGMENT in made.container.metadata.segments


@pytest.mark.parametrize(("target", "source", "missing"), [(SEGMENT, MISSING, MISSING), (MISSING, FIRST, MISSING)])
async def test_missing_segment_is_named(made: Made, target: str, source: str, missing: str):
    refused = await made.is_held_until_durable(merge(made.container, target, source))
    refusal = refused.exception()
    assert isinstance(refusal, NotFoundError)
    assert (refusal.details, refusal.specific_code) == ({"segment": missing}, "segment_not_found")


async def test_merge_sets_attributes_if_their_condition_holds(made: Made):
    def update(expected: int) -> list[AttributeUpdate]:
        return [AttributeUpdate(ATTRIBUTE, UpdateKind.REPLACE_IF_EQUALS, 1, expected)]

    target = segments_of(made)[0]
    target.accepted.attributes[ATTRIBUTE] = 9
    refused = await made.is_held_until_durable(merge(made.container, SEGMENT, FIRST, update(8)))
    assert isinstance(refused.exception(), ConflictError)
    assert (target.accepted.length, target.attribute(ATTRIBUTE)) == (3, 9)
    assert await made.done(merge(made.container, SEGMENT, FIRST, update(9))) == 7
    assert (target.accepted.length, target.attribute(ATTRIBUTE)) == (7, 1)


async def test_merged_segment_is_the_target_s_to_flush(made: Made):
    container, (target, source, other) = made.container, segments_of(made)
    container.dirty.pop(target.number)
    target.untiered_since_s, source.untiered_since_s = None, 1.0
    made.clock.advance(2000)
    changes = container.changes
    merging = asyncio.ensure_future(merge(container, SEGMENT, FIRST))
    await turn()
    assert set(container.dirty) == {target.number, other.number}
    assert (source.accepted.removed, target.untiered_since_s, container.changes) == (True, 1.0, changes + 1)
    assert (merging.done(), container.news.is_set()) == (False, False), "before it is durable"
    await made.acknowledge()
    assert (merging.result(), container.news.is_set(), target.durable.length) == (7, True, 7)
    made.clock.advance(2000)
    assert await made.done(merge(container, SEGMENT, SECOND)) == 12
    assert target.untiered_since_s == 0.0, "its oldest byte"
    assert target.attribute(EVENT_COUNT) == sum(LENGTHS.values())
    assert target.accepted.last_modified_ms == made.clock.now_ms()


@pytest.mark.parametrize(
    ("sources", "lengths"),
    [
        ([FIRST, SECOND], [7, 12]),
        ([SECOND, FIRST], [8, 12]),
        ([MISSING, FIRST, MISSING, SECOND], [3, 7, 7, 12]),
        ([FIRST, FIRST, SECOND, FIRST], [7, 7, 12, 12]),
    ],
)
async def test_batch_merges_each_source_once_and_in_order(made: Made, sources: list[str], lengths: list[int]):
    before = made.ledger.next_entry
    merged = await made.is_held_until_durable(merge_batch(made.container, SEGMENT, sources))
    assert merged.result() == lengths
    assert made.ledger.next_entry == before + 2, "one operation behind the one before"
    target = made.container.metadata.segments[SEGMENT]
    assert set(made.container.metadata.segments) == {SEGMENT}
    assert (target.accepted.length, target.durable.length) == (12, 12)
    first, second = target.merges
    assert [first.source.name, second.source.name] == list(dict.fromkeys(each for each in sources if each != MISSING))
    assert (first.offset, first.end, second.end) == (3, second.offset, 12)


@pytest.mark.parametrize(("sources", "lengths"), [([MISSING], [3]), ([], [])])
async def test_batch_without_sources_logs_nothing(made: Made, sources: list[str], lengths: list[int]):
    before = made.ledger.next_entry
    merged = await made.is_held_until_durable(merge_batch(made.container, SEGMENT, sources))
    assert merged.result() == lengths
    assert made.ledger.next_entry == before + 1, "only the operation before the request"


async def test_merge_waits_for_every_write_under_its_sources(made: Made):
    """Also for one that begins while it waits for another: tier 2 could get bytes of a source after the merge."""
    _, first, second = segments_of(made)
    writes = [asyncio.get_running_loop().create_future() for _ in range(2)]
    second.flushing = writes[0]
    merging = asyncio.ensure_future(merge_batch(made.container, SEGMENT, [FIRST, SECOND]))
    await made.acknowledge()
    first.flushing, second.flushing = writes[1], None
    writes[0].set_result(None)
    await made.acknowledge()
    assert (merging.done(), first.accepted.removed, second.accepted.removed) == (False, False, False)
    first.flushing = None
    writes[1].set_result(None)
    await made.acknowledge()
    assert merging.result() == [7, 12]


async def test_source_that_goes_during_the_wait_is_not_merged(made: Made):
    container, (_, _, second) = made.container, segments_of(made)
    second.flushing = writing = asyncio.get_running_loop().create_future()
    merging = asyncio.ensure_future(merge_batch(container, SEGMENT, [FIRST, SECOND]))
    await made.acknowledge()
    await made.done(container.delete(FIRST))
    second.flushing = None
    writing.set_result(None)
    await made.acknowledge()
    assert merging.result() == [3, 8]


@pytest.mark.parametrize("comes_back", [False, True])
async def test_target_that_goes_during_the_wait_is_looked_up_again(made: Made, *, comes_back: bool):
    container, (target, first, _) = made.container, segments_of(made)
    first.flushing = writing = asyncio.get_running_loop().create_future()
    merging = asyncio.ensure_future(merge(container, SEGMENT, FIRST))
    await made.acknowledge()
    await made.done(container.delete(SEGMENT))
    if comes_back:
        container.note_deletion_stored(SEGMENT)
        await made.done(container.create(SEGMENT, ()))
    first.flushing = None
    writing.set_result(None)
    await made.acknowledge()
    if comes_back:
        assert merging.result() == 4
    else:
        assert isinstance(merging.exception(), NotFoundError)
    assert target.accepted.length == 3
