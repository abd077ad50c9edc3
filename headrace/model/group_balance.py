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
    others = (state.lags_ms.get(one, 0) for one in state.readers if one != reader)
    return now_ms if any(map(tells_clock, others)) else max(LAG_MS_MIN, lag_ms)


def slowest_lag_s(state: GroupState) -> float | None:
    """The lag of the reader that is furthest behind; None if none has told one, 0 for less than LAG_MS_MIN."""
    told = [state.lags_ms.get(reader, LAG_MS_UNKNOWN) for reader, owned in state.assigned.items() if owned]
    lags = [lag for lag in told if lag != LAG_MS_UNKNOWN and not tells_clock(lag)]
    if not lags:
        return None
    return 0.0 if max(lags) <= LAG_MS_MIN else max(lags) / 1000


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
    found = loads(state)
    order = sorted(found, key=lambda one: (found[one], one))
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
    weights = loads(state) if by_lag else {one: float(len(segments)) for one, segments in state.assigned.items()}
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
    counts = {one: len(owned) for one, owned in state.assigned.items()}
    counts[reader] += taken
    missing = sum(max(0, floor - count) for count in counts.values())
    available = len(state.unassigned) - taken
    available += sum(max(0, count - ceiling) for one, count in counts.items() if one != reader)
    return min(counts[reader] - floor, max(counts[reader] - ceiling, missing - available))
