"""How the owner of a log feeds its members and learners, and how fast they may catch up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from headrace.model.container_logs import NO_POSITION
from headrace.replication.bounds import CATCH_UP_BYTES_PER_S, REOPEN_FIRST_MS


class MemberState(Enum):
    """How the owner feeds a member or learner. REFUSED: it denies what it had, or another replica has its place."""

    DOWN = "down"
    OPENING = "opening"
    CATCHING_UP = "catching up"
    STREAMING = "streaming"
    REFUSED = "refused"


FED: Final = (MemberState.CATCHING_UP, MemberState.STREAMING)


@dataclass(slots=True)
class Member:
    """`sent` is the last entry that was sent.

    `reads_from` is where a window begins that the shell reads from the journal and sends; None if there is none.
    """

    silent_since_ms: int
    state: MemberState = MemberState.DOWN
    session: int = 0
    sent: int = NO_POSITION
    reads_from: int | None = None
    reopen_at_ms: int = 0
    reopen_wait_ms: int = REOPEN_FIRST_MS
    progress_ms: int = 0
    announced: tuple[int, int] = (NO_POSITION, 0)
    """The acknowledged entry and the truncation point that the replica was told last."""
    is_emptied: bool = False

    def opened(self, position: int, truncated_before: int, now_ms: int) -> None:
        """The replica reported its position and its truncation point."""
        self.sent = position
        self.state = MemberState.CATCHING_UP
        self.reads_from = None
        self.reopen_wait_ms = REOPEN_FIRST_MS
        self.progress_ms = now_ms
        self.announced = (NO_POSITION, truncated_before)

    def lose(self, now_ms: int, wait_ms: int) -> None:
        """The link is lost; open again after a while."""
        if self.state in FED:
            self.silent_since_ms = now_ms
        self.state = MemberState.DOWN
        self.reopen_at_ms = now_ms + wait_ms

    def silent_ms(self, now_ms: int) -> int:
        """The time since the replica was fed last; 0 while it is."""
        return 0 if self.state in FED else now_ms - self.silent_since_ms


# How fast members may catch up, and when the writers of a log slow down so that they can.
#
# A copy that is missing is a risk, so catching up must be faster than appending. It gets a multiple of the measured
# rate of appends. If that does not suffice, for example because a disk has no more bandwidth, the writers of this log
# wait.

CATCH_UP_PER_APPENDED: Final = 2.5
"""Catching up may send this many times what is appended: two members of a log that both lack entries gain on it."""

RATE_OVER_S: Final = 1.0
"""The rate of appends is measured over this time."""

LAG_PATIENCE_S: Final = 60.0
"""A copy that has been catching up for longer slows down the writers of its log."""

LAG_RAMP_S: Final = 120.0
"""The slowdown grows for this long."""

LAG_FILL_FROM: Final = 0.75
LAG_FILL_MAX: Final = 0.9
"""The fill that the throttle sees meanwhile: it waits from the lower one on, and never stops at the higher one."""


def catch_up_bytes_per_s(appended_per_s: float) -> float:
    """The rate of all members together that catch up with the logs of a process."""
    return max(CATCH_UP_BYTES_PER_S, CATCH_UP_PER_APPENDED * appended_per_s)


def lag_fill(lacking_s: float) -> float:
    """How full a log counts as for its writers, one of whose copies has been catching up for this long; else 0."""
    if lacking_s < LAG_PATIENCE_S:
        return 0.0
    share = min(1.0, (lacking_s - LAG_PATIENCE_S) / LAG_RAMP_S)
    return LAG_FILL_FROM + share * (LAG_FILL_MAX - LAG_FILL_FROM)


class AppendRate:
    """The bytes that are appended per second, over the last RATE_OVER_S that were measured."""

    def __init__(self, now_s: float) -> None:
        self.per_s = 0.0
        self._bytes = 0
        self._since_s = now_s

    def count(self, appended: int) -> None:
        self._bytes += appended

    def look(self, now_s: float) -> float:
        """The rate. A longer pause between two looks counts as one measurement."""
        elapsed_s = now_s - self._since_s
        if elapsed_s >= RATE_OVER_S:
            self.per_s, self._bytes, self._since_s = self._bytes / elapsed_s, 0, now_s
        return self.per_s
