"""When a segment may be evicted, what its record has, and who goes on when it is activated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from list_ledger import read_all, turn
from made_container import SEGMENT, WRITER, Made

from headrace.codec import data_frames
from headrace.codec.container_snapshots import WritersGone, encode_segment
from headrace.model.errors import FencedError, ThrottledError, UnavailableError
from headrace.model.names import transient_segment_name
from headrace.segmentstore.containers import writer_expiry
from headrace.segmentstore.containers.idle_segments import EvictedSegment
from headrace.segmentstore.containers.segment import RecordedState, Segment

pytestmark = pytest.mark.anyio

CLIENT_KEY = 1 << 70
RECORDED = RecordedState(4, b"digest")


@pytest.fixture
async def made() -> Made:
    """With one segment at rest, which has a writer and an attribute of a client."""
    made = Made()
    await made.done(made.container.create(SEGMENT, ()))
    made.append(b"")
    attributes = data_frames.AttributesOperation(1, ((CLIENT_KEY, 3),), 0)
    await made.done(made.container.apply(attributes))
    return made


def segment_of(made: Made) -> Segment:
    return made.container.metadata.segments[SEGMENT]


def evict(made: Made, *, forget: Callable[[Segment], bool] = lambda _segment: True) -> bool:
    """Evict the segment with the state that it has now."""
    idle, segment = made.container.idle, segment_of(made)
    return idle.evict(segment, encode_segment(idle.state_of(segment)), forget)


def record_of(made: Made, *, number: int = 0) -> EvictedSegment:
    state = made.container.idle.state_of(segment_of(made))
    return EvictedSegment(replace(state, number=number), RECORDED)


def logged(made: Made) -> list[data_frames.Operation]:
    made.container.log.flush()
    return [data_frames.decode_operation(memoryview(each)) for _, each in read_all(made.ledger.entries)[0]]


def make_dirty(made: Made) -> None:
    made.container.dirty[1] = segment_of(made)


def write_record(made: Made) -> None:
    made.container.idle.recording[1] = asyncio.get_running_loop().create_future()


def append_unacknowledged(made: Made) -> None:
    made.append(b"x", previous=1, number=2)
    made.container.dirty.clear()


@pytest.mark.parametrize("use", [make_dirty, write_record, append_unacknowledged])
async def test_segment_in_use_is_not_evicted(made: Made, use: Callable[[Made], None]):
    idle = made.container.idle
    assert idle.may_leave(segment_of(made))
    use(made)
    assert not idle.may_leave(segment_of(made))
    assert not evict(made)
    assert SEGMENT in made.container.metadata.segments


async def test_segment_of_a_large_event_is_not_evicted(made: Made):
    name = transient_segment_name(SEGMENT, 1, 2)
    await made.done(made.container.create(name, ()))
    assert not made.container.idle.may_leave(made.container.metadata.segments[name])


async def test_segment_changed_since_its_record_is_not_evicted(made: Made):
    idle, segment = made.container.idle, segment_of(made)
    state = idle.state_of(segment)
    before = replace(state)
    encoded = encode_segment(state)
    made.append(b"", previous=1, number=2)
    await made.done(made.container.apply(data_frames.AttributesOperation(1, ((CLIENT_KEY + 1, 4),), 0)))
    assert idle.may_leave(segment)
    assert not idle.evict(segment, encoded, lambda _segment: True)
    assert (state, encode_segment(state)) == (before, encoded), "later changes do not affect it"
    assert (state.attributes[WRITER], state.client_attributes) == (1, {CLIENT_KEY})


async def test_segment_that_tables_need_is_not_evicted(made: Made):
    asked: list[Segment] = []
    segment, before = segment_of(made), len(logged(made))

    def needed(each: Segment) -> bool:
        asked.append(each)
        return False

    assert not evict(made, forget=needed)
    assert (asked, len(logged(made)), segment.accepted.removed) == ([segment], before, False)


async def test_eviction_is_logged_and_forgets_the_times_of_writers(made: Made, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer_expiry, "NEVER_EXPIRES_BELOW", 2)
    idle, segment = made.container.idle, segment_of(made)
    state = idle.state_of(segment)
    assert state.writers_gone == WritersGone(made.container.epoch, (0,))
    assert made.container.writers._gone_since
    assert evict(made)
    assert logged(made)[-1] == data_frames.EvictOperation(1)
    assert (segment.accepted.evicted, SEGMENT in made.container.metadata.segments) == (True, False)
    assert not made.container.writers._gone_since


async def test_records_are_announced_once(made: Made):
    before = len(logged(made))
    for _ in range(2):
        made.container.idle.announce_records()
    assert logged(made)[before:] == [data_frames.EvictOperation(data_frames.NO_SEGMENT)]
    assert made.container.metadata.has_records


async def test_activated_segment_has_the_state_of_its_record(made: Made, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer_expiry, "NEVER_EXPIRES_BELOW", 2)
    container, before = made.container, segment_of(made).snapshot()
    made.record = record_of(made)
    assert evict(made)
    container.metadata.next_number = 9
    segment = await container.find(SEGMENT)
    assert segment is container.metadata.segments[SEGMENT]
    assert segment is not None
    assert (segment.snapshot(), segment.recorded) == (replace(before, number=9), RECORDED)
    activation = logged(made)[-1]
    assert isinstance(activation, data_frames.ActivateOperation)
    assert bytes(activation.state) == encode_segment(replace(before, number=9))
    assert container.writers._gone_since == {SEGMENT: {WRITER: 0.0}}
    assert (made.records, container.metadata.next_number) == ([SEGMENT], 10)


async def look_ups(made: Made, count: int) -> list[asyncio.Task[bool]]:
    """Callers that wait for the segment's record."""
    made.found.clear()
    waiting = [asyncio.ensure_future(made.container.idle.activated(SEGMENT)) for _ in range(count)]
    while not made.records:
        await turn()
    return waiting


@pytest.mark.parametrize("is_there", [True, False])
async def test_callers_share_a_look_up(made: Made, *, is_there: bool):
    made.record = record_of(made) if is_there else None
    assert evict(made)
    waiting, idle = await look_ups(made, 3), made.container.idle
    waiting[1].cancel()
    assert idle.is_waited_for(SEGMENT)
    made.found.set()
    await asyncio.wait(waiting)
    assert [each.result() for each in waiting[::2]] == [is_there, is_there]
    assert (made.records, waiting[1].cancelled(), idle.is_waited_for(SEGMENT)) == ([SEGMENT], True, False)
    assert await made.container.find(SEGMENT) is made.container.metadata.segments.get(SEGMENT)
    assert len(made.records) == 2 - is_there


async def test_look_up_whose_callers_have_gone_is_forgotten(made: Made):
    made.record = record_of(made)
    assert evict(made)
    (waiting,) = await look_ups(made, 1)
    waiting.cancel()
    made.found.set()
    while made.container.idle._activations:
        await turn()
    assert not made.container.idle.is_waited_for(SEGMENT)
    assert SEGMENT in made.container.metadata.segments, "it was found nevertheless"


async def test_caller_joins_a_look_up_whose_callers_have_gone(made: Made):
    made.record = record_of(made)
    assert evict(made)
    (waiting,) = await look_ups(made, 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    again = asyncio.ensure_future(made.container.idle.activated(SEGMENT))
    await turn()
    made.found.set()
    assert await again
    assert (made.records, made.container.idle.is_waited_for(SEGMENT)) == ([SEGMENT], False)


async def test_caller_behind_an_ended_look_up_gets_one_of_its_own(made: Made):
    """Those before it have not gone on yet. What they are told may be out of date."""
    idle, record = made.container.idle, record_of(made)
    assert evict(made)
    waiting = await look_ups(made, 2)
    queue = idle._queues[SEGMENT]
    made.found.set()
    while not queue.is_settled:
        await turn()
    assert not queue.is_empty
    made.record = record
    assert await idle.activated(SEGMENT)
    assert [each.result() for each in waiting] == [False, False]
    assert (made.records, idle.is_waited_for(SEGMENT)) == ([SEGMENT, SEGMENT], False)


async def test_failed_look_up_is_each_caller_s_and_not_the_next_one_s(made: Made):
    record = record_of(made)
    made.record = UnavailableError("no answer")
    assert evict(made)
    waiting = await look_ups(made, 2)
    made.found.set()
    await asyncio.wait(waiting)
    assert [each.exception() for each in waiting] == [made.record, made.record]
    assert not made.container.idle.is_waited_for(SEGMENT)
    made.record = record
    assert await made.container.idle.activated(SEGMENT)


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("is_removed", [True, False])
async def test_segment_created_during_a_look_up_needs_no_record(made: Made, *, fails: bool, is_removed: bool):
    """What was found is of the segment before, or of the new one. An error of the look-up is no matter then."""
    found, container = record_of(made), made.container
    assert evict(made)
    made.record = UnavailableError("no answer") if fails else found
    waiting = await look_ups(made, 2)
    for operation in [data_frames.CreateOperation(9, SEGMENT, (), 0), data_frames.DeleteOperation(9, 0)][
        : 1 + is_removed
    ]:
        await made.done(container.apply(operation))
    made.found.set()
    await asyncio.wait(waiting)
    if is_removed and fails:
        assert {type(each.exception()) for each in waiting} == {UnavailableError}
    else:
        assert [each.result() for each in waiting] == [False, False]
    assert list(container.metadata.segments) == ([] if is_removed else [SEGMENT])
    assert is_removed or segment_of(made).number == 9


@pytest.mark.parametrize("refusal", ["log space", "log"])
async def test_activation_that_cannot_be_logged_is_refused(made: Made, refusal: str):
    made.record = record_of(made)
    assert evict(made)
    made.container.log.flush()
    if refusal == "log":
        made.container.log.end(FencedError("another owner"))
    else:
        made.log_bytes = 1 << 20
        made.container.log_room.look(0.0)
    with pytest.raises(FencedError if refusal == "log" else ThrottledError):
        await made.container.find(SEGMENT)
    assert SEGMENT not in made.container.metadata.segments


async def test_caller_that_comes_when_others_go_on_is_behind_them(made: Made):
    """It comes in the turn in which the segment is in memory already, and those who waited have not gone on yet."""
    made.record = record_of(made)
    assert evict(made)
    went_on: list[int] = []

    async def look(number: int) -> None:
        assert await made.container.find(SEGMENT) is segment_of(made)
        went_on.append(number)

    made.found.clear()
    callers = [asyncio.ensure_future(look(number)) for number in range(3)]
    await turn()
    made.found.set()
    while SEGMENT not in made.container.metadata.segments:
        await turn()
    await look(3)
    await asyncio.gather(*callers)
    assert (went_on, made.records) == ([0, 1, 2, 3], [SEGMENT])
