"""When a process of a store is started again, and when its task ends instead. Times are monotonic, in seconds."""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.model.log_limits import LogLimit

JOURNAL_FAILED: Final = 4
"""Exit code of a process whose journal has failed."""

RESTART_PAUSE_S: Final = 0.5
"""Other stores wait for the process, whose journal may have what they lack."""

RESTART_PAUSE_GROWTH_MAX: Final = 10
"""A process that keeps exiting is started every 5 s: it may wait for DynamoDB, and each start costs a second of CPU."""

STEADY_S: Final = 5.0
"""A process that ran for longer did not fail at its start. Its next pause is the shortest again."""

LOOP_EXITS: Final = 10
LOOP_WITHIN_S: Final = 600.0
LOOP_REPORTED_EVERY_S: Final = 60.0
"""A report asks the metadata store, too, whether a log needs the volume."""

JOURNAL_FAILURES_MAX: Final = 3
JOURNAL_FAILURES_WITHIN_S: Final = 600.0


def restart_pause_s(exits_in_a_row: int, pause_s: float = RESTART_PAUSE_S) -> float:
    """The pause after the exit of a process; `exits_in_a_row` counts the exits that came soon after a start, from 1."""
    doublings = min(exits_in_a_row - 1, RESTART_PAUSE_GROWTH_MAX)  # a larger power would only be cut
    return pause_s * min(1 << doublings, RESTART_PAUSE_GROWTH_MAX)


class ExitsInARow:
    """Counts the exits of one process that came soon after its start."""

    def __init__(self) -> None:
        self._count = 0

    def note(self, ran_s: float) -> int:
        """Note an exit after a run of `ran_s`. Returns the count with this exit, at least 1."""
        self._count = 1 if ran_s >= STEADY_S else self._count + 1
        return self._count


class RestartLoop:
    """Notices that a process does not stay up, however long each run takes."""

    def __init__(self) -> None:
        self._exits_s: deque[float] = deque(maxlen=LOOP_EXITS)
        self._reports = LogLimit(LOOP_REPORTED_EVERY_S)

    def note(self, now_s: float) -> bool:
        """Note an exit. Returns whether to report a loop: LOOP_EXITS within LOOP_WITHIN_S, at most once in a while."""
        self._exits_s.append(now_s)
        if len(self._exits_s) < LOOP_EXITS or now_s - self._exits_s[0] > LOOP_WITHIN_S:
            return False
        return self._reports.allows(now_s)


class JournalFailures:
    """Decides when the volume of a store must be replaced: its journals fail again and again."""

    def __init__(self) -> None:
        self._failures_s: deque[float] = deque(maxlen=JOURNAL_FAILURES_MAX)

    def note(self, now_s: float) -> bool:
        """Note a failure. Returns whether there were JOURNAL_FAILURES_MAX within JOURNAL_FAILURES_WITHIN_S."""
        self._failures_s.append(now_s)
        all_noted = len(self._failures_s) == JOURNAL_FAILURES_MAX
        return all_noted and now_s - self._failures_s[0] <= JOURNAL_FAILURES_WITHIN_S
