"""A container answers only with what is durable, counts its changes, and tells the storage writer what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from list_ledger import read_all, turn
from made_container import SEGMENT, WRITER, Made

from headrace.codec import data_frames
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    FencedError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    ThrottledError,
    TruncatedError,
    UnavailableError,
)
from headrace.model.names import transient_segment_name
from headrace.model.segment_attributes import EVENT_COUNT, NO_VALUE, TABLE_BATCHES
from headrace.segmentstore.containers import attribute_updates
from headrace.segmentstore.containers.attribute_updates import AttributeUpdate, UpdateKind
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.metadata import NAME_BYTES_MAX
from headrace.segmentstore.containers.segment import Segment

pytestmark = pytest.mark.anyio

OTHER = "scope/stream/1.#epoch.0"
ATTRIBUTE = 7


@pytest.fixture
async def made() -> Made:
    """With one segment."""
    made = Made()
    await made.done(made.container.create(SEGMENT, ()))
    made.container.news.clear()
    return made


SET_IF_TWO = AttributeUpdate(ATTRIBUTE, UpdateKind.REPLACE_IF_EQUALS, 1, 2)


@pytest.mark.parametrize(
    ("request_of", "error", "code"),
    [
        (lambda it: it.existing(OTHER), NotFoundError, "segment_not_found"),
        (lambda it: it.create(SEGMENT, ()), AlreadyExistsError, None),
        (lambda it: it.truncate(SEGMENT, 4), TruncatedError, None),
        (lambda it: it.truncate(SEGMENT, 0), None, None),
        (lambda it: it.update_attributes(SEGMENT, [SET_IF_TWO]), ConflictError, "attribute"),
        (lambda it: it.delete(SEGMENT, lambda _segment: True), ConflictError, "attribute"),
        (lambda it: it.truncate(SEGMENT, 3, lambda _segment: True), ConflictError, "attribute"),
        (lambda it: it.update_attributes(SEGMENT, (), lambda _segment: True), ConflictError, "attribute"),
    ],
    ids=["missing", "there", "beyond", "truncated", "attribute", "kept", "kept bytes", "kept attributes"],
)
async def test_refusal_tells_only_what_is_durable(
    made: Made,
    request_of: Callable[[SegmentContainer], Awaitable[object]],
    error: type[HeadraceError] | None,
    code: str | None,
):
    """What the client learns may follow from an operation that a crash of the store would still undo."""
    made.append()
    refusal = (await made.is_held_until_durable(request_of(made.container))).exception()
    assert type(refusal) is (error or type(None))
    assert code in (None, getattr(refusal, "specific_code", None))


async def test_replay_of_the_log_finds_what_was_accepted(made: Made):
    segment = made.container.metadata.segments[SEGMENT]
    before = made.ledger.next_entry
    made.clock.advance(9000)
    made.append(number=7, count=3)
    made.clock.advance(1000)
    made.append(b"de", writer=WRITER + 1, number=4, count=2)
    accepted, now_ms = segment.accepted, made.clock.now_ms()
    assert (accepted.attributes[WRITER], accepted.attributes[WRITER + 1]) == (7, 4)
    assert (accepted.attributes[EVENT_COUNT], accepted.last_modified_ms) == (5, now_ms)
    await made.acknowledge()
    logged = [data_frames.decode_operation(memoryview(each)) for _, each in read_all(made.ledger.entries)[0]]
    assert made.ledger.next_entry == before + 1
    assert logged[-2:] == [
        data_frames.AppendOperation(segment.number, 0, WRITER, 7, 3, now_ms - 1000, memoryview(b"abc")),
        data_frames.AppendOperation(segment.number, 3, WRITER + 1, 4, 2, now_ms, memoryview(b"de")),
    ]


async def test_name_that_tier_2_cannot_have_is_refused(made: Made):
    before = made.ledger.next_entry
    with pytest.raises(InvalidRequestError):
        await made.done(made.container.create("x" * (NAME_BYTES_MAX + 1), ()))
    assert made.ledger.next_entry == before


async def test_segment_is_truncated_to_the_byte(made: Made):
    made.append()
    accepted = made.container.metadata.segments[SEGMENT].accepted
    for offset in (1, 2, 3):
        await made.done(made.container.truncate(SEGMENT, offset))
        assert accepted.start_offset == offset


async def test_second_seal_is_refused_once_the_first_is_durable(made: Made):
    first = asyncio.ensure_future(made.container.seal(SEGMENT))
    await turn()
    again = asyncio.ensure_future(made.container.seal(SEGMENT))
    for _ in range(5):
        await turn()
    assert not again.done()
    await made.acknowledge()
    assert (first.exception(), type(again.exception())) == (None, SealedError)


async def test_changes_are_counted_but_not_those_of_large_events(made: Made):
    container = made.container
    assert container.changes == 1
    transient = transient_segment_name(SEGMENT, 1, 2)
    made.append()
    for request, changes in [
        (container.create(transient, ()), 1),
        (container.delete(transient), 1),
        (container.update_attributes(SEGMENT, [AttributeUpdate(ATTRIBUTE, UpdateKind.REPLACE, 1)]), 1),
        (container.truncate(SEGMENT, 3), 2),
        (container.truncate(SEGMENT, 3), 2),
        (container.seal(SEGMENT), 3),
        (container.delete(SEGMENT), 4),
    ]:
        await made.done(request)
        assert container.changes == changes


async def test_the_flush_lag_is_that_of_the_oldest_byte(made: Made):
    container = made.container
    await made.done(container.create(OTHER, ()))
    assert container.flush_lag_s == 0
    made.append()
    made.clock.advance(2000)
    old, new = container.metadata.segments[SEGMENT], container.metadata.segments[OTHER]
    made.append(name=OTHER)
    made.clock.advance(1000)
    assert (old.untiered_since_s, new.untiered_since_s) == (0.0, 2.0)
    assert container.flush_lag_s == 3
    old.tiered = old.accepted
    assert container.flush_lag_s == 1, "a flushed segment stays dirty for some passes"


async def test_storage_writer_learns_what_there_is_to_do(made: Made):
    container = made.container
    assert not container.dirty
    made.append(b"")
    assert not container.dirty, "no bytes"
    made.clock.advance(2000)
    made.append(previous=1, number=2)
    segment = container.metadata.segments[SEGMENT]
    assert container.dirty == {segment.number: segment}
    made.clock.advance(2000)
    made.append(previous=2, number=3)
    assert segment.untiered_since_s == 2.0, "its oldest byte"
    assert not container.news.is_set()
    container.dirty.clear()
    for request, dirty in [(container.truncate(SEGMENT, 3), {segment.number}), (container.delete(SEGMENT), set())]:
        await made.done(request)
        assert container.news.is_set()
        container.news.clear()
        assert set(container.dirty) == dirty


async def test_append_has_the_ordering_and_entry_of_its_frame(made: Made):
    segment = made.container.metadata.segments[SEGMENT]
    entry = made.ledger.next_entry
    assert (made.append(), made.append(previous=1, number=2)) == (3, 6)
    await made.acknowledge()
    first = segment.times.newest
    assert (segment.oldest_untiered_entry(), first) == (entry, made.container.log.current_ordering)
    made.append(previous=2, number=3)
    assert segment.times.newest == made.container.log.current_ordering > first


async def test_append_without_bytes_keeps_no_memory(made: Made):
    for number in range(2000):
        made.append(b"", previous=number or NO_VALUE, number=number + 1)
    assert made.container.pool.used_bytes <= 64 << 10


def forgets_others(segment: Segment) -> None:
    """Let a segment have forgotten writers, but not this one."""
    segment.accepted.forgot_writers = True
    segment.accepted.attributes[WRITER] = 1


@pytest.mark.parametrize(
    ("change", "options", "error", "code"),
    [
        (lambda it: setattr(it.accepted, "removed", True), {}, NotFoundError, "segment_not_found"),
        (lambda it: setattr(it.accepted, "sealed", True), {}, SealedError, None),
        (lambda it: setattr(it, "quarantined", True), {}, IllegalStateError, "segment_quarantined"),
        (lambda it: None, {"previous": 1, "number": 2}, ConflictError, "event_number"),
        (lambda it: it.accepted.attributes.update({WRITER: 1}), {}, ConflictError, "event_number"),
        (lambda it: None, {"expected_offset": 1}, ConflictError, "offset"),
        (lambda it: setattr(it.accepted, "forgot_writers", True), {"number": 2}, ConflictError, "writer_forgotten"),
        (forgets_others, {"number": 2}, ConflictError, "event_number"),
        (
            lambda it: setattr(it.accepted, "forgot_writers", True),
            {"previous": 2, "number": 3},
            ConflictError,
            "event_number",
        ),
    ],
    ids=["removed", "sealed", "quarantined", "unknown", "other number", "offset", "forgotten", "known", "numbered"],
)
async def test_refused_append_changes_nothing(
    made: Made, change: Callable[[Any], None], options: dict[str, int], error: type[HeadraceError], code: str | None
):
    segment = made.container.metadata.segments[SEGMENT]
    change(segment)
    attributes = dict(segment.accepted.attributes)
    with pytest.raises(error) as raised:
        made.append(**options)
    assert code in (None, raised.value.specific_code)
    assert (segment.accepted.length, segment.accepted.attributes) == (0, attributes)
    assert not made.container.dirty


@pytest.mark.parametrize(
    "options",
    [
        {"number": 1},
        {"number": 2, "expected_offset": 0},
        {"number": 3, "previous": 2},
        {"number": 1, "count": 0, "writer": TABLE_BATCHES},
    ],
    ids=["new", "offset", "known", "table"],
)
async def test_segment_that_forgot_writers_accepts_new_ones(made: Made, options: dict[str, int]):
    """Also those that name an offset, which finds duplicates, those that it still knows, and updates of a table, which
    have no writer."""
    accepted = made.container.metadata.segments[SEGMENT].accepted
    accepted.forgot_writers = True
    if "previous" in options:
        accepted.attributes[WRITER] = options["previous"]
    assert made.append(**options) == 3


async def test_writer_may_begin_with_any_number(made: Made):
    """It has written its earlier events to the segments before this one."""
    assert made.append(number=5) == 3


async def test_bytes_of_appends_count_for_their_frames(made: Made):
    before = made.ledger.next_entry
    for number in range(1, 5):
        made.append(bytes(30_000), previous=number - 1 or NO_VALUE, number=number)
    await made.acknowledge()
    assert made.ledger.next_entry == before + 2, "two appends fit into an entry"


async def test_forgotten_writer_of_a_sealed_segment_is_not_sent_on(made: Made):
    """After SealedError it would append these events to the successors, although this segment may have them."""
    accepted = made.container.metadata.segments[SEGMENT].accepted
    accepted.forgot_writers = accepted.sealed = True
    with pytest.raises(ConflictError):
        made.append(number=2)
    accepted.removed = True
    with pytest.raises(NotFoundError):
        made.append(number=2)


async def test_full_segment_accepts_the_writers_that_it_has(made: Made, monkeypatch: pytest.MonkeyPatch):
    accepted = made.container.metadata.segments[SEGMENT].accepted
    monkeypatch.setattr(attribute_updates, "ATTRIBUTES_PER_SEGMENT_MAX", len(accepted.attributes))
    with pytest.raises(ThrottledError):
        made.append()
    accepted.attributes[WRITER] = 1
    assert made.append(previous=1, number=2) == 3


async def test_full_log_refuses_every_operation(made: Made):
    made.log_bytes = 1 << 20
    made.container.log_room.look(0.0)
    with pytest.raises(ThrottledError, match="the volume has no room"):
        made.append()
    with pytest.raises(ThrottledError, match="the volume has no room"):
        await made.container.seal(SEGMENT)
    assert not made.container.metadata.segments[SEGMENT].accepted.sealed
    made.log_bytes = 0
    assert made.append() == 3


async def test_container_that_moves_refuses_until_it_stays(made: Made):
    container = made.container
    container.refuse_for_handover()
    container.log.suspend(UnavailableError("the last snapshot was written"))
    for _ in range(2):
        with pytest.raises(FencedError):
            made.append()
        with pytest.raises(FencedError):
            await container.seal(SEGMENT)
    container.resume()
    assert made.append() == 3


async def test_creation_waits_until_tier_2_has_forgotten_the_name(made: Made):
    container = made.container
    await made.done(container.delete(SEGMENT))
    container.news.clear()
    creating = [asyncio.ensure_future(container.create(SEGMENT, ())) for _ in range(2)]
    await made.acknowledge()
    assert container.news.is_set(), "the storage writer frees the name at once"
    assert not any(each.done() for each in creating)
    container.note_deletion_stored(SEGMENT)
    assert not container.metadata.deletions
    await made.acknowledge()
    assert [type(each.exception()) for each in creating] == [type(None), AlreadyExistsError]


async def test_creation_of_a_name_that_is_never_freed_fails(made: Made):
    container = made.container
    await made.done(container.delete(SEGMENT))
    waiting, gone = (asyncio.ensure_future(container.create(SEGMENT, ())) for _ in range(2))
    await made.acknowledge()
    gone.cancel()
    container.removals.refuse(SEGMENT)
    await made.acknowledge()
    assert gone.cancelled()
    assert container.removals.refused == {SEGMENT}
    for creating in (waiting, asyncio.ensure_future(container.create(SEGMENT, ()))):
        with pytest.raises(IllegalStateError):
            await creating


async def test_failed_container_forgets_its_creations(made: Made):
    container = made.container
    await made.done(container.delete(SEGMENT))
    creating = asyncio.ensure_future(container.create(SEGMENT, ()))
    await made.acknowledge()
    failure = UnavailableError("the journal failed")
    container.log.fail(failure)
    container.removals.refuse(SEGMENT)
    with pytest.raises(UnavailableError, match="the journal failed"):
        await creating
    assert made.failures == [failure] == [container.failure]


@pytest.mark.parametrize("flushed_first", [True, False])
async def test_removal_waits_for_writes_of_the_chunk_directory(made: Made, *, flushed_first: bool):
    segment, recording = made.container.metadata.segments[SEGMENT], made.container.idle.recording
    writes = [asyncio.get_running_loop().create_future() for _ in range(2)]
    segment.flushing, recording[segment.number] = writes
    deleting = asyncio.ensure_future(made.container.delete(SEGMENT))
    for is_flushed in (flushed_first, not flushed_first):
        await made.acknowledge()
        assert not segment.accepted.removed
        writes[not is_flushed].set_result(None)
        if is_flushed:
            segment.flushing = None
        else:
            del recording[segment.number]
    await made.acknowledge()
    assert (deleting.exception(), segment.accepted.removed) == (None, True)


async def test_note_of_what_is_stored_is_durable_with_its_frame(made: Made):
    container = made.container
    assert container.stored_is_durable
    container.note_stored([(1, 0)])
    assert not container.stored_is_durable
    await made.acknowledge()
    assert container.stored_is_durable
    container.log.append([b"later"], lambda _error: None)
    assert container.stored_is_durable


async def test_look_up_counts_as_a_use_of_the_segment(made: Made):
    segment = made.container.metadata.segments[SEGMENT]
    made.clock.advance(7000)
    assert await made.container.find(SEGMENT) is segment
    assert segment.used_s == 7.0


async def test_only_names_that_may_be_evicted_are_looked_up(made: Made):
    container = made.container
    assert await container.find(OTHER) is None
    assert made.records == []
    container.metadata.has_records = True
    assert await container.find(SEGMENT) is container.metadata.segments[SEGMENT]
    assert made.records == [], "it is in memory"
    assert await container.find(OTHER) is None
    assert made.records == [OTHER]


async def test_name_that_was_removed_during_a_look_up_is_not_free(made: Made):
    container = made.container
    container.metadata.has_records = True
    made.found.clear()
    creating = asyncio.ensure_future(container.create(OTHER, ()))
    await made.acknowledge()
    assert made.records == [OTHER]
    for operation in (data_frames.CreateOperation(9, OTHER, (), 0), data_frames.DeleteOperation(9, 0)):
        await made.done(container.apply(operation))
    made.found.set()
    await made.acknowledge()
    assert (creating.done(), container.metadata.deleted_numbers) == (False, {OTHER: 9})
    container.note_deletion_stored(OTHER)
    await made.acknowledge()
    assert creating.exception() is None
