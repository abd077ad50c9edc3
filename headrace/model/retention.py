"""Retention: which stream cuts of a stream are kept as places to truncate at, and where it is truncated.

The value of a cut is what would remain if the stream were truncated at it: bytes for policies by size, the age of the
oldest event in ms for policies by time. A stream is never truncated where less than the policy's minimum would remain.
With subscribers it is truncated where all of them have read to, between the minimum and the maximum. The head may then
lie behind a cut of the set in some key ranges: a truncation at such a cut leaves less than the cut alone says.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from headrace.model.stream_configuration import RetentionPolicy
from headrace.model.stream_cut_order import CutOrder, PlacedCut, compare_cuts

CUT_PERIOD_MS = 30 * 60 * 1000
"""How often a cut at the tail joins the set, and how often it is decided anew where to truncate."""

CUTS_MAX = 128
"""Stream cuts that are kept of one stream: with more, what is kept is at most some 2 % more than asked for."""


@dataclass(frozen=True, slots=True)
class RetentionCut:
    """A cut at the tail of a stream as it was at `time_ms`; `size_bytes` lay before it, since the stream's creation."""

    time_ms: int
    size_bytes: int


Cuts = tuple[RetentionCut, ...]
"""The retention set: times and sizes grow strictly."""


@dataclass(frozen=True, slots=True)
class RetentionState:
    """Where a stream's retention is. Times are milliseconds since the Unix epoch.

    `due_ms` is when it is looked at next, None while the stream has no policy. What was written before `head_time_ms`
    is gone, as far as is known; it starts with the stream's creation.
    """

    due_ms: int | None
    head_time_ms: int
    cuts: Cuts = ()


class RetentionCase(StrEnum):
    """Why a stream is truncated where it is; the first four are those of a stream with subscribers."""

    WITHIN_LIMITS = "within limits"
    BELOW_MINIMUM = "below minimum"
    OVERLAPPING_MINIMUM = "overlapping minimum"
    ABOVE_MAXIMUM = "above maximum"
    OVERLAPPING_MAXIMUM = "overlapping maximum"
    NO_SUBSCRIBERS = "no subscribers"
    NOT_ENOUGH = "not enough"


WORDS = {
    RetentionCase.WITHIN_LIMITS: "what all subscribers have read goes: what remains lies within the limits",
    RetentionCase.BELOW_MINIMUM: "the subscribers have read further, but the minimum has to stay",
    RetentionCase.OVERLAPPING_MINIMUM: (
        "the minimum and the unread events protect different key ranges: both stay, up to the last cut before them"
    ),
    RetentionCase.ABOVE_MAXIMUM: "the subscribers lag behind the maximum: unread events beyond it go",
    RetentionCase.OVERLAPPING_MAXIMUM: (
        "the subscribers lag behind the maximum in some key ranges: unread events beyond it go"
    ),
    RetentionCase.NO_SUBSCRIBERS: "there is no subscriber: all but the minimum goes",
    RetentionCase.NOT_ENOUGH: "there is no more than the minimum: everything stays",
}


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Where all subscribers have read to; `retained_bytes` would remain if the stream were truncated there."""

    position: PlacedCut
    retained_bytes: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Truncate at `cut`, or at the lower bound of the subscribers, or not at all."""

    case: RetentionCase
    cut: RetentionCut | None = None
    at_lower_bound: bool = False


Place = Callable[[RetentionCut], PlacedCut]
"""The positions of a cut of the set; asked for only where they matter."""

SizeAfter = Callable[[RetentionCut], int]
"""The bytes before the head of the stream, since its creation, once it is truncated at a cut of the set: those before
the cut, and what is gone already where the head lies behind it. Asked for only where it matters."""


def decide(
    policy: RetentionPolicy, cuts: Cuts, now_ms: int, bound: LowerBound | None, place: Place, size_after: SizeAfter
) -> Decision:
    """Where the stream is to be truncated now. `bound` is None without subscribers."""
    limits = _Limits(policy, cuts, now_ms, size_after)
    if bound is None:
        least = limits.min_bound()
        return Decision(RetentionCase.NO_SUBSCRIBERS, least) if least else Decision(RetentionCase.NOT_ENOUGH)
    if policy.is_by_time:
        return _by_time(limits, bound, place)
    return _by_size(limits, bound, place)


def with_cut(cuts: Cuts, new: RetentionCut, *, by_time: bool, cuts_max: int = CUTS_MAX) -> tuple[Cuts, Cuts]:
    """The set with a new cut, and the cuts that had to go for it.

    Of too many, the one goes whose neighbours are nearest to each other, in time or in bytes; never the oldest, which
    is the next that can be used, nor the new one. With fewer cuts a stream is truncated later, never earlier.
    """
    kept, gone = [*cuts, new], []
    while len(kept) > cuts_max:
        places = [one.time_ms if by_time else one.size_bytes for one in kept]
        closest = min(range(1, len(kept) - 1), key=lambda index: places[index + 1] - places[index - 1])
        gone.append(kept.pop(closest))
    return tuple(kept), tuple(gone)


def cuts_after_head(cuts: Cuts, head_bytes: int) -> tuple[Cuts, Cuts]:
    """The cuts at which a stream with `head_bytes` before its head can still be truncated, and the useless ones."""
    first = bisect_left(cuts, head_bytes + 1, key=lambda cut: cut.size_bytes)
    return cuts[first:], cuts[:first]


@dataclass(frozen=True, slots=True)
class _Limits:
    """The bounds that a policy draws into a retention set."""

    policy: RetentionPolicy
    cuts: Cuts
    now_ms: int
    size_after: SizeAfter

    def value(self, cut: RetentionCut) -> int:
        """What remains after truncating at the cut: bytes, or the age in ms of the oldest event."""
        return self._value_alone(cut) if self.policy.is_by_time else self.cuts[-1].size_bytes - self.size_after(cut)

    def min_bound(self) -> RetentionCut | None:
        """The cut that leaves the least of those that leave the minimum."""
        index = self._first_of_at_most(self.policy.minimum - 1)
        return self.cuts[index - 1] if index else None

    def max_bound(self) -> RetentionCut | None:
        """The cut that leaves the most within minimum and maximum; where none is, what leaves the minimum."""
        maximum = self.policy.maximum
        index = 0 if maximum is None else self._first_of_at_most(maximum)
        if index < len(self.cuts) and self.value(self.cuts[index]) >= self.policy.minimum:
            return self.cuts[index]
        return self.min_bound()

    def newest_beyond_maximum(self) -> RetentionCut | None:
        maximum = self.policy.maximum
        index = 0 if maximum is None else self._first_of_at_most(maximum)
        return self.cuts[index - 1] if index else None

    def _first_of_at_most(self, value: int) -> int:
        """The index of the oldest cut that leaves at most this, the number of cuts if none does: values fall."""
        index = bisect_left(self.cuts, True, key=lambda cut: self._value_alone(cut) <= value)
        if not index or self.value(self.cuts[index - 1]) > value:  # as always but where the head lies behind the cut
            return index
        return bisect_left(self.cuts, True, hi=index - 1, key=lambda cut: self.value(cut) <= value)

    def _value_alone(self, cut: RetentionCut) -> int:
        """The value of the cut if the head lies nowhere behind it, else more than that: costs nothing."""
        return self.now_ms - cut.time_ms if self.policy.is_by_time else self.cuts[-1].size_bytes - cut.size_bytes

    def latest_before(self, bound: PlacedCut, place: Place) -> RetentionCut | None:
        """The newest cut that lies before the bound everywhere: a look at few cuts, since they are in order."""
        count = bisect_left(self.cuts, True, key=lambda cut: compare_cuts(place(cut), bound) is not CutOrder.BEFORE)
        return self.cuts[count - 1] if count else None


def _by_size(limits: _Limits, bound: LowerBound, place: Place) -> Decision:
    if bound.retained_bytes < limits.policy.minimum:
        return _at_minimum(limits, limits.min_bound(), bound, place)
    maximum = limits.policy.maximum
    lags = maximum is not None and bound.retained_bytes > maximum
    most = limits.max_bound() if lags else None
    if most is None:
        return Decision(RetentionCase.WITHIN_LIMITS, at_lower_bound=True)
    if limits.value(most) >= bound.retained_bytes:
        return Decision(RetentionCase.ABOVE_MAXIMUM, at_lower_bound=True)
    overlaps = compare_cuts(bound.position, place(most)) is CutOrder.OVERLAPS
    return Decision(RetentionCase.OVERLAPPING_MAXIMUM if overlaps else RetentionCase.ABOVE_MAXIMUM, most)


def _by_time(limits: _Limits, bound: LowerBound, place: Place) -> Decision:
    least = limits.min_bound()
    if least is None or compare_cuts(place(least), bound.position) is not CutOrder.EQUAL_OR_AFTER:
        return _at_minimum(limits, least, bound, place)
    beyond = limits.newest_beyond_maximum()
    order = CutOrder.EQUAL_OR_AFTER if beyond is None else compare_cuts(bound.position, place(beyond))
    if beyond is None or order is CutOrder.EQUAL_OR_AFTER:
        return Decision(RetentionCase.WITHIN_LIMITS, at_lower_bound=True)
    if order is CutOrder.BEFORE:
        return Decision(RetentionCase.ABOVE_MAXIMUM, limits.max_bound())
    return Decision(RetentionCase.OVERLAPPING_MAXIMUM, beyond)


def _at_minimum(limits: _Limits, least: RetentionCut | None, bound: LowerBound, place: Place) -> Decision:
    """The subscribers have read into what has to stay."""
    if least is None:
        return Decision(RetentionCase.NOT_ENOUGH)
    if compare_cuts(place(least), bound.position) is CutOrder.BEFORE:
        return Decision(RetentionCase.BELOW_MINIMUM, least)
    return Decision(RetentionCase.OVERLAPPING_MINIMUM, limits.latest_before(bound.position, place))
