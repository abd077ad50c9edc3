"""The tick of watermarks: what lies in the mark segment, who is waited for, and what happens when something dies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from interruptions import (
    Work,
    after_each_crash,
    after_each_sleep,
    assert_crashes_lose_and_double_nothing,
    undisturbed,
)
from stream_world import Crash, StreamWorld
from watermark_world import WatermarkWorld

from headrace.codec.events import frame_event
from headrace.codec.records.bucket_lease_record import BUCKET_LEASES_PARTITION
from headrace.codec.watermark_event import watermark_payload
from headrace.metadata import keys
from headrace.model.errors import InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.key_ranges import covers_key_space_once
from headrace.model.names import mark_segment_name
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.transactions import WriterTime
from headrace.model.watermarks import is_at_or_behind
from headrace.ports.metadata_store import Delete
from headrace.ports.segment_stores import SegmentScaleRate
from headrace.workflows import advance_watermarks

SILENT_MS = 600_000
"""Far longer than a crash of a tick delays its bucket."""

MARK_SEGMENT = mark_segment_name("s", "t")
S2, S3 = 1 << 32 | 2, 1 << 32 | 3


@pytest.fixture
def marks(world: Any) -> WatermarkWorld:
    """A stream of two segments whose writers may be silent for a while."""
    world.create(timestamp_aggregation_timeout_ms=SILENT_MS)
    return WatermarkWorld(world)


def _fresh() -> WatermarkWorld:
    world = StreamWorld()
    world.create(timestamp_aggregation_timeout_ms=SILENT_MS)
    return WatermarkWorld(world)


def test_a_watermark_is_what_all_writers_agree_on(marks: WatermarkWorld):
    marks.note("a", 100, {0: 10, 1: 20})
    marks.note("b", 90, {0: 15, 1: 5})
    marks.tick()
    assert marks.bounds() == [(90, 100)]
    assert marks.newest_cut() == {0: 15, 1: 20}
    marks.tick()
    assert len(marks.written()) == 1, "nobody has noted anything new"
    marks.note("a", 110, {0: 30, 1: 20})
    marks.tick()
    assert len(marks.written()) == 1, "b is waited for"
    marks.note("b", 95, {0: 16, 1: 6})
    marks.tick()
    assert marks.bounds() == [(90, 100), (95, 110)]
    assert marks.newest_cut() == {0: 30, 1: 20}


def test_the_mark_of_revisions_leads_to_the_newest_watermark(marks: WatermarkWorld):
    for time in (1, 2, 3):
        marks.note("a", time, {0: time})
        marks.tick()
        newest = marks.service.newest_watermark("s", "t")
        assert newest.mark_segment == MARK_SEGMENT
        assert newest.watermark == marks.written()[-1]
        assert marks.revision_mark() == newest.offset
        record = frame_event(watermark_payload(marks.written()[-1]))
        length = marks.world.bare_segment_stores.segment_info(MARK_SEGMENT).length
        assert newest.offset == length - len(record)


def test_no_watermark_yet(marks: WatermarkWorld):
    assert marks.service.newest_watermark("s", "t").watermark is None
    assert MARK_SEGMENT not in marks.world.bare_segment_stores.names()
    with pytest.raises(NotFoundError):
        marks.service.newest_watermark("s", "none")


def test_a_scale_between_notes(marks: WatermarkWorld):
    marks.note("a", 1, {0: 10, 1: 20})
    marks.tick()
    marks.world.scale([0], [0.0, 0.25, 0.5])
    marks.note("a", 2, {S2: 1})
    marks.tick()
    assert marks.newest_cut() == {S2: 1, S3: 0, 1: 20}
    marks.note("b", 3, {0: 99, 1: 21})
    marks.note("a", 3, {S2: 2, S3: 7})
    marks.tick()
    assert marks.newest_cut() == {S2: 2, S3: 7, 1: 21}


def test_a_silent_writer_holds_the_others_up_only_for_so_long(marks: WatermarkWorld):
    marks.note("a", 1, {0: 1})
    marks.note("b", 1, {0: 1})
    marks.tick()
    for time in (2, 3):
        marks.note("a", time, {0: time})
        marks.tick()
    assert marks.bounds() == [(1, 1)]
    marks.tick(after_ms=SILENT_MS)
    assert marks.bounds() == [(1, 1), (3, 3)]
    marks.note("b", 2, {0: 2})
    marks.tick()
    assert marks.bounds() == [(1, 1), (3, 3)], "who comes back late does not take watermarks back"


def test_a_writer_that_was_shut_down_holds_nobody_up(marks: WatermarkWorld):
    marks.note("a", 1, {0: 1})
    marks.note("b", 1, {0: 1})
    marks.tick()
    marks.service.remove_writer("s", "t", "b")
    marks.service.remove_writer("s", "t", "b")
    marks.note("a", 2, {0: 2})
    marks.tick()
    assert marks.bounds() == [(1, 1), (2, 2)]
    with pytest.raises(NotFoundError) as unknown:
        marks.service.remove_writer("s", "t", "b")
    assert unknown.value.specific_code == "writer_not_found"


def test_a_stream_without_active_writers_leaves_the_schedule_and_comes_back(marks: WatermarkWorld):
    marks.note("a", 1, {0: 1})
    marks.tick()
    assert marks.is_scheduled()
    marks.tick()
    marks.tick(after_ms=SILENT_MS)
    assert not marks.is_scheduled()
    marks.tick()
    marks.note("a", 2, {0: 2})
    assert marks.is_scheduled()
    marks.tick()
    assert marks.bounds() == [(1, 1), (2, 2)]


def test_what_a_writer_may_not_note(marks: WatermarkWorld):
    marks.note("a", 5, {0: 10})
    for time, offsets, code in (
        (4, {0: 10}, "invalid_time"),
        (6, {0: 9}, "invalid_position"),
        (6, {7: 1}, "invalid_position"),
        (6, {S2: 1}, "invalid_position"),
        (6, {}, "invalid_position"),
        (1 << 63, {0: 10}, "invalid_time"),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            marks.note("a", time, offsets)
        assert refused.value.specific_code == code
    with pytest.raises(NotFoundError):
        marks.note("a", 6, {0: 1}, stream="none")
    marks.note("a", 5, {0: 10})


def test_too_many_writers(marks: WatermarkWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.metadata.writer_mark_records.WRITER_MARKS_PER_STREAM_MAX", 2)
    marks.note("a", 1, {0: 1})
    marks.note("b", 1, {0: 1})
    with pytest.raises(InvalidRequestError) as refused:
        marks.note("c", 1, {0: 1})
    assert refused.value.specific_code == "too_many_writers"
    marks.note("a", 2, {0: 1})


def test_the_first_notes_of_many_writers_are_counted(marks: WatermarkWorld):
    """Another writer's first note comes between what this one reads and writes."""

    def other_first(kind: str) -> None:
        if kind == "transaction":
            marks.world.calls.calm()
            marks.note("b", 1, {0: 1})

    marks.world.calls.before = other_first
    marks.note("a", 1, {0: 1})
    (entry,) = [body for (partition, _), (_, body) in marks.world.everything().items() if partition.startswith("water")]
    assert entry["writers"] == 2


def test_a_commit_counts_as_a_note_and_old_news_as_none(marks: WatermarkWorld):
    note = marks.service._marks.note_commit
    assert note("s", "t", "a", 5, {0: 10, 1: 10})
    assert note("s", "t", "a", 5, {0: 10, 1: 10})
    assert not note("s", "t", "a", 4, {0: 12})
    assert not note("s", "none", "a", 4, {0: 12})
    marks.tick()
    assert marks.bounds() == [(5, 5)]


@pytest.mark.parametrize("scales", [0, 1])
def test_transactions_of_a_writer_with_times_become_watermarks(marks: WatermarkWorld, scales: int):
    """Also one that a scale has overtaken, so that its events lie in an epoch that the commit made for them."""
    world = marks.world
    for time in (5, 6):
        transaction = world.begin()
        world.write_in(transaction, 0.1, b"event")
        for _ in range(scales):
            world.scale([world.tail_ids()[0]], [0.0, 0.5])
        world.transactions.commit_transaction("s", "t", transaction, WriterTime("w", time))
        world.drain_transactions()
        marks.tick()
    assert marks.bounds() == [(5, 5), (6, 6)]
    first, second = marks.written()
    assert is_at_or_behind(second.cut, first.cut)
    assert covers_key_space_once([one.segment.key_range for one in second.cut])


# Life and death of the stream


def test_the_watermarks_go_with_the_stream(marks: WatermarkWorld):
    marks.note("a", 5, {0: 10})
    marks.tick()
    marks.world.seal()
    marks.world.delete()
    assert MARK_SEGMENT not in marks.world.bare_segment_stores.names()
    assert not marks.is_scheduled()
    marks.tick()
    marks.world.create()
    assert marks.service.newest_watermark("s", "t").watermark is None
    first = marks.world.tail_ids()[0]
    marks.note("a", 1, {first: 0})
    marks.tick()
    assert marks.bounds() == [(1, 1)]


def test_nothing_is_noted_on_a_stream_that_is_being_deleted(marks: WatermarkWorld):
    marks.note("a", 5, {0: 10})
    marks.world.seal()
    marks.note("a", 6, {0: 10})
    marks.world.streams.delete_stream("s", "t")
    with pytest.raises(NotFoundError):
        marks.note("a", 7, {0: 10})
    marks.tick()
    assert not marks.is_scheduled()
    assert marks.written() == []


def test_nothing_is_noted_on_a_stream_that_is_being_created(world: Any):
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    with pytest.raises(UnavailableError):
        WatermarkWorld(world).note("a", 1, {0: 1})


def _noted() -> WatermarkWorld:
    marks = _fresh()
    marks.note("a", 5, {0: 10})
    return marks


def _live_on(marks: WatermarkWorld) -> None:
    """A second life of the stream, with a watermark of its own."""
    marks.world.seal()
    marks.world.delete()
    marks.world.create()
    marks.note("a", 1, {marks.world.tail_ids()[0]: 3})


def test_a_tick_that_slept_through_a_life_leaves_the_next_one_alone():
    """It wakes up at any of its calls; whatever it has put into the mark segment is cut off by the next watermark."""
    slept = 0
    for position, marks, _ in after_each_sleep(Work(_noted, WatermarkWorld.tick, _outcome), _live_on):
        slept += 1
        marks.tick_after_a_crash()
        marks.note("a", 2, {marks.world.tail_ids()[0]: 4})
        marks.tick()
        marks.note("a", 3, {marks.world.tail_ids()[0]: 5})
        marks.tick()
        assert marks.bounds()[-1] == (3, 3), f"woken up at call {position}"
        first_number = marks.world.records.find("s", "t").stream.first_segment_number
        assert all(one.segment.number >= first_number for found in marks.written() for one in found.cut)
    assert slept >= 6


def test_what_is_no_watermark_is_cut_off(marks: WatermarkWorld):
    stores = marks.world.bare_segment_stores
    stores.create_segment(MARK_SEGMENT, SegmentScaleRate())
    stores.append(MARK_SEGMENT, b"anything", 0)
    marks.note("a", 1, {0: 1})
    marks.tick()
    marks.note("a", 2, {0: 2})
    marks.tick()
    assert marks.bounds() == [(2, 2)]
    assert marks.revision_mark() == len(b"anything")


def test_a_state_that_was_lost_is_read_from_the_mark_segment(marks: WatermarkWorld):
    for time in (1, 2):
        marks.note("a", time, {0: time})
        marks.tick()
    marks.world.bare_store.write(Delete(keys.watermark_key("s", "t"), None))
    marks.note("a", 3, {0: 3})
    marks.tick()
    marks.tick()
    assert marks.bounds() == [(1, 1), (2, 2), (3, 3)]


# Crashes and competition


def _accept_first(marks: WatermarkWorld) -> None:
    marks.note("a", 1, {0: 1})
    marks.note("b", 2, {1: 5})


def _accept_next(marks: WatermarkWorld) -> None:
    _accept_first(marks)
    marks.tick()
    marks.note("a", 3, {0: 2})
    marks.note("b", 4, {1: 6})


def _accept_leave(marks: WatermarkWorld) -> None:
    for writer in "ab":
        marks.note(writer, 1, {0: 1})
    marks.tick()
    for writer in "ab":
        marks.service.remove_writer("s", "t", writer)


ACCEPT: dict[str, Callable[[WatermarkWorld], None]] = {
    "the first watermark": _accept_first,
    "the next watermark": _accept_next,
    "leaving the schedule": _accept_leave,
}


def _outcome(marks: WatermarkWorld) -> Any:
    """All but leases and since when writers are silent: a tick more than without the crash may have looked."""
    records = {
        key: dict(body) for key, (_, body) in marks.world.everything().items() if key[0] != BUCKET_LEASES_PARTITION
    }
    for body in records.values():
        body.pop("silent_since", None)
    mark = marks.revision_mark() if MARK_SEGMENT in marks.world.bare_segment_stores.names() else None
    return records, marks.written(), mark


def _work(accept: Callable[[WatermarkWorld], None]) -> Work[WatermarkWorld]:
    def accepted() -> WatermarkWorld:
        marks = _fresh()
        accept(marks)
        return marks

    return Work(accepted, WatermarkWorld.tick, _outcome, recover=WatermarkWorld.tick_after_a_crash)


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("kind", ACCEPT)
def test_a_crash_anywhere_loses_and_doubles_nothing(kind: str, done: bool):
    assert assert_crashes_lose_and_double_nothing(_work(ACCEPT[kind]), done=done) >= 5


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
def test_after_a_crash_writers_go_on_and_so_do_watermarks(done: bool):
    crashes = 0
    for _, marks in after_each_crash(_work(_accept_next), done=done):
        crashes += 1
        marks.note("a", 5, {0: 3})
        marks.note("b", 6, {1: 7})
        marks.tick_after_a_crash()
        marks.note("a", 7, {0: 4})
        marks.note("b", 8, {1: 8})
        marks.tick()
        assert marks.bounds() in ([(1, 2), (3, 4), (7, 8)], [(1, 2), (5, 6), (7, 8)], [(1, 2), (3, 4), (5, 6), (7, 8)])
        assert marks.revision_mark() == marks.service.newest_watermark("s", "t").offset
    assert crashes >= 5


@pytest.mark.parametrize("kind", ACCEPT)
def test_two_ticks_at_once_are_as_good_as_one(kind: str):
    """The lease of the first has run out while it slept, at any of its calls, and another does the work."""
    work = _work(ACCEPT[kind])
    wanted = undisturbed(work).outcome[1]
    slept = 0
    for position, marks, _ in after_each_sleep(work, lambda marks: WatermarkWorld(marks.world).tick_after_a_crash()):
        slept += 1
        assert marks.written() == wanted, f"asleep at call {position}"
        marks.tick_after_a_crash()
        assert marks.written() == wanted
    assert slept >= 5


# Fairness


def test_a_stream_that_cannot_be_helped_stops_no_other(marks: WatermarkWorld):
    for stream in ("u", "v", "w"):
        marks.world.create(stream, timestamp_aggregation_timeout_ms=SILENT_MS)
    streams = ("t", "u", "v", "w")
    for stream in streams:
        marks.note("a", 1, {0: 1}, stream=stream)

    def broken(name: str, data: bytes, offset: int, append: Any = marks.world.bare_segment_stores.append) -> int:
        if "_MARKu" in name:
            raise UnavailableError("its segment store is away")
        return append(name, data, offset)

    marks.world.bare_segment_stores.append = broken
    for stream in streams:
        marks.tick(stream)
    assert [stream for stream in streams if marks.written(stream)] == ["t", "v", "w"]
    del marks.world.bare_segment_stores.append
    marks.tick("u")
    assert marks.bounds("u") == [(1, 1)]


def test_every_stream_has_its_turn(marks: WatermarkWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(advance_watermarks, "STREAMS_PER_TICK_MAX", 1)
    monkeypatch.setattr("headrace.topology.BUCKET_COUNT", 1)
    streams = [f"u{number}" for number in range(5)]
    for stream in streams:
        marks.world.create(stream, timestamp_aggregation_timeout_ms=10_000_000)
        marks.note("a", 1, {0: 1}, stream=stream)
    for _ in streams:
        marks.tick()
    assert [len(marks.written(stream)) for stream in streams] == [1] * 5


def test_a_tick_ends_in_time(marks: WatermarkWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.topology.BUCKET_COUNT", 1)
    streams = [f"u{number}" for number in range(3)]
    for stream in streams:
        marks.world.create(stream)
        marks.note("a", 1, {0: 1}, stream=stream)
    marks.world.calls.after = lambda kind: (
        marks.world.clock.advance(advance_watermarks.WORK_MS_MAX) if kind == "segment store append" else None
    )
    marks.tick()
    assert sum(len(marks.written(stream)) for stream in streams) == 1


# Anything in any order


def _machine() -> type[RuleBasedStateMachine]:
    class Watermarks(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.marks = _fresh()
            self.time: dict[str, int] = {}
            self.offset = 0

        @rule(writer=st.sampled_from("abc"), step=st.integers(0, 3), data=st.data())
        def note(self, writer: str, step: int, data: st.DataObject) -> None:
            time = self.time.get(writer, 0) + step
            self.offset += 1
            known = data.draw(st.lists(st.sampled_from(self.marks.world.tail_ids()), min_size=1, unique=True))
            try:
                self.marks.note(writer, time, dict.fromkeys(known, self.offset))
            except InvalidRequestError:
                return
            self.time[writer] = time

        @rule(writer=st.sampled_from("abc"))
        def remove(self, writer: str) -> None:
            try:
                self.marks.service.remove_writer("s", "t", writer)
            except NotFoundError:
                self.time.pop(writer, None)

        @rule(data=st.data())
        def scale(self, data: st.DataObject) -> None:
            segments = self.marks.world.records.find("s", "t").stream.epoch.segments
            one = data.draw(st.sampled_from(segments))
            low, high = one.key_range.low, one.key_range.high
            if high - low > 0.05:
                self.marks.world.scale([one.segment_id], [low, (low + high) / 2, high])

        @rule(wait_ms=st.sampled_from([1, 10_000, SILENT_MS]))
        def tick(self, wait_ms: int) -> None:
            self.marks.tick(after_ms=wait_ms)

        @rule(position=st.integers(0, 12), done=st.booleans())
        def tick_that_dies(self, position: int, done: bool) -> None:
            self.marks.world.calls.crash_at(position, done=done)
            try:
                self.marks.tick_after_a_crash()
            except Crash:
                pass
            finally:
                self.marks.world.calls.calm()

        @invariant()
        def watermarks_are_right(self) -> None:
            found = self.marks.written()
            for one in found:
                assert covers_key_space_once([position.segment.key_range for position in one.cut])
                assert one.lower_time <= one.upper_time
            for before, after in pairwise(found):
                assert before.lower_time < after.lower_time
                assert is_at_or_behind(after.cut, before.cut)

    return Watermarks


def test_anything_in_any_order():
    run_state_machine_as_test(_machine(), settings=settings(max_examples=40, stateful_step_count=25, deadline=None))
