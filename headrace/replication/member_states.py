"""How the owner of a log feeds its members and learners."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from headrace.model.container_logs import NO_POSITION
from headrace.replication.bounds import REOPEN_FIRST_MS


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
