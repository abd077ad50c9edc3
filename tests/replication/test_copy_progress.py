"""What a takeover has copied, and when it counts as stalled."""

from __future__ import annotations

from headrace.model.container_logs import NO_POSITION, ReplicaId
from headrace.replication.copy_sources import CopyProgress
from headrace.replication.effects import Blocked, Send, Source

A, B = ReplicaId(bytes([1]) * 16), ReplicaId(bytes([2]) * 16)
WINDOW, STALL = 1000, 3000


def progress(began_ms: int = 0) -> CopyProgress:
    made = CopyProgress(WINDOW, STALL)
    made.begin_copy(began_ms)
    return made


def test_a_window_goes_to_who_has_acknowledged_the_last_one():
    made = progress()
    made.opened(A, 10, 0)
    made.opened(B, 4, 0)
    assert made.windows([A, B], 20) == [
        Send(A, 11, 20, Source.JOURNAL, WINDOW),
        Send(B, 5, 20, Source.JOURNAL, WINDOW),
    ]
    made.sent(A, 15)
    made.holds(A, 14, 1)
    assert made.awaits(A)
    assert made.windows([A], 20) == []
    made.holds(A, 15, 1)
    assert not made.awaits(A)
    assert made.windows([A], 20) == [Send(A, 16, 20, Source.JOURNAL, WINDOW)]
    assert made.windows([A, B], 20) == [], "both windows are on their way"


def test_a_replica_without_entries_waits_for_nothing():
    made = progress()
    assert not made.awaits(A)
    assert not made.is_fed(A)
    made.opened(A, NO_POSITION, 0)
    assert made.is_fed(A)
    assert not made.awaits(A)
    assert made.windows([A], 3) == [Send(A, NO_POSITION + 1, 3, Source.JOURNAL, WINDOW)]
    assert made.awaits(A)


def test_an_older_position_takes_nothing_back():
    made = progress()
    made.opened(A, 10, 0)
    made.take_moved()
    made.holds(A, 7, 1)
    made.holds(A, 10, 1)
    assert made.position(A) == 10
    assert made.take_moved() == set()
    made.holds(A, 11, 1)
    assert made.take_moved() == {A}
    assert made.take_moved() == set()


def test_time_without_more_than_ever_is_a_stall():
    made = progress(100)
    assert not made.has_stalled(99 + STALL)
    assert made.has_stalled(100 + STALL)
    made.opened(A, 10, 200)
    assert not made.has_stalled(199 + STALL)
    assert made.has_stalled(200 + STALL)
    made.holds(A, 10, 900)
    made.holds(A, 9, 900)
    assert made.has_stalled(200 + STALL), "it holds no more than before"


def test_answers_of_a_second_attempt_are_no_progress():
    made = progress()
    made.opened(A, 10, 0)
    made.opened(B, 3, 0)
    made.begin()
    assert made.positions == {}
    assert not made.is_fed(A)
    made.begin_copy(STALL)
    made.opened(A, 10, STALL + 1)
    made.opened(B, 3, STALL + 1)
    assert made.positions == {A: 10, B: 3}
    assert made.has_stalled(2 * STALL), "each has what it had in the first attempt"


def test_each_replica_makes_progress_of_its_own():
    made = progress()
    made.opened(A, 10, 0)
    made.opened(B, 3, 5)
    assert not made.has_stalled(4 + STALL)
    made.holds(B, 4, 50)
    assert not made.has_stalled(49 + STALL)


def test_a_reason_is_reported_once_until_there_is_progress():
    made = progress()
    assert made.blocked_by is None
    made.opened(A, 10, 0)
    assert made.block("waits") == [Blocked("waits")]
    assert made.block("waits") == []
    made.holds(A, 10, 1)
    assert made.blocked_by == "waits"
    assert made.block("waits longer") == [Blocked("waits longer")]
    made.holds(A, 11, 2)
    assert made.blocked_by is None
    assert made.block("waits longer") == [Blocked("waits longer")]


def test_a_replica_that_was_opened_again_gets_its_window_again():
    """What was on its way to it may be lost. It would be waited for until the takeover begins again."""
    made = progress()
    made.opened(A, 10, 0)
    made.windows([A], 20)
    made.opened(A, 10, 1)
    assert made.windows([A], 20) == [Send(A, 11, 20, Source.JOURNAL, WINDOW)]
