"""How the readers of a group share its segments evenly. Pure: each reader computes the same from the same state.

A reader that has more than its share releases segments, and the one with the least takes them. Adding a reader moves no
more segments than its share. The numbers are those with which Pravega's readers decide, so both can be in one group.
But ours take nothing that they would have to release again, and Pravega's take at least one segment. `group_turns.py`
says when a reader does this.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.model.group_state import LAG_MS_MIN, LAG_MS_UNKNOWN, GroupState
from headrace.model.names import StreamSegmentName

CLOCK_LAG_MS_MIN = 1_000_000_000_000
"""A lag from here on (30 years) is a clock's time and no lag: the Java client tells such ones after its first event."""


def tells_clock(lag_ms: int) -> bool:
    """Whether a reader told the time of its clock in the place of its lag."""
    return CLOCK_LAG_MS_MIN <= lag_ms < LAG_MS_UNKNOWN


def comparable_lag_ms(state: GroupState, reader: str, lag_ms: int, now_ms: int) -> int:
    """What a reader tells as its lag: the time of its clock if others do so, since they could not compare it
    otherwise."""
    others = (state.lags_ms.get(each, 0) for each in state.readers if each != reader)
    return now_ms if any(map(tells_clock, others)) else max(LAG_MS_MIN, lag_ms)


def told_lag_s(state: GroupState, reader: str) -> float | None:
    """The lag that a reader told last. None if it told none, 0 for LAG_MS_MIN: readers tell at least that."""
    lag_ms = state.lags_ms.get(reader, LAG_MS_UNKNOWN)
    if lag_ms == LAG_MS_UNKNOWN or tells_clock(lag_ms):
        return None
    return 0.0 if lag_ms <= LAG_MS_MIN else lag_ms / 1000


def slowest_lag_s(state: GroupState) -> float | None:
    """The lag of the reader that is furthest behind, of those that have segments; None if none has told one."""
    told = [told_lag_s(state, reader) for reader, owned in state.assigned.items() if owned]
    return max((lag_s for lag_s in told if lag_s is not None), default=None)


def loads(state: GroupState) -> dict[str, float]:
    """By reader, its number of segments, weighted by its lag. The largest lag has the weight 1.

    While one of the lags is not known, all have the same weight.
    """
    counts = {reader: len(owned) for reader, owned in state.assigned.items()}
    lags = {reader: max(LAG_MS_MIN, state.lags_ms.get(reader, LAG_MS_UNKNOWN)) for reader in counts if counts[reader]}
    if any(lag >= CLOCK_LAG_MS_MIN for lag in lags.values()):
        lags = dict.fromkeys(lags, LAG_MS_MIN)
    largest = max(lags.values(), default=LAG_MS_MIN)
    return {reader: count * lags.get(reader, LAG_MS_MIN) / largest for reader, count in counts.items()}


def readers_before(state: GroupState, reader: str) -> tuple[str, ...]:
    """The readers that take segments before this one; none for the one with the smallest load.

    Raises:
        IllegalStateError: code "reader_offline".
    """
    state.owned_by(reader)
    load = loads(state)
    order = sorted(load, key=lambda name: (load[name], name))
    return tuple(order[: order.index(reader)])


def to_acquire(state: GroupState, reader: str) -> tuple[StreamSegmentName, ...]:
    """The segments that the reader takes when it is its turn: its share, and no more than it would keep.

    As long as segments wait, at least one reader can take one. None while a checkpoint waits for the reader, so that no
    segment is in it twice or missing.
    """
    owned, unassigned = len(state.owned_by(reader)), len(state.unassigned)
    if not unassigned or not state.may_move(reader):
        return ()
    count = max(unassigned // len(state.assigned), min(unassigned, _share(state) - owned), 1)
    while count and _above_share(state, reader, count) > 0:
        count -= 1
    return tuple(state.unassigned)[:count]


def to_release(
    state: GroupState, reader: str, lags_ms: Mapping[StreamSegmentName, int], *, by_lag: bool = False
) -> tuple[StreamSegmentName, ...]:
    """The segments that the reader releases, those with the smallest lag first, so that a slow segment does not wander.

    They are counted, or with `by_lag` weighted by lag; then it is one at most, and only if another reader can take it.
    None while a checkpoint waits for the reader.
    """
    owned = state.owned_by(reader)
    if len(owned) <= 1 or not state.may_move(reader):
        return ()
    weights = loads(state) if by_lag else {name: float(len(segments)) for name, segments in state.assigned.items()}
    least = min(weights.values())
    most = min(len(owned) - _floor(state), 1) if by_lag else _above_share(state, reader)
    count = 0
    while count < most:
        if weights[reader] - count <= least + max(1, len(state.unassigned) + count):
            break
        count += 1
    order = sorted(
        owned, key=lambda segment: (lags_ms.get(segment, 0), segment.scope, segment.stream, segment.segment_id)
    )
    return tuple(order[:count])


def _share(state: GroupState) -> int:
    """The segments of a reader if all have the same number, rounded half up."""
    return (2 * state.segment_count + len(state.assigned)) // (2 * len(state.assigned))


def _floor(state: GroupState) -> int:
    """The segments that every reader has at least if all have the same number or one more."""
    return state.segment_count // len(state.assigned)


def _above_share(state: GroupState, reader: str, taken: int = 0) -> int:
    """How many segments the reader can release after it has taken so many, so that in the end all have the same number
    or one more.

    It keeps the one more unless the others have too little for those who have less.
    """
    floor = _floor(state)
    ceiling = floor + (state.segment_count % len(state.assigned) > 0)
    counts = {name: len(owned) for name, owned in state.assigned.items()}
    counts[reader] += taken
    missing = sum(max(0, floor - count) for count in counts.values())
    available = len(state.unassigned) - taken
    available += sum(max(0, count - ceiling) for name, count in counts.items() if name != reader)
    return min(counts[reader] - floor, max(counts[reader] - ceiling, missing - available))


# When a reader of a group releases and takes segments. Pure: the caller has the clock, and writes what is decided.
#
# A segment that waits for an owner is taken by the reader with the smallest load. Each other one waits a turn longer,
# and takes it if those before it do not, because their application is busy. Readers of Pravega's are given the time in
# which they look at the state. A reader takes more than its share only after a longer time, and then keeps it. If it
# took and released a segment in turn, no other reader could write in between on condition that the state has not
# changed.

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
        ready = [segment for segment, since_s in self._waiting_since_s.items() if now_s >= since_s + wait_s]
        if share:
            return tuple(ready[:share])
        overdue = [each for each in ready if now_s >= self._waiting_since_s[each] + wait_s + OVERDUE_S]
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
        self._waiting_since_s = {each: since_s.get(each, now_s) for each in state.unassigned}
