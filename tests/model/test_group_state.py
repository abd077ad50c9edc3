"""The shared state of a reader group: single updates, and even sharing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from group_states import CONFIGURATION, after, group, segment
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.group_balance import (
    CLOCK_LAG_MS_MIN,
    comparable_lag_ms,
    loads,
    readers_before,
    slowest_lag_s,
    tells_clock,
    to_acquire,
    to_release,
)
from headrace.model.group_state import (
    LAG_MS_MIN,
    LAG_MS_UNKNOWN,
    GroupState,
    initial_state,
    restored_state,
    silent_checkpoint_name,
)
from headrace.model.group_updates import (
    AcquireSegment,
    AddReader,
    BeginCheckpoint,
    ClearCheckpointsBefore,
    CompleteSegment,
    NoteProgress,
    NotePublished,
    NoteUpdating,
    ReachCheckpoint,
    ReleaseSegment,
    RemoveOutstandingCheckpoints,
    RemoveReader,
    ReplaceState,
)
from headrace.model.names import StreamSegmentName
from headrace.model.segments import KeyRange
from headrace.model.stream_cuts import END_OF_SEGMENT


def settled(state: GroupState) -> tuple[GroupState, Counter[StreamSegmentName]]:
    """The state after all readers have given up and taken what they decide to, and how often each segment was taken."""
    moves: Counter[StreamSegmentName] = Counter()
    for _ in range(10 * state.segment_count + 10):
        before = state
        for reader in state.readers:
            state = after(state, *(ReleaseSegment(reader, name, 0) for name in to_release(state, reader, {})))
        for reader in sorted(state.readers, key=lambda reader: len(readers_before(state, reader))):
            taken = () if readers_before(state, reader) else to_acquire(state, reader)
            moves.update(taken)
            state = after(state, *(AcquireSegment(reader, name) for name in taken))
        if state == before:
            return state, moves
    raise AssertionError("the readers do not come to rest")


def counts(state: GroupState) -> list[int]:
    return sorted(len(owned) for owned in state.assigned.values())


# Sharing


@pytest.mark.parametrize(
    ("segments", "readers", "expected"),
    [(1, 1, [1]), (1, 2, [0, 1]), (4, 3, [1, 1, 2]), (5, 2, [2, 3]), (7, 3, [2, 2, 3]), (10, 4, [2, 2, 3, 3])],
)
def test_segments_are_shared_evenly(segments: int, readers: int, expected: list[int]) -> None:
    state, _ = settled(group(segments, *(f"r{number}" for number in range(readers))))
    assert counts(state) == expected
    assert not state.unassigned


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 3))
def test_added_readers_move_no_more_than_their_share(segments: int, readers: int, added: int) -> None:
    state, _ = settled(group(segments, *(f"r{number}" for number in range(readers))))
    for number in range(added):
        name = f"x{number}"
        state, moves = settled(after(state, AddReader(name)))
        share = -(-segments // len(state.assigned))
        assert moves.total() <= share
        assert max(counts(state)) - min(counts(state)) <= 1


@given(st.integers(1, 40), st.integers(2, 6))
def test_a_reader_that_leaves_moves_its_segments_only(segments: int, readers: int) -> None:
    state, _ = settled(group(segments, *(f"r{number}" for number in range(readers))))
    left = set(state.assigned["r0"])
    state, moves = settled(after(state, RemoveReader("r0")))
    assert left <= set(moves)
    assert moves.total() <= len(left) + readers
    assert max(counts(state)) - min(counts(state)) <= 1
    assert not state.unassigned


def test_a_reader_far_behind_gives_up_its_fastest_segment() -> None:
    state = group(4, "slow", "fast")
    state = after(
        state, *(AcquireSegment("slow", segment(number)) for number in (0, 1, 2)), AcquireSegment("fast", segment(3))
    )
    state = after(state, NoteProgress("slow", 600_000), NoteProgress("fast", 0))
    assert loads(state) == {"slow": 3.0, "fast": LAG_MS_MIN / 600_000}
    lags_ms = {segment(0): 900_000, segment(1): 10, segment(2): 500_000}
    assert to_release(state, "slow", lags_ms, by_lag=True) == (segment(1),)
    assert to_release(state, "fast", {}, by_lag=True) == ()
    assert readers_before(state, "fast") == ()
    assert readers_before(state, "slow") == ("fast",)


def test_lags_that_are_clocks_count_nothing() -> None:
    """The Java client tells the time of its clock; with it in the group, segments are counted only."""
    state = after(group(3, "java", "ours"), AcquireSegment("java", segment(0)), AcquireSegment("ours", segment(1)))
    state = after(state, NoteProgress("java", CLOCK_LAG_MS_MIN + 5), NoteProgress("ours", 40_000))
    assert loads(state) == {"java": 1.0, "ours": 1.0}
    assert comparable_lag_ms(state, "ours", 40_000, 1_800_000_000_000) == 1_800_000_000_000
    assert comparable_lag_ms(state, "java", 40_000, 1_800_000_000_000) == 40_000
    assert not tells_clock(40_000)
    third = after(state, AddReader("third"), AcquireSegment("third", segment(2)), NoteProgress("third", 50_000))
    assert comparable_lag_ms(third, "ours", 40_000, 1_800_000_000_000) == 1_800_000_000_000, "one clock is enough"
    assert loads(after(third, NoteProgress("java", CLOCK_LAG_MS_MIN))) == dict.fromkeys(third.assigned, 1.0)
    lags = (CLOCK_LAG_MS_MIN - 1, CLOCK_LAG_MS_MIN, LAG_MS_UNKNOWN - 1, LAG_MS_UNKNOWN)
    assert [tells_clock(lag_ms) for lag_ms in lags] == [False, True, True, False]


def test_pending_checkpoint_holds_segments() -> None:
    state = after(group(4, "r1"), *(AcquireSegment("r1", segment(number)) for number in (0, 1, 2)))
    state = after(state, AddReader("r2"), BeginCheckpoint("c"))
    assert to_acquire(state, "r2") == ()
    assert to_release(state, "r1", {}) == ()
    state = after(state, ReachCheckpoint("c", "r2", {}))
    assert to_acquire(state, "r2") == (segment(3),)
    assert to_release(state, "r1", {}) == ()


def test_offline_readers_decide_nothing() -> None:
    for decide in (readers_before, to_acquire):
        with pytest.raises(IllegalStateError) as offline:
            decide(group(1, "r1"), "r2")
        assert offline.value.specific_code == "reader_offline"


# Updates


def test_a_checkpoint_holds_one_reader_and_no_other() -> None:
    state = after(group(2, "a", "b"), BeginCheckpoint("c"), ReachCheckpoint("c", "a", {}))
    assert state.may_move("a")
    assert not state.may_move("b")
    assert not state.may_move("gone")


def test_applications_begin_no_checkpoint_twice_and_not_too_many() -> None:
    checkpoints = after(group(1, "a"), BeginCheckpoint("c")).checkpoints
    checkpoints.check_may_begin("d", 2)
    with pytest.raises(InvalidRequestError, match="another name"):
        checkpoints.check_may_begin("c", 2)
    with pytest.raises(IllegalStateError, match="in progress") as refused:
        checkpoints.check_may_begin("d", 1)
    assert refused.value.specific_code == "too_many_checkpoints"


def test_checkpoint_is_complete_when_its_last_reader_reached_it() -> None:
    found = initial_state(CONFIGURATION, {}, {}).checkpoints
    assert not found.is_ongoing
    found = found.begun("c", ("a", "b"), {segment(0): 1})
    assert found.begun("c", ("x",), {}) == found, "a name that exists"
    found = found.reached("c", "a", {segment(1): 2})
    assert (found.is_ongoing, found.outstanding, found.complete_positions("c")) == (True, ("c",), None)
    assert (found.last, found.next_of("a"), found.next_of("b")) == (None, None, "c")
    with pytest.raises(IllegalStateError, match="does not wait"):
        found.reached("c", "a", {})
    found = found.reached("c", "b", {segment(2): 3})
    whole = {segment(0): 1, segment(1): 2, segment(2): 3}
    assert (found.is_ongoing, found.outstanding, found.complete_positions("c")) == (False, (), whole)
    assert (found.last, found.last_published) == (whole, False)
    assert found.reached("c", "a", {segment(0): 9}) == found
    assert found.begun("d", (), {segment(0): 8}).last == {segment(0): 8}, "complete at once without a reader"


def test_silent_checkpoint_is_no_place_to_begin_from() -> None:
    silent = silent_checkpoint_name("x")
    found = initial_state(CONFIGURATION, {}, {}).checkpoints.begun(silent, ("a",), {})
    assert (found.is_ongoing, found.outstanding) == (True, ())
    found = found.reached(silent, "a", {segment(0): 1})
    assert (found.last, found.last_published, found.complete_positions(silent)) == (None, True, {segment(0): 1})


def test_checkpoints_get_the_positions_of_a_leaving_reader() -> None:
    found = initial_state(CONFIGURATION, {}, {}).checkpoints
    for name, readers in (("c", ("a",)), ("d", ("a", "b")), ("e", ("b",)), ("f", ("a",))):
        found = found.begun(name, readers, {})
    found = found.without_reader("a", {segment(0): 7})
    assert found.outstanding == ("d", "e")
    assert [found.complete_positions(name) for name in "cf"] == [{segment(0): 7}] * 2
    assert [found.positions[name] for name in "de"] == [{segment(0): 7}, {}]
    assert found.last == {segment(0): 7}


def test_checkpoints_that_are_dropped_leave_nothing() -> None:
    found = initial_state(CONFIGURATION, {}, {}).checkpoints
    silent = silent_checkpoint_name("x")
    for name, readers in (("c", ("a",)), (silent, ("a",)), ("d", ()), ("e", ("a",))):
        found = found.begun(name, readers, {segment(0): 7})
    left = found.without_outstanding()
    assert (left.names, set(left.positions), set(left.waiting_for)) == ((silent, "d"), {silent, "d"}, {silent})
    left = found.cleared_before("d")
    assert (left.names, set(left.positions), set(left.waiting_for)) == (("d", "e"), {"d", "e"}, {"e"})
    assert found.cleared_before("x") == found
    left.check_may_begin("c", 2)


def test_state_knows_who_reads_what() -> None:
    starts = {segment(number): 10 * number for number in range(4)}
    ranges = {segment(0): KeyRange(0.0, 0.5)}
    state = initial_state(CONFIGURATION, starts, {}, ranges, is_updating=True)
    assert (state.ranges, state.is_updating, state.positions) == (ranges, True, starts)
    state = after(state, AddReader("a"), NoteProgress("b", 90_000, lease_ms=5), AddReader("b"))
    assert state.lags_ms == {"a": LAG_MS_UNKNOWN, "b": 90_000}
    assert state.leases_ms == {}, "a reader that is not online promises nothing"
    with pytest.raises(IllegalStateError) as refused:
        after(state, AddReader("a"))
    assert refused.value.specific_code == "reader_online"
    state = after(state, AcquireSegment("a", segment(0)), AcquireSegment("b", segment(1)))
    assert state.positions == starts
    assert [state.owner(segment(number)) for number in range(3)] == ["a", "b", None]
    state = after(state, NoteProgress("a", 0, positions={segment(0): 5, segment(9): 7}))
    assert state.last_read == {**starts, segment(0): 5}, "of no other segment"


def test_group_has_ended_when_nothing_is_left_to_read() -> None:
    ended = group(0, "a")
    assert ended.has_ended
    assert not replace(ended, future={segment(5): frozenset({1})}).has_ended
    assert not replace(ended, unassigned={segment(5): 0}).has_ended
    assert not replace(ended, assigned={"a": {segment(5): 0}}).has_ended


def test_successor_waits_for_predecessors_of_its_stream_only() -> None:
    """Segment ids are unique within a stream."""
    starts = {segment(0): 0, segment(1): 0, segment(0, "u"): 0}
    ranges = {segment(0): KeyRange(0.0, 0.5), segment(0, "u"): KeyRange(0.0, 1.0)}
    state = after(initial_state(CONFIGURATION, starts, {}, ranges), AddReader("a"))
    state = after(state, *(AcquireSegment("a", each) for each in starts))
    following = {segment(5): KeyRange(0.0, 1.0)}
    state = after(state, CompleteSegment("a", segment(0, "u"), {segment(7, "u"): (0,), segment(8, "u"): (0, 1)}))
    state = after(state, CompleteSegment("a", segment(0), {segment(5): (0, 1)}, following))
    assert state.future == {segment(8, "u"): frozenset({1}), segment(5): frozenset({1})}
    assert (state.unassigned, state.ranges) == ({segment(7, "u"): 0}, following)
    state = after(state, CompleteSegment("a", segment(1), {}))
    assert state.future == {segment(8, "u"): frozenset({1})}
    assert (state.unassigned, state.ranges) == ({segment(7, "u"): 0, segment(5): 0}, following)


def test_readers_without_a_lease_do_not_vanish() -> None:
    state = after(group(1, "a", "b", "c"), *(NoteProgress(reader, 0, lease_ms=1_000) for reader in "ab"))
    assert state.vanished({"a": 1.5, "b": 0.5, "c": 99.0, "gone": 99.0}) == ("a",)
    assert state.vanished({}) == ()
    assert state.vanished({"a": 1.0, "b": 0.9995}) == ()
    assert state.vanished({"a": 1.0005}) == ("a",)


def test_the_slowest_reader_tells_the_lag_of_a_group() -> None:
    state = after(group(2, "a", "b"), AcquireSegment("a", segment(0)), AcquireSegment("b", segment(1)))
    assert slowest_lag_s(state) is None
    state = after(state, NoteProgress("a", 5))
    assert slowest_lag_s(state) == 0.0, "a lag below the smallest one that counts"
    assert slowest_lag_s(after(state, NoteProgress("b", 90_000))) == 90.0
    assert slowest_lag_s(after(state, NoteProgress("b", LAG_MS_MIN + 1))) == (LAG_MS_MIN + 1) / 1000
    assert slowest_lag_s(after(state, AddReader("c"), NoteProgress("c", 90_000))) == 0.0, "it reads nothing"
    assert slowest_lag_s(after(state, NoteProgress("b", CLOCK_LAG_MS_MIN))) == 0.0, "a clock is no lag"


def test_updates_that_are_not_allowed() -> None:
    state = group(2, "r1", "r2")
    state = after(state, AcquireSegment("r1", segment(0)))
    for update in (
        AddReader("r1"),
        AcquireSegment("r2", segment(0)),
        AcquireSegment("r3", segment(1)),
        ReleaseSegment("r2", segment(0), 5),
        ReleaseSegment("r1", segment(1), 5),
        CompleteSegment("r2", segment(0), {}),
        CompleteSegment("r3", segment(0), {}),
    ):
        with pytest.raises(IllegalStateError):
            update.applied_to(state)
    after(state, BeginCheckpoint("c"), ReachCheckpoint("c", "r1", {}))
    with pytest.raises(IllegalStateError):
        after(state, BeginCheckpoint("c"), ReachCheckpoint("c", "r1", {}), ReachCheckpoint("c", "r1", {}))


def test_released_segment_continues_where_it_was_given_up() -> None:
    state = after(group(1, "r1", "r2"), AcquireSegment("r1", segment(0)), ReleaseSegment("r1", segment(0), 300))
    assert state.unassigned == state.last_read == {segment(0): 300}
    assert after(state, AcquireSegment("r2", segment(0))).assigned["r2"] == {segment(0): 300}


def test_failed_reader_goes_back_to_its_last_checkpoint() -> None:
    state = after(group(2, "r1"), AcquireSegment("r1", segment(0)), AcquireSegment("r1", segment(1)))
    state = after(state, BeginCheckpoint("c"), ReachCheckpoint("c", "r1", {segment(0): 100}))
    state = after(state, NoteProgress("r1", 5, {segment(0): 170}, lease_ms=9_000))
    assert state.leases_ms == {"r1": 9_000}
    assert after(state, RemoveReader("r1")).unassigned == {segment(0): 100, segment(1): 0}
    known = after(state, RemoveReader("r1", {segment(1): 40}))
    assert known.unassigned == {segment(0): 100, segment(1): 40}
    assert not known.assigned
    assert not known.leases_ms
    assert not known.lags_ms


def test_latest_positions_are_own_told_and_waiting_ones() -> None:
    state = after(group(3, "r1", "r2"), AcquireSegment("r1", segment(0)), AcquireSegment("r2", segment(1)))
    state = after(state, NoteProgress("r2", 5, {segment(1): 170}))
    own = {segment(0): 50, segment(7): 9}  # the latter was lost to another reader, or in a reset
    assert state.latest_positions("r1", own) == {segment(0): 50, segment(1): 170, segment(2): 0}
    failed = after(state, RemoveReader("r2"))
    assert failed.latest_positions("r1", own) == {segment(0): 50, segment(1): 0, segment(2): 0}


def test_silent_checkpoint_moves_no_failed_reader() -> None:
    silent = silent_checkpoint_name("x")
    state = after(group(1, "r1"), AcquireSegment("r1", segment(0)), BeginCheckpoint(silent))
    state = after(state, ReachCheckpoint(silent, "r1", {segment(0): 100}))
    assert state.checkpoints.complete_positions(silent) == {segment(0): 100}
    assert state.checkpoints.last is None
    assert after(state, RemoveReader("r1")).unassigned == {segment(0): 0}


def test_successor_waits_for_all_its_predecessors() -> None:
    merged = segment(1 << 32 | 2)
    state = after(group(2, "r1", "r2"), AcquireSegment("r1", segment(0)), AcquireSegment("r2", segment(1)))
    state = after(state, CompleteSegment("r1", segment(0), {merged: (0, 1)}))
    assert state.future == {merged: frozenset({1})}
    assert not state.unassigned
    assert not state.has_ended
    state = after(state, CompleteSegment("r2", segment(1), {merged: (0, 1)}))
    assert state.unassigned == state.last_read == {merged: 0}
    assert not state.future
    state = after(state, AcquireSegment("r1", merged), CompleteSegment("r1", merged, {}))
    assert state.has_ended


def test_segments_of_another_stream_have_the_same_ids() -> None:
    merged = segment(1 << 32 | 2)
    starts = {segment(0): 0, segment(1): 0, segment(1, "other"): 0}
    state = after(
        initial_state(CONFIGURATION, starts, {}), AddReader("r1"), *(AcquireSegment("r1", name) for name in starts)
    )
    state = after(state, CompleteSegment("r1", segment(0), {merged: (0, 1)}))
    state = after(state, CompleteSegment("r1", segment(1, "other"), {}))
    assert state.future == {merged: frozenset({1})}


def test_complete_checkpoint_has_every_segment_once() -> None:
    state = after(group(3, "r1", "r2"), AcquireSegment("r1", segment(0)), AcquireSegment("r2", segment(1)))
    state = after(state, BeginCheckpoint("c"), ReachCheckpoint("c", "r1", {segment(0): 10}))
    assert state.checkpoints.next_of("r1") is None
    assert state.checkpoints.next_of("r2") == "c"
    assert state.checkpoints.complete_positions("c") is None
    state = after(state, RemoveReader("r2", {segment(1): 20}))
    assert state.checkpoints.last == {segment(0): 10, segment(1): 20, segment(2): 0}
    assert not state.checkpoints.last_published
    assert after(state, NotePublished(True)).checkpoints.last_published


def test_checkpoints_that_are_forgotten() -> None:
    state = after(group(1, "r1"), BeginCheckpoint("a"), ReachCheckpoint("a", "r1", {}), BeginCheckpoint("b"))
    state = after(state, BeginCheckpoint("b"), BeginCheckpoint("c"))
    assert state.checkpoints.names == ("a", "b", "c")
    assert state.checkpoints.outstanding == ("b", "c")
    assert after(state, ClearCheckpointsBefore("b")).checkpoints.names == ("b", "c")
    assert after(state, ClearCheckpointsBefore("unknown")) == state
    assert after(state, RemoveOutstandingCheckpoints()).checkpoints.names == ("a",)
    late = after(state, ClearCheckpointsBefore("c"), ReachCheckpoint("b", "r1", {segment(0): 5}))
    assert late.checkpoints.names == ("c",)


def test_checkpoint_of_a_group_without_readers_is_complete() -> None:
    state = after(group(1), BeginCheckpoint("c"))
    assert state.checkpoints.complete_positions("c") == {segment(0): 0}


def test_new_configuration_begins_again() -> None:
    state = after(group(2, "r1"), AcquireSegment("r1", segment(0)), NoteUpdating(True))
    assert state.is_updating
    fresh = initial_state(replace(CONFIGURATION, generation=1), {segment(7): 5}, {})
    assert after(state, ReplaceState(fresh)) == fresh


def _all_positions(state: GroupState) -> Iterator[tuple[StreamSegmentName, int]]:
    checkpoints = state.checkpoints
    for positions in (state.unassigned, state.ends, state.last_read, *checkpoints.positions.values()):
        yield from positions.items()
    yield from (checkpoints.last or {}).items()
    for cuts in (state.configuration.starts, state.configuration.ends):
        for offsets in cuts.values():
            yield from ((segment(identifier), offset) for identifier, offset in (offsets or {}).items())


@given(st.lists(st.integers(0, 20), min_size=3, max_size=3), st.lists(st.integers(0, 20), min_size=3, max_size=3))
def test_restored_state_is_inside_its_streams(read: list[int], limits: list[int]):
    """No event that is left and that the group had not read is skipped."""
    cut = dict(enumerate(read))
    configuration = replace(CONFIGURATION, starts={"s/t": cut}, ends={"s/t": {0: 21, 1: -1, 2: 0}})
    positions = {segment(number): offset for number, offset in cut.items()}
    ends = {segment(0): 21, segment(1): END_OF_SEGMENT}
    state = after(
        initial_state(configuration, positions, ends),
        BeginCheckpoint("complete"),
        AddReader("dead"),
        AcquireSegment("dead", segment(1)),
        NoteProgress("dead", 70_000, lease_ms=9_000),
        BeginCheckpoint("waiting"),
    )
    there = {segment(number): limit for number, limit in enumerate(limits)}
    found = restored_state(state, there, state.configuration.generation)
    assert found.readers == ()
    assert (found.lags_ms, found.leases_ms) == ({}, {})
    assert found.checkpoints.names == ("complete",)
    assert not found.checkpoints.is_ongoing
    assert all(offset <= there[each] for each, offset in _all_positions(found))
    assert found.unassigned == {each: min(offset, there[each]) for each, offset in positions.items()}
    assert restored_state(found, there, state.configuration.generation) == found


def test_restored_state_keeps_segments_that_are_gone():
    """They are before the head of their stream: the reader says that their events were truncated."""
    state = group(2)
    assert restored_state(state, {}, state.configuration.generation) == state
