"""When a reader of a group releases and takes segments. Pure: the caller has the clock, and writes what is decided.

A segment that waits for an owner is taken by the reader with the smallest load. Each other one waits a turn longer, and
takes it if those before it do not, because their application is busy. Readers of Pravega's are given the time in which
they look at the state. A reader takes more than its share only after a longer time, and then keeps it. If it took and
released a segment in turn, no other reader could write in between on condition that the state has not changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.model.group_balance import readers_before, to_acquire, to_release
from headrace.model.group_state import GroupState
from headrace.model.names import StreamSegmentName

TURN_S = 1.0
"""How long a reader waits for each reader that comes before it, until it takes a segment that waits for an owner."""

OVERDUE_S = 15.0
"""Extra wait before a reader takes a segment beyond its fair share."""

KEPT_S = 30.0
"""For how long a reader keeps what it has taken above its share, unless the group gets or loses readers."""

LAG_BALANCE_S = 30.0
"""How often a reader releases a segment only because it is far behind."""


class SegmentTurns:
    """The decisions of one reader. It is told what was written for them: `released`, `acquired`, `left_to_others`."""

    def __init__(self, reader: str, now_s: float) -> None:
        self._reader = reader
        self._waiting_since_s: dict[StreamSegmentName, float] = {}
        self._released_s = now_s
        self._kept_until_s = now_s
        self._kept_among: tuple[str, ...] = ()

    def to_release(
        self, state: GroupState, lags_ms: Mapping[StreamSegmentName, int], now_s: float
    ) -> tuple[StreamSegmentName, ...]:
        """The segments that the reader releases now."""
        if self._reader not in state.assigned or self._keeps_more(state, now_s):
            return ()
        surplus = to_release(state, self._reader, lags_ms)
        if not surplus and now_s - self._released_s > LAG_BALANCE_S:
            return to_release(state, self._reader, lags_ms, by_lag=True)
        return surplus

    def to_acquire(self, state: GroupState, now_s: float) -> tuple[StreamSegmentName, ...]:
        """The segments that the reader takes now."""
        if not state.may_move(self._reader):
            return ()
        self._look(state, now_s)
        if not self._waiting_since_s:
            return ()
        wait_s = self._turn_s(state)
        share = len(to_acquire(state, self._reader))
        ready = [one for one, since_s in self._waiting_since_s.items() if now_s >= since_s + wait_s]
        if share:
            return tuple(ready[:share])
        overdue = [one for one in ready if now_s >= self._waiting_since_s[one] + wait_s + OVERDUE_S]
        return tuple(overdue[:1])

    def wait_s(self, state: GroupState, now_s: float) -> float:
        """After how many seconds at most the reader decides something else in the same state."""
        wait_s = LAG_BALANCE_S
        if self._keeps_more(state, now_s):
            wait_s = self._kept_until_s - now_s
        self._look(state, now_s)
        if self._waiting_since_s:
            until_turn_s = self._turn_s(state) + min(self._waiting_since_s.values()) - now_s
            if not to_acquire(state, self._reader):
                until_turn_s += OVERDUE_S
            wait_s = min(wait_s, until_turn_s)
        return max(wait_s, TURN_S / 10)

    def released(self, now_s: float) -> None:
        """The reader has released what `to_release` said."""
        self._released_s = now_s

    def acquired(self, state: GroupState, now_s: float) -> None:
        """The reader has taken what `to_acquire` said, and this is the state after it."""
        self._look(state, now_s)
        if self._reader in state.assigned and to_release(state, self._reader, {}):
            self._kept_until_s, self._kept_among = now_s + KEPT_S, state.readers

    def left_to_others(self, segment: StreamSegmentName, state: GroupState, now_s: float) -> None:
        """The application has left a segment to the other readers; this one takes it only if none of them does."""
        self._waiting_since_s[segment] = now_s + TURN_S * (1 + len(state.readers))

    def _turn_s(self, state: GroupState) -> float:
        """For how long a segment must have waited when it is this reader's turn. Readers without a lease are
        Pravega's."""
        before = readers_before(state, self._reader)
        look_s = 0.0 if state.leases_ms.keys() >= set(before) else state.configuration.group_refresh_ms / 1000
        return look_s + TURN_S * len(before)

    def _keeps_more(self, state: GroupState, now_s: float) -> bool:
        return now_s < self._kept_until_s and state.readers == self._kept_among

    def _look(self, state: GroupState, now_s: float) -> None:
        """Notes since when each segment waits."""
        since_s = self._waiting_since_s
        self._waiting_since_s = {one: since_s.get(one, now_s) for one in state.unassigned}
