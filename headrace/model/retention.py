"""Retention: which stream cuts of a stream are kept as places to truncate at, and where it is truncated.

The value of a cut is what would remain if the stream were truncated at it: bytes for policies by size, the age of the
oldest event in ms for policies by time. A stream is never truncated where less than the policy's minimum would remain.
With subscribers it is truncated where all of them have read to, between the minimum and the maximum. The head may then
lie behind a cut of the set in some key ranges: a truncation at such a cut leaves less than the cut alone says.

The rules are those of Pravega's document on retention, except where a subscriber is ahead in one key range and behind
in another. There they keep the limits and drop fewer unread events (docs/using/retention.md says how).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from headrace.model.stream_configuration import RetentionPolicy
from headrace.model.stream_cut_order import CutOrder, PlacedCut, compare_cuts

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
class Counting:
    """How far the bytes before `place`, a cut that is to join the set, are counted: over many epochs it takes a while.

    No segment of `first_epoch` lies behind the cut. It is counted on from a place before which `before_bytes` lie;
    `size_bytes` are counted, and the epochs from `next_epoch` on are missing.
    """

    place: PlacedCut
    first_epoch: int
    before_bytes: int
    next_epoch: int
    size_bytes: int

    @property
    def is_done(self) -> bool:
        return self.next_epoch > self.place.cut.last_epoch


@dataclass(frozen=True, slots=True)
class RetentionState:
    """Where a stream's retention is. Times are milliseconds since the Unix epoch.

    `due_ms` is when it is looked at next, None while the stream has no policy. What was written before `head_time_ms`
    is gone, as far as is known; it starts with the stream's creation.
    """

    due_ms: int | None
    head_time_ms: int
    cuts: Cuts = ()
    counting: Counting | None = None


class RetentionCase(StrEnum):
    """Why a stream is truncated where it is; the first five are those of a stream with subscribers."""

    WITHIN_LIMITS = "within limits"
    BELOW_MINIMUM = "below minimum"
    OVERLAPPING_MINIMUM = "overlapping minimum"
    ABOVE_MAXIMUM = "above maximum"
    OVERLAPPING_MAXIMUM = "overlapping maximum"
    NO_SUBSCRIBERS = "no subscribers"
    NO_SUBSCRIBERS_ABOVE_MAXIMUM = "no subscribers, above maximum"
    NOT_ENOUGH = "not enough"


WORDS = {
    RetentionCase.WITHIN_LIMITS: "what all subscribers have read goes: what remains lies within the limits",
    RetentionCase.BELOW_MINIMUM: "the subscribers have read further, but the minimum has to stay",
    RetentionCase.OVERLAPPING_MINIMUM: (
        "the minimum and the unread events protect different key ranges: both stay, and all else goes"
    ),
    RetentionCase.ABOVE_MAXIMUM: "the subscribers lag behind the maximum: unread events beyond it go",
    RetentionCase.OVERLAPPING_MAXIMUM: (
        "the subscribers lag behind the maximum in some key ranges: unread events beyond it go"
    ),
    RetentionCase.NO_SUBSCRIBERS: "there is no subscriber: all but the minimum goes",
    RetentionCase.NO_SUBSCRIBERS_ABOVE_MAXIMUM: (
        "there is no subscriber, and more than the maximum: the oldest events go until the maximum is left"
    ),
    RetentionCase.NOT_ENOUGH: "there is no more than the minimum: everything stays",
}


@dataclass(frozen=True, slots=True)
class Decision:
    """Truncate at `cut`; with `at_bound` at the lower bound of the subscribers, but in no key range behind `cut`."""

    case: RetentionCase
    cut: RetentionCut | None = None
    at_bound: bool = False


@dataclass(frozen=True, slots=True)
class Measures:
    """What the rules ask about a stream; each is called only where its answer matters, since it may cost reads.

    `place` gives the positions of a cut of the set. `size_after` gives the bytes before the head of the stream, since
    its creation, once it is truncated at a cut of the set: those before the cut, and what is gone already where the
    head lies behind the cut. `remaining` gives the bytes up to the newest cut if the stream is truncated at the lower
    bound, or at the earlier of the lower bound and a cut of the set in each key range.
    """

    place: Callable[[RetentionCut], PlacedCut]
    size_after: Callable[[RetentionCut], int]
    remaining: Callable[[RetentionCut | None], int]


def decide(
    policy: RetentionPolicy,
    cuts: Cuts,
    now_ms: int,
    kept_bytes: int,
    bound: PlacedCut | None,
    measures: Measures,
) -> Decision:
    """Where the stream is to be truncated now.

    `kept_bytes` lie between the head and the newest of `cuts`. `bound` is where all subscribers have read to, neither
    before the head nor behind the newest cut; None without subscribers.
    """
    limits = _Limits(policy, cuts, now_ms, measures)
    if bound is None:
        return _without_subscribers(limits, kept_bytes)
    if not policy.is_by_time and kept_bytes < policy.minimum:
        return Decision(RetentionCase.NOT_ENOUGH)
    return _beyond_maximum(limits, bound) or _keep_what_is_protected(limits, bound)


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
    measures: Measures

    def value(self, cut: RetentionCut) -> int:
        """What remains after truncating at the cut: bytes, or the age in ms of the oldest event."""
        return (
            self._value_alone(cut)
            if self.policy.is_by_time
            else self.cuts[-1].size_bytes - self.measures.size_after(cut)
        )

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

    def newest_before_minimum(self) -> RetentionCut | None:
        """By size: the newest cut that leaves the minimum, if what is unread before it stays as well."""
        count = bisect_left(self.cuts, True, key=lambda cut: self.measures.remaining(cut) < self.policy.minimum)
        return self.cuts[count - 1] if count else None


def _without_subscribers(limits: _Limits, kept_bytes: int) -> Decision:
    policy = limits.policy
    if not policy.is_by_time and policy.maximum is not None and kept_bytes > policy.maximum:
        most = limits.max_bound()
        if most is not None:
            return Decision(RetentionCase.NO_SUBSCRIBERS_ABOVE_MAXIMUM, most)
    least = limits.min_bound()
    return Decision(RetentionCase.NO_SUBSCRIBERS, least) if least else Decision(RetentionCase.NOT_ENOUGH)


def _beyond_maximum(limits: _Limits, bound: PlacedCut) -> Decision | None:
    """What to do if the unread events alone exceed the maximum; None if they do not.

    This comes before the minimum is looked at: a subscriber that has read into the minimum in one key range must not
    keep the maximum from being applied to another.
    """
    if not _lags(limits, bound):
        return None
    most = limits.max_bound()
    if not limits.policy.is_by_time and (most is None or limits.value(most) >= limits.measures.remaining(None)):
        return Decision(RetentionCase.ABOVE_MAXIMUM, at_bound=True)  # no cut leaves less and yet the minimum
    if most is None:
        return None
    order = compare_cuts(bound, limits.measures.place(most))
    if order is CutOrder.EQUAL_OR_AFTER:
        return None
    is_before = order is CutOrder.BEFORE
    return Decision(RetentionCase.ABOVE_MAXIMUM if is_before else RetentionCase.OVERLAPPING_MAXIMUM, most)


def _lags(limits: _Limits, bound: PlacedCut) -> bool:
    if limits.policy.is_by_time:
        beyond = limits.newest_beyond_maximum()
        return beyond is not None and compare_cuts(bound, limits.measures.place(beyond)) is not CutOrder.EQUAL_OR_AFTER
    maximum = limits.policy.maximum
    return maximum is not None and limits.measures.remaining(None) > maximum


def _keep_what_is_protected(limits: _Limits, bound: PlacedCut) -> Decision:
    """Keep what is unread and what the minimum protects, and no more."""
    if limits.policy.is_by_time:
        least = limits.min_bound()
    elif limits.measures.remaining(None) >= limits.policy.minimum:
        return Decision(RetentionCase.WITHIN_LIMITS, at_bound=True)
    else:
        least = limits.newest_before_minimum()
    if least is None:
        return Decision(RetentionCase.NOT_ENOUGH)
    order = compare_cuts(limits.measures.place(least), bound)
    if order is CutOrder.EQUAL_OR_AFTER:
        return Decision(RetentionCase.WITHIN_LIMITS, at_bound=True)
    if order is CutOrder.BEFORE:
        return Decision(RetentionCase.BELOW_MINIMUM, least)
    return Decision(RetentionCase.OVERLAPPING_MINIMUM, least, at_bound=True)
