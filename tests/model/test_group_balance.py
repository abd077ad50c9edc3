"""When readers of a group take and release segments: ours, also together with readers of the Java client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from group_simulation import GroupSimulation, JavaReader, OurReader
from group_states import after, group, segment
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.group_balance import KEPT_S, LAG_BALANCE_S, OVERDUE_S, TURN_S, SegmentTurns, to_acquire, to_release
from headrace.model.group_state import GroupState
from headrace.model.group_updates import (
    AcquireSegment,
    AddReader,
    BeginCheckpoint,
    NoteProgress,
    ReleaseSegment,
    RemoveReader,
)

SECONDS_OF_LOOKS = 4.0
"""In which a reader of the Java client has looked at the state, and its turn has come, in a group of few readers."""


def owning(*counts: int, waiting: int = 0) -> GroupState:
    """A group whose readers r0, r1, ... have so many segments and a lease, and some segments wait."""
    state = group(sum(counts) + waiting, *(f"r{number}" for number in range(len(counts))))
    state = after(state, *(NoteProgress(reader, 0, lease_ms=1000) for reader in state.readers))
    names = iter(range(sum(counts)))
    owned = ((f"r{reader}", segment(next(names))) for reader, count in enumerate(counts) for _ in range(count))
    return after(state, *(AcquireSegment(reader, name) for reader, name in owned))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(1, 6))
def test_no_reader_takes_what_it_would_release(counts: list[int], waiting: int) -> None:
    state = owning(*counts, waiting=waiting)
    shares = {reader: to_acquire(state, reader) for reader in state.readers}
    assert any(shares.values()), "a segment waits for ever"
    for reader, share in shares.items():
        assert not share or not to_release(after(state, *(AcquireSegment(reader, name) for name in share)), reader, {})


@given(st.lists(st.integers(0, 6), min_size=2, max_size=5))
def test_released_segments_have_takers(counts: list[int]) -> None:
    state = owning(*counts)
    for reader in state.readers:
        for by_lag in (False, True):
            released = to_release(state, reader, {}, by_lag=by_lag)
            free = after(state, *(ReleaseSegment(reader, name, 0) for name in released))
            assert not released or any(to_acquire(free, other) for other in state.readers if other != reader)


@pytest.mark.parametrize(
    ("counts", "waiting", "taken"),
    [
        ((0,), 5, (5,)),
        ((0, 0), 3, (2, 2)),
        ((0, 0), 5, (3, 3)),
        ((1, 0), 2, (1, 2)),
        ((3, 0), 1, (0, 1)),
        ((2, 2, 0), 1, (0, 0, 1)),
        ((0, 0, 0), 7, (2, 2, 2)),
        ((0, 0, 0), 8, (3, 3, 3)),
        ((4, 1, 0), 3, (0, 2, 3)),
        ((5, 5, 5), 2, (1, 1, 1)),
        ((0, 0, 0, 0), 2, (1, 1, 1, 1)),
        ((0, 0, 0, 0), 5, (1, 1, 1, 1)),
        ((1, 2, 2, 2), 2, (1, 1, 1, 1)),
    ],
)
def test_each_reader_may_take_its_share(counts: tuple[int, ...], waiting: int, taken: tuple[int, ...]) -> None:
    """The even share, rounded half up; at least one segment, unless others have too little."""
    state = owning(*counts, waiting=waiting)
    assert tuple(len(to_acquire(state, reader)) for reader in state.readers) == taken


@pytest.mark.parametrize(
    ("counts", "waiting", "released", "by_lag"),
    [
        ((3, 0), 0, (1, 0), (1, 0)),
        ((2, 1), 0, (0, 0), (0, 0)),
        ((4, 1), 0, (1, 0), (1, 0)),
        ((5, 1), 0, (2, 0), (1, 0)),
        ((5, 1), 2, (1, 0), (1, 0)),
        ((4, 4, 0), 0, (1, 1, 0), (1, 1, 0)),
        ((6, 2, 1), 0, (3, 0, 0), (1, 0, 0)),
        ((7, 0, 0), 0, (4, 0, 0), (1, 0, 0)),
        ((3, 3, 1), 1, (0, 0, 0), (1, 1, 0)),
        ((2, 0), 0, (1, 0), (1, 0)),
        ((4, 3, 0), 0, (2, 1, 0), (1, 1, 0)),
        ((5, 1, 1, 1, 1), 0, (2, 0, 0, 0, 0), (1, 0, 0, 0, 0)),
    ],
)
def test_each_reader_releases_its_surplus(
    counts: tuple[int, ...], waiting: int, released: tuple[int, ...], by_lag: tuple[int, ...]
) -> None:
    """The readers decide at the same time. By lag each releases one at most."""
    state = owning(*counts, waiting=waiting)
    assert tuple(len(to_release(state, reader, {})) for reader in state.readers) == released
    assert tuple(len(to_release(state, reader, {}, by_lag=True)) for reader in state.readers) == by_lag


def _behind(state: GroupState, reader: str) -> GroupState:
    """A minute, while the others have read everything."""
    return after(state, *(NoteProgress(each, 60_000 if each == reader else 0, lease_ms=1000) for each in state.readers))


@pytest.mark.parametrize(
    ("counts", "behind", "released", "by_lag"),
    [
        ((4, 3), "r0", (0, 0), (1, 0)),
        ((3, 3), "r0", (0, 0), (0, 0)),
        ((4, 1), "r1", (1, 0), (0, 0)),
    ],
)
def test_lags_count_only_if_they_are_asked_for(
    counts: tuple[int, ...], behind: str, released: tuple[int, ...], by_lag: tuple[int, ...]
) -> None:
    state = _behind(owning(*counts), behind)
    assert tuple(len(to_release(state, reader, {})) for reader in state.readers) == released
    assert tuple(len(to_release(state, reader, {}, by_lag=True)) for reader in state.readers) == by_lag


def test_a_release_by_lag_waits_for_the_one_before() -> None:
    state, turns = _behind(owning(4, 3), "r0"), SegmentTurns("r0", 0.0)
    assert turns.to_release(state, {}, LAG_BALANCE_S + 0.5)
    turns.released(LAG_BALANCE_S + 0.5)
    assert turns.to_release(state, {}, 2 * LAG_BALANCE_S) == ()
    assert turns.to_release(state, {}, 2 * LAG_BALANCE_S + 1.0)


def test_the_segment_that_waits_longest_decides_when_to_look() -> None:
    turns, state = SegmentTurns("r2", 0.0), owning(1, 1, 1, waiting=2)
    assert turns.wait_s(state, 5.0) == 2 * TURN_S
    turns.left_to_others(segment(4), state, 5.0)
    assert turns.wait_s(state, 5.5) == 2 * TURN_S - 0.5
    assert turns.wait_s(state, 100.0) == TURN_S / 10, "its turn has come"


def test_what_is_taken_within_the_share_is_not_kept() -> None:
    turns, state = SegmentTurns("r0", 0.0), owning(1, 1, waiting=1)
    (segment,) = turns.to_acquire(state, 0.0)
    taken = after(state, AcquireSegment("r0", segment))
    turns.acquired(taken, 0.0)
    assert turns.wait_s(taken, 1.0) == LAG_BALANCE_S
    assert turns.to_release(owning(4, 1), {}, 1.0), "nor is what has become too much"


def test_a_reader_that_is_gone_keeps_nothing() -> None:
    turns, state = SegmentTurns("r0", 0.0), after(owning(2, 0), RemoveReader("r0"))
    turns.acquired(state, 0.0)
    assert turns.to_release(owning(4, 1), {}, 1.0)


def test_a_reader_that_is_behind_releases_one_segment_at_a_time() -> None:
    state = owning(3, 3, 1, waiting=1)
    turns = SegmentTurns("r0", 100.0)
    lags_ms = {segment(0): 9, segment(1): 5, segment(2): 7}
    assert turns.to_release(state, lags_ms, 100.0 + LAG_BALANCE_S) == ()
    assert turns.to_release(state, lags_ms, 100.5 + LAG_BALANCE_S) == (segment(1),)


def test_a_reader_takes_its_share_in_one_turn_and_no_more() -> None:
    state = owning(0, 0, waiting=5)
    turns = SegmentTurns("r0", 0.0)
    assert turns.to_acquire(state, 0.0) == tuple(state.unassigned)[:3]
    rich = owning(4, 1, 0, waiting=3)
    turns = SegmentTurns("r0", 0.0)
    assert turns.to_acquire(rich, 0.0) == ()
    assert turns.to_acquire(rich, 1000.0) == tuple(rich.unassigned)[:1], "beyond its share, after a long time"


def readers(simulation: GroupSimulation, kinds: str, busy_s: float, checkpoint_s: float | None) -> Iterator[float]:
    """Adds readers, of ours (o) and of the Java client (j), one after the other. Yields the seconds between them."""
    for number, kind in enumerate(kinds):
        if kind == "o":
            OurReader(simulation, f"ours-{number}", busy_s)
        else:
            JavaReader(simulation, f"java-{number}", busy_s, checkpoint_s)
        yield simulation.random.uniform(0, 8)


@pytest.mark.parametrize("checkpoint_s", [None, 30.0])
@given(st.integers(1, 9), st.text("oj", min_size=1, max_size=4), st.integers(0, 1 << 32))
def test_no_segment_waits_long_for_a_reader(checkpoint_s: float | None, segments: int, kinds: str, seed: int) -> None:
    simulation = GroupSimulation(segments, seed)
    for seconds in readers(simulation, kinds, 0.0, checkpoint_s):
        simulation.run(seconds)
    simulation.run(60)
    assert max(simulation.waits_s) <= SECONDS_OF_LOOKS + TURN_S * len(kinds)


@given(st.integers(1, 9), st.text("oj", min_size=1, max_size=4), st.sampled_from([0.0, 1.0, 10.0]), st.integers())
def test_balanced_readers_move_nothing(segments: int, kinds: str, busy_s: float, seed: int) -> None:
    simulation = GroupSimulation(segments, seed)
    for seconds in readers(simulation, kinds, busy_s, None):
        simulation.run(seconds)
    simulation.run(300)
    moved = simulation.moves
    simulation.run(3600)
    assert simulation.moves == moved
    if "j" not in kinds:  # those of the Java client release nothing without checkpoints
        assert simulation.counts[-1] - simulation.counts[0] <= 1


@given(st.integers(2, 9), st.sampled_from(["oo", "oj", "ojj", "ooj"]), st.integers())
def test_segments_move_few_times_to_new_readers(segments: int, kinds: str, seed: int) -> None:
    simulation = GroupSimulation(segments, seed)
    for seconds in readers(simulation, kinds, 0.0, None):
        simulation.run(seconds + 10)
    assert simulation.moves <= segments * len(kinds)


class Waiting:
    """A reader of ours with two segments, beside one that takes no part and has none. One segment waits for that."""

    def __init__(self) -> None:
        self.turns = SegmentTurns("r0", 0.0)
        self.state = owning(2, 0, waiting=1)
        assert self.turns.to_acquire(self.state, 0.0) == ()

    def take(self, now_s: float) -> None:
        (name,) = self.turns.to_acquire(self.state, now_s)
        self.state = after(self.state, AcquireSegment("r0", name))
        self.turns.acquired(self.state, now_s)


def test_a_reader_takes_more_than_its_share_late() -> None:
    waiting = Waiting()
    due_s = OVERDUE_S + TURN_S
    assert waiting.turns.wait_s(waiting.state, 0.5) == due_s - 0.5
    assert waiting.turns.to_acquire(waiting.state, due_s - 0.1) == ()
    waiting.take(due_s)
    assert waiting.turns.to_release(waiting.state, {}, due_s) == ()
    assert waiting.turns.wait_s(waiting.state, due_s + 1.0) == KEPT_S - 1.0
    assert len(waiting.turns.to_release(waiting.state, {}, due_s + KEPT_S)) == 1


def test_new_readers_get_what_was_kept() -> None:
    waiting = Waiting()
    waiting.take(20.0)
    assert waiting.turns.to_release(after(waiting.state, RemoveReader("r1"), AddReader("r2")), {}, 20.1)


def test_a_segment_left_to_others_goes_to_them_first() -> None:
    turns, state = SegmentTurns("r0", 0.0), owning(1, 1, waiting=1)
    turns.left_to_others(segment(2), state, 0.0)
    assert turns.to_acquire(state, 3 * TURN_S - 0.1) == ()
    assert turns.to_acquire(state, 3 * TURN_S) == (segment(2),)


def test_a_segment_that_returns_waits_as_long_again() -> None:
    turns, state = SegmentTurns("r1", 0.0), owning(1, 1, waiting=1)
    assert turns.to_acquire(state, 0.0) == ()
    assert turns.to_acquire(state, TURN_S) == (segment(2),)
    turns.acquired(after(state, AcquireSegment("r1", segment(2))), TURN_S)
    assert turns.to_acquire(state, 5.0) == ()
    assert turns.to_acquire(state, 5.0 + TURN_S) == (segment(2),)


def test_readers_without_a_lease_get_time_to_look() -> None:
    turns, state = SegmentTurns("r1", 0.0), owning(1, 1, waiting=1)
    assert turns.wait_s(state, 0.0) == TURN_S
    java = after(group(3, "java", "r1"), AcquireSegment("java", segment(0)), AcquireSegment("r1", segment(1)))
    until_s = java.configuration.group_refresh_ms / 1000 + TURN_S
    assert turns.wait_s(java, 0.0) == until_s
    assert turns.to_acquire(java, until_s - 0.1) == ()
    assert turns.to_acquire(java, until_s) == (segment(2),)
    leased = after(java, NoteProgress("java", 0, lease_ms=1000))
    assert SegmentTurns("r1", 0.0).wait_s(leased, 0.0) == TURN_S, "its own lease does not matter"


def test_readers_that_may_not_move_decide_nothing() -> None:
    turns, state = SegmentTurns("r0", 0.0), owning(3, 0, waiting=1)
    for frozen in (after(state, BeginCheckpoint("c")), after(state, RemoveReader("r0"))):
        assert turns.to_acquire(frozen, 100.0) == turns.to_release(frozen, {}, 100.0) == ()
