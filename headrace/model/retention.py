"""Retention: the stream cuts that are kept as possible points of truncation, and the choice of one of them.

The value of a cut is what remains if the stream is truncated at it. It is in bytes for policies by size. For policies
by time it is the age of the oldest event in ms. A truncation never leaves less than the policy's minimum. With
subscribers the stream is truncated at the position that all of them have read, within the minimum and the maximum. Then
the head may be after a cut of the set in some key ranges, and a truncation at such a cut leaves less than the cut alone
says.

The rules are those of Pravega's document on retention, except if a subscriber is ahead in one key range and behind in
another. In that case they keep the limits and drop fewer unread events (see docs/using/retention.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from headrace.model.stream_configuration import RetentionPolicy
from headrace.model.stream_cuts import CutOrder, PlacedCut, compare_cuts

CUTS_MAX = 128
"""The number of stream cuts that are kept of one stream. With so many, the stream keeps at most about 2 % too much."""


@dataclass(frozen=True, slots=True)
class RetentionCut:
    """A cut at the tail of a stream. `size_bytes` were written before it since the creation.

    All of them were written before `time_ms`: the tail was read before the clock.
    """

    time_ms: int
    size_bytes: int


Cuts = tuple[RetentionCut, ...]
"""The retention set: times and sizes grow strictly."""


@dataclass(frozen=True, slots=True)
class Counting:
    """The progress of counting the bytes before `place`, a cut to be added to the set. Many epochs need several steps.

    No segment of `first_epoch` is after the cut. The count starts at a position that has `before_bytes` before it.
    `size_bytes` have been counted, and the epochs from `next_epoch` on are still to be counted.
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
    """The state of a stream's retention. Times are milliseconds since the Unix epoch.

    `due_ms` is the time of the next check, None while the stream has no policy. Events that were written before
    `head_time_ms` have been truncated, as far as is known; it starts with the stream's creation.
    """

    due_ms: int | None
    head_time_ms: int
    cuts: Cuts = ()
    counting: Counting | None = None


class RetentionCase(StrEnum):
    """The reason for a decision. The first five cases are those of a stream with subscribers."""

    WITHIN_LIMITS = "within limits"
    BELOW_MINIMUM = "below minimum"
    OVERLAPPING_MINIMUM = "overlapping minimum"
    ABOVE_MAXIMUM = "above maximum"
    OVERLAPPING_MAXIMUM = "overlapping maximum"
    NO_SUBSCRIBERS = "no subscribers"
    NO_SUBSCRIBERS_ABOVE_MAXIMUM = "no subscribers, above maximum"
    NOT_ENOUGH = "not enough"


WORDS = {
    RetentionCase.WITHIN_LIMITS: "events that all subscribers have read are deleted: the rest is within the limits",
    RetentionCase.BELOW_MINIMUM: "the subscribers have read further, but the minimum is kept",
    RetentionCase.OVERLAPPING_MINIMUM: (
        "the minimum and the unread events protect different key ranges: both are kept, other events are deleted"
    ),
    RetentionCase.ABOVE_MAXIMUM: "the subscribers lag behind the maximum: unread events beyond it are deleted",
    RetentionCase.OVERLAPPING_MAXIMUM: (
        "the subscribers lag behind the maximum in some key ranges: unread events beyond it are deleted"
    ),
    RetentionCase.NO_SUBSCRIBERS: "there is no subscriber: events beyond the minimum are deleted",
    RetentionCase.NO_SUBSCRIBERS_ABOVE_MAXIMUM: (
        "there is no subscriber, and more than the maximum: the oldest events beyond the maximum are deleted"
    ),
    RetentionCase.NOT_ENOUGH: "there is no more than the minimum: no event is deleted",
}


@dataclass(frozen=True, slots=True)
class Decision:
    """Truncate at `cut`. With `at_bound`, truncate at the lower bound of the subscribers, but nowhere after `cut`."""

    case: RetentionCase
    cut: RetentionCut | None = None
    at_bound: bool = False


@dataclass(frozen=True, slots=True)
class Measures:
    """Functions by which the rules measure a stream.

    Each is called only if its result matters, since it may cost reads. `place` gives the positions of a cut of the set.
    `size_after` gives the bytes before the head of the stream, since its creation, once it is truncated at a cut of the
    set: those before the cut, and those truncated already where the head is after the cut. `remaining` gives the bytes
    up to the newest cut if the stream is truncated at the lower bound, or at the earlier of the lower bound and a cut
    of the set in each key range.
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
    """Where to truncate the stream now.

    `kept_bytes` are between the head and the newest of `cuts`. `bound` is the position that all subscribers have
    reached, neither before the head nor after the newest cut; None without subscribers.
    """
    limits = _Limits(policy, cuts, now_ms, measures)
    if bound is None:
        return _without_subscribers(limits, kept_bytes)
    if not policy.is_by_time and kept_bytes < policy.minimum:
        return Decision(RetentionCase.NOT_ENOUGH)
    return _beyond_maximum(limits, bound) or _keep_what_is_protected(limits, bound)


def with_cut(cuts: Cuts, new: RetentionCut, *, by_time: bool, cuts_max: int = CUTS_MAX) -> tuple[Cuts, Cuts]:
    """The set with a new cut, and the cuts that were removed to make space for it.

    The cut is removed whose neighbours are closest to each other, in time or in bytes. The oldest cut is kept, since it
    is the next that can be used, and so is the new one. With fewer cuts a stream is truncated later, never earlier.
    """
    kept, gone = [*cuts, new], []
    while len(kept) > cuts_max:
        places = [each.time_ms if by_time else each.size_bytes for each in kept]
        closest = min(range(1, len(kept) - 1), key=lambda index: places[index + 1] - places[index - 1])
        gone.append(kept.pop(closest))
    return tuple(kept), tuple(gone)


def cuts_after_head(cuts: Cuts, head_bytes: int) -> tuple[Cuts, Cuts]:
    """The cuts at which a stream with `head_bytes` before its head can still be truncated, and the other cuts."""
    first = bisect_left(cuts, head_bytes + 1, key=lambda cut: cut.size_bytes)
    return cuts[first:], cuts[:first]


@dataclass(frozen=True, slots=True)
class _Limits:
    """The bounds of a policy within a retention set."""

    policy: RetentionPolicy
    cuts: Cuts
    now_ms: int
    measures: Measures

    def value(self, cut: RetentionCut) -> int:
        """What remains after a truncation at the cut: bytes, or the age of the oldest event in ms."""
        return (
            self._value_alone(cut)
            if self.policy.is_by_time
            else self.cuts[-1].size_bytes - self.measures.size_after(cut)
        )

    def min_bound(self) -> RetentionCut | None:
        """Of the cuts that leave the minimum, the one that leaves the least."""
        index = self._first_of_at_most(self.policy.minimum - 1)
        return self.cuts[index - 1] if index else None

    def max_bound(self) -> RetentionCut | None:
        """The cut that leaves the most within minimum and maximum; without one, the cut of `min_bound`."""
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
        """The index of the oldest cut that leaves at most `value`, or the number of cuts. Newer cuts leave less."""
        index = bisect_left(self.cuts, True, key=lambda cut: self._value_alone(cut) <= value)
        if not index or self.value(self.cuts[index - 1]) > value:  # always, unless the head is after the cut
            return index
        return bisect_left(self.cuts, True, hi=index - 1, key=lambda cut: self.value(cut) <= value)

    def _value_alone(self, cut: RetentionCut) -> int:
        """The value of the cut without a read. If the head is after the cut somewhere, it is more than the value."""
        return self.now_ms - cut.time_ms if self.policy.is_by_time else self.cuts[-1].size_bytes - cut.size_bytes

    def unread_before(self, cut: RetentionCut) -> int:
        """The bytes between the lower bound and a cut, in the key ranges where the cut is later."""
        return self.measures.remaining(cut) - (self.cuts[-1].size_bytes - self.measures.size_after(cut))

    def newest_before_minimum(self) -> RetentionCut | None:
        """For policies by size: the newest cut that leaves the minimum if unread events before it are kept as well."""
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
    """The decision if the unread events alone exceed the maximum; None if they do not.

    The maximum is checked before the minimum. So a subscriber that has read into the minimum in one key range cannot
    prevent the maximum from being applied in another key range.
    """
    if not _lags(limits, bound):
        return None
    most = limits.max_bound()
    if not limits.policy.is_by_time and (most is None or limits.value(most) >= limits.measures.remaining(None)):
        return Decision(RetentionCase.ABOVE_MAXIMUM, at_bound=True)  # no cut leaves less and still the minimum
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
        if beyond is None or compare_cuts(bound, limits.measures.place(beyond)) is CutOrder.EQUAL_OR_AFTER:
            return False
        return limits.unread_before(beyond) > 0  # a subscriber may be at an empty segment that was replaced since
    maximum = limits.policy.maximum
    return maximum is not None and limits.measures.remaining(None) > maximum


def _keep_what_is_protected(limits: _Limits, bound: PlacedCut) -> Decision:
    """The decision that keeps only the unread events and the events within the minimum."""
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
